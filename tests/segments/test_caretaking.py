"""Logs that no client uses: who opens them, so that they are trimmed, and which of them are left alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import pytest
import trio

from metadata import keys
from metadata.errors import StoreUnavailable
from metadata.log_places import LogPlace
from metadata.log_states import Claim, LogState
from protocol.client.pool import open_pool
from protocol.names import NamespaceName, TopicName
from segments.caretaking import Caretaker
from segments.cursors import Cursor
from tests.segments.test_hosting import THERE, HostBench, host_bench
from tests.segments.test_retained_messages import consumed
from tests.support.logs import PLACE, A, B, entries
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess

GONE: Final = "c" * 16  # a node that was there once


async def abandoned(b: HostBench, marks: Sequence[int], session: str = GONE) -> Claim:
    """A log of three messages, with subscriptions that have consumed it so far."""
    claim = (await b.bench.open(session)).claim
    await b.bench.logs.append(claim, 0, entries(b"one", b"two", b"three"), {}, 11)
    await b.bench.logs.save(claim, {f"s{number}": Cursor(mark).encode() for number, mark in enumerate(marks)})
    return claim


def caretaker(
    b: HostBench,
    expected: Collection[str] = (),
    logs_in: Callable[[int], Sequence[LogPlace]] = lambda _: [PLACE],
) -> Caretaker:
    async def listed(bucket: int) -> Sequence[LogPlace]:
        await trio.lowlevel.checkpoint()
        return logs_in(bucket)

    async def subscriptions(_: TopicName) -> Collection[str]:
        await trio.lowlevel.checkpoint()
        return expected

    return Caretaker(b.hosting, b.logs, listed, subscriptions, interval=3600)


@pytest.mark.parametrize("marks", [[2], [0, 2], []])
async def test_log_of_which_a_part_is_consumed_is_opened_when_its_owner_is_gone(
    valkey: ValkeyProcess, marks: Sequence[int]
) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, marks)
        await caretaker(b, [f"s{number}" for number in range(len(marks))]).visit(PLACE.bucket)
        assert [owned.place for owned in b.hosting.logs] == [PLACE]
        assert (await b.bench.state()).session == A


async def test_log_that_was_given_up_is_opened(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await b.bench.logs.release(await abandoned(b, [1], B))
        b.cluster.nodes.append(THERE)
        b.cluster.nodes.reverse()
        await caretaker(b).visit(PLACE.bucket)
        b.cluster.nodes.reverse()
        await caretaker(b).visit(PLACE.bucket)
        assert len(b.hosting.logs) == 1, "by one of the two"


async def test_log_of_a_living_node_is_left_to_it(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [2], B)

        async def lives(session: str) -> bool:
            await trio.lowlevel.checkpoint()
            return session in (A, B)

        b.hosting.is_alive = lives  # type: ignore[method-assign]  # it has not been seen among the nodes yet
        await caretaker(b).visit(PLACE.bucket)
        assert not b.hosting.logs


@pytest.mark.parametrize("marks", [[-1], [-1, 2]])
async def test_log_that_somebody_has_still_to_consume_is_left_alone(
    valkey: ValkeyProcess, marks: Sequence[int]
) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, marks)
        await caretaker(b).visit(PLACE.bucket)
        assert not b.hosting.logs


async def test_log_is_left_alone_that_a_subscription_has_still_to_come_to(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [2])
        await caretaker(b, ["s0", "late"]).visit(PLACE.bucket)
        assert not b.hosting.logs


async def test_empty_log_is_left_alone(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await b.bench.open(GONE)
        await caretaker(b).visit(PLACE.bucket)
        assert not b.hosting.logs


async def test_log_is_claimed_only_as_it_was_seen(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [2])
        seen = await b.bench.state()
        await b.bench.open(B)
        await b.hosting.adopt(PLACE, seen)
        assert not b.hosting.logs
        assert (await b.bench.state()).session == B


async def test_store_that_does_not_answer_is_asked_again_in_the_next_round(valkey: ValkeyProcess) -> None:
    def unknown(_: int) -> Sequence[LogPlace]:
        raise StoreUnavailable("The store does not answer now.")

    async with host_bench(valkey.url) as b:
        await abandoned(b, [2])
        await caretaker(b, logs_in=unknown).visit(PLACE.bucket)
        b.logs.failures = 1
        await caretaker(b).visit(PLACE.bucket)
        assert not b.hosting.logs
        await caretaker(b).visit(PLACE.bucket)
        assert len(b.hosting.logs) == 1


async def test_node_that_stops_opens_nothing(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [2])
        seen: LogState = await b.bench.state()
        await b.hosting.release_all()
        await b.hosting.adopt(PLACE, seen)
        assert not b.hosting.logs


async def test_messages_go_that_no_client_has_touched_since_the_node_started(valkey: ValkeyProcess) -> None:
    namespace = NamespaceName("acme", "eu")
    scalable = TopicName.scalable("acme", "eu", "orders")
    classic = [TopicName.classic("acme", "eu", name) for name in ("single", "several")]
    async with (
        running_node(valkey.url, message_age=0.0, rebalance_interval=3600.0) as before,
        open_pool(before.pulsar_url) as pool,
    ):
        await before.store.create_namespace(namespace, b"{}")
        await transitions_of(before).create(scalable, 2)
        await created_classic(before, classic[0])
        await created_classic(before, classic[1], 3)
        for topic in (scalable, *classic):
            await consumed(before, pool, topic)
        used = {owned.name for owned in before.data.hosting.logs if owned.next}
    async with running_node(valkey.url, message_age=0.0, rebalance_interval=3600.0) as after:
        assert not after.data.hosting.logs
        for bucket in range(keys.BUCKETS):
            await after.data.caretaker.visit(bucket)
        logs = after.data.hosting.logs
        assert {owned.name for owned in logs} == used
        await after.data.hosting.trim()
        assert [owned.next - owned.first for owned in logs] == [0] * len(logs)
