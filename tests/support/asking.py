"""A client that asks a node about classic topics, and keeps what it is told without having asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from urllib.parse import urlsplit

import trio

from gateway.node import Node
from protocol.client import requests
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.gateway.served import Client, connect_frame

WITHIN = 30.0


class Asker:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._numbers = count(1)

    async def partitions(self, topic: str, *, may_create: bool = True) -> api.CommandPartitionedTopicMetadataResponse:
        return (
            await self._ask(requests.partitioned_metadata(next(self._numbers), topic, may_create))
        ).partitionMetadataResponse

    async def topics(
        self,
        namespace: str = "public/default",
        *,
        mode: int | None = None,
        pattern: str | None = None,
        known: str | None = None,
    ) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
        request = command.getTopicsOfNamespace
        request.request_id, request.namespace = next(self._numbers), namespace
        if mode is not None:
            request.mode = api.CommandGetTopicsOfNamespace.Mode.ValueType(mode)
        if pattern is not None:
            request.topics_pattern = pattern
        if known is not None:
            request.topics_hash = known
        return await self._ask(command)

    async def watch(
        self, pattern: str, *, watcher_id: int = 1, namespace: str = "public/default", known: str | None = None
    ) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST)
        request = command.watchTopicList
        request.request_id, request.watcher_id = next(self._numbers), watcher_id
        request.namespace, request.topics_pattern = namespace, pattern
        if known is not None:
            request.topics_hash = known
        return await self._ask(command)

    async def close_watch(self, watcher_id: int = 1) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_CLOSE)
        request = command.watchTopicListClose
        request.request_id, request.watcher_id = next(self._numbers), watcher_id
        return await self._ask(command)

    async def update(self) -> api.CommandWatchTopicUpdate:
        """The next update of a watch."""
        command = await self._client.receive(WITHIN)
        assert command.type == BaseCommand.WATCH_TOPIC_UPDATE, command
        return command.watchTopicUpdate

    async def is_alive(self) -> bool:
        return await self._client.is_alive()

    async def _ask(self, command: BaseCommand) -> BaseCommand:
        await self._client.send(encode(command))
        return await self._client.receive(WITHIN)


class Followed:
    """The set of topics that a client knows by what it was told."""

    def __init__(self, success: api.CommandWatchTopicListSuccess) -> None:
        self.topics = set(success.topic)
        self.hash = success.topics_hash

    def take(self, update: api.CommandWatchTopicUpdate) -> None:
        self.topics -= set(update.deleted_topics)
        self.topics |= set(update.new_topics)
        self.hash = update.topics_hash


@asynccontextmanager
async def asking(node: Node) -> AsyncIterator[Asker]:
    """A connection to a node that has shaken hands."""
    address = urlsplit(node.pulsar_url)
    with trio.socket.socket() as sock:
        await sock.connect((address.hostname, address.port))
        client = Client(sock)
        await client.send(connect_frame())
        assert (await client.receive(WITHIN)).type == BaseCommand.CONNECTED
        yield Asker(client)
