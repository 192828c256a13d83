"""One connection to one store server, opened by redis-py and driven on the trio loop.

Callers append packed commands and park; a writer sends once per tick, a reader wakes the caller at the head.
That is the batching, without a batcher. A lost link fails every waiting call at once.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import hiredis
import outcome
import trio

from metadata.urls import Endpoint, StoreUrl

Command = tuple[bytes | str | int | float, ...]
# A reply is bytes, int, list, None or a hiredis.ReplyError; the scripts and codecs know which.
Reply = Any

# A caller that queues this much has no use for answers: refused rather than kept in memory.
MAX_OUTSTANDING: Final = 100_000
_CHUNK: Final = 256 * 1024
# A command that is sent for itself: the call costs little beside the copying.
_LONG: Final = 16 * 1024
# Chunks that are read in a row before others run: under a flood `recv` never blocks.
_CHUNKS_PER_TURN: Final = 8
# The limit of silence is moved when this part of it has passed: to move it costs more than what most replies do.
_SLACK: Final = 1 / 8
_NOTHING: Final = object()
# Its stub takes tuples of one element only.
_pack: Final[Callable[[Command], bytes]] = cast(Any, hiredis.pack_command)
# Its stub knows no buffers but bytes.
_Reader: Final[Any] = hiredis.Reader


class LinkLost(Exception):
    """The connection is gone; what was sent on it may or may not have been executed."""


class _Call:
    __slots__ = ("left", "replies", "task")

    def __init__(self, task: trio.lowlevel.Task | None, count: int) -> None:
        self.task = task  # None: nobody waits, or no longer
        self.left = count
        self.replies: list[Reply] = []


class Link:
    """Pipelined RESP3 on one socket. `run` must be running for calls to be answered."""

    def __init__(
        self,
        endpoint: Endpoint,
        connection: Any,
        *,
        timeout: float,
        on_push: Callable[[Link, list[Any]], None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.last_round_trip = 0.0
        self.received_at = 0.0  # when the last bytes came
        self._connection = connection
        self._sock = connection._sock  # redis-py offers no public way to the socket
        self._sock.setblocking(False)
        self._is_secured = isinstance(self._sock, ssl.SSLSocket)
        self._buffer = bytearray(_CHUNK)
        self._timeout = timeout
        self._on_push = on_push
        self._reader = _Reader(notEnoughData=_NOTHING)
        self._out: list[bytes] = []
        self._calls: deque[_Call] = deque()
        self._outstanding = 0
        self._error: LinkLost | None = None
        self._writer: trio.lowlevel.Task | None = None
        self._sent_at: float | None = None
        self._received = trio.Event()
        # Armed while somebody waits: a server that says nothing for `timeout` counts as lost.
        self._silence = trio.CancelScope()

    @classmethod
    async def open(
        cls,
        url: StoreUrl,
        endpoint: Endpoint,
        *,
        connect_timeout: float,
        timeout: float,
        on_push: Callable[[Link, list[Any]], None] | None = None,
    ) -> Link:
        connection = url.connection(endpoint, connect_timeout=connect_timeout)
        # Abandoned on cancellation: the thread ends by itself at the connect timeout and nobody uses its socket.
        await trio.to_thread.run_sync(connection.connect, abandon_on_cancel=True)
        return cls(endpoint, connection, timeout=timeout, on_push=on_push)

    @property
    def usable(self) -> bool:
        return self._error is None

    async def call(self, *command: bytes | str | int | float) -> Reply:
        return (await self.execute([command]))[0]

    async def execute(self, commands: Sequence[Command]) -> list[Reply]:
        """Send the commands together and wait for all their replies; error replies come back as values."""
        if not commands:
            return []
        call = self._post(commands, trio.lowlevel.current_task())

        def abandon(_: Callable[[], None]) -> trio.lowlevel.Abort:
            # The commands may be under way: their slots stay, so that later replies find their own callers.
            call.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        replies: list[Reply] = await trio.lowlevel.wait_task_rescheduled(abandon)
        return replies

    def cast(self, commands: Sequence[Command]) -> None:
        """Send commands whose replies nobody needs; what is sent later on this connection comes after them."""
        if commands:
            self._post(commands, None)

    def _post(self, commands: Sequence[Command], task: trio.lowlevel.Task | None) -> _Call:
        if self._error is not None:
            raise LinkLost(str(self._error))
        if self._outstanding + len(commands) > MAX_OUTSTANDING:
            raise LinkLost(f"more than {MAX_OUTSTANDING} commands wait for {self.endpoint}")
        # Packed before the call is entered: a value that cannot be packed must not leave a call without its command.
        packed = [_pack(command) for command in commands]
        call = _Call(task, len(commands))
        if not self._calls:
            self._sent_at = trio.current_time()
            self._bear_silence(self._sent_at)
        self._calls.append(call)
        self._outstanding += len(commands)
        self._out += packed
        if self._writer is not None and not self._sent_at_once():
            writer, self._writer = self._writer, None
            trio.lowlevel.reschedule(writer)
        return call

    def _sent_at_once(self) -> bool:
        """Send what is long now, as far as the socket takes it: what is short goes with others of the same moment."""
        if self._is_secured or len(self._out[0]) < _LONG:
            return False
        try:
            sent = self._sock.send(self._out[0])
        except OSError:
            return False  # the writer meets it again
        if sent < len(self._out[0]):
            self._out[0] = self._out[0][sent:]
            return False
        del self._out[0]
        return not self._out

    async def run(self) -> None:
        """Drive the socket until it is lost or the task is cancelled. Never raises for a lost connection."""
        try:
            with self._silence:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._read)
            if self._silence.cancelled_caught:
                self._fail(LinkLost(f"{self.endpoint} gave no answer for {self._timeout:g} s"))
        except* (OSError, LinkLost, hiredis.ProtocolError, trio.ClosedResourceError) as group:
            self._fail(LinkLost(f"connection to {self.endpoint} lost: {group.exceptions[0]}"))
        finally:
            self._fail(LinkLost(f"connection to {self.endpoint} closed"))

    def close(self) -> None:
        self._fail(LinkLost(f"connection to {self.endpoint} closed"))

    def _fail(self, error: LinkLost) -> None:
        if self._error is not None:
            return
        self._error = error
        trio.lowlevel.notify_closing(self._sock)
        self._connection.disconnect()
        calls, self._calls = self._calls, deque()
        self._out.clear()
        self._outstanding = 0
        for call in calls:
            if call.task is not None:
                trio.lowlevel.reschedule(call.task, outcome.Error(LinkLost(str(error))))

    async def _write(self) -> None:
        def abandon(_: Callable[[], None]) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        while True:
            if not self._out:
                self._writer = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(abandon)
            data = memoryview(b"".join(self._out))
            self._out.clear()
            while data:
                try:
                    data = data[self._sock.send(data) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    await trio.lowlevel.wait_writable(self._sock)
                except ssl.SSLWantReadError:
                    # TLS wants a record from the peer first; the reader will take it in.
                    await self._received.wait()

    async def _read(self) -> None:
        chunks = 0
        while True:
            try:
                length = self._sock.recv_into(self._buffer)
            except (BlockingIOError, ssl.SSLWantReadError):
                chunks = 0
                await trio.lowlevel.wait_readable(self._sock)
                continue
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._sock)
                continue
            if not length:
                raise LinkLost("the server closed it")
            self.received_at = trio.current_time()
            self._reader.feed(self._buffer, 0, length)
            if self._is_secured:
                self._received.set()
                self._received = trio.Event()
            self._deliver()
            if self._calls:
                self._bear_silence(self.received_at)
            else:
                self._silence.deadline = float("inf")
            chunks += 1
            if chunks % _CHUNKS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()

    def _bear_silence(self, since: float) -> None:
        """For as long as the timeout says, and a little longer."""
        if not since + self._timeout <= self._silence.deadline < float("inf"):
            self._silence.deadline = since + self._timeout * (1 + _SLACK)

    def _deliver(self) -> None:
        while (reply := self._reader.gets()) is not _NOTHING:
            # PSUBSCRIBE is answered by a push in its turn, or by an error reply: either fills the caller's slot.
            if isinstance(reply, hiredis.PushNotification) and reply[0] != b"psubscribe":
                if self._on_push is not None:
                    self._on_push(self, reply)
                continue
            if not self._calls:
                raise LinkLost("the server sent a reply that nobody asked for")
            call = self._calls[0]
            call.replies.append(reply)
            call.left -= 1
            self._outstanding -= 1
            if call.left:
                continue
            self._calls.popleft()
            if self._sent_at is not None:
                self.last_round_trip = trio.current_time() - self._sent_at
                self._sent_at = None
            if call.task is not None:
                trio.lowlevel.reschedule(call.task, outcome.Value(call.replies))
