"""Partitioned topics that get more partitions, or go, while clients use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from controller.classic import ClassicTransitions
from gateway.node import Node
from metadata.classic_records import PartitionedTopic
from metadata.log_states import UNREAD
from protocol.client import requests
from protocol.framing import encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.cursors import Cursor
from tests.gateway.served import Client
from tests.segments.test_sending import connected, message, producer, receipts
from tests.segments.wire_consumer import WireConsumer, subscribe
from tests.support.nodes import created_classic, running_node
from tests.support.processes import ValkeyProcess

TOPIC = TopicName.classic("public", "default", "growing")


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        yield node


async def subscribed(node: Node, partition: int, subscription: str = "s") -> WireConsumer:
    """A consumer of messages from now on, where nobody else has begun."""
    topic = str(TOPIC.partition_at(partition))
    consumer = WireConsumer(await connected(node), subscription, topic=topic)
    command = subscribe(subscription, topic=topic)
    command.subscribe.initialPosition = api.CommandSubscribe.Latest
    assert (await consumer.ask(command)).type == BaseCommand.SUCCESS
    return consumer


async def sent(node: Node, partition: int, count: int) -> None:
    client = await connected(node)
    await producer(client, topic=str(TOPIC.partition_at(partition)))
    await client.send(b"".join(message(number) for number in range(count)))
    await receipts(client, count)
    client.close()


async def grown(classic: ClassicTransitions) -> None:
    await classic.grow(TOPIC, 4)


async def grown_until_a_crash(classic: ClassicTransitions) -> None:
    """Whoever did it has died after the first step."""
    seen = await classic.topics.get(TOPIC)
    assert isinstance(seen, PartitionedTopic)
    await classic.topics.replace_partitioned(seen, partitions=4)


@pytest.mark.parametrize("grow", [grown, grown_until_a_crash])
async def test_new_partition_keeps_everything_for_subscriptions_that_were_there(
    node: Node, grow: Callable[[ClassicTransitions], Awaitable[None]]
) -> None:
    classic = await created_classic(node, TOPIC, 2)
    # Not at the first one.
    await subscribed(node, 1)
    await grow(classic)
    await sent(node, 3, 5)
    consumer = await subscribed(node, 3)
    await consumer.flow(10)
    assert [it.message_id.entryId for it in await consumer.messages(5)] == list(range(5))


async def test_subscription_that_is_gone_does_not_come_back_with_new_partitions(node: Node) -> None:
    classic = await created_classic(node, TOPIC, 1)
    consumer = await subscribed(node, 0)
    command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
    command.unsubscribe.consumer_id = 5
    command.unsubscribe.request_id = 2
    assert (await consumer.ask(command)).type == BaseCommand.SUCCESS
    await subscribed(node, 0, "other")
    await classic.grow(TOPIC, 2)
    log = await node.data.hosting.open(str(TOPIC.partition_at(1)))
    assert set(log.subscriptions) == {"other"}


async def looked_up(client: Client, name: str) -> api.CommandLookupTopicResponse:
    await client.send(encode(requests.lookup(7, name, False)))
    reply = await client.receive()
    assert reply.type == BaseCommand.LOOKUP_RESPONSE, reply
    return reply.lookupTopicResponse


@pytest.mark.parametrize(
    "name",
    [
        *(str(TOPIC.partition_at(index)) for index in range(3)),
        "segment://public/default/growing/0000-ffff-0",
    ],
)
async def test_lookup_of_what_is_gone_says_what_subscribing_would(node: Node, name: str) -> None:
    classic = await created_classic(node, TOPIC, 2)
    client = await connected(node)
    await subscribed(node, 0)
    await classic.delete_partitioned(TOPIC, force=True)
    answer = await looked_up(client, name)
    assert (answer.response, answer.error) == (api.CommandLookupTopicResponse.Failed, api.TopicNotFound)
    refused = await WireConsumer(client, topic=name).subscribe()
    assert refused.error.error == api.TopicNotFound


async def test_lookup_of_a_partition_that_is_to_come_leads_to_it(node: Node) -> None:
    classic = await created_classic(node, TOPIC, 2)
    await grown_until_a_crash(classic)
    client = await connected(node)
    answer = await looked_up(client, str(TOPIC.partition_at(3)))
    assert answer.response == api.CommandLookupTopicResponse.Connect
    assert len(await classic.topics.list_logs(TOPIC.namespace_name)) == 2, "nothing is created by asking"


async def test_lookup_of_a_partitioned_topic_itself_is_refused_as_subscribing_is(node: Node) -> None:
    await created_classic(node, TOPIC, 2)
    client = await connected(node)
    answer = await looked_up(client, str(TOPIC))
    refused = await WireConsumer(client, topic=str(TOPIC)).subscribe()
    assert answer.error == refused.error.error


def test_unread_cursor_of_new_partitions_is_one_that_can_be_read() -> None:
    assert Cursor(-1).encode() == UNREAD
