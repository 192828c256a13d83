"""A thousand consumers at once cost little, and clients that do not read get the newest when they do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest
import trio

from gateway.node import Node
from metadata.registrations import Registrations
from tests.sessions.consumers import LONG, TOPIC, counters, serving, stored
from tests.support.consumers import (
    LIMIT,
    ConsumerConnection,
    RegisteredConsumer,
    connect_consumers,
    registering,
    subscribe_command,
    until_shared,
)
from tests.support.nodes import transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

# A thousand of anything may take a minute and more where others use the cores too; so may a renewal of the lease.
CROWD_LIMIT: Final = 240.0

a_crowd = pytest.mark.timeout(2 * CROWD_LIMIT + 60)


@asynccontextmanager
async def beside_a_slow_client(
    url: str,
) -> AsyncIterator[tuple[Node, ConsumerConnection, ConsumerConnection, RegisteredConsumer]]:
    """A node, a client that reads, and one that stopped reading when its consumer had all of many segments."""
    async with (
        serving(url, segments=900) as node,
        registering(node.pulsar_url) as other,
        registering(node.pulsar_url, receive_buffer=4_096) as slow,
    ):
        consumer = await slow.subscribed(TOPIC, "s", "slow")
        slow.stop_reading()
        yield node, other, slow, consumer


# Numbers.


@a_crowd
@pytest.mark.slow
async def test_a_thousand_consumers_that_join_at_once_cause_few_rebalances_and_few_pushes(
    valkey: ValkeyProcess,
) -> None:
    count, segments = 1_000, 1_000
    async with (
        serving(valkey.url, segments=segments, session_lease=LONG) as node,
        registering(node.pulsar_url) as client,
    ):
        first = await client.subscribed(TOPIC, "s", "c0000")
        begun = counters(node).rebalances
        pairs = [client.subscription(TOPIC, "s", f"c{number:04d}") for number in range(1, count)]
        await client.send(*(command for _, command in pairs))
        consumers = [first, *(consumer for consumer, _ in pairs)]
        await until_shared(consumers, range(segments), within=CROWD_LIMIT)
        rebalances, assigned = counters(node).rebalances - begun, counters(node).assigned
        assert rebalances <= 20
        pushes = sum(len(consumer.updates) for consumer in consumers)
        assert pushes <= assigned
        assert node.consumers.counters.pushes == pushes
        assert all(len(consumer.ids) == 1 for consumer in consumers)


@a_crowd
@pytest.mark.slow
async def test_a_thousand_consumers_whose_connections_break_at_once_come_back_to_the_same(
    valkey: ValkeyProcess,
) -> None:
    count = 1_000
    async with (
        serving(valkey.url, segments=count, session_lease=LONG) as node,
        registering(node.pulsar_url) as first,
        registering(node.pulsar_url) as second,
    ):
        before = [first.subscription(TOPIC, "s", f"c{number:04d}") for number in range(count)]
        await first.send(*(command for _, command in before))
        await until_shared([consumer for consumer, _ in before], range(count), within=CROWD_LIMIT)
        rebalances = counters(node).rebalances
        first.disconnect()
        after = [second.subscription(TOPIC, "s", f"c{number:04d}") for number in range(count)]
        await second.send(*(command for _, command in after))
        await eventually(lambda: all(consumer.answered for consumer, _ in after), within=CROWD_LIMIT)
        assert [consumer.history for consumer, _ in after] == [[consumer.ids] for consumer, _ in before]
        assert counters(node).rebalances == rebalances


# A peer that does not read.


async def test_a_slow_client_that_registers_again_under_an_id_ends_with_the_newest_assignment(
    valkey: ValkeyProcess,
) -> None:
    """An assignment for the consumer that had the id before is queued, and must not keep a place before the answer."""
    async with beside_a_slow_client(valkey.url) as (node, other, slow, first):
        # Each takes some of the slow one's segments. The first push fills its socket, the others wait.
        others = [await other.subscribed(TOPIC, "s", f"c{number}") for number in range(3)]
        await eventually(lambda: node.counters.pushes_queued, within=LIMIT)
        again = await slow.subscribe(TOPIC, "s", "slow", consumer_id=first.consumer_id)
        await eventually(lambda: node.consumers.counters.attached == 5, within=LIMIT)
        others.append(await other.subscribed(TOPIC, "s", "last"))
        assert node.counters.outbox_bytes, "the slow one is not slow enough"
        slow.read_on()
        await slow.round_trip()
        # What was on its way to the earlier one under this id may come before the answer.
        slow.complaints.clear()
        await until_shared([*others, again], range(900), within=30)


async def test_a_slow_client_is_told_the_newest_only(valkey: ValkeyProcess) -> None:
    async with beside_a_slow_client(valkey.url) as (node, other, slow, consumer):
        others = [await other.subscribed(TOPIC, "s", f"c{number}") for number in range(8)]
        assert node.counters.outbox_bytes, "the slow one is not slow enough"
        slow.read_on()
        await until_shared([*others, consumer], range(900))
        assert len(consumer.updates) < 8


@pytest.mark.parametrize("deleted", ["topic", "subscription"])
async def test_a_slow_client_is_told_that_it_has_nothing_any_more(valkey: ValkeyProcess, deleted: str) -> None:
    """The last word on a consumer waits in the queue of its connection, although the consumer is forgotten."""
    async with beside_a_slow_client(valkey.url) as (node, other, slow, consumer):
        for number in range(3):
            await other.subscribed(TOPIC, "s", f"c{number}")
        await eventually(lambda: node.counters.outbox_bytes, within=LIMIT)
        if deleted == "topic":
            await transitions_of(node).delete(TOPIC)
        else:
            await Registrations(node.store).delete_subscription(TOPIC, "s")
        await eventually(lambda: not node.consumers.counters.consumers, within=LIMIT)
        slow.read_on()
        await slow.round_trip()
        assert consumer.ids == set()


@pytest.mark.parametrize("reading", [True, False])
async def test_a_connection_with_unread_answers_can_be_cut_and_its_consumers_are_detached(
    valkey: ValkeyProcess, reading: bool
) -> None:
    async with trio.open_nursery() as nursery, serving(valkey.url, segments=200, consumer_grace=0.3) as node:
        client = await connect_consumers(nursery, node.pulsar_url, receive_buffer=4_096)
        if not reading:
            client.stop_reading()
        await _register_many(client, 50)
        await eventually(lambda: node.consumers.counters.attached == 50, within=LIMIT)
        client.disconnect()
        await eventually(lambda: not node.consumers.counters.consumers, within=LIMIT)

        async def empty() -> bool:
            return not (await stored(node)).consumers

        await eventually(empty, within=LIMIT)


async def _register_many(client: ConsumerConnection, count: int) -> None:
    await client.send(*(subscribe_command(n, TOPIC, "s", f"c{n}", n) for n in range(count)))
