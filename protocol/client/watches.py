"""Topic watches that outlive their connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from protocol.client.addresses import ServiceAddress
from protocol.client.background import background
from protocol.client.connection import CLIENT_VERSION, KEEP_ALIVE_INTERVAL, REQUEST_TIMEOUT, ClientConnection
from protocol.client.errors import ServerRefused
from protocol.client.lookups import connect_for_topic
from protocol.client.mailboxes import Latest
from protocol.client.pool import ConnectionPool
from protocol.client.reconnecting import OnState, Reconnection, WatchState
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api


@asynccontextmanager
async def watch_topic(
    service_url: str,
    topic: str,
    *,
    create_if_missing: bool = True,
    on_state: OnState | None = None,
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
    watch = TopicWatch(name, create_if_missing, on_state)

    def connected() -> AbstractAsyncContextManager[ClientConnection]:
        return connect_for_topic(
            service_url, name, client_version=client_version, timeout=timeout, keep_alive=keep_alive
        )

    async with _following(watch, connected):
        yield watch


@asynccontextmanager
async def follow_topic(
    pool: ConnectionPool, topic: str, *, create_if_missing: bool = True, on_state: OnState | None = None
) -> AsyncIterator[TopicWatch]:
    """The same as `watch_topic`, on a connection that is shared with others."""
    name = str(TopicName.parse(topic))
    watch = TopicWatch(name, create_if_missing, on_state)

    @asynccontextmanager
    async def connected() -> AsyncIterator[ClientConnection]:
        yield await pool.connection_for(name)

    async with _following(watch, connected):
        yield watch


async def start_following(
    tasks: trio.Nursery, pool: ConnectionPool, topic: str, *, create_if_missing: bool = True
) -> TopicWatch:
    """The same for as long as a nursery."""

    async def hold(task_status: trio.TaskStatus[TopicWatch]) -> None:
        async with follow_topic(pool, topic, create_if_missing=create_if_missing) as watch:
            task_status.started(watch)
            await trio.sleep_forever()

    watch: TopicWatch = await tasks.start(hold)
    return watch


@asynccontextmanager
async def _following(
    watch: TopicWatch, connected: Callable[[], AbstractAsyncContextManager[ClientConnection]]
) -> AsyncIterator[None]:
    async def follow() -> None:
        watch._updates.end(await watch._reconnection.run(connected, watch._follow))

    async with background() as tasks:
        tasks.start_soon(follow)
        yield


class TopicWatch(AsyncIterator[api.CommandScalableTopicUpdate]):
    """Iterates over the updates of `watch_topic`; one who iterates slowly sees only the newest."""

    def __init__(self, topic: str, create: bool, on_state: OnState | None) -> None:
        self._topic = topic
        self._create = create
        self._reconnection = Reconnection(on_state)
        self._updates: Latest[api.CommandScalableTopicUpdate] = Latest()
        self._delivered: api.CommandScalableTopicUpdate | None = None

    @property
    def state(self) -> WatchState:
        return self._reconnection.state

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

    async def _follow(self, connection: ClientConnection) -> None:
        """One connection's part; returns when the topic is gone."""
        watch = await connection.open_watch(self._topic, create_if_missing=self._create)
        self._reconnection.opened()
        try:
            while True:
                update = await watch.next()
                if update.HasField("error"):
                    # More than the error itself has arrived if there was a layout that it replaced.
                    if not self._reconnection.succeeded and watch.received == 1:
                        raise ServerRefused(update.error, update.message)
                    self._updates.put(update)
                    return
                self._reconnection.succeeded = True
                self._updates.put(update)
        finally:
            watch.abandon()  # others may use the connection further on
