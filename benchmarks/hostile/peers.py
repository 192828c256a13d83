"""A connection of the attacker: says what it likes, whatever becomes of it, and notes what kinds of answers come."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from benchmarks.readers import Address, connect_message
from protocol.framing import encode
from protocol.wire.pulsar_api_pb2 import BaseCommand, CommandPing, CommandPong

_CHUNK = 262_144
_SIZE = struct.Struct(">I")
# Behind both sizes a command begins with the tag of its type. Types below 128 take the byte after it.
_TYPE_AT = 9
_NAMES: dict[int, str] = {number: name for name, number in BaseCommand.Type.items()}
PING = encode(BaseCommand(type=BaseCommand.PING, ping=CommandPing()))
PONG = encode(BaseCommand(type=BaseCommand.PONG, pong=CommandPong()))


class Over(Exception):
    """The time of the attack is up."""


class Gone(Exception):
    """The server has closed the connection."""


@dataclass(slots=True)
class Account:
    """What the attacker did and what it got for it."""

    ends_at: float = 0.0
    connections: int = 0
    closed: int = 0
    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def left(self) -> float:
        """Seconds that the attack may still take; Over when there are none."""
        left = self.ends_at - time.monotonic()
        if left <= 0:
            raise Over
        return left


class Answers:
    """Tells the types of the frames in a stream, however it is cut and however long they are."""

    __slots__ = ("_head", "_skip")

    def __init__(self) -> None:
        self._head = b""
        self._skip = 0

    def receive(self, data: bytes) -> list[str]:
        types: list[str] = []
        position, end = 0, len(data)
        while position < end:
            if self._skip:
                step = min(self._skip, end - position)
                self._skip -= step
                position += step
                continue
            head = self._head + data[position : position + _TYPE_AT + 1 - len(self._head)]
            position += len(head) - len(self._head)
            if len(head) <= _TYPE_AT:
                self._head = head
                break
            self._head = b""
            types.append(_NAMES.get(head[_TYPE_AT], "?"))
            self._skip = _SIZE.size + _SIZE.unpack_from(head)[0] - len(head)
        return types


class Peer:
    """Reads and forgets what comes while it sends, unless it is `deaf`."""

    def __init__(self, address: Address, account: Account, *, greet: bool = True, deaf: bool = False) -> None:
        self._account = account
        self._answers = Answers()
        self._deaf = deaf
        self._sock = socket.socket()
        if deaf:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._sock.settimeout(account.left)
        try:
            self._sock.connect(address)
        except OSError:
            raise Gone from None
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setblocking(False)
        account.connections += 1
        self.answered = 0
        if greet:
            # Frames may be long only when CONNECT was answered.
            self.ask(connect_message())
            self.answered = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    def say(self, data: bytes) -> None:
        """Returns when all of it is with the kernel."""
        rest = memoryview(data)
        while rest:
            readable, writable, _ = select.select(
                [] if self._deaf else [self._sock], [self._sock], [], self._account.left
            )
            if readable:
                self._take()
            if writable:
                rest = rest[self._send(rest) :]

    def ask(self, data: bytes, answers: int = 1) -> None:
        """Say something and wait until so many more frames have come, whatever they say."""
        before = self.answered
        self.say(data)
        self.hear(before + answers - self.answered)

    def hear(self, answers: int) -> None:
        """Wait for so many frames."""
        wanted = self.answered + answers
        while self.answered < wanted:
            readable, _, _ = select.select([self._sock], [], [], self._account.left)
            if readable:
                self._take()

    def await_calm(self) -> None:
        """Wait until the server has acted on all that was said: its answer to a PING comes after that."""
        self.say(PING)
        before = self._account.answers["PONG"]
        while self._account.answers["PONG"] == before:
            self.hear(1)

    def _send(self, data: memoryview) -> int:
        try:
            sent = self._sock.send(data[:_CHUNK])
        except BlockingIOError:
            return 0
        except OSError:
            raise self._gone() from None
        self._account.sent += sent
        return sent

    def _take(self) -> None:
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            raise self._gone() from None
        if not data:
            raise self._gone()
        types = self._answers.receive(data)
        self.answered += len(types)
        self._account.answers.update(types)

    def _gone(self) -> Gone:
        self._account.closed += 1
        return Gone()
