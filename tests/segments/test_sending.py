"""Producers on the wire: receipts, refusals, what was sent before, and what is said when a segment is sealed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

import pytest
import trio

from gateway.node import Node
from protocol.client import requests
from protocol.framing import encode, encode_payload
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.gateway.served import Client, connect_frame
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

TOPIC: Final = TopicName.scalable("public", "default", "orders")
SEGMENT: Final = "segment://public/default/orders/0000-ffff-0"
PRODUCER_ID: Final = 3


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        yield node


async def connected(node: Node, *, receive_buffer: int | None = None) -> Client:
    sock = trio.socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, receive_buffer)
    url = urlsplit(node.pulsar_url)
    await sock.connect((url.hostname, url.port))
    client = Client(sock)
    await client.send(connect_frame())
    assert (await client.receive()).type == BaseCommand.CONNECTED
    return client


async def producer(
    client: Client, name: str = "p", *, epoch: int = 0, topic: str = SEGMENT
) -> api.CommandProducerSuccess:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = topic
    command.producer.producer_id = PRODUCER_ID
    command.producer.request_id = 1
    command.producer.producer_name = name
    command.producer.epoch = epoch
    await client.send(encode(command))
    reply = await client.receive()
    assert reply.type == BaseCommand.PRODUCER_SUCCESS, reply
    return reply.producer_success


def message(sequence: int, value: bytes = b"hello", *, damaged: bool = False) -> bytes:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = PRODUCER_ID
    command.send.sequence_id = sequence
    metadata = api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1).SerializeToString()
    frame = encode_payload(command, metadata, value)
    return frame[:-1] + bytes((frame[-1] ^ 1,)) if damaged else frame


async def receipts(client: Client, count: int) -> list[tuple[int, int]]:
    """Sequence number and index of each."""
    found = []
    for _ in range(count):
        reply = await client.receive()
        assert reply.type == BaseCommand.SEND_RECEIPT, reply
        found.append((reply.send_receipt.sequence_id, reply.send_receipt.message_id.entryId))
    return found


async def test_receipts_come_in_the_order_of_sending(node: Node) -> None:
    client = await connected(node)
    assert (await producer(client)).last_sequence_id == -1
    await client.send(b"".join(message(number) for number in range(500)))
    assert await receipts(client, 500) == [(number, number) for number in range(500)]


async def test_message_sent_again_after_a_reconnect_is_stored_once(node: Node) -> None:
    client = await connected(node)
    await producer(client)
    await client.send(message(0) + message(1) + message(2))
    await receipts(client, 3)
    client.sock.close()
    again = await connected(node)
    assert (await producer(again, epoch=1)).last_sequence_id == 2
    await again.send(message(1) + message(2) + message(3))
    assert await receipts(again, 3) == [(1, 1), (2, 2), (3, 3)]
    [owned] = node.data.hosting.logs
    assert owned.next == 4


async def test_last_sequence_number_survives_a_restart(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        client = await connected(node)
        await producer(client)
        await client.send(message(41))
        await receipts(client, 1)
    async with running_node(valkey.url) as node:
        client = await connected(node)
        assert (await producer(client)).last_sequence_id == 41
        await client.send(message(41) + message(42))
        assert await receipts(client, 2) == [(41, 0), (42, 1)]


async def test_damaged_message_is_refused_and_sent_again_with_all_behind_it(node: Node) -> None:
    client = await connected(node)
    await producer(client)
    await client.send(message(0, damaged=True) + message(1))
    assert (await client.receive()).send_error.error == api.ChecksumError
    assert (await client.receive()).close_producer.producer_id == PRODUCER_ID
    assert (await producer(client, epoch=1)).last_sequence_id == -1
    await client.send(message(0) + message(1))
    assert await receipts(client, 2) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(("sequence", "messages"), [(2**63, 1), (2**64 - 1, 1), (0, 2**31 - 1)])
async def test_numbers_that_cannot_be_are_refused(node: Node, sequence: int, messages: int) -> None:
    client = await connected(node)
    await producer(client)
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = PRODUCER_ID
    command.send.sequence_id = sequence
    command.send.num_messages = messages
    metadata = api.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()
    await client.send(encode_payload(command, metadata, b"x"))
    assert (await client.receive()).send_error.error == api.NotAllowedError
    assert (await client.receive()).close_producer.producer_id == PRODUCER_ID
    assert (await producer(client, epoch=1)).last_sequence_id == -1


async def test_layout_comes_before_the_refusal_of_a_sealed_segment(node: Node) -> None:
    client = await connected(node)
    await client.send(encode(requests.open_topic_watch(7, str(TOPIC), False)))
    assert (await client.receive()).scalableTopicUpdate.dag.epoch == 0
    await producer(client)
    for round_ in range(5):
        await client.send(message(round_))
    await receipts(client, 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transitions_of(node).split, TOPIC, 0)
        told: list[BaseCommand] = []
        sequence = 5
        while not told or told[-1].type != BaseCommand.SEND_ERROR:
            await client.send(message(sequence))
            sequence += 1
            told.append(await client.receive())
    epochs = [c.scalableTopicUpdate.dag.epoch for c in told if c.type == BaseCommand.SCALABLE_TOPIC_UPDATE]
    assert told[-1].send_error.error == api.TopicTerminatedError
    assert epochs == [1]


async def test_producer_of_a_sealed_segment_is_refused(node: Node) -> None:
    await transitions_of(node).split(TOPIC, 0)
    client = await connected(node)
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = SEGMENT
    command.producer.producer_id = PRODUCER_ID
    command.producer.request_id = 1
    await client.send(encode(command))
    assert (await client.receive()).error.error == api.TopicTerminatedError


async def test_producer_is_told_to_come_back_when_its_topic_is_deleted(node: Node) -> None:
    client = await connected(node)
    await producer(client)
    await transitions_of(node).delete(TOPIC)
    assert (await client.receive()).close_producer.producer_id == PRODUCER_ID


async def test_full_store_refuses_messages_and_takes_them_again_when_there_is_room(
    node: Node, valkey: ValkeyProcess
) -> None:
    client = await connected(node)
    await producer(client)
    await client.send(message(0))
    await receipts(client, 1)
    valkey.client().config_set("maxmemory", "1")
    await client.send(message(1) + message(2))
    assert (await client.receive()).send_error.error == api.PersistenceError
    valkey.client().config_set("maxmemory", "0")
    again = await connected(node)
    assert (await producer(again, epoch=1)).last_sequence_id == 0
    await again.send(message(1) + message(2))
    assert await receipts(again, 2) == [(1, 1), (2, 2)]


async def test_two_nodes_serve_a_log_one_after_the_other(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as first, running_node(valkey.url) as second:
        await transitions_of(first).create(TOPIC, 1)
        await eventually(lambda: all(len(node.peers.nodes) == 2 for node in (first, second)), within=30)
        urls = {await node.data.hosting.url_of(SEGMENT) for node in (first, second)}
        assert len(urls) == 1
        owner, other = (first, second) if urls == {first.pulsar_url} else (second, first)
        client = await connected(owner)
        await producer(client)
        await client.send(message(0))
        await receipts(client, 1)
        await owner.data.hosting.release_all()
        assert (await client.receive()).close_producer.producer_id == PRODUCER_ID
        taken = await other.data.hosting.open(SEGMENT, by_force=True)
        assert (taken.next, taken.ledger) == (1, taken.claim.ledger)
        client = await connected(other)
        assert (await producer(client, epoch=1)).last_sequence_id == 0
        await client.send(message(0) + message(1))
        assert await receipts(client, 2) == [(0, 0), (1, 1)]


async def test_owner_that_was_robbed_stops_at_its_next_write(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as first, running_node(valkey.url) as second:
        await transitions_of(first).create(TOPIC, 1)
        await first.data.hosting.open(SEGMENT, by_force=True)
        client = await connected(first)
        await producer(client)
        await second.data.hosting.open(SEGMENT, by_force=True)
        await client.send(message(0))
        assert (await client.receive()).close_producer.producer_id == PRODUCER_ID
        assert first.data.hosting.logs == []
        [owned] = second.data.hosting.logs
        assert owned.next == 0


async def test_message_that_too_few_replicas_have_is_refused_and_keeps_its_place(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, ack_replicas=1) as node:
        await transitions_of(node).create(TOPIC, 1)
        client = await connected(node)
        await producer(client)
        # The others wait behind the first, and are not stored.
        await client.send(b"".join(message(number) for number in range(10)))
        refused = [(await client.receive(within=30)).send_error for _ in range(10)]
        assert [(it.sequence_id, it.error) for it in refused] == [(n, api.PersistenceError) for n in range(10)]
        impatient = await connected(node)
        await producer(impatient, epoch=1)
        await impatient.send(message(0))
        assert (await impatient.receive(within=30)).send_error.error == api.PersistenceError, "it is not safer now"
        host, port = valkey.address
        with ValkeyProcess(replicaof=f"{host} {port}").start() as replica:
            await eventually(lambda: replica.info("replication")["master_link_status"] == "up", within=30)
            again = await connected(node)
            await producer(again, epoch=2)
            await again.send(message(0))
            assert await receipts(again, 1) == [(0, 0)], "it was stored, and is on the replica now"
            await again.send(b"".join(message(number) for number in range(11)))
            assert await receipts(again, 11) == [(number, number) for number in range(11)]
