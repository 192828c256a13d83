"""All logs that lie in a bucket, of segments and of classic topics, a slice at a time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Final

from layout import records
from layout.errors import InvalidRecord
from metadata import keys
from metadata.complaints import complain
from metadata.index_entries import index_entries
from metadata.log_places import LogPlace
from metadata.log_standings import store_lost
from metadata.records import StoredTopic
from metadata.store import TopicStore
from protocol.names import NamespaceName, TopicName

log = logging.getLogger(__name__)

# Namespaces, and then topics, that are read together: a few milliseconds of work at most.
_SLICE: Final = 64


async def logs_in(store: TopicStore, bucket: int) -> AsyncIterator[list[LogPlace]]:
    """Without topics whose record cannot be read. Raises StoreError."""
    namespaces = await store.list_namespaces()
    for start in range(0, len(namespaces), _SLICE):
        scalable, classic = await _topics_in(store, bucket, namespaces[start : start + _SLICE])
        for first in range(0, len(scalable), _SLICE):
            stored = await store.get_many(scalable[first : first + _SLICE])
            yield [place for topic in stored if topic is not None for place in _segment_logs(topic)]
        for first in range(0, len(classic), _SLICE):
            yield [LogPlace.of_classic(topic) for topic in classic[first : first + _SLICE]]


async def _topics_in(
    store: TopicStore, bucket: int, namespaces: Sequence[NamespaceName]
) -> tuple[list[TopicName], list[TopicName]]:
    """The scalable and the classic topics of these namespaces."""
    slot = keys.BUCKET_SLOTS[bucket]
    indexes = [index(bucket, each) for index in (keys.index_key, keys.classic_index_key) for each in namespaces]
    mark, *found = await store.bulk.gather(
        [(slot, ("GET", keys.marker_key(bucket))), *((slot, ("HGETALL", index)) for index in indexes)]
    )
    if mark != store.identity.mark:
        raise store_lost()
    listed = [
        [(each, name) for name in index_entries(bucket, each, entries, classic=number >= len(namespaces))]
        for number, (each, entries) in enumerate(zip([*namespaces, *namespaces], found, strict=True))
    ]
    scalable = [name for names in listed[: len(namespaces)] for name in names]
    classic = [name for names in listed[len(namespaces) :] for name in names]
    return (
        [TopicName.scalable(each.tenant, each.namespace, local) for each, local in scalable],
        [TopicName.classic(each.tenant, each.namespace, local) for each, local in classic],
    )


def _segment_logs(stored: StoredTopic) -> list[LogPlace]:
    try:
        segments = records.decode_layout(stored.value).segments.values()
    except InvalidRecord as error:
        complain(log, "the segments of %s are not known: %s", stored.name, error)
        return []
    # The log of a legacy segment is that of a classic topic.
    return [LogPlace.of_segment(stored.name, each.descriptor) for each in segments if not each.is_legacy]
