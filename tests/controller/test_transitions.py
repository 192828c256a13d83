"""Transitions against a real store: what they write, what they refuse, and who wins a race."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio

from controller.transitions import (
    ATTEMPTS,
    InvalidProperties,
    PreconditionFailed,
    TooManySegments,
    TopicLimits,
    Transitions,
)
from layout.errors import InvalidSegmentCount, SegmentNotActive, SegmentNotFound, SegmentsNotAdjacent
from layout.records import TopicRecord, decode
from metadata.errors import NamespaceMissing, TopicExists, TopicMissing, VersionConflict
from metadata.records import StoredTopic, Version
from metadata.store import TopicStore, open_store
from protocol.errors import InvalidName
from protocol.names import TopicName
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology

TOPIC = TopicName.scalable("public", "default", "orders")
NOW = 1_800_000_000_000


@asynccontextmanager
async def opened(
    valkey: ValkeyProcess | Topology, limits: TopicLimits | None = None, *, auto_create: bool = True
) -> AsyncIterator[tuple[TopicStore, Transitions]]:
    async with open_store(valkey.url) as store:
        yield (
            store,
            Transitions(store, limits or TopicLimits(), auto_create=auto_create, now_ms=lambda: NOW),
        )


async def record_of(store: TopicStore, topic: TopicName = TOPIC) -> TopicRecord:
    stored = await store.get(topic)
    assert stored is not None
    return decode(stored.value)


async def outcomes(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """What each call returned or raised, all of them started at once."""
    results: list[Any] = [None] * len(calls)

    async def run(index: int, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            results[index] = await call()
        except Exception as error:
            results[index] = error

    async with trio.open_nursery() as nursery:
        for index, call in enumerate(calls):
            nursery.start_soon(run, index, call)
    return results


class InterferedStore:
    """A real store where somebody else is always faster: before each write of ours, `interfere` does one of its own."""

    def __init__(self, store: TopicStore, interfere: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._interfere = interfere
        self.writes = 0

    async def get(self, topic: TopicName) -> StoredTopic | None:
        return await self._store.get(topic)

    async def replace(self, *args: Any, **kwargs: Any) -> Version:
        self.writes += 1
        await self._interfere()
        return await self._store.replace(*args, **kwargs)


async def test_create_writes_the_layout_the_properties_and_the_namespace(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, transitions):
        await transitions.create(TOPIC, 3, {"team": "blue"})
        record = await record_of(store)
        assert [s.descriptor for s in record.layout.active] == ["0000-5554-0", "5555-aaa9-1", "aaaa-ffff-2"]
        assert record.properties == {"team": "blue"}
        assert {s.created_at_ms for s in record.layout.active} == {NOW}
        assert await store.get_namespace(TOPIC.namespace_name) is not None


async def test_second_create_is_refused_and_changes_nothing(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, transitions):
        await transitions.create(TOPIC, 1)
        with pytest.raises(TopicExists):
            await transitions.create(TOPIC, 4)
        assert len((await record_of(store)).layout.segments) == 1


async def test_missing_namespace_is_refused_without_auto_create(valkey: ValkeyProcess) -> None:
    async with opened(valkey, auto_create=False) as (store, transitions):
        with pytest.raises(NamespaceMissing, match="public/default"):
            await transitions.create(TOPIC, 1)
        assert await store.get(TOPIC) is None
        await store.create_namespace(TOPIC.namespace_name)
        await transitions.create(TOPIC, 1)


@pytest.mark.parametrize("count", [0, -1])
async def test_topic_needs_a_segment(valkey: ValkeyProcess, count: int) -> None:
    async with opened(valkey) as (_, transitions):
        with pytest.raises(InvalidSegmentCount):
            await transitions.create(TOPIC, count)


@pytest.mark.parametrize("local", [" a", "a ", "a\x00b", "a\nb"])
async def test_names_that_cause_trouble_are_not_created(valkey: ValkeyProcess, local: str) -> None:
    async with opened(valkey) as (store, transitions):
        with pytest.raises(InvalidName):
            await transitions.create(TopicName.scalable("public", "default", local), 1)
        assert await store.list_namespaces() == []


@pytest.mark.parametrize(
    "properties",
    [{"a": "1", "b": "2", "c": "3"}, {"": "x"}, {"a": "x" * 10}, {"ü" * 5: ""}],
    ids=["too many", "no name", "long value", "long name in bytes"],
)
async def test_properties_past_their_bounds_are_refused(valkey: ValkeyProcess, properties: dict[str, str]) -> None:
    async with opened(valkey, TopicLimits(max_properties=2, max_property_size=9)) as (_, transitions):
        with pytest.raises(InvalidProperties):
            await transitions.create(TOPIC, 1, properties)
        await transitions.create(TOPIC, 1, {"a": "x" * 8, "ü": "y"})
        with pytest.raises(InvalidProperties):
            await transitions.update_properties(TOPIC, properties)


async def test_split_seals_the_parent_at_the_moment_its_children_begin(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, transitions):
        await transitions.create(TOPIC, 1, {"team": "blue"})
        after = await transitions.split(TOPIC, 0)
        record = await record_of(store)
        record.layout.validate()
        parent = record.layout.segments[0]
        assert [s.descriptor for s in record.layout.active] == ["0000-7fff-1", "8000-ffff-2"]
        assert (parent.sealed_at_ms, parent.sealed_at_epoch) == (NOW, 1)
        assert record.properties == {"team": "blue"}
        stored = await store.get(TOPIC)
        assert stored is not None
        assert (stored.value, stored.version) == (after.value, after.version)


async def test_merge_undoes_a_split(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, transitions):
        await transitions.create(TOPIC, 1)
        await transitions.split(TOPIC, 0)
        await transitions.merge(TOPIC, 2, 1)
        layout = (await record_of(store)).layout
        layout.validate()
        assert [s.descriptor for s in layout.active] == ["0000-ffff-3"]


async def test_refusals_of_the_layout_come_through(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (_, transitions):
        await transitions.create(TOPIC, 3)
        with pytest.raises(SegmentNotFound):
            await transitions.split(TOPIC, 9)
        with pytest.raises(SegmentsNotAdjacent):
            await transitions.merge(TOPIC, 0, 2)
        await transitions.split(TOPIC, 0)
        with pytest.raises(SegmentNotActive):
            await transitions.split(TOPIC, 0)


async def test_sealed_segments_count_against_the_limit(valkey: ValkeyProcess) -> None:
    async with opened(valkey, TopicLimits(max_segments=4)) as (store, transitions):
        with pytest.raises(TooManySegments, match="5 segments"):
            await transitions.create(TOPIC, 5)
        await transitions.create(TOPIC, 1)
        await transitions.split(TOPIC, 0)
        with pytest.raises(TooManySegments, match="sealed ones included"):
            await transitions.split(TOPIC, 1)
        await transitions.merge(TOPIC, 1, 2)
        assert len((await record_of(store)).layout.segments) == 4


async def test_new_properties_leave_the_layout_alone(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, transitions):
        await transitions.create(TOPIC, 2, {"old": "1"})
        before = await record_of(store)
        updated = await transitions.update_properties(TOPIC, {"new": "2"})
        after = await record_of(store)
        assert after.properties == {"new": "2"}
        assert after.layout == before.layout
        with pytest.raises(PreconditionFailed):
            await transitions.update_properties(TOPIC, {}, if_match=Version(updated.version.incarnation, 0))


async def test_every_transition_of_a_missing_topic_says_so(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (_, transitions):
        results = await outcomes(
            lambda: transitions.split(TOPIC, 0),
            lambda: transitions.merge(TOPIC, 0, 1),
            lambda: transitions.delete(TOPIC),
            lambda: transitions.update_properties(TOPIC, {}),
        )
        assert [type(result) for result in results] == [TopicMissing] * 4


async def test_stale_version_is_refused_at_once(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, transitions):
        first = await transitions.create(TOPIC, 2)
        second = await transitions.split(TOPIC, 0, if_match=first.version)
        for call in (
            lambda: transitions.split(TOPIC, 1, if_match=first.version),
            lambda: transitions.merge(TOPIC, 2, 3, if_match=first.version),
            lambda: transitions.delete(TOPIC, if_match=first.version),
        ):
            with pytest.raises(PreconditionFailed, match=second.version.incarnation):
                await call()
        await transitions.delete(TOPIC, if_match=second.version)
        assert await store.get(TOPIC) is None


async def test_version_of_a_deleted_topic_does_not_fit_its_successor(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (_, transitions):
        first = await transitions.create(TOPIC, 1)
        await transitions.delete(TOPIC)
        await transitions.create(TOPIC, 1)
        with pytest.raises(PreconditionFailed):
            await transitions.split(TOPIC, 0, if_match=first.version)


async def test_one_of_many_splits_of_a_segment_wins_across_nodes(topology: Topology) -> None:
    async with opened(topology) as (store, here), opened(topology) as (_, there):
        await here.create(TOPIC, 1)
        results = await outcomes(*(lambda t=t: t.split(TOPIC, 0) for t in (here, there) * 5))
        assert sum(isinstance(result, StoredTopic) for result in results) == 1
        lost = [result for result in results if not isinstance(result, StoredTopic)]
        assert {type(error) for error in lost} <= {SegmentNotActive, VersionConflict}
        layout = (await record_of(store)).layout
        layout.validate()
        assert layout.epoch == 1


async def test_one_of_two_callers_with_the_same_version_wins(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (_, here), opened(valkey) as (_, there):
        seen = (await here.create(TOPIC, 2)).version
        results = await outcomes(
            lambda: here.split(TOPIC, 0, if_match=seen), lambda: there.split(TOPIC, 1, if_match=seen)
        )
        assert sorted(type(result).__name__ for result in results) == ["PreconditionFailed", "StoredTopic"]


async def test_splits_of_different_segments_all_succeed(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, here), opened(valkey) as (_, there):
        await here.create(TOPIC, 8)
        results = await outcomes(*(lambda t=t, i=i: t.split(TOPIC, i) for i, t in enumerate((here, there) * 4)))
        assert all(isinstance(result, StoredTopic) for result in results)
        layout = (await record_of(store)).layout
        layout.validate()
        assert (layout.epoch, len(layout.active)) == (8, 16)


async def test_who_always_loses_gives_up_with_a_conflict(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, others):
        await others.create(TOPIC, 1)
        contested = InterferedStore(store, lambda: others.update_properties(TOPIC, {"other": "was here"}))
        unlucky = Transitions(cast(TopicStore, contested), TopicLimits())
        with pytest.raises(VersionConflict, match="try again"):
            await unlucky.split(TOPIC, 0)
        assert contested.writes == ATTEMPTS


async def test_who_named_a_version_tries_once(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, others):
        seen = (await others.create(TOPIC, 1)).version
        contested = InterferedStore(store, lambda: others.update_properties(TOPIC, {"other": "was here"}))
        unlucky = Transitions(cast(TopicStore, contested), TopicLimits())
        with pytest.raises(PreconditionFailed):
            await unlucky.split(TOPIC, 0, if_match=seen)
        assert contested.writes == 1


async def test_split_does_not_reach_the_successor_of_the_topic_it_was_meant_for(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, others):
        await others.create(TOPIC, 1)

        async def create_anew() -> None:
            await others.delete(TOPIC)
            await others.create(TOPIC, 1)

        unlucky = Transitions(cast(TopicStore, InterferedStore(store, create_anew)), TopicLimits())
        with pytest.raises(VersionConflict, match="created again"):
            await unlucky.split(TOPIC, 0)
        assert (await record_of(store)).layout.epoch == 0


async def test_damaged_record_can_be_deleted(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, transitions):
        await store.create(TOPIC, b"{not json", ["0000-ffff-0"])
        await transitions.delete(TOPIC)
        assert await store.get(TOPIC) is None


async def test_fields_of_other_writers_survive_a_split(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, transitions):
        created = await transitions.create(TOPIC, 1)
        foreign = created.value[:-1] + b',"migratedFrom":"persistent://a/b/c"}'
        await store.replace(TOPIC, created.version, foreign)
        after = await transitions.split(TOPIC, 0)
        assert b'"migratedFrom":"persistent://a/b/c"' in after.value
