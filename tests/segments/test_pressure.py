"""What is bounded when something does not keep up: a store that stops, a consumer that does not read, a full store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
import trio

from gateway.node import Node
from protocol.framing import encode
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.counters import CloseReason
from tests.gateway.served import Client
from tests.segments.test_sending import SEGMENT, TOPIC, connected, message, producer
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

MB: Final = 1024 * 1024
LIMIT: Final = 30.0


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        yield node


async def consumer(client: Client, subscription: str, permits: int) -> None:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    command.subscribe.topic = SEGMENT
    command.subscribe.subscription = subscription
    command.subscribe.subType = command.subscribe.Exclusive
    command.subscribe.consumer_id = 1
    command.subscribe.request_id = 1
    command.subscribe.initialPosition = command.subscribe.Earliest
    await client.send(encode(command))
    reply = await client.receive()
    assert reply.type == BaseCommand.SUCCESS, reply
    flow = BaseCommand(type=BaseCommand.FLOW)
    flow.flow.consumer_id = 1
    flow.flow.messagePermits = permits
    await client.send(encode(flow))


async def receipt_numbers(client: Client, count: int) -> list[int]:
    found: list[int] = []
    with trio.fail_after(LIMIT):
        while len(found) < count:
            reply = await client.receive(within=LIMIT)
            assert reply.type == BaseCommand.SEND_RECEIPT, reply
            found.append(reply.send_receipt.sequence_id)
    return found


async def test_producers_are_left_unread_while_the_store_takes_nothing(node: Node, valkey: ValkeyProcess) -> None:
    client = await connected(node)
    await producer(client)
    [owned] = node.data.hosting.logs
    frames = [message(number, bytes(64 * 1024)) for number in range(1_000)]
    sent = 0

    async def send_all() -> None:
        nonlocal sent
        for frame in frames:
            await client.send(frame)
            sent += 1

    async with trio.open_nursery() as nursery:
        valkey.pause()
        try:
            nursery.start_soon(send_all)
            await eventually(lambda: owned.sending.is_congested, LIMIT)
            stuck = -1
            while sent > stuck:
                stuck = sent
                await trio.sleep(0.3)
            waiting = node.data.hosting.logs[0].sending
            assert waiting.is_congested
            assert 8 * MB < waiting.queued_bytes < 9 * MB
            assert sent < len(frames), "what does not fit waits at the client"
        finally:
            valkey.resume()
        assert await receipt_numbers(client, len(frames)) == list(range(len(frames)))
    assert owned.is_open
    assert owned.next == len(frames), "each is stored once, although nobody knew for a while what was"
    assert owned.sending.queued_bytes == 0


async def test_consumer_that_does_not_read_costs_others_nothing(node: Node) -> None:
    count, size = 3_000, 4 * 1024
    deaf, listening, sending = [await connected(node) for _ in range(3)]
    await consumer(deaf, "deaf", 100_000)
    await consumer(listening, "listening", 100_000)
    await producer(sending)
    most = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sending.send, b"".join(message(number, bytes(size)) for number in range(count)))
        for number in range(count):
            reply = await listening.receive(within=LIMIT)
            assert reply.message.message_id.entryId == number
            most = max(most, node.counters.outbox_bytes)
    await receipt_numbers(sending, count)
    # Of each of the two: 256 KB, and what was handed out together before that was seen, 256 messages at most.
    assert most < 2 * (256 * 1024 + 256 * (size + 200))
    [owned] = node.data.hosting.logs
    assert owned.subscriptions["deaf"].backlog == count
    for number in range(count):
        reply = await deaf.receive(within=LIMIT)
        assert reply.message.message_id.entryId == number, "it gets everything once it reads"


async def test_deaf_consumers_that_fill_all_there_is_are_cut_and_others_go_on(valkey: ValkeyProcess) -> None:
    count, size, deaf_ones = 8, MB, 12
    async with running_node(valkey.url, outbox_total_limit=16 * MB) as node:
        await transitions_of(node).create(TOPIC, 1)
        sending, listening = await connected(node), await connected(node)
        await producer(sending)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sending.send, b"".join(message(number, bytes(size)) for number in range(count)))
            assert await receipt_numbers(sending, count) == list(range(count))
        deaf = [await connected(node, receive_buffer=4096) for _ in range(deaf_ones)]
        for number, client in enumerate(deaf):
            await consumer(client, f"deaf-{number}", 1_000)
        await eventually(lambda: node.counters.closes[CloseReason.OVERLOAD] > 0, LIMIT)
        await consumer(listening, "listening", 1_000)
        for number in range(count):
            reply = await listening.receive(within=LIMIT)
            assert reply.message.message_id.entryId == number
        assert node.counters.outbox_bytes <= 16 * MB
        assert await sending.is_alive()


async def test_full_store_takes_acknowledgements_and_deletions(node: Node, valkey: ValkeyProcess) -> None:
    client, reader = await connected(node), await connected(node)
    await consumer(reader, "s", 10)
    await producer(client)
    await client.send(message(0))
    await receipt_numbers(client, 1)
    delivered = (await reader.receive()).message.message_id
    valkey.client().config_set("maxmemory", "1")
    ack = BaseCommand(type=BaseCommand.ACK)
    ack.ack.consumer_id = 1
    ack.ack.ack_type = ack.ack.Individual
    ack.ack.request_id = 7
    ack.ack.message_id.add(ledgerId=delivered.ledgerId, entryId=delivered.entryId)
    await reader.send(encode(ack))
    answer = (await reader.receive(within=LIMIT)).ackResponse
    assert (answer.request_id, answer.HasField("error")) == (7, False)
    await transitions_of(node).delete(TOPIC)
    await eventually(lambda: not node.data.hosting.logs, LIMIT)
