"""Logs of segments: claimed by one, appended to by that one only, read back as they were written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from controller.transitions import TopicLimits, Transitions
from metadata.segment_logs import Entry, LogPlace, Opened, ProducerMark, SegmentLogs, StoredEntry
from metadata.store import TopicStore, open_store
from protocol.names import TopicName
from tests.support.topology import Topology

TOPIC = TopicName.scalable("public", "default", "orders")
PLACE = LogPlace.of_segment(TOPIC, "0000-ffff-0")
A, B = "a" * 16, "b" * 16


@dataclass(frozen=True, slots=True)
class Bench:
    store: TopicStore
    logs: SegmentLogs
    transitions: Transitions

    async def open(self, session: str = A, place: LogPlace = PLACE) -> Opened:
        state = await self.logs.state(place)
        assert state is not None
        opened = await self.logs.claim(place, state, session)
        assert opened is not None
        return opened


@asynccontextmanager
async def bench(url: str) -> AsyncIterator[Bench]:
    async with open_store(url) as store:
        found = Bench(store, SegmentLogs(store), Transitions(store, TopicLimits()))
        await found.transitions.create(TOPIC, 1)
        yield found


def entries(*bodies: bytes, time_ms: int = 1_000) -> list[Entry]:
    return [Entry(time_ms, 1, body) for body in bodies]


async def test_what_was_appended_is_read_back_in_order_by_the_next_owner(topology: Topology) -> None:
    async with bench(topology.url) as b:
        opened = await b.open()
        written = [
            Entry(1_000, 1, b"one"),
            Entry(1_000, 20, b"\x00\xff" * 500),
            Entry(1_001, 3, b"", (2**64 - 1, 7), (0, 65_535)),
        ]
        await b.logs.append(opened.claim, 0, written, {"p": ProducerMark(-1, 2)}, 1_003)
        await b.logs.append(opened.claim, 3, entries(b"four", time_ms=1_002), {"q": ProducerMark(9, 3)}, 1_007)
        await b.logs.save(opened.claim, {"s": b"\x01\x02", "t": b"x"})
        await b.logs.save(opened.claim, {"t": None})

        again = await b.open(B)
        assert again.claim.ledger == opened.claim.ledger
        assert again.claim.term > opened.claim.term
        assert (again.state.first, again.state.next, again.state.size) == (0, 4, 1_007)
        assert again.last_time_ms == 1_002
        assert again.cursors == {"s": b"\x01\x02"}
        assert again.producers == {"p": ProducerMark(-1, 2), "q": ProducerMark(9, 3)}
        found = await b.logs.read(again.claim, 0, 10)
        assert found == [
            *(StoredEntry(index, *entry) for index, entry in enumerate(written)),
            StoredEntry(3, 1_002, 1, b"four"),
        ]
        assert await b.logs.read(again.claim, 2, 1) == found[2:3]
        assert await b.logs.read_some(again.claim, [3, 0, 1, 17]) == [found[0], found[1], found[3]]
