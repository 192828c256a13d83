"""Consumers in a process of their own: plain sockets that ask for messages and count them, one subscription each."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.children import Child, child
from benchmarks.figures import MeasurementFailed
from benchmarks.readers import FRAME_LIMIT, Address
from benchmarks.wires import Wire, expect
from protocol.framing import encode
from protocol.wire.pulsar_api_pb2 import BaseCommand, CommandSubscribe

_CONSUMER_ID = 1
# As clients do: room for so many messages, and half of it asked for anew when half is used up.
_ROOM = 1000


class Consumers:
    """The parent's end."""

    def __init__(self, process: Child) -> None:
        self._process = process

    def open(self, address: Address, segment: str, subscriptions: Sequence[str]) -> None:
        """Subscribe from the first message on, each on a connection of its own; those before them leave."""
        self._process.ask("open", address, segment, subscriptions)

    def take(self, count: int) -> float:
        """Let each have so many messages; the seconds from the first request to the last message."""
        seconds = self._process.ask("take", count)
        assert isinstance(seconds, float)
        return seconds


@contextmanager
def consumers() -> Iterator[Consumers]:
    with child(_main) as process:
        yield Consumers(process)


@dataclass(slots=True)
class _Consumer:
    wire: Wire
    left: int = 0
    unasked: int = 0
    used: int = 0

    def begin(self, count: int) -> None:
        self.left = self.unasked = count
        self.used = 0
        self._ask(_ROOM)

    def receive(self) -> None:
        types = self.wire.receive()
        expect(types, BaseCommand.MESSAGE)
        self.left -= len(types)
        self.used += len(types)
        if self.used >= _ROOM // 2:
            self._ask(self.used)
            self.used = 0

    def _ask(self, permits: int) -> None:
        permits = min(permits, self.unasked)
        if permits:
            self.unasked -= permits
            command = BaseCommand(type=BaseCommand.FLOW)
            command.flow.consumer_id = _CONSUMER_ID
            command.flow.messagePermits = permits
            self.wire.send(encode(command))


def _main(pipe: Connection) -> None:
    there: list[_Consumer] = []
    while True:
        match pipe.recv():
            case ("open", address, segment, subscriptions):
                for consumer in there:
                    consumer.wire.close()
                there = [_opened(address, segment, subscription) for subscription in subscriptions]
                pipe.send(None)
            case ("take", count):
                pipe.send(_take(there, count))


def _opened(address: Address, segment: str, subscription: str) -> _Consumer:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    command.subscribe.topic = segment
    command.subscribe.subscription = subscription
    command.subscribe.subType = CommandSubscribe.Exclusive
    command.subscribe.consumer_id = _CONSUMER_ID
    command.subscribe.request_id = 1
    command.subscribe.initialPosition = CommandSubscribe.Earliest
    wire = Wire(address)
    wire.ask(encode(command), BaseCommand.SUCCESS)
    return _Consumer(wire)


def _take(there: Sequence[_Consumer], count: int) -> float:
    with select.epoll() as waiting:
        by_number = {consumer.wire.fileno(): consumer for consumer in there}
        for number in by_number:
            waiting.register(number, select.EPOLLIN)
        started_at = time.monotonic()
        for consumer in there:
            consumer.begin(count)
        hungry = len(there)
        while hungry:
            ready = waiting.poll(FRAME_LIMIT)
            if not ready:
                raise MeasurementFailed(f"no message came for {FRAME_LIMIT:g} s")
            for number, _ in ready:
                consumer = by_number[number]
                consumer.receive()
                if not consumer.left:
                    hungry -= 1
        return time.monotonic() - started_at
