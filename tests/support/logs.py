"""Logs of segments on a real store: a topic, and nodes that claim what it consists of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from controller.transitions import TopicLimits, Transitions
from metadata.records import StoredTopic
from metadata.segment_logs import Entry, LogPlace, LogState, Opened, SegmentLogs
from metadata.store import TopicStore, open_store
from protocol.names import TopicName

TOPIC = TopicName.scalable("public", "default", "orders")
PLACE = LogPlace.of_segment(TOPIC, "0000-ffff-0")
# Sessions of nodes.
A, B = "a" * 16, "b" * 16


@dataclass(frozen=True, slots=True)
class LogBench:
    store: TopicStore
    logs: SegmentLogs
    transitions: Transitions

    async def topic(self) -> StoredTopic:
        stored = await self.store.get(TOPIC)
        assert stored is not None
        return stored

    async def state(self, place: LogPlace = PLACE) -> LogState:
        state = await self.logs.state(place)
        assert state is not None
        return state

    async def open(self, session: str = A, place: LogPlace = PLACE) -> Opened:
        opened = await self.logs.claim(place, await self.state(place), session)
        assert opened is not None
        return opened


@asynccontextmanager
async def log_bench(url: str, segments: int = 1) -> AsyncIterator[LogBench]:
    """A store with a topic that has this many segments."""
    async with open_store(url) as store:
        bench = LogBench(store, SegmentLogs(store), Transitions(store, TopicLimits()))
        await bench.transitions.create(TOPIC, segments)
        yield bench


def entries(*bodies: bytes, time_ms: int = 1_000) -> list[Entry]:
    """Messages of one time."""
    return [Entry(time_ms, 1, body) for body in bodies]


def timed(times: Sequence[int]) -> list[Entry]:
    return [Entry(time_ms, 1, b"m") for time_ms in times]
