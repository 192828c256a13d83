"""Reading back what changed: one read of a topic at a time, shared by all who want it, and never without trust."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise

import trio
import trio.testing
from trio.testing import MockClock

from metadata import keys
from metadata.errors import StoreUnavailable
from metadata.records import StoredTopic, Version
from protocol.names import TopicName
from sessions.readback import Found, ReadBack

BUCKET = 7


def _paths_in_bucket(count: int) -> list[str]:
    paths = (f"public/default/topic-{number}" for number in range(1_000_000))
    mine = (path for path in paths if keys.bucket_of(path) == BUCKET)
    return [next(mine) for _ in range(count)]


PATHS = _paths_in_bucket(600)
A, B, C = PATHS[:3]


class Wanting:
    """A listener that remembers what it was told."""

    def __init__(self, *paths: str) -> None:
        self.wanted = set(paths)
        self.told: list[tuple[str, int | None]] = []
        self.gaps: list[list[int]] = []
        self.fault: Exception | None = None
        self.patient_until = float("-inf")

    def wants(self, bucket: int, path: str) -> bool:
        return bucket == BUCKET and path in self.wanted

    def patience(self, bucket: int, path: str) -> float:
        return self.patient_until

    def apply(self, bucket: int, path: str, found: Found) -> None:
        assert bucket == BUCKET
        self.told.append((path, found.version.number if isinstance(found, StoredTopic) else None))
        if self.fault is not None:
            raise self.fault

    def gap(self, buckets: Collection[int]) -> None:
        self.gaps.append(list(buckets))


class Stage:
    """A store in memory: topic at a path to version. What a read gives is what was there when it began."""

    def __init__(self, nursery: trio.Nursery, listeners: Sequence[Wanting]) -> None:
        self.versions = dict.fromkeys(PATHS, 0)
        self.trusted = True
        self.batches: list[list[str]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.failures: list[Exception] = []
        self.gate = trio.Event()
        self.gate.set()
        self.readback = ReadBack(nursery=nursery, read=self._read, trusted=lambda _: self.trusted)
        for listener in listeners:
            self.readback.add(listener)

    def change(self, *paths: str) -> None:
        for path in paths:
            self.versions[path] += 1
            self.readback.changed(BUCKET, path)

    async def _read(self, topics: Sequence[TopicName]) -> list[Found]:
        self.batches.append([keys.path_of(topic) for topic in topics])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        seen = [(topic, self.versions.get(keys.path_of(topic))) for topic in topics]
        await self.gate.wait()
        await trio.lowlevel.checkpoint()
        self.at_once -= 1
        if self.failures:
            raise self.failures.pop()
        return [
            None if number is None else StoredTopic(topic, b"", Version("i", number), 0, 0) for topic, number in seen
        ]


@asynccontextmanager
async def staged(*listeners: Wanting) -> AsyncIterator[Stage]:
    async with trio.open_nursery() as nursery:
        yield Stage(nursery, listeners)
        nursery.cancel_scope.cancel()


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked()


async def test_one_read_serves_all_who_want_a_topic_and_nobody_else(mock_clock: MockClock) -> None:
    first, second, third = Wanting(A, B), Wanting(A), Wanting(C)
    async with staged(first, second, third) as stage:
        stage.change(A)
        await settle()
        assert (first.told, second.told, third.told) == ([(A, 1)], [(A, 1)], [])
        assert stage.batches == [[A]]
        assert stage.readback.counters.reads == 1


async def test_what_nobody_wants_is_not_read(mock_clock: MockClock) -> None:
    async with staged(Wanting(B)) as stage:
        stage.change(A)
        await settle()
        assert not stage.batches
        assert not stage.readback.is_marked(BUCKET, A)


async def test_many_changes_are_read_in_batches_one_after_the_other(mock_clock: MockClock) -> None:
    listener = Wanting(*PATHS)
    async with staged(listener) as stage:
        stage.change(*PATHS, *PATHS)
        await settle()
        assert [len(batch) for batch in stage.batches] == [256, 256, 88]
        assert listener.told == [(path, 2) for path in PATHS]
        assert stage.most_at_once == 1
        assert stage.readback.counters.batches == {256: 2, 128: 1}


async def test_changes_during_a_read_are_one_more_read(mock_clock: MockClock) -> None:
    listener = Wanting(A, B)
    async with staged(listener) as stage:
        stage.gate = trio.Event()
        stage.change(A)
        await settle()
        assert stage.readback.under_way(BUCKET) == {A}
        assert not stage.readback.is_settled(BUCKET, A)
        stage.change(A, A, B)
        assert stage.readback.is_marked(BUCKET, A)
        stage.gate.set()
        await settle()
        assert listener.told == [(A, 1), (A, 3), (B, 1)]
        assert stage.most_at_once == 1
        assert stage.readback.is_settled(BUCKET, A)
        assert not stage.readback.under_way(BUCKET)


async def test_a_topic_that_is_gone_is_told_as_such(mock_clock: MockClock) -> None:
    listener = Wanting(A)
    async with staged(listener) as stage:
        del stage.versions[A]
        stage.readback.changed(BUCKET, A)
        await settle()
        assert listener.told == [(A, None)]


async def test_a_failed_read_is_tried_again_later_and_later(mock_clock: MockClock) -> None:
    listener = Wanting(A, B)
    async with staged(listener) as stage:
        stage.failures = [RuntimeError("a fault of ours"), StoreUnavailable("away")]
        stage.change(A)
        await settle()
        stage.change(B)  # joins the next try
        for _ in range(2):
            assert not listener.told
            mock_clock.jump(0.1)
            await settle()
        assert sorted(listener.told) == sorted([(A, 1), (B, 1)])
        assert stage.readback.counters.failed == 2


async def test_nothing_is_read_without_trust_and_a_gap_is_passed_on(mock_clock: MockClock) -> None:
    first, second = Wanting(A), Wanting(B)
    async with staged(first, second) as stage:
        stage.trusted = False
        stage.change(A)
        await settle()
        assert not stage.batches
        assert not stage.readback.is_settled(BUCKET, A)
        stage.trusted = True
        stage.readback.gap([BUCKET, 8])
        assert first.gaps == second.gaps == [[BUCKET, 8]]
        stage.readback.mark(BUCKET, A)
        await settle()
        assert first.told == [(A, 1)]


async def test_what_was_read_while_trust_was_lost_does_not_count(mock_clock: MockClock) -> None:
    listener = Wanting(A, B)
    async with staged(listener) as stage:
        stage.gate = trio.Event()
        stage.change(A, B)
        await settle()
        stage.trusted = False
        stage.gate.set()
        await settle()
        assert not listener.told
        assert stage.readback.is_marked(BUCKET, A)
        assert not stage.readback.under_way(BUCKET)
        stage.versions[A] = 9
        stage.trusted = True
        stage.readback.mark(BUCKET, B)
        await settle()
        assert sorted(listener.told) == sorted([(A, 9), (B, 1)])


async def test_trust_lost_while_results_are_handed_on_stops_them(mock_clock: MockClock) -> None:
    class Doubting(Wanting):
        def apply(self, bucket: int, path: str, found: Found) -> None:
            super().apply(bucket, path, found)
            if len(self.told) == 20:
                stage.trusted = False

    listener = Doubting(*PATHS[:100])
    async with staged(listener) as stage:
        stage.change(*PATHS[:100])
        await settle()
        assert len(listener.told) == 20
        stage.trusted = True
        stage.readback.mark(BUCKET, PATHS[99])
        await settle()
        assert len(listener.told) == 100
        assert len(stage.batches) == 2


async def test_a_listener_that_fails_on_a_record_harms_neither_others_nor_later_records(mock_clock: MockClock) -> None:
    failing, healthy = Wanting(A, B), Wanting(A, B)
    failing.fault = RuntimeError("a fault of ours")
    async with staged(failing, healthy) as stage:
        stage.change(A, B)
        await settle()
        assert failing.told == healthy.told == [(A, 1), (B, 1)]
        assert len(stage.batches) == 1


async def test_a_topic_that_lost_its_listener_is_neither_read_nor_told(mock_clock: MockClock) -> None:
    listener = Wanting(A, B, C)
    async with staged(listener) as stage:
        stage.change(A, B)
        listener.wanted.discard(A)
        stage.readback.unmark(BUCKET, A)
        stage.readback.unmark(BUCKET, B)  # is wanted still
        assert stage.readback.is_marked(BUCKET, B)
        stage.gate = trio.Event()
        await settle()
        listener.wanted.discard(B)
        stage.gate.set()
        await settle()
        assert stage.batches == [[B]]
        assert listener.told == []


async def test_results_are_handed_on_with_pauses_for_others(mock_clock: MockClock) -> None:
    listener = Wanting(*PATHS[:100])
    turns: list[int] = []

    async def look() -> None:
        while True:
            turns.append(len(listener.told))
            await trio.lowlevel.checkpoint()

    async with staged(listener) as stage, trio.open_nursery() as nursery:
        nursery.start_soon(look)
        stage.change(*PATHS[:100])
        while len(listener.told) < 100:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert max(after - before for before, after in pairwise(turns)) <= 16


# ---- What can wait


async def test_changes_that_nobody_would_be_told_of_before_are_read_together_when_they_are_due(
    mock_clock: MockClock,
) -> None:
    listener = Wanting(A, B, C)
    listener.patient_until = trio.current_time() + 1
    async with staged(listener) as stage:
        for path in (A, B, A, C):
            stage.change(path)
            mock_clock.jump(0.2)
            await settle()
        assert not stage.batches
        mock_clock.jump(0.2)
        await settle()
        assert stage.batches == [[A, B, C]]
        assert listener.told == [(A, 2), (B, 1), (C, 1)]
        # From then on it is past, so that the next one is read at once.
        stage.change(B)
        await settle()
        assert stage.batches[1:] == [[B]]


async def test_a_topic_that_somebody_cannot_wait_for_is_read_at_once(mock_clock: MockClock) -> None:
    patient, hasty = Wanting(A, B), Wanting(B)
    patient.patient_until = trio.current_time() + 1
    async with staged(patient, hasty) as stage:
        stage.change(A, B)
        await settle()
        assert stage.batches == [[B]]
        assert (patient.told, hasty.told) == ([(B, 1)], [(B, 1)])
        mock_clock.jump(1)
        await settle()
        assert stage.batches == [[B], [A]]


async def test_whoever_can_wait_long_does_not_make_others_wait(mock_clock: MockClock) -> None:
    recorder, watcher = Wanting(A, B), Wanting(B)
    recorder.patient_until = trio.current_time() + 10
    watcher.patient_until = trio.current_time() + 1
    async with staged(recorder, watcher) as stage:
        stage.change(A, B)
        mock_clock.jump(1)
        await settle()
        assert watcher.told == [(B, 1)]
        assert stage.batches == [[A, B]]


async def test_what_nobody_wants_any_more_when_it_is_due_is_not_read(mock_clock: MockClock) -> None:
    listener = Wanting(A)
    listener.patient_until = trio.current_time() + 1
    async with staged(listener) as stage:
        stage.change(A)
        listener.wanted.clear()
        mock_clock.jump(1)
        await settle()
        assert not stage.batches


async def test_what_can_wait_and_is_due_while_the_store_cannot_be_trusted_is_read_after_the_gap(
    mock_clock: MockClock,
) -> None:
    listener = Wanting(A)
    listener.patient_until = trio.current_time() + 1
    async with staged(listener) as stage:
        stage.change(A)
        stage.trusted = False
        mock_clock.jump(1)
        await settle()
        assert not stage.batches
        stage.trusted = True
        stage.readback.gap([BUCKET])
        await settle()
        assert listener.told == [(A, 1)]
