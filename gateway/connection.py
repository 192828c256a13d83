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
from sessions.budgets import Budget, Holdings, burden
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
# A full buffer of tiny frames takes tens of milliseconds to parse, before the first of them is handled. So much is
# received at a time from a peer that sends frames shorter than this, more than a turn's worth together.
TINY_FRAME = 128
TINY_FRAMES_WINDOW = 8 * 1024
# Bytes of a frame that count as progress: who sends it byte by byte is as good as one who has stopped.
PROGRESS = 64 * 1024
# Bytes of all frames that have arrived in part, unless the settings say otherwise.
RECEIVE_TOTAL = 256 * 1024 * 1024
# The same of what watches take.
WATCH_TOTAL = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Service:
    """What all connections of a listener share.

    `nursery` runs their readers and writers. `buffer` is where every one of them receives: reading and cutting
    into frames are one step without an await, so nobody else's bytes can get in between. `unfinished` counts what has
    arrived of frames whose rest has not, `watching` what watches and registered consumers take.
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
    unfinished: Budget[UnfinishedFrame] = field(default_factory=lambda: Budget(RECEIVE_TOTAL))
    watching: Budget[Holdings] = field(default_factory=lambda: Budget(WATCH_TOTAL))


class UnfinishedFrame:
    """What a connection has sent of a frame, until the rest comes."""

    __slots__ = ("_connection", "_counted", "_held", "_moved_at")

    def __init__(self, connection: Connection, now: float) -> None:
        self._connection = connection
        self._held = self._counted = 0
        self._moved_at = now

    def grow(self, held: int, now: float) -> None:
        self._held = held
        if held - self._counted >= PROGRESS:
            self._counted = held
            self._moved_at = now

    def burden(self, now: float) -> float:
        # While it is we who do not read, its peer cannot move on.
        return 0.0 if self._connection.is_paused else burden(self._held, self._moved_at, now)

    def give_up(self) -> None:
        self._connection.give_up_unfinished()


class Connection:
    """The read side of a connection and the owner of all the rest of it."""

    __slots__ = (
        "_awaiting_life",
        "_decoder",
        "_dialogue",
        "_opens_paid",
        "_paid_until",
        "_paused",
        "_sends_tiny_frames",
        "_service",
        "_settled",
        "_sock",
        "_unfinished",
        "address",
        "outbox",
    )

    def __init__(self, sock: socket.socket, service: Service, address: str = "") -> None:
        self.address = address
        self._sock = sock
        self._service = service
        self.outbox = Outbox(sock, service.nursery, service.outbox_limits, service.counters, service.slow)
        self.outbox.holdings = Holdings(service.watching, self._give_up_watches)
        self._dialogue: Dialogue[Any, Any, Any] = Dialogue(
            self.outbox, service.hubs, service.terms, service.counters, address
        )
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_LIMIT - FRAME_PADDING, cuts=True)
        self._unfinished: UnfinishedFrame | None = None
        self._sends_tiny_frames = False  # many of them at a time
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
        if self._sends_tiny_frames:
            buffer = buffer[:TINY_FRAMES_WINDOW]
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
        self._sends_tiny_frames = len(frames) > FRAMES_PER_TURN and len(received) < TINY_FRAME * len(frames)
        pending = self._decoder.pending
        if pending or self._unfinished is not None:
            self._note_unfinished(pending, is_another=bool(frames))
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
                # It knows this frame by its traceback. Both together would stay, with all that had arrived.
                del bad

    @property
    def is_paused(self) -> bool:
        """Whether the peer is left unread, by our own decision."""
        return self._paused

    def give_up_unfinished(self) -> None:
        """The node holds too much of unfinished frames, and of all of them this one has been the worst."""
        log.warning(
            "closing the connection from %s: it stopped in the middle of a frame, with %d bytes of it sent, and all "
            "connections together are over receive_total_limit",
            self._peer_name(),
            self._decoder.pending,
        )
        self._drop_unfinished()
        self.close(CloseReason.RECEIVE_OVERLOAD)

    def _give_up_watches(self) -> None:
        log.warning(
            "closing the connection from %s: its watches take %d bytes, more than those of any other, and all together "
            "are over watch_total_limit",
            self._peer_name(),
            0 if self.outbox.holdings is None else self.outbox.holdings.held,
        )
        self.close(CloseReason.WATCH_OVERLOAD)

    def _note_unfinished(self, pending: int, *, is_another: bool) -> None:
        """So much of a frame has arrived; of another one than before if some were completed meanwhile."""
        service = self._service
        budget = service.unfinished
        if self._unfinished is not None and (is_another or not pending):
            budget.release(self._unfinished)
            self._unfinished = None
        if pending:
            now = trio.current_time()
            if self._unfinished is None:
                self._unfinished = UnfinishedFrame(self, now)
            self._unfinished.grow(pending, now)
            budget.hold(self._unfinished, pending, now)
        service.counters.receive_bytes = budget.total

    def _drop_unfinished(self) -> None:
        self._decoder.forget()
        if self._unfinished is not None:
            self._service.unfinished.release(self._unfinished)
            self._service.counters.receive_bytes = self._service.unfinished.total
            self._unfinished = None

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
        # As text: whoever keeps the record would keep the frame by the error's traceback.
        log.warning("closing the connection from %s: %s", self._peer_name(), str(error))
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
        self._drop_unfinished()
        try:
            self._dialogue.end()
        except Exception:
            self._fail("ending the watches of a connection failed")
        if (spent := turns.clock() - began) > turns.limit:
            turns.note("the end of a connection", f"from {self.address}", spent)
        if (holdings := self.outbox.holdings) is not None:
            # Which knows this connection, so that neither would go before the other.
            self.outbox.holdings = None
            holdings.release()

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
