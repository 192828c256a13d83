"""The connections that producers and consumers share: one to each server, opened when it is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from protocol.client.addresses import ServiceAddress
from protocol.client.background import background
from protocol.client.connection import CLIENT_VERSION, KEEP_ALIVE_INTERVAL, REQUEST_TIMEOUT, ClientConnection, connect
from protocol.client.errors import BadServiceUrl, ConnectionLost, RequestTimedOut, ServerMisbehaved
from protocol.client.lookups import MAX_REDIRECTS, target_of
from protocol.client.reconnecting import OnState
from protocol.errors import ProtocolError


@asynccontextmanager
async def open_pool(
    service_url: str | Sequence[str],
    *,
    client_version: str = CLIENT_VERSION,
    timeout: float = REQUEST_TIMEOUT,
    keep_alive: float = KEEP_ALIVE_INTERVAL,
    on_state: OnState | None = None,
) -> AsyncIterator[ConnectionPool]:
    """Connections to a server, or to any of several that belong together, and to those that it points to.

    The first one is made at once, so that a wrong address is noticed here. Later on a lost connection is replaced when
    somebody asks for it, and `on_state` is told when one was lost and when one is made again.
    """
    urls = [service_url] if isinstance(service_url, str) else service_url
    services = [ServiceAddress.parse(url) for url in urls]
    if not services:
        raise BadServiceUrl("No address of a server is given.")
    async with background() as tasks:
        pool = ConnectionPool(tasks, services, client_version, timeout, keep_alive, on_state)
        await pool.service()
        yield pool


class _Slot:
    """A connection that is being made, or is there."""

    __slots__ = ("connection", "decided", "failure")

    def __init__(self) -> None:
        self.connection: ClientConnection | None = None
        self.failure: ProtocolError | None = None
        self.decided = trio.Event()

    @property
    def is_usable(self) -> bool:
        return not self.decided.is_set() or (self.connection is not None and self.connection.is_open)


class ConnectionPool:
    """Made by `open_pool`; any number of tasks may use it."""

    def __init__(
        self,
        tasks: trio.Nursery,
        services: Sequence[ServiceAddress],
        client_version: str,
        timeout: float,
        keep_alive: float,
        on_state: OnState | None = None,
    ) -> None:
        self.timeout = timeout
        self._on_state = on_state or (lambda _: None)
        self._tasks = tasks
        self._services = list(services)
        self._client_version = client_version
        self._keep_alive = keep_alive
        self._slots: dict[tuple[ServiceAddress, ServiceAddress | None], _Slot] = {}

    @property
    def connections(self) -> list[ClientConnection]:
        """Those that are open now."""
        return [slot.connection for slot in self._slots.values() if slot.connection is not None and slot.is_usable]

    async def service(self) -> ClientConnection:
        """A connection to the first server that answers, beginning with the one that did so last."""
        for _ in range(len(self._services) - 1):
            address = self._services[0]
            try:
                return await self.connection_to(address)
            except (ConnectionLost, RequestTimedOut):
                self._pass_over(address)
        return await self.connection_to(self._services[0])

    def _pass_over(self, address: ServiceAddress) -> None:
        if self._services[0] == address:  # or another task has moved on already
            self._services.append(self._services.pop(0))

    async def connection_for(self, topic: str) -> ClientConnection:
        """Ask which server is responsible for a topic, go where that points to, and connect."""
        connection = await self.service()
        authoritative = False
        for _ in range(MAX_REDIRECTS + 1):
            try:
                answer = await connection.lookup(topic, authoritative=authoritative)
            except RequestTimedOut:
                self._pass_over(connection.address)  # it is connected and says nothing
                raise
            target = target_of(answer, connection.address)
            if answer.response == answer.Connect:
                if answer.proxy_through_service_url:
                    return await self.connection_to(self._services[0], proxied_to=target)
                return await self.connection_to(target)
            connection, authoritative = await self.connection_to(target), answer.authoritative
        raise ServerMisbehaved(
            f"{self._services[0]} answers with redirects without end: look at the addresses its nodes advertise."
        )

    async def connection_to(
        self, address: ServiceAddress, *, proxied_to: ServiceAddress | None = None
    ) -> ClientConnection:
        """The one connection to a server: the one there is, or else a new one, which all who ask wait for together."""
        slot = self._slots.get((address, proxied_to))
        if slot is None or not slot.is_usable:
            slot = self._slots[address, proxied_to] = _Slot()
            self._tasks.start_soon(self._hold, slot, address, proxied_to)
        await slot.decided.wait()
        if slot.connection is None:
            assert slot.failure is not None, "who decides without a connection says why"
            raise slot.failure.with_traceback(None)
        return slot.connection

    async def _hold(self, slot: _Slot, address: ServiceAddress, proxied_to: ServiceAddress | None) -> None:
        try:
            async with connect(
                str(address),
                client_version=self._client_version,
                timeout=self.timeout,
                keep_alive=self._keep_alive,
                proxy_to_broker_url=proxied_to.authority if proxied_to else None,
            ) as connection:
                slot.connection = connection
                slot.decided.set()
                self._on_state("connected")
                await connection.wait_ended()
                self._on_state("reconnecting")
        except ProtocolError as error:
            slot.failure = error
        finally:
            if slot.failure is None:
                slot.failure = ConnectionLost("The connections were closed on this side.")
            slot.decided.set()
            if self._slots.get((address, proxied_to)) is slot:
                del self._slots[address, proxied_to]
