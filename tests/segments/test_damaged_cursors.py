"""A cursor that cannot be read costs its subscription, in the log that it is of, until it is restored or moved."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from metadata.complaints import forget_complaints
from metadata.errors import RecordDamaged
from segments import cursor_entries
from segments.cursors import Cursor
from segments.keeping import Keeping
from segments.open_log import OpenLog
from tests.segments.test_caretaking import GONE
from tests.segments.test_hosting import HostBench, host_bench
from tests.support.logs import PLACE, entries
from tests.support.processes import ValkeyProcess


@pytest.fixture(autouse=True)
def _complain_anew() -> Iterator[None]:
    forget_complaints()
    yield
    forget_complaints()


@asynccontextmanager
async def opened(url: str, sick: bytes) -> AsyncIterator[tuple[HostBench, OpenLog]]:
    """A log of two messages with two subscriptions, of which one has read all and the other has this cursor."""
    async with host_bench(url) as b:
        b.subscribed.update(("well", "sick", "new"))
        claim = (await b.bench.open(GONE, PLACE)).claim
        await b.bench.logs.append(claim, 0, entries(b"one", b"two"), {}, 6)
        await b.bench.logs.save(claim, {"well": Cursor(1).encode(), "sick": sick})
        yield b, await b.hosting.open(PLACE.name)


@pytest.mark.parametrize(
    "damage", [b"no cursor", b"", b"\xff" * 40, Cursor(0).encode()[:-1]], ids=["text", "empty", "noise", "cut"]
)
async def test_a_damaged_cursor_costs_its_subscription_and_the_log_keeps_what_it_may_need(
    valkey: ValkeyProcess, damage: bytes
) -> None:
    async with opened(valkey.url, damage) as (_, log):
        await log.ensure_subscription("well")
        await log.ensure_subscription("new")
        with pytest.raises(RecordDamaged, match="seek to a position, or delete it"):
            await log.ensure_subscription("sick")
        await log.move("new", 2)
        await log.keep(Keeping())
        assert log.first == 0


async def test_a_restored_cursor_is_read_when_somebody_wants_it(valkey: ValkeyProcess) -> None:
    async with opened(valkey.url, b"no cursor") as (b, log):
        cursors = PLACE.cursors(log.incarnation)
        await b.bench.store.commands.call(PLACE.slot, "HSET", cursors, "sick", Cursor(0).encode())
        await log.ensure_subscription("sick")
        assert log.subscriptions["sick"].cursor.mark == 0
        await log.keep(Keeping())
        assert log.first == 1


async def test_moving_a_damaged_cursor_mends_it(valkey: ValkeyProcess) -> None:
    async with opened(valkey.url, b"no cursor") as (b, log):
        await log.move("sick", 1)
        await log.ensure_subscription("sick")
        stored = await b.bench.logs.cursor(log.claim, "sick")
        assert stored is not None
        assert cursor_entries.unpack(stored)[1].mark == 0


async def test_removing_a_subscription_removes_its_damaged_cursor(valkey: ValkeyProcess) -> None:
    async with opened(valkey.url, b"no cursor") as (b, log):
        await log.remove("sick")
        assert await b.bench.logs.cursor(log.claim, "sick") is None
        await log.keep(Keeping())
        assert log.first == 2
