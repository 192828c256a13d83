"""Watches that outlive their connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, TypeAlias

import trio

from protocol.client.addresses import ServiceAddress
from protocol.client.background import background
from protocol.client.backoff import Backoff
from protocol.client.connection import CLIENT_VERSION, KEEP_ALIVE_INTERVAL, REQUEST_TIMEOUT, ClientConnection
from protocol.client.errors import ServerMisbehaved, ServerRefused
from protocol.client.latest import Latest
from protocol.client.lookups import connect_for_topic
from protocol.errors import ProtocolError
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api

WatchState: TypeAlias = Literal["connecting", "connected", "reconnecting"]

# Ids are told apart per connection, and a watch has its connections for itself.
_SESSION_ID = 1


@asynccontextmanager
async def watch_topic(
    service_url: str,
    topic: str,
    *,
    create_if_missing: bool = True,
    on_state: Callable[[WatchState], None] | None = None,
    client_version: str = CLIENT_VERSION,
    timeout: float = REQUEST_TIMEOUT,
    keep_alive: float = KEEP_ALIVE_INTERVAL,
) -> AsyncIterator[TopicWatch]:
    """Follow a topic's segments across lost connections, as long as the body runs.

    Until the first layout has arrived every failure is raised from the iteration. Later ones are answered by
    reconnecting, and `on_state` is told about that. An update with `error` set says that the topic is gone and
    is the last one.
    """
    ServiceAddress.parse(service_url)
    name = str(TopicName.parse(topic))
    watch = TopicWatch(on_state)

    def connected() -> AbstractAsyncContextManager[ClientConnection]:
        return connect_for_topic(
            service_url, name, client_version=client_version, timeout=timeout, keep_alive=keep_alive
        )

    async with background() as tasks:
        tasks.start_soon(watch._follow, connected, name, create_if_missing)
        yield watch


class TopicWatch(AsyncIterator[api.CommandScalableTopicUpdate]):
    """Iterates over the updates of `watch_topic`; one who iterates slowly sees only the newest."""

    def __init__(self, on_state: Callable[[WatchState], None] | None) -> None:
        self.state: WatchState = "connecting"
        self._on_state = on_state
        self._updates: Latest[api.CommandScalableTopicUpdate] = Latest()
        self._delivered: api.CommandScalableTopicUpdate | None = None

    async def __anext__(self) -> api.CommandScalableTopicUpdate:
        while True:
            try:
                update = await self._updates.take()
            except trio.EndOfChannel:
                raise StopAsyncIteration from None
            # A reopened watch begins with the state of the topic, which often is the known one.
            if update != self._delivered:
                self._delivered = update
                return update

    async def _follow(
        self, connected: Callable[[], AbstractAsyncContextManager[ClientConnection]], topic: str, create: bool
    ) -> None:
        backoff = Backoff()
        has_layout = False
        while True:
            try:
                async with connected() as connection:
                    watch = await connection.open_watch(topic, _SESSION_ID, create_if_missing=create)
                    backoff.reset()
                    self._enter("connected")
                    while True:
                        update = await watch.next()
                        if update.HasField("error"):
                            # More than the error itself has arrived if there was a layout that it replaced.
                            if not has_layout and watch.received == 1:
                                raise ServerRefused(update.error, update.message)
                            self._updates.put(update)
                            self._updates.end()
                            return
                        has_layout = True
                        self._updates.put(update)
            except ProtocolError as error:
                if not has_layout or isinstance(error, ServerMisbehaved):
                    self._updates.end(error)
                    return
            self._enter("reconnecting")
            await trio.sleep(backoff.next())

    def _enter(self, state: WatchState) -> None:
        if state != self.state:
            self.state = state
            if self._on_state is not None:
                self._on_state(state)
