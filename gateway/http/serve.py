"""HTTP connections in the node's own nursery, on Hypercorn's connection handler.

Hypercorn's accept loop is not used: there an error in one connection ends the server, and its sends are shielded from
cancellation, so that one client who stops reading would hold up the shutdown for ever. Here a connection fails alone,
a stalled send ends it, and whatever is left at the end of the grace period is closed under its handler.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from litestar.types import ASGIApp

from gateway.accepting import accept_connections
from gateway.binding import close_all
from gateway.http.connection import ConnectionLimits, HttpConnection
from gateway.http.shares import Shares
from gateway.seldom import SeldomLine

log = logging.getLogger(__name__)

# Requests of one connection over HTTP/2 at the same time; each may hold a body and an answer.
_STREAMS: Final = 16


class _Connections:
    """The open connections of one server, and what they share."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        self._app = app
        self._limits = limits
        self._config = _configuration(limits)
        self._context = WorkerContext(None)
        self._answers = Shares(limits.answer_bytes)
        self._open: set[HttpConnection] = set()
        self._empty = trio.Event()
        self._crowded = SeldomLine(log, logging.WARNING)

    async def serve(self, stream: trio.SocketStream) -> None:
        if len(self._open) >= self._limits.max_connections and not self._make_room():
            self._crowded.say(f"refusing HTTP connections: {len(self._open)} are open, and all are being answered")
            stream.socket.close()
            return
        connection = HttpConnection(stream, self._app, self._limits, self._answers)
        self._open.add(connection)
        try:
            await connection.run(self._config, self._context)
        except Exception:
            log.exception("an HTTP connection failed")
        finally:
            self._open.discard(connection)
            stream.socket.close()
            if not self._open:
                self._empty.set()

    def _make_room(self) -> bool:
        """Close the connection whose client has for longest not done what it is waited for: to send a whole request, or
        to take some of an answer. Whoever holds all places by being slow would shut everybody out."""
        waiting = [connection for connection in self._open if not connection.ours]
        if not waiting:
            return False
        longest = min(waiting, key=lambda connection: connection.moved_at)
        self._crowded.say(f"closing the HTTP connections that wait for longest: {len(self._open)} are open")
        self._open.discard(longest)
        longest.cut()
        return True

    async def finish(self) -> None:
        """Let running requests finish, within the grace; idle connections close at once."""
        await self._context.terminated.set()
        with trio.move_on_after(self._limits.shutdown_grace):
            while self._open:
                self._empty = trio.Event()
                await self._empty.wait()

    def cut(self) -> None:
        """Close what is still open. Not a cancellation, which a shielded send would not notice."""
        for connection in self._open:
            connection.cut()


async def serve_http(
    app: ASGIApp,
    listening: Sequence[socket.socket],
    limits: ConnectionLimits,
    stop: trio.Event,
    on_accept_error: Callable[[], None] = lambda: None,
) -> None:
    """Serve on these sockets until `stop` is set and what was running then is done or cut. Closes the sockets."""
    connections = _Connections(app, limits)
    try:
        async with trio.open_nursery() as handlers:

            def welcome(sock: socket.socket, _: tuple[Any, ...]) -> None:
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
                handlers.start_soon(connections.serve, stream)

            async def accept(sock: socket.socket) -> None:
                await accept_connections(sock, welcome, port="HTTP", on_error=on_accept_error)

            try:
                async with trio.open_nursery() as accepting:
                    for sock in listening:
                        accepting.start_soon(accept, sock)
                    await stop.wait()
                    accepting.cancel_scope.cancel()
                close_all(listening)
                await connections.finish()
            finally:
                connections.cut()
                handlers.cancel_scope.cancel()
    finally:
        close_all(listening)


def _configuration(limits: ConnectionLimits) -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = log
    config.include_server_header = False
    config.keep_alive_timeout = limits.keep_alive
    config.h2_max_concurrent_streams = _STREAMS
    return config
