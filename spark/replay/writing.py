"""The changes of a trace made in the store, each when it is due whatever became of those before it.

Open loop: nothing waits for the answers to earlier writes, except the next write of the same topic. What is late is
sent at once, and how late it was is noted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from metadata.errors import (
    StoreDenied,
    StoreError,
    StoreFull,
    StoreLost,
    StoreUnavailable,
    TopicExists,
    TopicMissing,
    VersionConflict,
)
from metadata.records import Version
from metadata.store import TopicStore
from metadata.unwrap import unwrapped
from protocol.errors import ProtocolError
from protocol.names import NamespaceName, TopicName
from spark.errors import JobError
from spark.replay import records
from spark.replay.clock import StoreClock
from spark.replay.observing import Observations
from spark.replay.plans import ReplayPlan

# Sent or waiting behind an earlier write of their topic. Beyond it what is due waits: lateness grows, memory does not.
MAX_IN_FLIGHT: Final = 1_000
# Between two looks at what is due. A look costs half as much as a write, so a busy trace is sent in small handfuls.
_TICK_S: Final = 0.002
_GONE: Final = (StoreUnavailable, StoreLost, StoreDenied, StoreFull)
_NOT_AS_KNOWN: Final = (VersionConflict, TopicExists, TopicMissing)


class Change(NamedTuple):
    """A row of the timeline, as far as writing needs it."""

    at_us: int
    namespace: str
    topic: str
    op: str
    incarnation: str
    epoch: int | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class _Known:
    """What a topic is in the store, by the last answer about it."""

    topic: TopicName
    version: Version
    recorded_incarnation: str  # that of the trace
    created_ms: int
    epoch: int
    descriptors: tuple[str, ...]


@dataclass(slots=True)
class WriteCounts:
    seeded: int = 0
    written: int = 0
    failed: int = 0
    unreadable: int = 0  # recorded values in whose place records were made
    behind_us: int = 0


class Writer:
    """Writes the topics of one task. Nobody else writes these, so what it knows of them holds."""

    def __init__(self, store: TopicStore, plan: ReplayPlan, clock: StoreClock, observations: Observations) -> None:
        self.counts = WriteCounts()
        self._store = store
        self._plan = plan
        self._clock = clock
        self._seen = observations.writes
        self._namespaces: dict[str, NamespaceName] = {}
        self._known: dict[tuple[str, str], _Known] = {}
        self._doubtful: set[tuple[str, str]] = set()  # topics of which a write was not answered
        self._busy: dict[tuple[str, str], deque[tuple[Change, int | None]]] = {}
        self._room = trio.Semaphore(MAX_IN_FLIGHT)
        self._answered_at = trio.current_time()
        self._last_created_ms = 0
        self._given_up = False

    async def seed(self, seeds: AsyncIterable[Sequence[Change]]) -> None:
        """Create what is there from the beginning, as fast as the store takes it; all of it, or JobError."""
        with unwrapped():
            async with trio.open_nursery() as nursery:
                async for some in seeds:
                    for change in some:
                        await self._dispatch(nursery, change, None)

    async def replay(self, changes: AsyncIterable[Sequence[Change]], start_us: int) -> None:
        """Make each change when it is due; returns when all are answered."""
        self._answered_at = trio.current_time()
        clock, speed = self._clock, self._plan.speed
        now_us = clock.now_us()
        with unwrapped():
            async with trio.open_nursery() as nursery:
                async for some in changes:
                    for change in some:
                        due_us = start_us + round(change.at_us / speed)
                        while due_us > now_us:
                            await trio.sleep(max(_TICK_S, (due_us - now_us) / 1e6))
                            now_us = clock.now_us()
                        self.counts.behind_us = now_us - due_us
                        await self._dispatch(nursery, change, due_us)
                    now_us = clock.now_us()

    async def _dispatch(self, nursery: trio.Nursery, change: Change, due_us: int | None) -> None:
        try:
            self._room.acquire_nowait()
        except trio.WouldBlock:
            await self._room.acquire()
        key = change.namespace, change.topic
        waiting = self._busy.get(key)
        if waiting is not None:
            waiting.append((change, due_us))
        else:
            self._busy[key] = deque([(change, due_us)])
            nursery.start_soon(self._work_off, key)

    async def _work_off(self, key: tuple[str, str]) -> None:
        """All that is to be written for one topic, in order."""
        waiting = self._busy[key]
        while waiting:
            await self._make(key, *waiting.popleft())
            self._room.release()
        del self._busy[key]

    async def _make(self, key: tuple[str, str], change: Change, due_us: int | None) -> None:
        try:
            known = self._known.get(key)
            topic = self._name(change) if known is None else known.topic
            if key in self._doubtful:
                await self._look(key, topic, change)
            for step in self._steps(key, change):
                await self._write(key, topic, change, due_us, step)
        except (StoreError, ProtocolError) as error:
            # Reading what is there has failed, or the name is none; a failed write has its row already.
            now_us = self._clock.now_us()
            self._note_failed(key, change, change.op, due_us, now_us, str(error))
            self._judge(error)

    def _steps(self, key: tuple[str, str], change: Change) -> Iterable[str]:
        """What has to be done to the topic as it is known, so that it becomes what the change says.

        A trace with gaps may change what was never created, and create again what was never deleted.
        """
        known = self._known.get(key)
        if change.op == "delete":
            return ("delete",)
        if known is None:
            return ("create",)
        if known.recorded_incarnation != change.incarnation:
            return ("delete", "create")
        return ("change",)

    async def _write(self, key: tuple[str, str], topic: TopicName, change: Change, due_us: int | None, op: str) -> None:
        sent_us = self._clock.now_us()
        if op == "delete" and key not in self._known:
            self._note_failed(key, change, op, due_us, sent_us, "unknown")
            return
        before = self._known.get(key)
        try:
            try:
                about = await self._send(key, topic, change, op)
            except _NOT_AS_KNOWN:
                # Somebody else wrote it. What the trace says is still to become true, so look and go by that.
                await self._look(key, topic, change)
                if op == "delete" and key not in self._known:
                    self._note_failed(key, change, op, due_us, sent_us, "unknown")
                    return
                op = op if op == "delete" else "change" if key in self._known else "create"
                about = await self._send(key, topic, change, op)
        except StoreError as error:
            self._doubtful.add(key)
            self._note_failed(key, change, op, due_us, sent_us, str(error))
            self._judge(error)
            return
        self._answered_at = trio.current_time()
        if due_us is None:
            self.counts.seeded += 1
            return
        self.counts.written += 1
        if op == "change" and before is not None and before.epoch == about.epoch:
            op = "touch"  # whoever watches the layout is told nothing
        self._seen.append(
            (*key, op, due_us, sent_us, self._clock.now_us(), about.version.incarnation, about.epoch, None)
        )

    async def _send(self, key: tuple[str, str], topic: TopicName, change: Change, op: str) -> _Known:
        """One write; what it made of the topic, or what was deleted."""
        known = self._known.get(key)
        if op == "delete" and known is not None:
            await self._store.delete(topic, known.version, known.descriptors)
            return self._known.pop(key)
        if known is None:
            created_ms = self._next_created_ms()
            record = self._record(change, change.epoch or 0, created_ms)
            version = await self._store.create(topic, record.value, record.descriptors)
        else:
            created_ms = known.created_ms
            record = self._record(change, known.epoch + 1 if change.epoch is None else change.epoch, created_ms)
            # The store is not told which segments were sealed: it would have a node lead the topic to prune them some
            # day, and that is a change which is not in the trace. Where it was made, the trace has it.
            version = await self._store.replace(
                topic,
                known.version,
                record.value,
                created=_without(record.descriptors, known.descriptors),
                removed=_without(known.descriptors, record.descriptors),
            )
        written = _Known(topic, version, change.incarnation, created_ms, record.epoch, record.descriptors)
        self._known[key] = written
        return written

    async def _look(self, key: tuple[str, str], topic: TopicName, change: Change) -> None:
        """Go by what the store holds, after a write whose outcome is not known."""
        stored = await self._store.get(topic)
        before = self._known.pop(key, None)
        if stored is not None:
            record = records.recorded(stored.value) or records.made(0, 0)
            recorded_incarnation = before.recorded_incarnation if before else change.incarnation
            self._known[key] = _Known(
                topic, stored.version, recorded_incarnation, stored.ctime_ms, record.epoch, record.descriptors
            )
        self._doubtful.discard(key)

    def _record(self, change: Change, epoch: int, created_ms: int) -> records.Record:
        if change.value is not None and self._plan.values:
            record = records.recorded(change.value)
            if record is not None:
                return record
            self.counts.unreadable += 1
        return records.made(epoch, created_ms)

    def _name(self, change: Change) -> TopicName:
        namespace = self._namespaces.get(change.namespace)
        if namespace is None:
            namespace = self._namespaces[change.namespace] = self._plan.namespace_in_store(change.namespace)
        return TopicName.scalable(namespace.tenant, namespace.namespace, change.topic)

    def _next_created_ms(self) -> int:
        self._last_created_ms = max(self._last_created_ms + 1, self._clock.now_us() // 1_000)
        return self._last_created_ms

    def _note_failed(
        self, key: tuple[str, str], change: Change, op: str, due_us: int | None, sent_us: int, why: str
    ) -> None:
        if due_us is None:
            raise JobError(f"The topic {change.topic} of {change.namespace} could not be created at the start: {why}")
        self.counts.failed += 1
        self._seen.append((*key, op, due_us, sent_us, self._clock.now_us(), None, change.epoch, why))

    def _judge(self, error: Exception) -> None:
        """A refusal is an answer; a store that gives none for long is gone, and what is left would tell nothing."""
        if not isinstance(error, _GONE):
            self._answered_at = trio.current_time()
        elif not self._given_up and trio.current_time() - self._answered_at > self._plan.patience_s:
            self._given_up = True  # one of all that wait says so
            raise JobError(f"The store has taken no write for more than {self._plan.patience_s:g} s: {error}")


def _without(these: Sequence[str], those: Sequence[str]) -> list[str]:
    return [descriptor for descriptor in these if descriptor not in those]
