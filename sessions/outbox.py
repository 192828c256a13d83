"""The write side of one connection: frames go straight to the socket while it takes them, and what is left
over is sent by a task that lives only as long as there is something left."""

import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass

import trio

from metadata.tasks import Tasks
from sessions.backlog import Backlog, Source
from sessions.budgets import Holdings, burden, shed
from sessions.counters import CloseReason, Counters

log = logging.getLogger(__name__)

# How many frames the writer sends before it lets other tasks run: 64 sends are a stall of 1 to 3 ms.
FRAMES_PER_TURN = 64
# The kernel takes no more than 1,024 buffers in one call.
PARTS_PER_SEND = 512


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """`stall_limit`: seconds without one accepted byte before the peer is cut. `reply_backlog`: memory in
    queued replies above which the connection's commands are left unread. `total_bytes`: queued on all connections
    together, above which those are cut that have held most of it for longest."""

    stall_limit: float = 30.0
    reply_backlog: int = 64 * 1024
    total_bytes: int = 256 * 1024 * 1024


class Outbox:
    """Sends the frames of one connection, never torn and never blocking its callers.

    While a backlog exists the write side is the writer task's, and everybody else only adds to the backlog: a
    frame sent past it would land in the middle of a half-sent one. No lock is needed, because nothing awaits
    between offering bytes to the socket and storing what it left.

    The socket object is kept, never its number: after a close the number is soon another connection's.
    """

    __slots__ = (
        "_backlog",
        "_counters",
        "_limits",
        "_nursery",
        "_progress",
        "_slow",
        "_sock",
        "_waiting",
        "closed",
        "holdings",
    )

    def __init__(
        self,
        sock: socket.socket,
        nursery: Tasks,
        limits: OutboxLimits,
        counters: Counters,
        slow: set["Outbox"],
    ) -> None:
        """`slow` is shared by all connections: those of them that have something queued are in it."""
        self._sock = sock
        self._nursery = nursery
        self._limits = limits
        self._counters = counters
        self._slow = slow
        self._backlog: Backlog | None = None
        self._progress: trio.Event | None = None
        self._waiting: dict[Callable[[], None], None] | None = None  # in their order, each once
        self.holdings: Holdings | None = None  # here, because it is what all watches know of their connection
        self.closed = False

    def hold(self, change: int) -> None:
        """The watches that are sent by this one take so many bytes more, or less."""
        if self.holdings is not None:
            self.holdings.change(change)

    @property
    def queued_bytes(self) -> int:
        return 0 if self._backlog is None else self._backlog.size

    @property
    def congested(self) -> bool:
        """Whether so many replies wait that the peer's next commands should be left unread."""
        return self._backlog is not None and self._backlog.reply_cost > self._limits.reply_backlog

    def push(self, parts: tuple[bytes, ...], watch: int) -> None:
        """Send the current state of `watch` (>= 0). Until its first byte is out, a newer one replaces it.

        Only for watches that are open: their number bounds what is queued here. A last word on a watch that
        ends is a `reply` after `drop`, which counts towards `congested`.
        """
        if self._backlog is not None:
            self._queue_state(self._backlog, parts, watch)
            return
        if self.closed:
            return
        try:
            sent = self._sock.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close(CloseReason.RESET)
            return
        unsent = -sent
        for part in parts:  # a sum over a map takes twice as long, on the path of every push
            unsent += len(part)
        if not unsent:
            self._counters.pushes_direct += 1
        elif sent:
            self._counters.pushes_queued += 1
            self._start_backlog().begin(parts, sent)
            self._note_growth(0)
        else:
            self._queue_state(self._start_backlog(), parts, watch)

    def offer(self, frame: bytes) -> bool:
        """Send a frame if nothing is queued and the socket takes a part of it at least; False if it is not told at all.

        The shortest way, for one of many that are told the same.
        """
        if self._backlog is not None or self.closed:
            return False
        try:
            sent = self._sock.send(frame)
        except BlockingIOError:
            return False
        except OSError:
            self.close(CloseReason.RESET)
            return False
        if sent == len(frame):
            self._counters.pushes_direct += 1
        else:
            self._counters.pushes_queued += 1
            self._start_backlog().begin((frame,), sent)
            self._note_growth(0)
        return True

    def send_from(self, key: int, source: Source) -> bool:
        """Send what `source` gives: at once if nothing is queued, else when its turn comes. True if it was queued.

        For what must not be replaced but can be put together late, when it is known how far the peer has come.
        """
        if self._backlog is not None:
            before = self._backlog.size
            self._backlog.add_source(key, source)
            self._counters.pushes_queued += 1
            self._note_growth(before)
            return True
        if self.closed or not (parts := source()):
            return False
        try:
            sent = self._sock.sendmsg(parts[:PARTS_PER_SEND])
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close(CloseReason.RESET)
            return False
        unsent = -sent
        for part in parts:
            unsent += len(part)
        if not unsent:
            self._counters.pushes_direct += 1
        else:
            self._counters.pushes_queued += 1
            self._start_backlog().begin(parts, sent)
            self._note_growth(0)
        return False

    def reply(self, frame: bytes) -> None:
        """Send a frame that nothing replaces; replies keep their order."""
        if self.closed:
            return
        if (backlog := self._backlog) is None:
            try:
                sent = self._sock.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close(CloseReason.RESET)
                return
            if sent == len(frame):
                return
            backlog = self._start_backlog()
            if sent:
                backlog.begin((frame,), sent)
                self._note_growth(0)
                return
        before = backlog.size
        backlog.add_reply(frame)
        self._note_growth(before)

    def send(self, parts: tuple[bytes, ...]) -> None:
        """Send frames in parts that nothing replaces, in their place among the replies.

        They do not count towards `congested`: whoever sends many looks at `queued_bytes`, and waits with `when_sent`.
        """
        if self.closed:
            return
        if (backlog := self._backlog) is None:
            try:
                sent = self._sock.sendmsg(parts[:PARTS_PER_SEND])
            except BlockingIOError:
                sent = 0
            except OSError:
                self.close(CloseReason.RESET)
                return
            unsent = -sent
            for part in parts:
                unsent += len(part)
            if not unsent:
                return
            backlog = self._start_backlog()
            if sent:
                backlog.begin(parts, sent)
                self._note_growth(0)
                return
        before = backlog.size
        backlog.add_frame(parts)
        self._note_growth(before)

    def when_sent(self, call: Callable[[], None]) -> None:
        """Call once nothing is queued any more; never if the connection ends before."""
        if self._backlog is None:
            call()
        elif self._waiting is None:
            self._waiting = {call: None}
        else:
            self._waiting[call] = None

    def drop(self, watch: int) -> None:
        """Forget the queued state of a watch that was closed."""
        if (backlog := self._backlog) is not None:
            before = backlog.size
            backlog.drop(watch)
            self._counters.outbox_bytes += backlog.size - before

    async def wait_drained(self) -> None:
        """Return when the connection is no longer congested, or closed."""
        while self.congested:
            await self._wait_progress()

    async def wait_sent(self) -> None:
        """Return when nothing is queued any more, or the connection is closed."""
        while self._backlog is not None:
            await self._wait_progress()

    def close(self, reason: CloseReason) -> None:
        """End the connection now; what is queued is lost. The first reason counts, later calls do nothing."""
        if self.closed:
            return
        self.closed = True
        self._counters.closes[reason] += 1
        self._counters.outbox_bytes -= self.queued_bytes
        self._end_backlog()
        self._waiting = None
        # Wakes the parked reader and writer. Left parked, they would hold the closed socket's number, and
        # the next connection that gets it could not wait.
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()
        self._note_progress()

    def _queue_state(self, backlog: Backlog, parts: tuple[bytes, ...], watch: int) -> None:
        before = backlog.size
        if backlog.add_state(watch, parts):
            self._counters.pushes_replaced += 1
        else:
            self._counters.pushes_queued += 1
        self._note_growth(before)

    def _note_growth(self, before: int) -> None:
        """More is queued than the `before` bytes there were."""
        self._counters.outbox_bytes += self.queued_bytes - before
        self._keep_within_total()

    def _keep_within_total(self) -> None:
        """Over the bound of all connections those have to go that hold most of it, and have for longest taken nothing.

        Whoever reads may have most for a moment, with what it was just given.
        """
        if self._is_over_total():
            shed(self._slow, self._is_over_total, trio.current_time())

    def _is_over_total(self) -> bool:
        return self._counters.outbox_bytes > self._limits.total_bytes

    def give_up(self) -> None:
        self.close(CloseReason.OVERLOAD)

    def burden(self, now: float) -> float:
        """What the queue costs everybody: its bytes, times the seconds since the peer has taken any."""
        backlog = self._backlog
        return 0.0 if backlog is None else burden(backlog.size, backlog.moved_at, now)

    def _start_backlog(self) -> Backlog:
        self._backlog = backlog = Backlog(trio.current_time())
        self._slow.add(self)
        self._nursery.start_soon(self._write, backlog)
        return backlog

    def _end_backlog(self) -> None:
        self._backlog = None
        self._slow.discard(self)

    async def _write(self, backlog: Backlog) -> None:
        """Send until the backlog is empty. Any other end closes the connection: nobody sends the rest."""
        try:
            deadline = backlog.moved_at + self._limits.stall_limit
            while backlog and not self.closed:
                with trio.move_on_at(deadline) as patience:
                    await trio.lowlevel.wait_writable(self._sock)
                if self._send_turn(backlog):
                    backlog.moved_at = trio.current_time()
                    deadline = backlog.moved_at + self._limits.stall_limit
                elif patience.cancelled_caught and backlog:
                    self._counters.stalls += 1
                    self.close(CloseReason.STALLED)
            if not self.closed:
                self._end_backlog()
                self._note_progress()
                self._call_waiting()
        except (trio.ClosedResourceError, OSError):
            self.close(CloseReason.RESET)
        except Exception:
            # The nursery is the whole server's: one connection's fault must not reach it.
            log.exception("writing to a connection failed")
            self._counters.errors += 1
            self.close(CloseReason.ERROR)
        finally:
            if self._backlog is backlog:
                self.close(CloseReason.SHUTDOWN)

    def _send_turn(self, backlog: Backlog) -> int:
        """Offer frames to the socket until it is full or others should run; how many bytes it took."""
        before = backlog.size
        accepted = 0
        try:
            for _ in range(FRAMES_PER_TURN):
                parts = backlog.head()
                if not parts:
                    break
                sent = self._sock.sendmsg(parts[:PARTS_PER_SEND])
                accepted += sent
                if not backlog.advance(sent):
                    break
        except BlockingIOError:
            pass
        finally:
            self._counters.outbox_bytes -= before - backlog.size
        if backlog.size > before:
            # What waited to be put together has turned out to be long.
            self._keep_within_total()
        if not self.congested:
            self._note_progress()
        return accepted

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        for call in waiting or ():
            call()

    async def _wait_progress(self) -> None:
        if self._progress is None:
            self._progress = trio.Event()
        await self._progress.wait()

    def _note_progress(self) -> None:
        if self._progress is not None:
            self._progress.set()
            self._progress = None
