"""Consumers on the wire: who of several is active, figures, acknowledgements, and logs that move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from itertools import count
from typing import Final

import pytest

from gateway.node import Node
from metadata.segment_logs import SegmentLogs
from metadata.store import open_store
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments import placement
from tests.gateway.served import Client
from tests.segments.test_sending import connected
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, node_with_messages
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

LIMIT: Final = 30.0


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with node_with_messages(valkey.url) as node:
        yield node


async def is_active(client: Client) -> bool:
    reply = await client.receive()
    assert reply.type == BaseCommand.ACTIVE_CONSUMER_CHANGE, reply
    assert reply.active_consumer_change.consumer_id == CONSUMER_ID
    return reply.active_consumer_change.is_active


def consumer_stats(request_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CONSUMER_STATS)
    command.consumerStats.consumer_id = CONSUMER_ID
    command.consumerStats.request_id = request_id
    return command


@pytest.mark.parametrize("in_order", [True, False])
async def test_of_two_failover_consumers_each_is_told_whether_it_is_the_active_one(node: Node, in_order: bool) -> None:
    first, second = [WireConsumer(await connected(node), kind=api.CommandSubscribe.Failover) for _ in range(2)]
    assert (await first.subscribe(permits=3)).type == BaseCommand.SUCCESS
    assert await is_active(first.client)
    assert (await second.subscribe(permits=100)).type == BaseCommand.SUCCESS
    assert not await is_active(second.client)
    got = await first.messages(3)
    answer = await first.ack(got[0], request_id=1)
    assert answer is not None
    if in_order:
        close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        close.close_consumer.consumer_id = CONSUMER_ID
        close.close_consumer.request_id = 2
        assert (await first.ask(close)).type == BaseCommand.SUCCESS
    else:
        first.client.close()
    # Before anything else that it gets: what it has until then came to somebody who was not active.
    assert await is_active(second.client)
    assert [it.message_id.entryId for it in await second.messages(9)] == list(range(1, 10))


async def test_only_failover_consumers_are_told_that_they_are_active(node: Node) -> None:
    consumer = WireConsumer(await connected(node), kind=api.CommandSubscribe.Exclusive)
    await consumer.subscribe(permits=1)
    assert len(await consumer.messages(1)) == 1


async def test_statistics_of_a_consumer_tell_what_it_holds_and_may_still_get(node: Node) -> None:
    consumer = WireConsumer(await connected(node), kind=api.CommandSubscribe.Shared)
    await consumer.subscribe(permits=15)
    got = await consumer.messages(10)
    await consumer.ack(got[0], request_id=1)
    reply = await consumer.ask(consumer_stats(17))
    assert reply.type == BaseCommand.CONSUMER_STATS_RESPONSE
    told = reply.consumerStatsResponse
    [owned] = node.data.hosting.logs
    [known] = owned.subscriptions["s"].consumers
    assert (told.request_id, told.HasField("error_code")) == (17, False)
    assert (told.consumerName, told.type) == (known.name, "Shared")
    assert (told.unackedMessages, told.msgBacklog, told.availablePermits) == (9, 9, 5)
    assert told.address == consumer.client.sock.getsockname()[0]
    assert datetime.fromisoformat(told.connectedSince).timestamp() == pytest.approx(known.since_ms / 1000, abs=1)


async def test_statistics_of_an_unknown_consumer_are_refused_with_a_code(node: Node) -> None:
    reply = await WireConsumer(await connected(node)).ask(consumer_stats(17))
    assert reply.type == BaseCommand.CONSUMER_STATS_RESPONSE
    told = reply.consumerStatsResponse
    assert (told.request_id, told.error_code) == (17, api.ConsumerNotFound)


async def test_an_acknowledgement_without_a_request_id_gets_no_answer(node: Node) -> None:
    consumer = WireConsumer(await connected(node))
    await consumer.subscribe(permits=3)
    got = await consumer.messages(3)
    await consumer.ack(got[0])
    [owned] = node.data.hosting.logs
    subscription = owned.subscriptions["s"]
    await eventually(lambda: subscription.cursor.mark == 0)
    # Written after it, so an answer to the first one would be here before.
    answer = await consumer.ack(got[1], request_id=9)
    assert answer is not None
    assert (answer.request_id, answer.HasField("error")) == (9, False)
    assert (await consumer.ask(consumer_stats(10))).type == BaseCommand.CONSUMER_STATS_RESPONSE


async def test_consumers_of_a_log_that_moves_are_told_where_to(valkey: ValkeyProcess) -> None:
    # Logs move when the test says so.
    async with (
        running_node(valkey.url, rebalance_interval=3600.0) as here,
        running_node(valkey.url, rebalance_interval=3600.0) as there,
    ):
        await eventually(lambda: len(here.peers.nodes) == len(there.peers.nodes) == 2, LIMIT)
        sessions = [node.session.record.session for node in (here, there)]
        topic, segment = next(
            (topic, segment)
            for number in count()
            if (topic := TopicName.scalable("public", "default", f"orders-{number}"))
            and placement.choose(segment := f"segment://public/default/{topic.local}/0000-ffff-0", sessions)
            == sessions[1]
        )
        await transitions_of(here).create(topic, 1)
        await here.data.hosting.open(segment, by_force=True)
        consumer = WireConsumer(await connected(here), topic=segment)
        assert (await consumer.subscribe()).type == BaseCommand.SUCCESS
        # A node that has just come may be gone again.
        await here.data.upkeep.rebalance()
        assert here.data.hosting.get(segment) is not None
        await here.data.upkeep.rebalance()
        told = await consumer.client.receive()
        assert told.type == BaseCommand.CLOSE_CONSUMER
        assert told.close_consumer.consumer_id == CONSUMER_ID
        assert told.close_consumer.assignedBrokerServiceUrl == there.pulsar_url
        back = WireConsumer(await connected(there), topic=segment)
        assert (await back.subscribe()).type == BaseCommand.SUCCESS


async def test_consumer_is_let_in_only_by_who_has_the_log(valkey: ValkeyProcess) -> None:
    """Nobody tells of another owner of a classic log: what that one knows to be acknowledged must not come again."""
    topic = TopicName.classic("public", "default", "taken-unawares")
    async with running_node(valkey.url, rebalance_interval=3600.0) as node, open_store(valkey.url) as store:
        await created_classic(node, topic)
        before = await node.data.hosting.open(str(topic))
        logs, place = SegmentLogs(store), before.place
        state = await logs.state(place)
        assert state is not None
        assert await logs.claim(place, state, "f" * 16) is not None
        assert node.data.hosting.logs == [before], "it does not know"
        consumer = WireConsumer(await connected(node), topic=str(topic))
        assert (await consumer.subscribe()).type == BaseCommand.SUCCESS
        assert not before.is_open
        assert node.data.hosting.logs != [before], "the other one is gone, so it has claimed the log again"
