"""Proxies between Vela and a store: one that breaks the connection in chosen ways, one that speaks TLS."""

import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import trio

from tests.support.ports import HOST, ReservedPort
from tests.support.resp import Reply, RespSplitter, answers_to, classify

CHUNK = 65_536
CERTIFICATE = Path(__file__).parent / "certs" / "localhost.pem"
KEY = Path(__file__).parent / "certs" / "localhost.key"

# What a socket that was closed under our feet, by the peer or by a fault, can raise.
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


class FaultProxy:
    """Forwards whole RESP messages to one server, until told otherwise. RESP3 only.

    The counters count messages: `connections` accepted, `requests` forwarded, `answers` and `pushes` delivered,
    `swallowed` bells, `cuts` between execution and reply.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self._nursery: trio.Nursery | None = None
        self._listener: trio.SocketListener | None = None
        self._open: set[_Conversation] = set()
        self._flowing = trio.Event()
        self._flowing.set()
        self._swallowing = False
        self._fatal: Callable[[bytes], bool] | None = None
        self._cuts_left = 0
        self.connections = 0
        self.requests = 0
        self.answers = 0
        self.pushes = 0
        self.swallowed = 0
        self.cuts = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, host: str, port: int) -> AsyncIterator[Self]:
        proxy = cls(host, port)
        async with trio.open_nursery() as nursery:
            proxy._nursery = nursery
            proxy.accept()
            try:
                yield proxy
            finally:
                proxy.refuse()
                proxy.cut()
                proxy._reserved.release()
                nursery.cancel_scope.cancel()

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def refuse(self) -> None:
        """New connections are refused, as if no server were there; those that are open go on."""
        if self._listener is not None:
            self._listener.socket.close()
            self._listener = None

    def accept(self) -> None:
        """Take new connections again, on the same port."""
        if self._listener is None and self._nursery is not None:
            self._listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._reserved.listener()))
            self._nursery.start_soon(self._accept_on, self._listener)

    def cut(self) -> None:
        """Close every connection, on both sides, now."""
        for conversation in list(self._open):
            conversation.close()

    def stall(self) -> None:
        """Nothing passes in either direction, while connections stay open and are accepted."""
        if self._flowing.is_set():
            self._flowing = trio.Event()

    def resume(self) -> None:
        self._flowing.set()

    def swallow_pushes(self) -> None:
        """Keyspace notifications get lost; answers and receipts of subscriptions pass."""
        self._swallowing = True

    def deliver_pushes(self) -> None:
        self._swallowing = False

    def cut_before_reply(self, predicate: Callable[[bytes], bool], times: int = 1) -> None:
        """The next request that matches is executed, and then its connection is cut instead of answered.

        The predicate sees the packed bytes of one request. Answers to earlier requests are delivered; later ones on
        the same connection are not executed.
        """
        self._fatal = predicate
        self._cuts_left = times

    def is_fatal(self, request: bytes) -> bool:
        if self._cuts_left == 0 or self._fatal is None or not self._fatal(request):
            return False
        self._cuts_left -= 1
        return True

    async def flowing(self) -> None:
        while not self._flowing.is_set():
            await self._flowing.wait()

    async def _accept_on(self, listener: trio.SocketListener) -> None:
        assert self._nursery is not None
        try:
            while True:
                client = await listener.accept()
                self.connections += 1
                self._nursery.start_soon(self._serve, client)
        except trio.ClosedResourceError:
            pass

    async def _serve(self, client: trio.SocketStream) -> None:
        try:
            server = await trio.open_tcp_stream(*self._target)
        except OSError:
            client.socket.close()
            return
        conversation = _Conversation(self, client, server)
        self._open.add(conversation)
        try:
            await conversation.run()
        finally:
            self._open.discard(conversation)

    def deliverable(self, message: bytes) -> bool:
        kind = classify(message)
        if kind is Reply.BELL and self._swallowing:
            self.swallowed += 1
            return False
        if kind is Reply.ANSWER:
            self.answers += 1
        else:
            self.pushes += 1
        return True


class _Conversation:
    """One client connection and its counterpart to the server."""

    def __init__(self, proxy: FaultProxy, client: trio.SocketStream, server: trio.SocketStream) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._scope = trio.CancelScope()
        # One entry per answer that is still to come: True where the connection ends instead of the answer.
        self._expected: deque[bool] = deque()

    async def run(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_closed, self._requests)
                nursery.start_soon(self._until_closed, self._replies)

    def close(self) -> None:
        self._client.socket.close()
        self._server.socket.close()
        self._scope.cancel()

    async def _until_closed(self, direction: Callable[[], Awaitable[None]]) -> None:
        try:
            await direction()
        except _GONE:
            pass
        finally:
            self.close()

    async def _requests(self) -> None:
        splitter = RespSplitter()
        while data := await self._client.receive_some(CHUNK):
            await self._proxy.flowing()
            for request in splitter.receive(data):
                fatal = self._proxy.is_fatal(request)
                self._expected.extend([fatal] * answers_to(request))
                self._proxy.requests += 1
                await self._server.send_all(request)
                if fatal:
                    await trio.sleep_forever()

    async def _replies(self) -> None:
        splitter = RespSplitter()
        while data := await self._server.receive_some(CHUNK):
            await self._proxy.flowing()
            for message in splitter.receive(data):
                # Nothing is expected when the server complains unasked, of too many clients for example.
                if not message.startswith(b">") and self._expected and self._expected.popleft():
                    self._proxy.cuts += 1
                    return
                if self._proxy.deliverable(message):
                    await self._client.send_all(message)


class TlsProxy:
    """Speaks TLS to clients, with a certificate for localhost and 127.0.0.1, and plain TCP to one server."""

    def __init__(self, port: int) -> None:
        self.port = port

    @classmethod
    @asynccontextmanager
    async def open(cls, host: str, port: int) -> AsyncIterator[Self]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE, KEY)
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)

        async def serve(client: trio.SSLStream[trio.SocketStream]) -> None:
            try:
                server = await trio.open_tcp_stream(host, port)
                async with client, server, trio.open_nursery() as nursery:
                    nursery.start_soon(_pump, client, server, nursery.cancel_scope)
                    nursery.start_soon(_pump, server, client, nursery.cancel_scope)
            except* _GONE:
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, [trio.SSLListener(listener, context)])
            yield cls(listener.socket.getsockname()[1])
            nursery.cancel_scope.cancel()

    @property
    def url(self) -> str:
        """Trusts the certificate, so that it is really checked."""
        return f"rediss://{HOST}:{self.port}/0?ssl_ca_certs={CERTIFICATE}"


async def _pump(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream, scope: trio.CancelScope) -> None:
    try:
        while data := await source.receive_some(CHUNK):
            await sink.send_all(data)
    except _GONE:
        pass
    scope.cancel()
