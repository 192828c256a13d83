"""One client connection: reads its socket, cuts the bytes into frames and hands them to the dialogue. Whatever
goes wrong on it ends this connection and no other.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import trio

from gateway.keepalive import Roster
from metadata.tasks import Tasks
from protocol.framing import FRAME_PADDING, BadFrame, Frame, FrameDecoder, UnknownCommand
from protocol.turns import SlowTurns
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.counters import CloseReason, Counters
from sessions.dialogue import PING, Dialogue, State, Terms
from sessions.errors import Violation
from sessions.hubs import Hubs
from sessions.outbox import Outbox, OutboxLimits

log = logging.getLogger(__name__)

# What a stranger may make us hold before it has said CONNECT.
HANDSHAKE_FRAME_LIMIT = 16 * 1024
# Frames handled before other tasks run: a full buffer of PINGs would take tens of milliseconds.
FRAMES_PER_TURN = 64


@dataclass(frozen=True, slots=True)
class Service:
    """What all connections of a listener share.

    `nursery` runs their readers and writers. `buffer` is where every one of them receives: reading and cutting
    into frames are one step without an await, so nobody else's bytes can get in between.
    """

    nursery: Tasks
    hubs: Hubs[Any, Any, Any]
    terms: Terms
    outbox_limits: OutboxLimits
    slow: set[Outbox]
    counters: Counters
    roster: Roster
    buffer: memoryview
    opens_per_second: float = 10_000
    turns: SlowTurns = field(default_factory=SlowTurns)


class Connection:
    """The read side of a connection and the owner of all the rest of it."""

    __slots__ = (
        "_awaiting_life",
        "_decoder",
        "_dialogue",
        "_opens_paid",
        "_paid_until",
        "_paused",
        "_service",
        "_settled",
        "_sock",
        "address",
        "outbox",
    )

    def __init__(self, sock: socket.socket, service: Service, address: str = "") -> None:
        self.address = address
        self._sock = sock
        self._service = service
        self.outbox = Outbox(sock, service.nursery, service.outbox_limits, service.counters, service.slow)
        self._dialogue: Dialogue[Any, Any, Any] = Dialogue(
            self.outbox, service.hubs, service.terms, service.counters, address
        )
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_LIMIT - FRAME_PADDING, cuts=True)
        self._settled = False  # CONNECT was accepted
        self._awaiting_life = False  # nothing heard since our last PING
        self._paused = False  # not reading, because too many replies wait or too many watches were opened
        self._opens_paid = 0
        self._paid_until = 0.0

    def start(self) -> None:
        self._service.counters.connections += 1
        self._service.roster.add(self, trio.current_time())
        self._service.nursery.start_soon(self.run)

    def close(self, reason: CloseReason) -> None:
        self.outbox.close(reason)

    def beat(self) -> None:
        """A keep-alive interval has passed: cut a peer that was silent since the last PING, else ask again."""
        if self._paused:
            # Its signs of life wait unread, by our own decision. If it is dead the stall limit ends it.
            return
        if self._awaiting_life:
            # After the whole process was held up, this may run before the answer that lies there is read.
            if not self._has_unread():
                self.close(CloseReason.DEAD)
        elif self._dialogue.peer_version >= 1:  # older clients do not know PING
            self._awaiting_life = True
            self.outbox.reply(PING)

    async def run(self) -> None:
        """Serve the connection until it ends. Only cancellation gets out of here."""
        try:
            while not self.outbox.closed:
                await trio.lowlevel.wait_readable(self._sock)
                if received := self._receive():
                    await self._handle(received)
        except trio.ClosedResourceError:
            pass  # closed by somebody else while we waited
        except BadFrame as error:
            self._refuse(error, error.kind, CloseReason.BAD_FRAME)
        except Violation as error:
            self._refuse(error, error.kind, CloseReason.PROTOCOL)
        except Exception:
            self._fail("serving the connection failed")
        finally:
            self.close(CloseReason.SHUTDOWN)
            self._leave()

    def _receive(self) -> memoryview | None:
        """What the socket has for us, in the shared buffer: to be used before the next await."""
        buffer = self._service.buffer
        try:
            length = self._sock.recv_into(buffer)
        except BlockingIOError:
            return None
        except OSError:
            self.close(CloseReason.RESET)
            return None
        if length == 0:
            self.close(CloseReason.PEER)
        return buffer[:length]

    async def _handle(self, received: memoryview) -> None:
        bad: BadFrame | None = None
        try:
            frames = self._decoder.receive(received)
        except BadFrame as error:
            frames, bad = error.preceding, error
        if frames:
            self._awaiting_life = False
        dialogue, outbox = self._dialogue, self.outbox
        turns = self._service.turns
        clock, limit = turns.clock, turns.limit
        began = clock()
        for count, frame in enumerate(_with_rest(frames), start=1):
            dialogue.receive(frame)
            # One look at the clock for each: on the way of every message.
            now = clock()
            if now - began > limit:
                turns.note(_name(frame), f"from {self._peer_name()}", now - began)
            began = now
            if not self._settled and dialogue.state is State.CONNECTED:
                self._settle()
            if outbox.congested:
                self._paused = True
                await outbox.wait_drained()
                self._paused = False
                began = clock()
            elif dialogue.congested:
                self._paused = True
                await dialogue.wait_relaxed()
                self._paused = False
                began = clock()
            elif dialogue.opens != self._opens_paid and (delay := self._pace()) > 0:
                # A rate is held by not reading: an error would make a client give up that only came in a hurry.
                self._paused = True
                await trio.sleep(delay)
                self._paused = False
                began = clock()
            elif count % FRAMES_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
                began = clock()
            if outbox.closed:
                return
        if bad is not None:
            try:
                raise bad
            finally:
                bad = None  # else it and this frame would hold each other

    def _pace(self) -> float:
        """How long to leave the peer unread because of the watches it opened; a second's worth may come at once."""
        rate = self._service.opens_per_second
        opened = self._dialogue.opens - self._opens_paid
        # Few at a time are settled together, because even looking at the clock counts when thousands come back.
        if opened <= rate / 64:
            return 0
        now = trio.current_time()
        self._opens_paid += opened
        self._paid_until = max(self._paid_until, now) + opened / rate
        return self._paid_until - now - 1

    def _settle(self) -> None:
        self._settled = True
        self._decoder.max_message_size = self._service.terms.max_message_size
        self._service.roster.settle(self, trio.current_time())

    def _refuse(self, error: Exception, kind: str, reason: CloseReason) -> None:
        self._service.counters.count_bad_frame(kind)
        log.warning("closing the connection from %s: %s", self._peer_name(), error)
        self.close(reason)

    def _fail(self, what: str) -> None:
        self._service.counters.errors += 1
        log.exception("%s, from %s", what, self._peer_name())
        self.close(CloseReason.ERROR)

    def _leave(self) -> None:
        self._service.roster.discard(self)
        self._service.counters.connections -= 1
        turns = self._service.turns
        began = turns.clock()
        try:
            self._dialogue.end()
        except Exception:
            self._fail("ending the watches of a connection failed")
        if (spent := turns.clock() - began) > turns.limit:
            turns.note("the end of a connection", f"from {self.address}", spent)

    def _has_unread(self) -> bool:
        try:
            return bool(self._sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _peer_name(self) -> str:
        try:
            host, port = self._sock.getpeername()[:2]
        except OSError:
            return "a peer that is gone"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _name(frame: Frame | UnknownCommand) -> str:
    return "an unknown command" if isinstance(frame, UnknownCommand) else BaseCommand.Type.Name(frame.command.type)


def _with_rest(frames: Iterable[Frame | UnknownCommand]) -> Iterator[Frame | UnknownCommand]:
    """All parts of each, every one parsed when the one before it has been acted on."""
    for frame in frames:
        yield frame
        if isinstance(frame, Frame) and frame.rest is not None:
            yield from frame.rest
