"""The namespaces that replays write into: told from all others by their names, and removed after the run.

A run that was killed leaves its namespaces behind. While a run lives its driver renews a mark in the store, so whatever
has no mark is a leftover.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import trio

from metadata import keys
from metadata.errors import NamespaceMissing, StoreError, TopicMissing, VersionConflict
from metadata.store import TopicStore
from protocol.names import NamespaceName, TopicName
from spark.replay import records

_NAME: Final = re.compile(r"replay-([0-9a-f]{6})-.*", re.DOTALL)
# How long a run that does not renew its mark still counts as living.
MARK_KEPT_S: Final = 60
# Set: the runs whose namespaces may be there. A name alone proves nothing, for anybody may give one like it.
RUNS: Final = b"/replay/runs"
_TOPICS_AT_ONCE: Final = 256
_NAMESPACES_AT_ONCE: Final = 8


def prefix_of(run_id: str) -> str:
    return f"replay-{run_id}-"


def run_of(namespace: NamespaceName) -> str | None:
    """The run that a namespace belongs to, None if to none."""
    match = _NAME.fullmatch(namespace.namespace)
    return match[1] if match else None


def mark_key(run_id: str) -> bytes:
    """Stands while the driver of a run lives."""
    return f"/replay/{run_id}/driver".encode()


def progress_key(run_id: str) -> bytes:
    """Where the tasks of a run tell how far they are; `ReplayPlan.progress_key` is the same."""
    return f"/replay/{run_id}".encode()


async def enlist(store: TopicStore, run_id: str) -> None:
    """Before the first write of a run: only what a listed run's namespaces are called is ever removed."""
    await store.commands.call(keys.slot_of(RUNS), "SADD", RUNS, run_id)


async def renew_mark(store: TopicStore, run_id: str) -> None:
    key = mark_key(run_id)
    await store.commands.call(keys.slot_of(key), "SET", key, b"1", "EX", MARK_KEPT_S)


async def runs_in(store: TopicStore) -> dict[str, list[NamespaceName]]:
    """The namespaces of all runs that are listed, by run."""
    listed: Collection[bytes] = await store.commands.call(keys.slot_of(RUNS), "SMEMBERS", RUNS)
    found: dict[str, list[NamespaceName]] = {run_id.decode(): [] for run_id in listed}
    for namespace in await store.list_namespaces():
        if (run_id := run_of(namespace)) in found:
            found[run_id].append(namespace)
    return found


async def living(store: TopicStore, runs: Collection[str]) -> set[str]:
    """Those of these runs whose driver has renewed its mark lately."""
    marks = [mark_key(run_id) for run_id in runs]
    there = await store.commands.gather([(keys.slot_of(key), ("EXISTS", key)) for key in marks])
    return {run_id for run_id, is_there in zip(runs, there, strict=True) if is_there}


async def topics_by_namespace(store: TopicStore) -> Mapping[NamespaceName, int]:
    """How many topics there are, of each namespace that has any."""
    counts: dict[NamespaceName, int] = {}
    for namespace in await store.list_namespaces():
        indexes = [(keys.BUCKET_SLOTS[b], ("HLEN", keys.index_key(b, namespace))) for b in range(keys.BUCKETS)]
        topics = sum(await store.bulk.gather(indexes))
        if topics:
            counts[namespace] = topics
    return counts


async def remove_run(store: TopicStore, run_id: str) -> int:
    """Remove all that a run has written, and its keys; how many namespaces that were.

    Every step may be repeated: whoever is interrupted leaves something that the next one finds.
    """
    removed = 0
    # Once more after that: a task that was just ended may have had a namespace in the making.
    while namespaces := (await runs_in(store)).get(run_id, []):
        limit = trio.CapacityLimiter(_NAMESPACES_AT_ONCE)

        async def remove(namespace: NamespaceName, limit: trio.CapacityLimiter = limit) -> None:
            async with limit:
                await remove_namespace(store, namespace)

        async with trio.open_nursery() as nursery:
            for namespace in namespaces:
                nursery.start_soon(remove, namespace)
        removed += len(namespaces)
    for key in (progress_key(run_id), mark_key(run_id)):
        await store.commands.call(keys.slot_of(key), "UNLINK", key)
    # Last, so that whoever is interrupted before leaves a run that is found again.
    await store.commands.call(keys.slot_of(RUNS), "SREM", RUNS, run_id)
    return removed


async def remove_namespace(store: TopicStore, namespace: NamespaceName) -> None:
    """Remove one with its topics; none is created in it meanwhile."""
    assert run_of(namespace) is not None, f"{namespace} is no namespace of a replay"
    await store.close_namespace(namespace)
    while locals_ := await store.list_topics(namespace):
        for start in range(0, len(locals_), _TOPICS_AT_ONCE):
            await _delete_topics(store, namespace, locals_[start : start + _TOPICS_AT_ONCE])
    try:
        await store.delete_namespace(namespace)
    except NamespaceMissing:
        pass  # whoever was interrupted came as far as this
    await store.reopen_namespace(namespace)


async def _delete_topics(store: TopicStore, namespace: NamespaceName, locals_: Sequence[str]) -> None:
    topics = [TopicName.scalable(namespace.tenant, namespace.namespace, local) for local in locals_]
    failures: list[StoreError] = []

    async def delete(topic: TopicName) -> None:
        for attempt in range(3):
            stored = await store.get(topic)
            if stored is None:
                return
            record = records.recorded(stored.value)
            try:
                await store.delete(topic, stored.version, record.descriptors if record else ())
            except TopicMissing:
                return
            except VersionConflict as error:
                if attempt == 2:
                    failures.append(error)
            else:
                return

    async with trio.open_nursery() as nursery:
        for topic in topics:
            nursery.start_soon(delete, topic)
    if failures:
        raise failures[0]
