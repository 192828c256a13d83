"""Accepts client connections on listening sockets, and sees them off when the server stops."""

from __future__ import annotations

import logging
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import trio

from gateway.accepting import accept_connections
from gateway.binding import close_all
from gateway.connection import RECEIVE_TOTAL, WATCH_TOTAL, Connection, Service
from gateway.keepalive import Roster
from gateway.supervision import supervised
from metadata.tasks import GuardedTasks
from protocol import replies
from protocol.framing import encode
from protocol.turns import SlowTurns
from protocol.wire import pulsar_api_pb2 as api
from sessions.budgets import Budget, Holdings
from sessions.counters import CloseReason, Counters
from sessions.dialogue import Terms
from sessions.hubs import Hubs
from sessions.outbox import OutboxLimits

log = logging.getLogger(__name__)

RECEIVE_BUFFER = 64 * 1024
# Unsent bytes that the kernel takes from us per connection. Without it a peer that stopped reading is noticed
# only after some 4 MB of stale frames.
UNSENT_IN_KERNEL = 16 * 1024

_TOO_MANY = encode(
    replies.error(replies.CONNECTION_REQUEST_ID, api.NotAllowedError, "Reached the maximum number of connections")
)


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    max_connections: int = 10_000
    max_connections_per_address: int = 10_000
    opens_per_second: float = 10_000
    handshake_timeout: float = 10.0
    keep_alive: float = 30.0
    shutdown_grace: float = 5.0
    receive_total: int = RECEIVE_TOTAL
    watch_total: int = WATCH_TOTAL


class Listener:
    """The binary protocol's front door."""

    def __init__(
        self,
        hubs: Hubs[Any, Any, Any],
        terms: Terms,
        limits: ListenerLimits,
        outbox_limits: OutboxLimits,
        counters: Counters,
        turns: SlowTurns | None = None,
        failures: Counter[str] | None = None,
    ) -> None:
        """`failures` counts the tasks that ended by a fault of ours, by their names."""
        self._failures: Counter[str] = Counter() if failures is None else failures
        self._hubs = hubs
        self._terms = terms
        self._limits = limits
        self._outbox_limits = outbox_limits
        self._counters = counters
        self._turns = turns or SlowTurns()
        self._roster = Roster(limits.handshake_timeout, limits.keep_alive)
        self.watching: Budget[Holdings] = Budget(limits.watch_total)
        counters.watching = self.watching
        self._stopping = trio.Event()

    async def serve(self, listening: Sequence[socket.socket]) -> None:
        """Serve on these sockets until `stop`, then see the live connections off. Closes the sockets."""
        try:
            async with trio.open_nursery() as connections:
                service = Service(
                    GuardedTasks(connections, self._failures),
                    self._hubs,
                    self._terms,
                    self._outbox_limits,
                    set(),
                    self._counters,
                    self._roster,
                    memoryview(bytearray(RECEIVE_BUFFER)),
                    self._limits.opens_per_second,
                    self._turns,
                    Budget(self._limits.receive_total),
                    self.watching,
                )
                connections.start_soon(supervised, "the keep-alive", self._roster.run, self._failures)
                async with trio.open_nursery() as accepting:
                    for sock in listening:
                        accepting.start_soon(self._accept, sock, service)
                    await self._stopping.wait()
                    accepting.cancel_scope.cancel()
                close_all(listening)
                await self._see_off()
                connections.cancel_scope.cancel()
        finally:
            close_all(listening)

    def stop(self) -> None:
        """Accept no more; who is owed nothing is disconnected at once, the others within the grace."""
        self._stopping.set()

    async def _accept(self, listening: socket.socket, service: Service) -> None:
        def welcome(sock: socket.socket, peer: tuple[Any, ...]) -> None:
            try:
                self._welcome(sock, peer, service)
            except Exception:
                # A fault of ours, and still the fate of one connection.
                log.exception("a connection could not be taken in")
                self._counters.errors += 1
                sock.close()

        await accept_connections(listening, welcome, port="binary", on_error=self._counters.count_accept_error)

    def _welcome(self, sock: socket.socket, peer: tuple[Any, ...], service: Service) -> None:
        # One string per address, however many connections come from it.
        address = sys.intern(str(peer[0]))
        crowded = self._roster.count_from(address) >= self._limits.max_connections_per_address
        if crowded or len(self._roster) >= self._limits.max_connections:
            self._counters.refused += 1
            _turn_away(sock)
            return
        self._counters.accepted += 1
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_IN_KERNEL)
        except OSError:
            pass  # some systems refuse options on a connection that is gone already; reading will tell
        Connection(sock, service, address).start()

    async def _see_off(self) -> None:
        for client in list(self._roster):
            if not client.outbox.queued_bytes:
                client.close(CloseReason.SHUTDOWN)
        with trio.move_on_after(self._limits.shutdown_grace):
            for client in list(self._roster):
                await client.outbox.wait_sent()
                client.close(CloseReason.SHUTDOWN)


def _turn_away(sock: socket.socket) -> None:
    with sock:
        try:
            sock.send(_TOO_MANY)
            sock.shutdown(socket.SHUT_WR)
            # A close with unread bytes would reset the connection, and some clients then never see the error.
            sock.recv(RECEIVE_BUFFER)
        except OSError:
            pass  # it left before we could tell, or has not sent anything yet
