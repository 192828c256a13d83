"""A consumer that comes to a segment before the last one has let go of it waits, instead of being refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
import trio

from controller.migration import Migrations
from controller.transitions import TopicLimits
from gateway.node import Node
from protocol.framing import encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.segments.test_sending import SEGMENT, TOPIC, connected
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, subscribe
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess

CLASSIC: Final = TopicName.classic("public", "default", "classic")


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        yield node


async def the_next_waits(node: Node, topic: str) -> None:
    first, second = [WireConsumer(await connected(node), topic=topic) for _ in range(2)]
    assert (await first.subscribe()).type == BaseCommand.SUCCESS
    await second.client.send(encode(subscribe(topic=topic)))
    with pytest.raises(trio.TooSlowError):
        await second.client.receive(within=0.5)
    close = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    close.close_consumer.consumer_id = CONSUMER_ID
    close.close_consumer.request_id = 2
    await first.client.send(encode(close))
    assert (await second.client.receive()).type == BaseCommand.SUCCESS


async def test_the_next_consumer_of_a_segment_waits(node: Node) -> None:
    await transitions_of(node).create(TOPIC, 1)
    await the_next_waits(node, SEGMENT)


@pytest.mark.parametrize("partitions", [0, 2])
async def test_the_next_consumer_of_an_old_log_of_a_migrated_topic_waits(node: Node, partitions: int) -> None:
    classic = await created_classic(node, CLASSIC, partitions)
    await Migrations(node.store, classic, TopicLimits()).migrate(CLASSIC)
    await the_next_waits(node, str(CLASSIC.partition_at(1) if partitions else CLASSIC))


async def test_a_topic_that_is_migrated_while_its_log_is_open_is_known_as_such(node: Node) -> None:
    classic = await created_classic(node, CLASSIC, 0)
    reader = WireConsumer(await connected(node), subscription="other", topic=str(CLASSIC))
    assert (await reader.subscribe()).type == BaseCommand.SUCCESS
    await Migrations(node.store, classic, TopicLimits()).migrate(CLASSIC)
    await the_next_waits(node, str(CLASSIC))


async def test_the_next_consumer_of_a_classic_topic_is_refused(node: Node) -> None:
    await created_classic(node, CLASSIC, 0)
    first, second = [WireConsumer(await connected(node), topic=str(CLASSIC)) for _ in range(2)]
    assert (await first.subscribe()).type == BaseCommand.SUCCESS
    refused = await second.subscribe()
    assert (refused.type, refused.error.error) == (BaseCommand.ERROR, api.ConsumerBusy)
