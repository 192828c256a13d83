"""Namespace watches that outlive their connection: the set of topics, kept up to date."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from protocol.client.addresses import ServiceAddress
from protocol.client.background import background
from protocol.client.connection import CLIENT_VERSION, KEEP_ALIVE_INTERVAL, REQUEST_TIMEOUT, ClientConnection, connect
from protocol.client.errors import ServerRefused
from protocol.client.mailboxes import Latest
from protocol.client.pool import ConnectionPool
from protocol.client.reconnecting import OnState, Reconnection, WatchState
from protocol.client.topic_sets import NamespaceEvent, TopicSet
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName
from protocol.wire import pulsar_api_pb2 as api


@asynccontextmanager
async def watch_namespace(
    service_url: str,
    namespace: str,
    *,
    properties: Mapping[str, str] | None = None,
    on_state: OnState | None = None,
    client_version: str = CLIENT_VERSION,
    timeout: float = REQUEST_TIMEOUT,
    keep_alive: float = KEEP_ALIVE_INTERVAL,
) -> AsyncIterator[NamespaceWatch]:
    """Follow the topics of `tenant/namespace` that have all of these properties, as long as the body runs.

    Until the first snapshot has arrived every failure is raised from the iteration. Later a lost connection is
    replaced, and `on_state` is told about that; only an error that the server sends for the watch itself (or nonsense)
    is raised, and then there is nothing more to come.
    """
    ServiceAddress.parse(service_url)
    watch = NamespaceWatch(str(NamespaceName.parse(namespace)), dict(properties or {}), on_state)

    def connected() -> AbstractAsyncContextManager[ClientConnection]:
        # Any server can tell about a namespace, so there is no lookup.
        return connect(service_url, client_version=client_version, timeout=timeout, keep_alive=keep_alive)

    async with _following(watch, connected):
        yield watch


@asynccontextmanager
async def follow_namespace(
    pool: ConnectionPool,
    namespace: str,
    *,
    properties: Mapping[str, str] | None = None,
    on_state: OnState | None = None,
) -> AsyncIterator[NamespaceWatch]:
    """The same as `watch_namespace`, on a connection that is shared with others."""
    watch = NamespaceWatch(str(NamespaceName.parse(namespace)), dict(properties or {}), on_state)

    @asynccontextmanager
    async def connected() -> AsyncIterator[ClientConnection]:
        yield await pool.service()

    async with _following(watch, connected):
        yield watch


@asynccontextmanager
async def _following(
    watch: NamespaceWatch, connected: Callable[[], AbstractAsyncContextManager[ClientConnection]]
) -> AsyncIterator[None]:
    async def follow() -> None:
        watch._news.end(await watch._reconnection.run(connected, watch._follow))

    async with background() as tasks:
        tasks.start_soon(follow)
        yield


class NamespaceWatch(AsyncIterator[NamespaceEvent]):
    """Iterates over the events of `watch_namespace`: first a `Snapshot`, then mostly `Change`s.

    Applied in order, the events always give the set that the server told. Who iterates slowly is given the changes of
    the meantime as one, with topics that were deleted and created again in both of its lists; and if they outgrow half
    of the set, a `Snapshot` instead. After a reconnect there is an event only if the set has changed, and it is a
    `Snapshot`. A set that is too large for one message comes as a `Snapshot` of its first part and `Change`s that add
    the rest.
    """

    def __init__(self, namespace: str, properties: Mapping[str, str], on_state: OnState | None) -> None:
        self._namespace = namespace
        self._properties = properties
        self._reconnection = Reconnection(on_state)
        self._set = TopicSet()
        # Rings when the set has news; what they are is found out by whoever listens, when he does.
        self._news: Latest[None] = Latest()

    @property
    def state(self) -> WatchState:
        return self._reconnection.state

    @property
    def topics(self) -> Set[str]:
        """The set that the events iterated over so far add up to: empty before the first, and never ahead of them.

        It is the set itself and changes with the next event: copy it to keep it.
        """
        return self._set.told

    @property
    def hash(self) -> str:
        """Of `topics`, as clients and servers compare sets; computed anew each time."""
        return topic_set_hash(self.topics)

    async def __anext__(self) -> NamespaceEvent:
        await trio.lowlevel.checkpoint()
        while (event := self._set.take()) is None:
            try:
                await self._news.take()
            except trio.EndOfChannel:
                raise StopAsyncIteration from None
        return event

    async def _follow(self, connection: ClientConnection) -> None:
        """One connection's part; returns when the server has ended the watch."""
        known = self._set.hash if self._set.is_known else None
        watch = await connection.open_namespace_watch(self._namespace, properties=self._properties, current_hash=known)
        self._reconnection.opened()
        try:
            while True:
                updates = await watch.next_all()
                for update in updates:
                    self._apply(update)
                if self._set.has_news:
                    self._news.put(None)
                if (last := updates[-1]).HasField("error"):
                    self._news.end(ServerRefused(last.error, last.message))
                    return
        finally:
            watch.abandon()  # others may use the connection further on

    def _apply(self, update: api.CommandWatchScalableTopicsUpdate) -> None:
        match update.WhichOneof("event"):
            case "snapshot":
                self._set.replace(update.snapshot.topics)
                self._reconnection.succeeded = True
            case "diff":
                self._set.change(update.diff.added, update.diff.removed)
