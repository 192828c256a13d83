"""Clients come and go, and leave nothing to the collector of cycles: reference counting frees all of it (ADR 0011)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import count
from typing import Final
from urllib.parse import urlsplit

import pytest
import trio

from gateway.node import Node
from metadata.errors import LogFenced
from protocol.client import requests
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.gateway.served import Client
from tests.segments.test_sending import PRODUCER_ID, SEGMENT, TOPIC, connected, message, producer, receipts
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, acknowledgement, subscribe
from tests.support.asking import Asker
from tests.support.cycles import remains_of
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess

Life = Callable[[], Awaitable[None]]
SubType = api.CommandSubscribe.SubType

# What is kept on purpose, and within bounds: the last entries of a log in memory, and who has left lately.
_KEPT: Final = {
    "metadata.log_entries.StoredEntry",
    "sessions.departures.Departure",
    "protocol.names.TopicName",
}
_OURS: Final = ("protocol.", "layout.", "metadata.", "controller.", "segments.", "sessions.", "gateway.")


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """What is logged is kept by pytest for the length of the test, and with it whatever an error holds."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    # What happens by the clock is none of it.
    async with running_node(valkey.url, probe_interval=600.0, session_lease=600.0) as node:
        await transitions_of(node).create(TOPIC, 1)
        yield node


class Lives:
    """What one client does from its CONNECT to its end, by the name of the method."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._numbers = count()

    # Connections.

    async def connection(self) -> None:
        (await connected(self._node)).close()

    async def connection_with_a_bad_frame(self) -> None:
        client = await connected(self._node)
        await client.send(b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff")
        assert await client.is_hung_up()
        client.close()

    async def connection_that_breaks_the_protocol(self) -> None:
        client = await connected(self._node)
        await client.send(encode(requests.connect("again")))
        assert await client.is_hung_up()
        client.close()

    # Producers.

    async def producer(self) -> None:
        client = await self._producing()
        await ask(client, requests.close_producer(9, PRODUCER_ID), BaseCommand.SUCCESS)
        client.close()

    async def producer_that_is_cut(self) -> None:
        (await self._producing()).close()

    async def producer_with_a_damaged_message(self) -> None:
        client = await connected(self._node)
        await producer(client)
        await client.send(message(next(self._numbers), damaged=True))
        assert (await client.receive()).type == BaseCommand.SEND_ERROR
        assert (await client.receive()).type == BaseCommand.CLOSE_PRODUCER
        client.close()

    async def producer_that_waits_and_is_cut(self) -> None:
        client = await self._producing()
        waiting = requests.producer(
            2,
            SEGMENT,
            PRODUCER_ID + 1,
            name="waits",
            is_own_name=True,
            epoch=0,
            access_mode=api.WaitForExclusive,
            topic_epoch=None,
            properties={"a": "b"},
        )
        await ask(client, waiting, BaseCommand.PRODUCER_SUCCESS)
        client.close()

    async def producer_that_is_refused(self) -> None:
        client = await connected(self._node)
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = "segment://public/default/unknown/0000-ffff-0"
        command.producer.producer_id = command.producer.request_id = 1
        await ask(client, command, BaseCommand.ERROR)
        client.close()

    async def producer_that_leaves_while_it_is_let_in(self) -> None:
        client = await connected(self._node)
        command = BaseCommand(type=BaseCommand.PRODUCER)
        command.producer.topic = SEGMENT
        command.producer.producer_id = command.producer.request_id = 1
        await client.send(encode(command))
        client.close()

    # Consumers.

    async def exclusive_consumer(self) -> None:
        await self._consume(api.CommandSubscribe.Exclusive)

    async def shared_consumer(self) -> None:
        await self._consume(api.CommandSubscribe.Shared)

    async def failover_consumer(self) -> None:
        await self._consume(api.CommandSubscribe.Failover)

    async def key_shared_consumer(self) -> None:
        await self._consume(api.CommandSubscribe.Key_Shared)

    async def consumer_that_is_cut(self) -> None:
        consumer = await self._consuming(api.CommandSubscribe.Shared)
        consumer.client.close()

    async def consumer_that_leaves_while_it_is_let_in(self) -> None:
        client = await connected(self._node)
        await WireConsumer(client, kind=api.CommandSubscribe.Exclusive, subscription="hasty").ask_for()
        client.close()

    async def consumer_that_is_refused(self) -> None:
        consumer = await self._consuming(api.CommandSubscribe.Exclusive)
        other = WireConsumer(await connected(self._node), subscription=consumer.subscription)
        assert (await other.subscribe()).type == BaseCommand.ERROR
        other.client.close()
        consumer.client.close()

    async def consumer_that_unsubscribes(self) -> None:
        consumer = await self._consuming(api.CommandSubscribe.Shared, "unsubscribed")
        await ask(consumer.client, requests.unsubscribe(7, CONSUMER_ID), BaseCommand.SUCCESS)
        consumer.client.close()

    async def reader(self) -> None:
        client = await connected(self._node)
        command = subscribe(f"reader-{next(self._numbers)}", api.CommandSubscribe.Exclusive)
        command.subscribe.durable = False
        await ask(client, command, BaseCommand.SUCCESS)
        client.close()

    async def registered_consumer(self) -> None:
        client = await connected(self._node)
        register = requests.register_consumer(1, str(TOPIC), "r", "c", 1, api.STREAM)
        await ask(client, register, BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE)
        await client.send(encode(requests.unregister_consumer(2, 1)))
        while (await client.receive()).type != BaseCommand.SUCCESS:
            pass
        client.close()

    # Watches and questions.

    async def dag_watch(self) -> None:
        client = await connected(self._node)
        await ask(client, requests.open_topic_watch(1, str(TOPIC), False), BaseCommand.SCALABLE_TOPIC_UPDATE)
        client.close()

    async def dag_watch_of_nothing(self) -> None:
        client = await connected(self._node)
        watch = requests.open_topic_watch(1, "topic://public/default/unknown", False)
        await ask(client, watch, BaseCommand.SCALABLE_TOPIC_UPDATE)
        client.close()

    async def namespace_watch(self) -> None:
        client = await connected(self._node)
        watch = requests.open_namespace_watch(1, "public/default", {"a": "b"}, None)
        await ask(client, watch, BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
        client.close()

    async def topic_list_watch(self) -> None:
        client = await connected(self._node)
        assert (
            await Asker(client).watch("persistent://public/default/.*")
        ).type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS
        client.close()

    async def question_about_topics(self) -> None:
        client = await connected(self._node)
        await Asker(client).topics(pattern="persistent://public/default/a.*")
        await Asker(client).partitions("persistent://public/default/unknown", may_create=False)
        await ask(client, requests.lookup(1, SEGMENT, False), BaseCommand.LOOKUP_RESPONSE)
        await ask(client, requests.lookup(1, "segment://a/b/c/0000-ffff-0", False), BaseCommand.LOOKUP_RESPONSE)
        client.close()

    # Logs.

    async def log(self) -> None:
        """Opened, used, and given up."""
        consumer = await self._consuming(api.CommandSubscribe.Exclusive)
        hosting = self._node.data.hosting
        await hosting.let_go(await hosting.open(SEGMENT))
        assert (await consumer.client.receive()).type == BaseCommand.CLOSE_CONSUMER
        consumer.client.close()

    async def log_that_is_lost(self) -> None:
        client = await self._producing()
        (await self._node.data.hosting.open(SEGMENT)).lose(LogFenced("Another node has it."))
        assert (await client.receive()).type == BaseCommand.CLOSE_PRODUCER
        client.close()

    # HTTP.

    async def http_request(self) -> None:
        assert (await self._get("/admin/v2/namespaces/public")).startswith(b"HTTP/1.1 200")

    async def http_request_that_is_refused(self) -> None:
        assert (await self._get("/admin/v2/namespaces/public/unknown/permissions")).startswith(b"HTTP/1.1 404")

    async def http_request_that_is_cut(self) -> None:
        with await self._http_socket() as sock:
            await sock.send(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n")

    async def _get(self, path: str) -> bytes:
        with await self._http_socket() as sock:
            await sock.send(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
            answer = b""
            while data := await sock.recv(65_536):
                answer += data
        return answer

    async def _http_socket(self) -> trio.socket.SocketType:
        address = urlsplit(self._node.http_url)
        sock = trio.socket.socket()
        await sock.connect((address.hostname, address.port))
        return sock

    async def _producing(self) -> Client:
        """A client whose producer has sent a message."""
        client = await connected(self._node)
        await producer(client)
        await client.send(message(next(self._numbers)))
        await receipts(client, 1)
        return client

    async def _consuming(self, kind: SubType.ValueType, subscription: str = "") -> WireConsumer:
        """A consumer that has got a message and acknowledged it."""
        (await self._producing()).close()
        client = await connected(self._node)
        consumer = WireConsumer(client, kind=kind, subscription=subscription or f"s{kind}")
        answer = await consumer.subscribe(permits=1)
        assert answer.type == BaseCommand.SUCCESS, answer
        while (told := await client.receive()).type != BaseCommand.MESSAGE:
            assert told.type == BaseCommand.ACTIVE_CONSUMER_CHANGE, told
        await ask(client, acknowledgement(told.message, request_id=3), BaseCommand.ACK_RESPONSE)
        return consumer

    async def _consume(self, kind: SubType.ValueType) -> None:
        consumer = await self._consuming(kind)
        await ask(consumer.client, requests.close_consumer(4, CONSUMER_ID), BaseCommand.SUCCESS)
        consumer.client.close()


async def ask(client: Client, command: BaseCommand, expected: BaseCommand.Type.ValueType) -> None:
    await client.send(encode(command))
    answer = await client.receive()
    assert answer.type == expected, answer


ALL: Final = [name for name in vars(Lives) if not name.startswith("_")]


@pytest.mark.parametrize("kind", ALL)
async def test_lives_leave_nothing_to_the_collector(node: Node, kind: str) -> None:
    await _nothing_is_left_of(node, kind, lives=50)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["connection", "producer", "shared_consumer", "dag_watch", "namespace_watch", "log"])
async def test_a_thousand_lives_leave_nothing_to_the_collector(node: Node, kind: str) -> None:
    await _nothing_is_left_of(node, kind, lives=1_000)


async def _nothing_is_left_of(node: Node, kind: str, lives: int) -> None:
    life: Life = getattr(Lives(node), kind)
    remains = await remains_of(life, lives)
    # Of whatever happens once meanwhile there may be something, but nothing of each.
    assert sum(remains.garbage.values()) < lives, remains.garbage.most_common(20)
    grown = {name: more for name, more in remains.growth.items() if name.startswith(_OURS) and more >= lives / 2}
    assert not grown.keys() - _KEPT, grown
