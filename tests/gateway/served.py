"""A listener on a free port with a stub hub behind it, and the plainest client that speaks the protocol."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from gateway.binding import open_sockets
from gateway.listener import Listener, ListenerLimits
from protocol import replies
from protocol.framing import Frame, FrameDecoder, encode
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.counters import Counters
from sessions.dialogue import Terms
from sessions.hubs import Hubs
from sessions.outbox import OutboxLimits
from tests.sessions.stub_hub import StubClassic, StubConsumers, StubHub, StubNamespaces


@dataclass
class Server:
    port: int
    hub: StubHub
    counters: Counters
    listener: Listener
    addresses: list[tuple[str, int]]

    async def connect(self, *, receive_buffer: int | None = None) -> Client:
        sock = trio.socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect(("127.0.0.1", self.port))
        return Client(sock)

    async def greet(self, *, receive_buffer: int | None = None) -> Client:
        """A client that has shaken hands."""
        client = await self.connect(receive_buffer=receive_buffer)
        await client.send(connect_frame())
        assert (await client.receive()).type == BaseCommand.CONNECTED
        return client


@asynccontextmanager
async def serving(
    *,
    host: str = "127.0.0.1",
    limits: ListenerLimits | None = None,
    outbox_limits: OutboxLimits | None = None,
    terms: Terms | None = None,
) -> AsyncIterator[Server]:
    hub, counters = StubHub(), Counters()
    listener = Listener(
        Hubs(hub, StubNamespaces(), StubConsumers(), StubClassic()),
        terms or Terms("pulsar://127.0.0.1:6650"),
        limits or ListenerLimits(),
        outbox_limits or OutboxLimits(),
        counters,
    )
    async with trio.open_nursery() as nursery:
        listening = await open_sockets(host, 0)
        addresses: list[tuple[str, int]] = [sock.getsockname()[:2] for sock in listening]
        nursery.start_soon(listener.serve, listening)
        yield Server(addresses[0][1], hub, counters, listener, addresses)
        nursery.cancel_scope.cancel()


@dataclass
class Client:
    sock: trio.socket.SocketType
    _decoder: FrameDecoder = field(default_factory=FrameDecoder)
    _received: list[BaseCommand] = field(default_factory=list)

    async def send(self, data: bytes) -> None:
        while data:
            data = data[await self.sock.send(data) :]

    async def receive(self, within: float = 30) -> BaseCommand:
        with trio.fail_after(within):
            while not self._received:
                data = await self.sock.recv(65_536)
                assert data, "the server hung up"
                self._received += [frame.command for frame in self._decoder.receive(data) if isinstance(frame, Frame)]
            return self._received.pop(0)

    async def is_hung_up(self, within: float = 30) -> bool:
        """Read until the server has closed; whatever it still sent is dropped."""
        with trio.move_on_after(within):
            while True:
                try:
                    if not await self.sock.recv(65_536):
                        return True
                except ConnectionResetError:
                    return True
        return False

    async def is_alive(self) -> bool:
        """Whether the server answers a PING; anything else that arrives is dropped."""
        await self.send(encode(replies.ping()))
        while (await self.receive()).type != BaseCommand.PONG:
            pass
        return True

    def close(self) -> None:
        self.sock.close()


def connect_frame(version: int = 21) -> bytes:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "test"
    command.connect.protocol_version = version
    return encode(command)


def watch_frame(session_id: int, topic: str = "topic://t/n/a") -> bytes:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_LOOKUP)
    command.scalableTopicLookup.session_id = session_id
    command.scalableTopicLookup.topic = topic
    return encode(command)
