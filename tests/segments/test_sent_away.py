"""Consumers that were told to come back: what they still say does not count."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.node import Node
from metadata.errors import LogFenced
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.open_log import OpenLog
from tests.segments.test_sending import connected
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, node_with_messages
from tests.support.processes import ValkeyProcess


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with node_with_messages(valkey.url) as node:
        yield node


def cursors(owned: OpenLog, valkey: ValkeyProcess) -> set[bytes | str]:
    """The subscriptions that the next owner would know."""
    return set(valkey.client().hkeys(owned.place.cursors(owned.incarnation)))


async def test_acknowledgement_on_its_way_does_not_undo_a_seek(node: Node) -> None:
    consumer = WireConsumer(await connected(node))
    await consumer.subscribe(permits=10)
    got = await consumer.messages(10)
    [owned] = node.data.hosting.logs
    await owned.move("s", 0, owned.subscriptions["s"].identity)
    assert (await consumer.client.receive()).type == BaseCommand.CLOSE_CONSUMER
    await consumer.ack(got[-1], cumulative=True)
    answer = await consumer.ack(got[-1], cumulative=True, request_id=7)
    assert answer is not None
    assert (answer.request_id, answer.error) == (7, api.ConsumerNotFound)
    assert owned.subscriptions["s"].backlog == 10
    await consumer.subscribe(permits=10)
    assert [it.message_id.entryId for it in await consumer.messages(10)] == list(range(10))


async def test_nobody_who_is_sent_away_by_a_seek_gets_messages_before(node: Node) -> None:
    consumers = [WireConsumer(await connected(node), kind=api.CommandSubscribe.Shared) for _ in range(3)]
    for consumer in consumers:
        await consumer.subscribe()
    [owned] = node.data.hosting.logs
    await owned.move("s", 10, owned.subscriptions["s"].identity)
    for consumer in consumers:
        assert (await consumer.client.receive()).type == BaseCommand.CLOSE_CONSUMER
        await consumer.subscribe(permits=10)
    await owned.move("s", 0, owned.subscriptions["s"].identity)
    for consumer in consumers:
        assert (await consumer.client.receive()).type == BaseCommand.CLOSE_CONSUMER


async def test_acknowledgement_on_its_way_does_not_undo_a_deletion(node: Node, valkey: ValkeyProcess) -> None:
    one, other = [WireConsumer(await connected(node), kind=api.CommandSubscribe.Shared) for _ in range(2)]
    for consumer in (one, other):
        await consumer.subscribe(permits=5)
    got = await other.messages(5)
    [owned] = node.data.hosting.logs
    assert cursors(owned, valkey) == {b"s"}
    command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
    command.unsubscribe.consumer_id = CONSUMER_ID
    command.unsubscribe.request_id = 2
    command.unsubscribe.force = True
    await one.messages(5)
    assert (await one.ask(command)).type == BaseCommand.SUCCESS
    assert (await other.client.receive()).type == BaseCommand.CLOSE_CONSUMER
    answer = await other.ack(got[0], request_id=7)
    assert answer is not None
    assert answer.error == api.ConsumerNotFound
    command.unsubscribe.request_id = 3
    assert (await other.ask(command)).error.error == api.ConsumerNotFound
    await owned.trim(3)
    await owned._keeper.flushed()
    assert cursors(owned, valkey) == set()


async def test_acknowledgement_at_a_lost_log_is_answered(node: Node) -> None:
    consumer = WireConsumer(await connected(node))
    await consumer.subscribe(permits=1)
    [got] = await consumer.messages(1)
    [owned] = node.data.hosting.logs
    owned.lose(LogFenced("another node has it"))
    assert (await consumer.client.receive()).type == BaseCommand.CLOSE_CONSUMER
    answer = await consumer.ack(got, request_id=7)
    assert answer is not None
    assert (answer.request_id, answer.error) == (7, api.ServiceNotReady)


async def test_subscription_that_was_deleted_writes_nothing(node: Node, valkey: ValkeyProcess) -> None:
    """Whoever still has it in hand."""
    consumer = WireConsumer(await connected(node))
    await consumer.subscribe()
    [owned] = node.data.hosting.logs
    subscription = owned.subscriptions["s"]
    await owned.remove("s")
    await owned.seek(subscription, 3)
    subscription.trim()
    await owned._keeper.flushed()
    assert cursors(owned, valkey) == set()
