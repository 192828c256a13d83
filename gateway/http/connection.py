"""One HTTP connection on Hypercorn's handler: the rules about time and turns that Hypercorn does not keep.

A request is in turn the client's (its head and body are awaited), ours (it is worked on), and the client's again (its
answer is to be taken). What the application answers is kept until the application has returned, and sent then: a
client that does not read holds nothing but its own connection and the bytes of its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState, LifespanState
from litestar.types import ASGIApp, Message, Receive, ReceiveMessage, Scope, Send

from gateway.http.shares import Share, Shares

# Answers are sent in pieces of it, so that the limit is on standing still and not on being slow.
_PIECE: Final = 65_536
# What a message of an answer takes beside its body: headers, tasks.
_MESSAGE_OVERHEAD: Final = 1024


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times in seconds. `keep_alive` also bounds how long the head of a request may take to arrive;
    `answer_bytes` those of all answers that wait for clients to take them."""

    max_connections: int = 512
    keep_alive: float = 30.0
    stall_limit: float = 30.0
    shutdown_grace: float = 5.0
    answer_bytes: int = 256 * 1024 * 1024


class HttpConnection:
    """One client: what Hypercorn needs of its stream, and who has to do the next step."""

    _share: Share  # of the bytes of all answers, while it runs

    def __init__(self, stream: trio.SocketStream, app: ASGIApp, limits: ConnectionLimits, answers: Shares) -> None:
        self._stream = stream
        self._app = app
        self._limits = limits
        self._answers = answers
        self._scope = trio.CancelScope()
        self._running = 0
        self._idle_since = trio.current_time()
        self._client_is_done = False
        self._broken = False
        self.ours = 0  # requests that are here as a whole and not answered yet
        self.moved_at = trio.current_time()  # when the client did last what it is waited for
        self.socket = stream.socket
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose

    async def run(self, config: Config, context: WorkerContext) -> None:
        app = ASGIWrapper(cast(ASGIFramework, self._handle))
        state = ConnectionState(LifespanState({}))
        with self._scope, self._answers.open(self.cut) as share:
            self._share = share
            try:
                await self._serve(app, config, context, state)
            finally:
                # Which knows this connection, so that neither would go before the other.
                del self._share

    async def _serve(self, app: ASGIWrapper, config: Config, context: WorkerContext, state: ConnectionState) -> None:
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

    def cut(self) -> None:
        """Close it under its handler. Not a cancellation: a shielded send would not notice, and a change that is being
        made is to be finished."""
        self._broken = self._client_is_done = True
        self._stream.socket.close()
        self._end_if_nobody_waits()

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
            piece, view = view[:_PIECE], view[_PIECE:]
            try:
                with trio.move_on_after(self._limits.stall_limit) as patience:
                    await self._stream.send_all(piece)
            except trio.BrokenResourceError:
                self._broken = True
                raise
            if patience.cancelled_caught:
                self._broken = True
                raise trio.BrokenResourceError

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._running += 1
        exchange = _Exchange(self, receive)
        try:
            try:
                await self._app(scope, exchange.receive, exchange.keep)
            finally:
                exchange.leave_to_client()
            await self._deliver(exchange, receive, send)
        finally:
            self._running -= 1
            self._idle_since = self.moved_at = trio.current_time()
            self._end_if_nobody_waits()

    async def _deliver(self, exchange: _Exchange, receive: Receive, send: Send) -> None:
        size = sum(map(_size, exchange.answer))
        if not self._share.size:
            self._share.moved_at = trio.current_time()
        self._answers.grow(self._share, size)
        try:
            if exchange.is_whole:
                await self._send_pieces(exchange.answer, send)
                return
            # Hypercorn hands the body over through a bounded queue and, to finish an answer, puts one more message
            # into it: unless somebody goes on taking, both wait for ever.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_drop, receive)
                await self._send_pieces(exchange.answer, send)
                nursery.cancel_scope.cancel()
        finally:
            self._answers.shrink(self._share, size)

    async def _send_pieces(self, answer: list[Message], send: Send) -> None:
        for message in _pieces(answer):
            if self._broken:
                return
            # Over HTTP/2 a client holds an answer up without any send of ours that could stand still.
            with trio.move_on_after(self._limits.stall_limit) as patience:
                await send(message)
            if patience.cancelled_caught:
                self.cut()
                return
            self.moved_at = self._share.moved_at = trio.current_time()

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


class _Exchange:
    """A request and its answer: notes when the request is whole, and keeps the answer."""

    def __init__(self, connection: HttpConnection, receive: Receive) -> None:
        self._connection = connection
        self._receive = receive
        self._is_ours = False
        self.is_whole = False
        self.answer: list[Message] = []

    async def receive(self) -> ReceiveMessage:
        message = await self._receive()
        if message["type"] == "http.request" and not message["more_body"] and not self.is_whole:
            self.is_whole = self._is_ours = True
            self._connection.ours += 1
        return message

    async def keep(self, message: Message) -> None:
        self.answer.append(message)

    def leave_to_client(self) -> None:
        if self._is_ours:
            self._is_ours = False
            self._connection.ours -= 1
            self._connection.moved_at = trio.current_time()


def _size(message: Message) -> int:
    return _MESSAGE_OVERHEAD + (len(message["body"]) if message["type"] == "http.response.body" else 0)


def _pieces(answer: list[Message]) -> Iterator[Message]:
    for message in answer:
        if message["type"] != "http.response.body" or len(message["body"]) <= _PIECE:
            yield message
            continue
        body = memoryview(message["body"])
        for start in range(0, len(body), _PIECE):
            more = message["more_body"] or start + _PIECE < len(body)
            yield {"type": "http.response.body", "body": bytes(body[start : start + _PIECE]), "more_body": more}


async def _drop(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
