"""HTTP connections in the node's own nursery, on Hypercorn's connection handler.

Hypercorn's accept loop is not used: there an error in one connection ends the server, and its sends are shielded from
cancellation, so that one client who stops reading would hold up the shutdown for ever. Here a connection fails alone,
a stalled send ends it, and whatever is left at the end of the grace period is closed under its handler.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState, LifespanState
from litestar.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times in seconds. `keep_alive` also bounds how long the head of a request may take to arrive."""

    max_connections: int = 512
    keep_alive: float = 30.0
    stall_limit: float = 30.0
    shutdown_grace: float = 5.0


class _Connection:
    """One client: what Hypercorn needs of its stream, and the rules about time that Hypercorn does not keep."""

    def __init__(self, stream: trio.SocketStream, app: ASGIApp, limits: ConnectionLimits) -> None:
        self._stream = stream
        self._app = app
        self._limits = limits
        self._scope = trio.CancelScope()
        self._running = 0
        self._idle_since = trio.current_time()
        self._client_is_done = False
        self.socket = stream.socket
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose

    async def run(self, config: Config, context: WorkerContext) -> None:
        app = ASGIWrapper(cast(ASGIFramework, self._handle))
        state = ConnectionState(LifespanState({}))
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_when_idle)
                # It wants a `SocketStream`, and uses no more of it than this class has.
                handler = TCPServer(app, config, context, state, self)  # type: ignore[arg-type]
                try:
                    await handler.run()
                finally:
                    # It and its protocol hold each other, and with them the last request and its answer.
                    vars(handler).clear()
                self._scope.cancel()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError:
            data = b""
        if not data:
            self._client_is_done = True
            # One turn for a request that came right before the end and has not been taken up yet.
            await trio.lowlevel.checkpoint()
            self._end_if_nobody_waits()
        return data

    async def send_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            # In pieces, so that the limit is on standing still and not on being slow.
            piece, view = view[:65_536], view[65_536:]
            with trio.move_on_after(self._limits.stall_limit) as patience:
                await self._stream.send_all(piece)
            if patience.cancelled_caught:
                raise trio.BrokenResourceError

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
            self._idle_since = trio.current_time()
            self._end_if_nobody_waits()

    def _end_if_nobody_waits(self) -> None:
        """Hypercorn would keep a connection that the client has closed until its idle timer fires."""
        if self._client_is_done and not self._running:
            self._scope.cancel()

    async def _end_when_idle(self) -> None:
        """Hypercorn's own timer stands still once somebody has begun to speak HTTP/2."""
        limit = self._limits.keep_alive
        while True:
            await trio.sleep(limit)
            if not self._running and trio.current_time() >= self._idle_since + limit:
                self._scope.cancel()


class _Connections:
    """The open connections of one server, and what they share."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits) -> None:
        self._app = app
        self._limits = limits
        self._config = _configuration(limits)
        self._context = WorkerContext(None)
        self._open: set[trio.SocketStream] = set()
        self._empty = trio.Event()
        self._refusing = False

    async def serve(self, stream: trio.SocketStream) -> None:
        if len(self._open) >= self._limits.max_connections:
            if not self._refusing:
                log.warning("refusing further HTTP connections: %d are open", len(self._open))
            self._refusing = True
            stream.socket.close()
            return
        self._refusing = False
        self._open.add(stream)
        try:
            await _Connection(stream, self._app, self._limits).run(self._config, self._context)
        except Exception:
            log.exception("an HTTP connection failed")
        finally:
            self._open.discard(stream)
            stream.socket.close()
            if not self._open:
                self._empty.set()

    async def finish(self) -> None:
        """Let running requests finish, within the grace; idle connections close at once."""
        await self._context.terminated.set()
        with trio.move_on_after(self._limits.shutdown_grace):
            while self._open:
                self._empty = trio.Event()
                await self._empty.wait()

    def cut(self) -> None:
        """Close what is still open. Not a cancellation, which a shielded send would not notice."""
        for stream in self._open:
            stream.socket.close()


async def serve_http(
    app: ASGIApp, listening: Sequence[socket.socket], limits: ConnectionLimits, stop: trio.Event
) -> None:
    """Serve on these sockets until `stop` is set and what was running then is done or cut. Closes the sockets."""
    connections = _Connections(app, limits)
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in listening]
    async with trio.open_nursery() as handlers:
        try:
            async with trio.open_nursery() as accepting:
                accept: Callable[[], Awaitable[None]] = partial(
                    trio.serve_listeners, connections.serve, listeners, handler_nursery=handlers
                )
                accepting.start_soon(accept)
                await stop.wait()
                accepting.cancel_scope.cancel()
            await connections.finish()
        finally:
            connections.cut()
            handlers.cancel_scope.cancel()


def _configuration(limits: ConnectionLimits) -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = log
    config.include_server_header = False
    config.keep_alive_timeout = limits.keep_alive
    return config
