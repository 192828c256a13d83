"""Seeks by time: they go by what producers say, and a reader is where it has sought when it comes back."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from gateway.node import Node
from metadata.log_entries import Entry
from protocol.framing import encode_payload
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.segments.test_sending import PRODUCER_ID, TOPIC, connected, producer, receipts
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, subscribe
from tests.support.logs import log_bench
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess

EARLIEST = 2**64 - 1


def published(sequence: int, time_ms: int) -> bytes:
    metadata = api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=time_ms)
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = PRODUCER_ID
    command.send.sequence_id = sequence
    return encode_payload(command, metadata.SerializeToString(), b"x")


@asynccontextmanager
async def node_with(url: str, times: Sequence[int]) -> AsyncIterator[Node]:
    """A node with one segment whose messages were published at these times."""
    async with running_node(url) as node:
        await transitions_of(node).create(TOPIC, 1)
        client = await connected(node)
        await producer(client)
        await client.send(b"".join(published(number, time_ms) for number, time_ms in enumerate(times)))
        await receipts(client, len(times))
        yield node


def reader(start: int | None = EARLIEST) -> BaseCommand:
    """The SUBSCRIBE of a reader: from this entry of all ledgers' ends on, or without a position of its own."""
    command = subscribe("reader")
    command.subscribe.durable = False
    if start is not None:
        command.subscribe.start_message_id.ledgerId = start
        command.subscribe.start_message_id.entryId = start
    return command


def seek(time_ms: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id = CONSUMER_ID
    command.seek.request_id = 2
    command.seek.message_publish_time = time_ms
    return command


async def sought(consumer: WireConsumer, time_ms: int) -> None:
    assert (await consumer.ask(seek(time_ms))).type == BaseCommand.CLOSE_CONSUMER
    assert (await consumer.client.receive()).type == BaseCommand.SUCCESS


async def first_of(consumer: WireConsumer, command: BaseCommand) -> int:
    """The entry that comes first to who subscribes like that."""
    assert (await consumer.ask(command)).type == BaseCommand.SUCCESS
    await consumer.flow(1)
    [first] = await consumer.messages(1)
    return first.message_id.entryId


@pytest.mark.parametrize(("time_ms", "expected"), [(1, 0), (3_000, 2), (3_001, 3), (5_000, 4)])
async def test_durable_consumer_goes_to_the_first_message_that_was_published_then(
    valkey: ValkeyProcess, time_ms: int, expected: int
) -> None:
    async with node_with(valkey.url, [1_000, 2_000, 3_000, 4_000, 5_000]) as node:
        consumer = WireConsumer(await connected(node))
        assert (await consumer.subscribe()).type == BaseCommand.SUCCESS
        await sought(consumer, time_ms)
        assert await first_of(consumer, subscribe()) == expected


async def test_reader_goes_on_where_it_has_sought(valkey: ValkeyProcess) -> None:
    async with node_with(valkey.url, [1_000, 2_000, 3_000, 4_000]) as node:
        consumer = WireConsumer(await connected(node))
        assert (await consumer.ask(reader())).type == BaseCommand.SUCCESS
        await sought(consumer, 3_000)
        # Twice: it may lose its place once more before it has received anything.
        assert (await consumer.ask(reader())).type == BaseCommand.SUCCESS
        assert await first_of(consumer, reader()) == 2


async def test_reader_that_was_closed_begins_anew(valkey: ValkeyProcess) -> None:
    async with node_with(valkey.url, [1_000, 2_000]) as node:
        consumer = WireConsumer(await connected(node))
        assert (await consumer.ask(reader())).type == BaseCommand.SUCCESS
        await sought(consumer, 2_000)
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id = CONSUMER_ID
        command.close_consumer.request_id = 3
        assert (await consumer.ask(command)).type == BaseCommand.SUCCESS
        assert await first_of(consumer, reader()) == 0


async def test_reader_with_a_position_of_its_own_has_that(valkey: ValkeyProcess) -> None:
    async with node_with(valkey.url, [1_000, 2_000, 3_000]) as node:
        consumer = WireConsumer(await connected(node))
        assert (await consumer.ask(reader())).type == BaseCommand.SUCCESS
        await sought(consumer, 3_000)
        command = reader()
        [log] = node.data.hosting.logs
        command.subscribe.start_message_id.ledgerId = log.ledger
        command.subscribe.start_message_id.entryId = 1
        assert await first_of(consumer, command) == 1


@pytest.mark.parametrize(
    ("said", "wanted", "expected"),
    [
        ([10, 20, 15, 30], 20, 1),  # an earlier one behind it
        ([10, 30, 20, 25, 40], 25, 1),  # clocks that differ
        ([0, 2**63, 2**64 - 1], 1, 0),  # no times at all: those of their arrival
        ([5, 5, 5], 5, 0),
        ([5, 5, 5], 6, 3),
    ],
)
async def test_times_that_are_out_of_order_or_absurd(
    valkey: ValkeyProcess, said: list[int], wanted: int, expected: int
) -> None:
    async with log_bench(valkey.url) as bench:
        claim = (await bench.open()).claim
        await bench.logs.append(claim, 0, [Entry(100, 1, body(time_ms)) for time_ms in said], {}, 1)
        assert await bench.logs.index_published(claim, wanted) == expected


async def test_bodies_that_are_no_messages_have_the_time_of_their_arrival(valkey: ValkeyProcess) -> None:
    chance = random.Random(7)
    whole = body(7_000_000)
    bodies = [
        *(whole[:length] for length in range(5)),  # cut off before the time
        b"\x0e\x01",
        b"\x0e\x01\x00\x00\x00\x00\xff\xff\xff\xff",
        b"\x00\x00\x00\x0b" + 11 * b"\xff",  # a varint without an end
        b"\x00\x00\x00\x06\x0a\xff\xff\xff\xff\x0f",  # a length beyond all ends
        b"\x00\x00\x00\x02\x0b\x0c",  # groups, which nobody uses
    ]
    async with log_bench(valkey.url) as bench:
        claim = (await bench.open()).claim
        await bench.logs.append(claim, 0, [Entry(100, 1, it) for it in bodies], {}, 1)
        assert await bench.logs.index_published(claim, 100) == 0
        assert await bench.logs.index_published(claim, 101) == len(bodies)
        # Whatever else somebody sends, there is an answer.
        noise = [chance.randbytes(chance.randrange(40)) for _ in range(200)]
        await bench.logs.append(claim, len(bodies), [Entry(100, 1, it) for it in noise], {}, 1)
        assert 0 <= await bench.logs.index_published(claim, 2**62) <= len(bodies) + len(noise)


def body(publish_time: int) -> bytes:
    metadata = api.MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_time).SerializeToString()
    return len(metadata).to_bytes(4, "big") + metadata + b"payload"
