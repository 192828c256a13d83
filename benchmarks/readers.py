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
from protocol.wire.pulsar_api_pb2 import STREAM, BaseCommand

FRAME_LIMIT = 30.0
# Requests under way at a time: enough to keep the server busy, too few to make it queue anything.
_WINDOW = 64
# The same for connections that have no answer to their CONNECT yet: fewer than the server lets wait to be accepted.
_RUSH_WINDOW = 512
_CHUNK = 262_144
_LOOK_INTERVAL = 0.001
_SIZE = struct.Struct(">I")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Arrival:
    """When each connection had its frame, on the monotonic clock that all processes share, and one such frame."""

    times: Sequence[float]
    frame: bytes


@dataclass(frozen=True, slots=True)
class Told:
    """One update of a namespace watch, and when each of those that got exactly these bytes had it."""

    frame: bytes
    added: Sequence[str]
    times: Sequence[float]


@dataclass(frozen=True, slots=True)
class Heard:
    """One frame, the number of the connection that it came on, and when."""

    number: int
    at: float
    frame: bytes


@dataclass(frozen=True, slots=True)
class Rush:
    """Many connections made as fast as possible: from the first step to the last answer. `unasked` counts the bytes
    that came beside the answers to CONNECT."""

    started_at: float
    ended_at: float
    unasked: int


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

    def send(self, messages: Sequence[tuple[int, bytes]], over: float = 0.0) -> float:
        """Send each message on its connection and wait for no answer, all at once or spread over so many seconds;
        when the first of them was about to be sent."""
        sent_at = self._process.ask("send", messages, over)
        assert isinstance(sent_at, float)
        return sent_at

    def listen(self, silence: float) -> Sequence[Heard]:
        """All that comes until nothing came for so many seconds."""
        heard = self._process.ask("listen", silence)
        assert isinstance(heard, list)
        return heard

    def greet(self, numbers: range) -> None:
        message = connect_message()
        self.request([(number, message) for number in numbers])

    def rush(self, address: Address, count: int, then: bytes = b"") -> Rush:
        """Connect and greet all at once; whoever was answered sends `then`, which needs no answer."""
        rush = self._process.ask("rush", address, count, connect_message(), then)
        assert isinstance(rush, Rush)
        return rush

    def disconnect(self) -> None:
        """Close all connections; numbers begin at 0 again."""
        self._process.ask("disconnect")

    def unread(self) -> int:
        """Bytes that arrived and were not looked at."""
        count = self._process.ask("unread")
        assert isinstance(count, int)
        return count

    def follow(self, topics: int) -> None:
        """From now on wait until every connection was told of so many added topics; `followed` has the updates."""
        self._process.ask("follow", topics)

    def followed(self) -> Sequence[Told]:
        told = self._process.answer()
        assert isinstance(told, list)
        return told


def connect_message() -> bytes:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "benchmark"
    command.connect.protocol_version = 21
    return encode(command)


def watch_message(session_id: int, topic: str) -> bytes:
    """Opens a DAG watch, or moves the one with this id to another topic."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_LOOKUP)
    command.scalableTopicLookup.session_id = session_id
    command.scalableTopicLookup.topic = topic
    return encode(command)


def namespace_message(watch_id: int, namespace: str, current_hash: str | None = None) -> bytes:
    """Opens a namespace watch: answered with a snapshot, or not at all if the hash is right."""
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS)
    command.watchScalableTopics.watch_id = watch_id
    command.watchScalableTopics.namespace = namespace
    if current_hash is not None:
        command.watchScalableTopics.current_hash = current_hash
    return encode(command)


def subscribe_message(consumer_id: int, topic: str, subscription: str, name: str) -> bytes:
    """Registers a STREAM consumer; its id is also the request's."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_SUBSCRIBE)
    command.scalableTopicSubscribe.request_id = command.scalableTopicSubscribe.consumer_id = consumer_id
    command.scalableTopicSubscribe.topic = topic
    command.scalableTopicSubscribe.subscription = subscription
    command.scalableTopicSubscribe.consumer_name = name
    command.scalableTopicSubscribe.consumer_type = STREAM
    return encode(command)


def unsubscribe_message(consumer_id: int) -> bytes:
    """Has a consumer leave for good: answered with SUCCESS."""
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UNSUBSCRIBE)
    command.scalableTopicUnsubscribe.request_id = command.scalableTopicUnsubscribe.consumer_id = consumer_id
    return encode(command)


@contextmanager
def readers() -> Iterator[Readers]:
    with child(_main) as process:
        yield Readers(process)


class _Silence(MeasurementFailed):
    """No frame arrived for as long as the reader was ready to wait."""


class _Sockets:
    """All connections and, for each, what has arrived of a frame that is not whole yet."""

    def __init__(self) -> None:
        self.patience = FRAME_LIMIT
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

    def unread(self) -> int:
        """Bytes that lie in the kernel or belong to a frame that is not whole."""
        count = sum(map(len, self._partial.values()))
        for sock in self.socks:
            try:
                count += len(sock.recv(_CHUNK, socket.MSG_PEEK))
            except BlockingIOError:
                pass
        return count

    def close(self) -> None:
        self._epoll.close()
        for sock in self.socks:
            sock.close()

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Frames as they arrive, with the number of their connection; ends with an error when none comes."""
        looks = 0
        while True:
            events = self._epoll.poll(0)
            if not events:
                looks += 1
                if looks * _LOOK_INTERVAL > self.patience:
                    raise _Silence(f"no frame arrived for {self.patience:g} s")
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
            case ("send", messages, over):
                sent_at = time.monotonic()
                for index, (number, message) in enumerate(messages):
                    if (early := sent_at + over * index / len(messages) - time.monotonic()) > 0:
                        time.sleep(early)
                    sockets.socks[number].sendall(message)
                pipe.send(sent_at)
            case ("listen", silence):
                sockets.patience = silence
                pipe.send(_listen(frames))
                sockets.patience = FRAME_LIMIT
                # The last one has ended, and had nothing in hand: that is why.
                frames = sockets.frames()
            case ("collect",):
                pipe.send(None)
                pipe.send(_collect(frames, len(sockets.socks)))
            case ("follow", topics):
                pipe.send(None)
                pipe.send(_follow(frames, len(sockets.socks), topics))
            case ("rush", address, count, greeting, then):
                pipe.send(_rush(sockets, frames, address, count, greeting, then))
            case ("unread",):
                pipe.send(sockets.unread())
            case ("disconnect",):
                sockets.close()
                sockets = _Sockets()
                frames = sockets.frames()
                pipe.send(None)


def _collect(frames: Iterator[tuple[int, bytes]], connections: int) -> Arrival:
    times: dict[int, float] = {}
    while True:
        number, frame = next(frames)
        if number in times:
            raise MeasurementFailed("a connection got two frames where one was due")
        times[number] = time.monotonic()
        if len(times) == connections:
            return Arrival(list(times.values()), frame)


def _listen(frames: Iterator[tuple[int, bytes]]) -> list[Heard]:
    heard: list[Heard] = []
    try:
        while True:
            number, frame = next(frames)
            heard.append(Heard(number, time.monotonic(), frame))
    except _Silence:
        return heard


def _follow(frames: Iterator[tuple[int, bytes]], connections: int, topics: int) -> list[Told]:
    # Sessions with the same id get the same bytes, so that each update has to be taken apart only once.
    updates: dict[bytes, tuple[list[str], list[float]]] = {}
    missing = [topics] * connections
    unfinished = connections
    while unfinished:
        number, frame = next(frames)
        now = time.monotonic()
        if (update := updates.get(frame)) is None:
            command = BaseCommand.FromString(frame[8:])
            update = updates[frame] = (list(command.watchScalableTopicsUpdate.diff.added), [])
        added, times = update
        times.append(now)
        missing[number] -= len(added)
        if not added or missing[number] < 0:
            raise MeasurementFailed("a connection was told something else than what was created")
        unfinished -= missing[number] == 0
    return [Told(frame, added, times) for frame, (added, times) in updates.items()]


def _rush(
    sockets: _Sockets,
    frames: Iterator[tuple[int, bytes]],
    address: Address,
    count: int,
    greeting: bytes,
    then: bytes,
) -> Rush:
    answered: set[int] = set()
    unasked = 0

    def take() -> None:
        nonlocal unasked
        number, frame = next(frames)
        if number in answered:
            unasked += len(frame)
            return
        answered.add(number)
        if then:
            sockets.socks[number].sendall(then)

    started_at = time.monotonic()
    for number in range(count):
        sockets.connect(address, 1)
        sockets.socks[number].sendall(greeting)
        if number - len(answered) >= _RUSH_WINDOW:
            take()
    while len(answered) < count:
        take()
    return Rush(started_at, time.monotonic(), unasked)
