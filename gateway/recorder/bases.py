"""Reading what a trace goes on from: every topic of some buckets as it is now, in slices on the bulk lane."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from metadata import keys
from metadata.errors import StoreLost
from metadata.records import StoredTopic
from metadata.store import TopicStore
from protocol.names import NamespaceName, TopicName

log = logging.getLogger(__name__)

# Records in one read: small enough that others on the lane do not wait long.
_SLICE: Final = 256

Take = Callable[[Sequence[tuple[int, StoredTopic]]], Awaitable[None]]


async def read_base(store: TopicStore, buckets: Collection[int], take: Take) -> set[int]:
    """Hand on all topics of these buckets; the buckets of which that were all. Raises StoreError."""
    whole = await _marked(store, buckets)
    for namespace in await store.list_namespaces():
        listed = await store.list_buckets(store.bulk, sorted(whole), namespace)
        # The others do not carry the mark of our store now, or could not be read.
        whole &= listed.keys()
        await _read_listed(store, namespace, listed, whole, take)
    return whole


async def _marked(store: TopicStore, buckets: Collection[int]) -> set[int]:
    """Those that carry the mark of our store: elsewhere, and be it in a flushed one, absence says nothing."""
    asked = sorted(buckets)
    marks = await store.bulk.gather([(keys.BUCKET_SLOTS[b], ("GET", keys.marker_key(b))) for b in asked])
    return {bucket for bucket, mark in zip(asked, marks, strict=True) if mark == store.identity.mark}


async def _read_listed(
    store: TopicStore, namespace: NamespaceName, listed: dict[int, dict[str, str]], whole: set[int], take: Take
) -> None:
    topics = [
        (bucket, TopicName.scalable(namespace.tenant, namespace.namespace, name))
        for bucket, names in listed.items()
        for name in names
    ]
    for start in range(0, len(topics), _SLICE):
        part = topics[start : start + _SLICE]
        found = []
        for (bucket, topic), stored in zip(part, await store.read(store.bulk, [t for _, t in part]), strict=True):
            if isinstance(stored, StoreLost):
                whole.discard(bucket)
            elif isinstance(stored, StoredTopic):
                found.append((bucket, stored))
            elif stored is not None:
                log.warning("a base without %s: %s", topic, stored)
        if found:
            await take(found)
