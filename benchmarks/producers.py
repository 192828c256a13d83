"""Producers in a process of their own: frames that were made before the clock runs, on plain sockets, with so many
messages under way at a time.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from benchmarks.children import Child, child
from benchmarks.figures import MeasurementFailed
from benchmarks.readers import FRAME_LIMIT, Address
from benchmarks.wires import Wire, expect
from protocol.framing import encode, encode_payload
from protocol.wire.pulsar_api_pb2 import BaseCommand, MessageMetadata

_PRODUCER_ID = 1


@dataclass(frozen=True, slots=True)
class Sending:
    """From the first message to the last receipt, and how long each message waited for its own."""

    seconds: float
    delays: Sequence[float]


class Producers:
    """The parent's end."""

    def __init__(self, process: Child) -> None:
        self._process = process

    def open(self, address: Address, segment: str, count: int) -> None:
        """Connect so many producers to a segment, each on a connection of its own; those before them leave."""
        self._process.ask("open", address, segment, count)

    def send(self, each: int, size: int, window: int) -> Sending:
        """Have every producer send so many messages, of which no more than `window` are without a receipt."""
        sending = self._process.ask("send", each, size, window)
        assert isinstance(sending, Sending)
        return sending


@contextmanager
def producers() -> Iterator[Producers]:
    with child(_main) as process:
        yield Producers(process)


def producer_message(producer_id: int, request_id: int, segment: str) -> bytes:
    """Opens a producer: answered with PRODUCER_SUCCESS."""
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.producer_id = producer_id
    command.producer.request_id = request_id
    command.producer.topic = segment
    return encode(command)


def close_producer_message(producer_id: int, request_id: int) -> bytes:
    """Ends a producer: answered with SUCCESS."""
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = request_id
    return encode(command)


@dataclass(slots=True)
class _Producer:
    wire: Wire
    next_sequence: int = 0
    frames: list[bytes] = field(default_factory=list)
    sent: int = 0
    sent_at: deque[float] = field(default_factory=deque)

    def prepare(self, count: int, size: int) -> None:
        metadata = MessageMetadata(producer_name="benchmark", sequence_id=0, publish_time=0).SerializeToString()
        payload = b"x" * size
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id = _PRODUCER_ID
        command.send.num_messages = 1
        self.frames = []
        self.sent = 0
        for _ in range(count):
            command.send.sequence_id = self.next_sequence
            self.next_sequence += 1
            self.frames.append(encode_payload(command, metadata, payload))

    def send(self, most: int) -> None:
        going = self.frames[self.sent : self.sent + most]
        if going:
            self.sent += len(going)
            self.sent_at.extend([time.monotonic()] * len(going))
            self.wire.send(b"".join(going))

    def receive(self, delays: list[float]) -> int:
        """How many receipts came. They come in the order in which the messages were sent."""
        types = self.wire.receive()
        expect(types, BaseCommand.SEND_RECEIPT)
        now = time.monotonic()
        delays += [now - self.sent_at.popleft() for _ in types]
        return len(types)


def _main(pipe: Connection) -> None:
    there: list[_Producer] = []
    while True:
        match pipe.recv():
            case ("open", address, segment, count):
                for producer in there:
                    producer.wire.close()
                there = [_opened(address, segment) for _ in range(count)]
                pipe.send(None)
            case ("send", each, size, window):
                pipe.send(_send(there, each, size, window))


def _opened(address: Address, segment: str) -> _Producer:
    wire = Wire(address)
    wire.ask(producer_message(_PRODUCER_ID, 1, segment), BaseCommand.PRODUCER_SUCCESS)
    return _Producer(wire)


def _send(there: Sequence[_Producer], each: int, size: int, window: int) -> Sending:
    delays: list[float] = []
    with select.epoll() as waiting:
        by_number = {producer.wire.fileno(): producer for producer in there}
        for number, producer in by_number.items():
            producer.prepare(each, size)
            waiting.register(number, select.EPOLLIN)
        started_at = time.monotonic()
        for producer in there:
            producer.send(window)
        while len(delays) < each * len(there):
            ready = waiting.poll(FRAME_LIMIT)
            if not ready:
                raise MeasurementFailed(f"no receipt came for {FRAME_LIMIT:g} s")
            for number, _ in ready:
                producer = by_number[number]
                producer.send(producer.receive(delays))
        return Sending(time.monotonic() - started_at, delays)
