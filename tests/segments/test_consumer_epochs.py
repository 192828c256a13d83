"""Epochs of consumers: clients tell by them what was on its way before they asked for everything again."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.node import Node
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.segments.test_sending import TOPIC, connected
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, stored
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        await stored(node, 3)
        yield node


def redeliver(epoch: int | None) -> bytes:
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = CONSUMER_ID
    if epoch is not None:
        command.redeliverUnacknowledgedMessages.consumer_epoch = epoch
    return encode(command)


def epochs(messages: list[api.CommandMessage]) -> list[int | None]:
    return [it.consumer_epoch if it.HasField("consumer_epoch") else None for it in messages]


async def test_messages_carry_the_epoch_of_the_last_request_for_everything(node: Node) -> None:
    consumer = WireConsumer(await connected(node))
    await consumer.subscribe(permits=100, epoch=4)
    assert epochs(await consumer.messages(3)) == [4, 4, 4]
    for asked, told in ((5, 5), (None, 5), (3, 5), (7, 7)):
        await consumer.client.send(redeliver(asked))
        assert epochs(await consumer.messages(3)) == [told] * 3


async def test_who_knows_no_epochs_is_told_none(node: Node) -> None:
    consumer = WireConsumer(await connected(node))
    await consumer.subscribe(permits=100)
    await consumer.client.send(redeliver(None))
    assert epochs(await consumer.messages(6)) == [None] * 6
