"""Producers that have a log alone, on the wire: the number by which the one before is told from the one after."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.node import Node
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.gateway.served import Client
from tests.segments.test_sending import PRODUCER_ID, SEGMENT, TOPIC, connected, message, receipts
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        yield node


async def open_alone(
    client: Client, name: str, mode: api.ProducerAccessMode.ValueType, *, topic_epoch: int | None = None
) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    request = command.producer
    request.topic = SEGMENT
    request.producer_id = PRODUCER_ID
    request.request_id = 1
    request.producer_name = name
    request.producer_access_mode = mode
    if topic_epoch is not None:
        request.topic_epoch = topic_epoch
    await client.send(encode(command))
    return await client.receive()


async def epoch_of(
    client: Client, name: str, mode: api.ProducerAccessMode.ValueType, *, topic_epoch: int | None = None
) -> int:
    answer = await open_alone(client, name, mode, topic_epoch=topic_epoch)
    assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
    assert answer.producer_success.HasField("topic_epoch")
    return answer.producer_success.topic_epoch


async def test_producer_that_was_fenced_off_cannot_come_back_with_its_old_number(node: Node) -> None:
    first, second = await connected(node), await connected(node)
    old = await epoch_of(first, "one", api.Exclusive)
    await first.send(message(0))
    await receipts(first, 1)
    new = await epoch_of(second, "two", api.ExclusiveWithFencing)
    assert new > old
    assert (await first.receive()).close_producer.producer_id == PRODUCER_ID
    for mode in (api.Exclusive, api.WaitForExclusive, api.ExclusiveWithFencing):
        refused = await open_alone(first, "one", mode, topic_epoch=old)
        assert refused.error.error == api.ProducerFenced
    # And the other has not been disturbed by any of that.
    await second.send(message(0))
    assert await receipts(second, 1) == [(0, 1)]


async def test_number_outlives_the_producer_and_the_node(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        old = await epoch_of(await connected(node), "one", api.Exclusive)
        new = await epoch_of(await connected(node), "two", api.ExclusiveWithFencing)
    async with running_node(valkey.url) as node:
        refused = await open_alone(await connected(node), "one", api.Exclusive, topic_epoch=old)
        assert refused.error.error == api.ProducerFenced
        # Who comes back with the last one is the same, and goes on.
        assert await epoch_of(await connected(node), "two", api.Exclusive, topic_epoch=new) == new


async def test_producer_that_shares_its_log_has_no_number(node: Node) -> None:
    answer = await open_alone(await connected(node), "one", api.Shared)
    assert answer.type == BaseCommand.PRODUCER_SUCCESS
    assert not answer.producer_success.HasField("topic_epoch")


async def waiting_for_its_turn(node: Node, name: str) -> Client:
    client = await connected(node)
    answer = await open_alone(client, name, api.WaitForExclusive)
    assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer
    assert not answer.producer_success.producer_ready
    return client


async def test_waiting_producers_are_refused_when_another_one_fences_them_off(node: Node) -> None:
    holder = await connected(node)
    await epoch_of(holder, "holder", api.Exclusive)
    waiting = [await waiting_for_its_turn(node, name) for name in ("first", "second")]
    newest = await connected(node)
    await epoch_of(newest, "newest", api.ExclusiveWithFencing)
    for client in waiting:
        refused = await client.receive()
        assert (refused.error.request_id, refused.error.error) == (1, api.ProducerFenced)
        assert "ProducerFenced" in refused.error.message
        # Nothing is left of it: the same connection may ask again, and waits for the new one then.
        again = await open_alone(client, "again", api.Exclusive)
        assert again.error.error == api.ProducerFenced


async def test_waiting_producer_is_refused_when_its_segment_is_sealed(node: Node) -> None:
    holder = await connected(node)
    await epoch_of(holder, "holder", api.Exclusive)
    client = await waiting_for_its_turn(node, "waits")
    await transitions_of(node).split(TOPIC, 0)
    refused = await client.receive()
    assert (refused.error.request_id, refused.error.error) == (1, api.TopicTerminatedError)


async def test_refusals_of_access_modes_name_their_code(node: Node) -> None:
    holder = await connected(node)
    await epoch_of(holder, "holder", api.Exclusive)
    other = await connected(node)
    for mode, code in [(api.Shared, "ProducerBusy"), (api.Exclusive, "ProducerFenced")]:
        refused = await open_alone(other, "other", mode)
        assert api.ServerError.Name(refused.error.error) == code
        assert code in refused.error.message
    refused = await open_alone(other, "holder", api.Exclusive)
    assert refused.error.error == api.ProducerBusy
    assert "ProducerBusy" in refused.error.message
