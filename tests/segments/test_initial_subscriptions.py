"""A subscription that a producer asks for stays until somebody deletes it, and misses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest

from gateway.node import Node
from metadata.registrations import Registrations
from metadata.subscriptions import SubscriptionType
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.gateway.served import Client
from tests.segments.test_sending import PRODUCER_ID, SEGMENT, TOPIC, connected, message, receipts
from tests.segments.wire_consumer import WireConsumer
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

CLASSIC: Final = "persistent://public/default/classic"


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        yield node


async def produce_with(client: Client, subscription: str, topic: str = SEGMENT) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = topic
    command.producer.producer_id = PRODUCER_ID
    command.producer.request_id = 1
    command.producer.initial_subscription_name = subscription
    await client.send(encode(command))
    return await client.receive()


async def until_checked(node: Node) -> None:
    """Return when the node has looked which subscriptions of its segments are deleted."""
    registrations = Registrations(node.store)
    [owned] = node.data.hosting.logs
    consumer = WireConsumer(await connected(node), "deleted")
    assert (await consumer.subscribe()).type == BaseCommand.SUCCESS
    consumer.client.close()
    await registrations.delete_subscription(TOPIC, "deleted")
    await eventually(lambda: "deleted" not in owned.subscriptions)


async def test_it_is_the_topics_and_outlives_the_next_registration(node: Node) -> None:
    client = await connected(node)
    assert (await produce_with(client, "init")).type == BaseCommand.PRODUCER_SUCCESS
    assert (await WireConsumer(await connected(node), "other").subscribe()).type == BaseCommand.SUCCESS
    await until_checked(node)
    [owned] = node.data.hosting.logs
    assert set(owned.subscriptions) == {"init", "other"}
    assert set(await Registrations(node.store).identities(TOPIC)) == {"init", "other"}


@pytest.mark.parametrize("kind", [api.CommandSubscribe.Exclusive, api.CommandSubscribe.Shared])
async def test_its_first_consumer_gets_what_was_sent_before_and_says_what_type_it_is(
    node: Node, kind: api.CommandSubscribe.SubType.ValueType
) -> None:
    client = await connected(node)
    await produce_with(client, "init")
    await client.send(b"".join(message(number) for number in range(5)))
    await receipts(client, 5)
    # One more producer of that name must not settle what the first consumer says.
    assert (await produce_with(await connected(node), "init")).type == BaseCommand.PRODUCER_SUCCESS
    consumer = WireConsumer(await connected(node), "init", kind)
    assert (await consumer.subscribe(permits=10)).type == BaseCommand.SUCCESS
    assert [it.message_id.entryId for it in await consumer.messages(5)] == list(range(5))


async def test_one_that_is_there_stays_as_it_is(node: Node) -> None:
    registrations = Registrations(node.store)
    await registrations.create_subscription(TOPIC, "init", SubscriptionType.STREAM, 1)
    assert (await produce_with(await connected(node), "init")).type == BaseCommand.PRODUCER_SUCCESS
    settings = (await registrations.create_subscription(TOPIC, "init", SubscriptionType.STREAM, 2)).settings
    assert (settings.created_at_ms, settings.from_start) == (1, False)


async def test_classic_topic_has_it_in_its_log(node: Node) -> None:
    assert (await produce_with(await connected(node), "init", CLASSIC)).type == BaseCommand.PRODUCER_SUCCESS
    [owned] = node.data.hosting.logs
    assert set(owned.subscriptions) == {"init"}
