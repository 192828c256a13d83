"""What watches take counts for their connection and in all, whatever kind they are and however they end."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

import trio

from gateway.node import Node
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.counters import CloseReason
from tests.gateway.served import Client, connect_frame, watch_frame
from tests.support.nodes import running_node
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

GROUP = 6 * 1_024
WATCH = 1_024


async def connected(node: Node) -> Client:
    url = urlsplit(node.pulsar_url)
    sock = trio.socket.socket()
    await sock.connect((url.hostname, url.port))
    client = Client(sock)
    await client.send(connect_frame())
    assert (await client.receive()).type == BaseCommand.CONNECTED
    return client


def filtered(watch_id: int, *filters: tuple[str, str]) -> bytes:
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS)
    command.watchScalableTopics.watch_id, command.watchScalableTopics.namespace = watch_id, "public/default"
    for key, value in filters:
        command.watchScalableTopics.property_filters.add(key=key, value=value)
    return encode(command)


def closing(watch_id: int) -> bytes:
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE)
    command.watchScalableTopicsClose.watch_id = watch_id
    return encode(command)


def registration(consumer_id: int) -> bytes:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE)
    request = command.scalableTopicSubscribe
    request.request_id = request.consumer_id = consumer_id
    request.topic, request.subscription = "topic://public/default/a", "s"
    request.consumer_name, request.consumer_type = "c", api.STREAM
    return encode(command)


def listing(watcher_id: int) -> bytes:
    command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST)
    request = command.watchTopicList
    request.request_id = request.watcher_id = watcher_id
    request.namespace, request.topics_pattern = "public/default", f"public/default/{watcher_id}.*"
    return encode(command)


async def held(node: Node, expected: int) -> None:
    await eventually(lambda: node.listener.watching.total == expected)


async def test_every_kind_of_watch_counts_until_its_connection_ends(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        client = await connected(node)
        watching = node.listener.watching
        before = 0
        for frame in (watch_frame(1, "topic://public/default/a"), filtered(1, ("k", "v")), listing(1), registration(1)):
            await client.send(frame)
            await eventually(lambda least=before: watching.total > least + WATCH - 1)  # type: ignore[misc]
            before = watching.total
        client.close()
        await held(node, 0)
        assert len(watching) == 0


async def test_a_group_counts_once_for_whom_it_has_been_there_longest(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        first, second = await connected(node), await connected(node)
        whole = GROUP + 2 * len("key" + "value")
        await first.send(filtered(1, ("key", "value")))
        await held(node, whole + WATCH)
        await second.send(filtered(1, ("key", "value")))
        await held(node, whole + 2 * WATCH)
        # Whoever stays takes it over.
        await first.send(closing(1))
        await held(node, whole + WATCH)
        first.close()
        await eventually(lambda: node.counters.connections == 1)
        assert node.listener.watching.total == whole + WATCH
        await second.send(closing(1))
        await held(node, 0)


def distinct(count: int, word: str) -> Iterable[bytes]:
    return [filtered(number, ("key", f"{word}{number}")) for number in range(count)]


async def test_at_the_total_the_connection_with_most_is_cut_and_others_stay(valkey: ValkeyProcess) -> None:
    one = GROUP + WATCH + 2 * len("keya0")
    async with running_node(valkey.url, watch_total_limit=8 * one) as node:
        modest, greedy, late = [await connected(node) for _ in range(3)]
        await modest.send(b"".join(distinct(1, "a")))
        await held(node, one)
        # A quarter of all is for one connection.
        await greedy.send(b"".join(distinct(3, "b")))
        await held(node, 4 * one)
        refused = await eventually_refused(greedy, filtered(9, ("key", "b9")))
        assert refused.watchScalableTopicsUpdate.error == api.TooManyRequests
        await late.send(b"".join(distinct(2, "c")))
        await held(node, 6 * one)
        other = await connected(node)
        await other.send(b"".join(distinct(3, "d")))
        assert await greedy.is_hung_up()
        assert node.counters.closes[CloseReason.WATCH_OVERLOAD] == 1
        for client in (modest, late, other):
            assert await client.is_alive()
        await held(node, 6 * one)


async def eventually_refused(client: Client, frame: bytes) -> BaseCommand:
    """The first answer that is an error; what else comes are snapshots."""
    await client.send(frame)
    while True:
        answer = await client.receive()
        if answer.watchScalableTopicsUpdate.HasField("error"):
            return answer
