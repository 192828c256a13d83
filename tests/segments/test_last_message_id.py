"""Where a log ends, as readers ask it to learn whether anything is left for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.node import Node
from protocol.client import requests
from protocol.framing import encode_payload
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.segments.test_sending import PRODUCER_ID, TOPIC, connected, producer, receipts
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, stored
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        yield node


async def last(consumer: WireConsumer) -> tuple[int, int]:
    answer = await answered(consumer)
    entry = answer.last_message_id.entryId
    return answer.last_message_id.ledgerId, entry - 2**64 if entry >= 2**63 else entry


async def answered(consumer: WireConsumer) -> api.CommandGetLastMessageIdResponse:
    return (await consumer.ask(requests.last_message_id(9, CONSUMER_ID))).getLastMessageIdResponse


async def test_log_that_holds_nothing_ends_before_its_first_message(node: Node) -> None:
    """Also one that held something: who waits for the last message of that waits for ever."""
    consumer = WireConsumer(await connected(node))
    await consumer.subscribe()
    [owned] = node.data.hosting.logs
    assert await last(consumer) == (owned.ledger, -1)
    await stored(node, 3)
    assert await last(consumer) == (owned.ledger, 2)
    await owned.trim(2)
    assert await last(consumer) == (owned.ledger, 2)
    await owned.trim(3)
    assert await last(consumer) == (owned.ledger, -1)


def batch(sequence: int, messages: int | None) -> bytes:
    """A message by itself, or a batch of so many."""
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = PRODUCER_ID
    command.send.sequence_id = sequence
    metadata = api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1)
    if messages is not None:
        command.send.num_messages = messages
        metadata.num_messages_in_batch = messages
    return encode_payload(command, metadata.SerializeToString(), b"hello")


@pytest.mark.parametrize("is_cached", [True, False], ids=["in memory", "in the store"])
async def test_last_message_of_a_batch_is_named_by_its_place(valkey: ValkeyProcess, is_cached: bool) -> None:
    """Without it a reader inside the last batch is told that nothing is left for it."""
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        consumer, client = WireConsumer(await connected(node)), await connected(node)
        await consumer.subscribe()
        await producer(client)
        [owned] = node.data.hosting.logs
        places = []
        for sequence, messages in enumerate((None, 3, 1, 2, None)):
            await client.send(batch(sequence, messages))
            await receipts(client, 1)
            if not is_cached:
                owned._tail.clear()
            answer = await answered(consumer)
            places.append((answer.last_message_id.entryId, answer.last_message_id.batch_index))
        assert places == [(0, -1), (1, 2), (2, 0), (3, 1), (4, -1)]
        assert answer.consumer_mark_delete_position.batch_index == -1
