"""Client connections that hold many watches of both kinds, can stop reading, and complain about what must not be."""

from __future__ import annotations

import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import trio

from gateway.node import Node
from protocol import replies
from protocol.client import requests
from protocol.errors import ProtocolError
from protocol.framing import Frame, FrameDecoder, encode
from protocol.names import TopicName
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.properties.mirrors import Mirror
from tests.support.nodes import View


class Peer:
    """A watch is opened right behind a PING and closed right before one: the PONG then stands between the frames of
    one watch and those of the next with the same id, or after the last."""

    def __init__(self, node: Node, sock: trio.socket.SocketType, complaints: list[str], frames: Counter[str]) -> None:
        self.mirrors: dict[int, Mirror] = {}
        self.views: dict[int, View] = {}
        self.opening: dict[int, Mirror] = {}  # asked for, while frames of an earlier watch may still come
        self.hung_up = False
        self.has_stalled = False  # since somebody last took that back
        self._node = node
        self._sock = sock
        self._complaints = complaints
        self._frames = frames
        self._decoder = FrameDecoder()
        self._pongs: deque[Callable[[], None]] = deque()
        self._connected = trio.Event()
        self._reading = trio.Event()
        self._reading.set()
        self._scope = trio.CancelScope()
        self._session_ids = 0

    @property
    def watches(self) -> list[Mirror]:
        """Those the client counts as open."""
        return list((self.mirrors | self.opening).values())

    async def open(self, mirror: Mirror) -> None:
        """Open a watch, in place of one with the same id."""
        self.opening[mirror.watch_id] = mirror

        def begin() -> None:
            self.mirrors[mirror.watch_id] = mirror
            if self.opening.get(mirror.watch_id) is mirror:
                del self.opening[mirror.watch_id]

        self._pongs.append(begin)
        await self._send(replies.ping(), mirror.opening())

    async def close(self, watch_id: int) -> None:
        self.opening.pop(watch_id, None)
        self._pongs.append(lambda: self._forget(watch_id))
        await self._send(requests.close_namespace_watch(watch_id), replies.ping())

    async def watch_topic(self, topic: TopicName, *, create: bool) -> View:
        self._session_ids += 1
        view = self.views[self._session_ids] = View(self._node, topic, self._session_ids)
        await self._send(requests.open_topic_watch(view.session_id, str(topic), create))
        return view

    async def close_topic(self, session_id: int) -> None:
        self._pongs.append(lambda: self._forget_topic(session_id))
        await self._send(requests.close_topic_watch(session_id), replies.ping())

    async def round_trip(self) -> None:
        """Return when everything that was on its way before has been taken in."""
        done = trio.Event()
        self._pongs.append(done.set)
        await self._send(replies.ping())
        await done.wait()

    def stop_reading(self) -> None:
        self.has_stalled = True
        if self._reading.is_set():
            self._reading = trio.Event()

    def read_on(self) -> None:
        self._reading.set()

    def disconnect(self) -> None:
        """Be gone without a word."""
        self._scope.cancel()
        self._sock.close()

    async def shake_hands(self) -> None:
        await self._send(requests.connect("test"))
        await self._connected.wait()

    async def run(self) -> None:
        with self._scope:
            try:
                while True:
                    await self._reading.wait()
                    data = await self._sock.recv(65_536)
                    if not data:
                        break
                    for frame in self._decoder.receive(data):
                        assert isinstance(frame, Frame)
                        await self._take(frame.command)
            except (AssertionError, KeyError, ProtocolError) as error:
                self._complaints.append(f"{type(error).__name__}: {error}")
            except OSError:
                pass
            if not self._scope.cancel_called:
                self.hung_up = True
                self._complaints.append("a connection was cut")

    def _forget(self, watch_id: int) -> None:
        self.mirrors.pop(watch_id, None)

    def _forget_topic(self, session_id: int) -> None:
        self.views.pop(session_id, None)

    async def _take(self, command: BaseCommand) -> None:
        match command.type:
            case BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE:
                told = command.watchScalableTopicsUpdate
                mirror = self.mirrors.get(told.watch_id)
                assert mirror is not None, f"told about watch {told.watch_id}, which is not open"
                self._frames[str(told.WhichOneof("event"))] += 1
                mirror.take(told)
            case BaseCommand.SCALABLE_TOPIC_UPDATE:
                update = command.scalableTopicUpdate
                view = self.views.get(update.session_id)
                assert view is not None, f"told about session {update.session_id}, which is not open"
                assert not view.errors, f"told about {view.topic} after the last word on it"
                self._frames["DAG"] += 1
                view.updates.append(update)
            case BaseCommand.CONNECTED:
                self._decoder.max_message_size = command.connected.max_message_size
                self._connected.set()
            case BaseCommand.PONG:
                self._pongs.popleft()()
            case BaseCommand.PING:
                await self._send(replies.pong())
            case other:
                raise AssertionError(f"a peer was sent {BaseCommand.Type.Name(other)}")

    async def _send(self, *commands: BaseCommand) -> None:
        # In one piece: what the node reads at once it handles without anything in between.
        data = b"".join(map(encode, commands))
        while data:
            data = data[await self._sock.send(data) :]


async def join(
    nursery: trio.Nursery,
    node: Node,
    complaints: list[str],
    frames: Counter[str],
    *,
    receive_buffer: int | None = None,
) -> Peer:
    """A connection that has shaken hands, read in the nursery until it is disconnected."""
    address = urlsplit(node.pulsar_url)
    sock = trio.socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await sock.connect((address.hostname, address.port))
    peer = Peer(node, sock, complaints, frames)
    nursery.start_soon(peer.run)
    await peer.shake_hands()
    return peer


@asynccontextmanager
async def joined(node: Node, *, receive_buffer: int | None = None) -> AsyncIterator[Peer]:
    """A connection for the length of the block, at the end of which there must be nothing to complain about."""
    complaints: list[str] = []
    async with trio.open_nursery() as nursery:
        peer = await join(nursery, node, complaints, Counter(), receive_buffer=receive_buffer)
        try:
            yield peer
        finally:
            peer.disconnect()
            nursery.cancel_scope.cancel()
    assert not complaints, complaints
