"""Many lean client connections in a process of their own, so that reading does not disturb what is measured: plain
sockets on one epoll, frames told apart by their length only.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.children import Child, child
from benchmarks.figures import MeasurementFailed
from protocol.framing import encode
from protocol.wire.pulsar_api_pb2 import BaseCommand

FRAME_LIMIT = 30.0
# Requests under way at a time: enough to keep the server busy, too few to make it queue anything.
_WINDOW = 64
_CHUNK = 262_144
_LOOK_INTERVAL = 0.001
_SIZE = struct.Struct(">I")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Arrival:
    """When each connection had its frame, on the monotonic clock that all processes share, and one such frame."""

    times: Sequence[float]
    frame: bytes


class Readers:
    """The parent's end: connections are known by their number, from 0 in the order of connecting."""

    def __init__(self, process: Child) -> None:
        self._process = process

    def connect(self, address: Address, count: int) -> None:
        self._process.ask("connect", address, count)

    def request(self, messages: Sequence[tuple[int, bytes]]) -> None:
        """Send each message on its connection; every one is answered with a single frame."""
        self._process.ask("request", messages)

    def expect(self) -> None:
        """From now on wait for one frame on every connection; `arrived` tells when it came."""
        self._process.ask("collect")

    def arrived(self) -> Arrival:
        arrival = self._process.answer()
        assert isinstance(arrival, Arrival)
        return arrival

    def greet(self, numbers: range) -> None:
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = "benchmark"
        command.connect.protocol_version = 21
        greeting = encode(command)
        self.request([(number, greeting) for number in numbers])


def watch_message(session_id: int, topic: str) -> bytes:
    """Opens a DAG watch, or moves the one with this id to another topic."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_LOOKUP)
    command.scalableTopicLookup.session_id = session_id
    command.scalableTopicLookup.topic = topic
    return encode(command)


@contextmanager
def readers() -> Iterator[Readers]:
    with child(_main) as process:
        yield Readers(process)


class _Sockets:
    """All connections and, for each, what has arrived of a frame that is not whole yet."""

    def __init__(self) -> None:
        self.socks: list[socket.socket] = []
        self._numbers: dict[int, int] = {}
        self._partial: dict[int, bytes] = {}
        self._epoll = select.epoll()

    def connect(self, address: Address, count: int) -> None:
        for _ in range(count):
            sock = socket.create_connection(address, timeout=FRAME_LIMIT)
            sock.setblocking(False)
            self._numbers[sock.fileno()] = len(self.socks)
            self.socks.append(sock)
            self._epoll.register(sock, select.EPOLLIN)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Frames as they arrive, with the number of their connection; ends with an error when none comes."""
        looks = 0
        while True:
            events = self._epoll.poll(0)
            if not events:
                looks += 1
                if looks * _LOOK_INTERVAL > FRAME_LIMIT:
                    raise MeasurementFailed(f"no frame arrived for {FRAME_LIMIT:g} s")
                # Asleep in epoll, we would be woken by the sender, who pays for that: once for every frame if it is
                # a little slower than we are, and almost never if it is a little faster.
                time.sleep(_LOOK_INTERVAL)
                continue
            looks = 0
            for descriptor, _ in events:
                number = self._numbers[descriptor]
                data = self.socks[number].recv(_CHUNK)
                if not data:
                    raise MeasurementFailed("the server closed a connection")
                if number in self._partial:
                    data = self._partial.pop(number) + data
                while len(data) >= 4 and len(data) >= (end := 4 + _SIZE.unpack_from(data)[0]):
                    yield number, data[:end]
                    data = data[end:]
                if data:
                    self._partial[number] = data


def _main(pipe: Connection) -> None:
    sockets = _Sockets()
    frames = sockets.frames()
    while True:
        match pipe.recv():
            case ("connect", address, count):
                sockets.connect(address, count)
                pipe.send(None)
            case ("request", messages):
                under_way = 0
                for number, message in messages:
                    sockets.socks[number].sendall(message)
                    under_way += 1
                    if under_way == _WINDOW:
                        next(frames)
                        under_way -= 1
                for _ in range(under_way):
                    next(frames)
                pipe.send(None)
            case ("collect",):
                pipe.send(None)
                pipe.send(_collect(frames, len(sockets.socks)))


def _collect(frames: Iterator[tuple[int, bytes]], connections: int) -> Arrival:
    times: dict[int, float] = {}
    while True:
        number, frame = next(frames)
        if number in times:
            raise MeasurementFailed("a connection got two frames where one was due")
        times[number] = time.monotonic()
        if len(times) == connections:
            return Arrival(list(times.values()), frame)
