"""What owners tell of the traffic of their logs: read by anybody, believed for a while, and written by nobody else."""

from __future__ import annotations

from typing import Any

import pytest

from metadata import keys
from metadata.errors import LogFenced, LogMissing
from metadata.log_figures import (
    MOST_BYTES,
    NOTHING,
    ConsumerFigures,
    LogFigures,
    ProducerFigures,
    SubscriptionFigures,
    Traffic,
    decode,
)
from metadata.segment_logs import LogPlace
from tests.support.logs import PLACE, TOPIC, A, B, LogBench, log_bench
from tests.support.topology import Topology
from tests.support.waiting import eventually

PRODUCER = ProducerFigures("p", 1, "Shared", "10.0.0.1:1", 5, 70, 700, 7.0, 70.0, "v1")
CONSUMER = ConsumerFigures("c", 2, "10.0.0.2:1", 6, 40, 400, 3, 100, 4.0, 40.0, "v2")
BUSY = Traffic(
    1, (PRODUCER,), {"s": SubscriptionFigures("Shared", 3, 1, (CONSUMER,), 4.0, 40.0, 0.5, 2.0)}, 7, 70, 4, 40
)
LONG = 3_600.0


async def told(b: LogBench, place: LogPlace = PLACE) -> Traffic:
    incarnation = (await b.state(place)).incarnation
    [standing] = await b.logs.standings(b.store.commands, incarnation, [place], [])
    return standing.traffic


def log_length(topology: Topology) -> int:
    changes = keys.changes_key(keys.bucket_of(keys.path_of(TOPIC)))
    length: Any = topology.client_for(changes).xlen(changes)
    return int(length)


async def test_what_an_owner_tells_is_read_by_others_and_announced_to_nobody(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        claim = (await b.open()).claim
        assert await told(b) == NOTHING
        before = log_length(topology)
        await b.logs.tell(claim, BUSY.encode(), LONG)
        assert await told(b) == BUSY
        await b.logs.tell(claim, NOTHING.encode(), LONG)
        assert await told(b) == NOTHING
        assert log_length(topology) == before
        assert (await b.open()).state.session == A, "the rest of the state is what it was"


async def test_rates_that_were_told_long_ago_are_zero_and_clients_stay(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        await b.logs.tell((await b.open()).claim, BUSY.encode(), 0.2)

        async def stilled() -> bool:
            return (await told(b)).is_still

        assert await told(b) == BUSY
        await eventually(stilled)
        assert await told(b) == BUSY.stilled
        assert [producer.name for producer in (await told(b)).producers] == ["p"]
        assert (await told(b)).subscriptions["s"].unacked == 3


async def test_figures_of_a_deposed_owner_are_refused_and_its_last_ones_are_gone(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        old = (await b.open()).claim
        await b.logs.tell(old, BUSY.encode(), LONG)
        now = (await b.open(B)).claim
        assert await told(b) == NOTHING
        with pytest.raises(LogFenced):
            await b.logs.tell(old, BUSY.encode(), LONG)
        assert await told(b) == NOTHING
        await b.logs.tell(now, BUSY.encode(), LONG)
        assert await told(b) == BUSY


async def test_figures_outlive_a_claim_by_the_same_node_and_end_with_its_release(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        await b.logs.tell((await b.open()).claim, BUSY.encode(), LONG)
        again = (await b.open()).claim
        assert await told(b) == BUSY
        await b.logs.release(again)
        assert await told(b) == NOTHING
        with pytest.raises(LogFenced):
            await b.logs.tell(again, BUSY.encode(), LONG)


async def test_figures_of_a_topic_that_was_created_again_are_not_those_of_the_last_one(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        old = (await b.open()).claim
        await b.transitions.delete(TOPIC)
        await b.transitions.create(TOPIC, 1)
        with pytest.raises(LogMissing):
            await b.logs.tell(old, BUSY.encode(), LONG)
        assert await told(b) == NOTHING


async def test_all_cursors_of_a_log_are_found_without_knowing_their_names(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        claim = (await b.open()).claim
        await b.logs.save(claim, {"s": b"1", "ü": b"2"})
        [standing] = await b.logs.standings(b.store.commands, claim.incarnation, [PLACE], None)
        assert standing.cursors == {"s": b"1", "ü": b"2"}


@pytest.mark.parametrize(
    "entry", [None, b"", b"5", b"5 ", b"x []", b"99 {}", b"99 [1]x", b'99 ["a"]', b"\xff \xff", b"99 [1,[[1]]]"]
)
def test_what_is_no_figures_is_nothing(entry: bytes | None) -> None:
    assert decode(entry, 7) == NOTHING


def test_rates_hold_up_to_the_moment_that_is_told() -> None:
    entry = b"100 " + BUSY.encode()
    assert decode(entry, 99) == BUSY
    assert decode(entry, 100) == BUSY.stilled


def test_what_is_told_stays_small_whatever_clients_call_themselves() -> None:
    loud = ProducerFigures("n" * MOST_BYTES, 1, "Shared", "", 0, 0, 0)
    told = decode(b"9 " + Traffic(1, (loud,), BUSY.subscriptions, 7.0).encode(), 0)
    assert (told.producer_count, told.producers, told.messages_in) == (1, (), 7.0)
    assert (told.subscriptions["s"].consumer_count, told.subscriptions["s"].consumers) == (1, ())
    many = {f"{number:0100}": BUSY.subscriptions["s"] for number in range(1_000)}
    encoded = Traffic(0, (), many, 7.0).encode()
    assert len(encoded) <= MOST_BYTES
    assert decode(b"9 " + encoded, 0) == Traffic(messages_in=7.0)


def test_size_of_a_backlog_is_its_share_of_the_log() -> None:
    figures = LogFigures(1_000, 10, {"s": 4, "t": 0, "all": 10, "more": 99})
    assert [figures.backlog_size(name) for name in ("s", "t", "all", "more", "unknown")] == [400, 0, 1_000, 1_000, 0]
    assert figures.largest_backlog_size == 1_000
    assert LogFigures(0, 0, {"s": 0}).backlog_size("s") == 0
