"""Messages on their way: each with its outcome, and a window that bounds how many there are and how long they take."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import trio

from protocol.client.errors import SendTimedOut
from protocol.client.message_ids import MessageId
from protocol.client.outgoing import Message
from protocol.errors import ProtocolError
from protocol.hashing import murmur3_32

# As in Pulsar's own clients.
MAX_PENDING = 1_000
MAX_PENDING_BYTES = 64 * 1024 * 1024
SEND_TIMEOUT = 30.0
# Messages that a task may add before others run.
_UNINTERRUPTED = 16


class Sending:
    """A message, or a batch of them, from when it was accepted until its outcome is known."""

    __slots__ = (
        "_known",
        "_window",
        "deadline",
        "is_batch",
        "key_hash",
        "message_id",
        "messages",
        "order",
        "publish_time_ms",
        "reason",
        "sequence_id",
        "size",
        "was_written",
    )

    def __init__(
        self, window: Window, order: int, messages: Sequence[Message], is_batch: bool, deadline: float
    ) -> None:
        self.messages = messages
        self.is_batch = is_batch
        self.order = order  # in which messages were accepted
        self.deadline = deadline
        self.size = sum(message.size for message in messages)
        key = messages[0].key
        self.key_hash = None if key is None else murmur3_32(key.encode())
        self.publish_time_ms = time.time_ns() // 1_000_000
        self.sequence_id: int | None = None  # of the last message, at the topic that it is sent to now
        self.was_written = False  # to that topic, so that it may be stored there
        self.message_id: MessageId | None = None
        self.reason: ProtocolError | None = None  # why it failed
        self._window = window
        self._known: trio.Event | None = None

    @property
    def is_settled(self) -> bool:
        return self.message_id is not None or self.reason is not None

    async def wait(self) -> MessageId:
        """Where it was stored, that of the last message for a batch; or what became of it is raised.

        To stop waiting does not take the message back.
        """
        if not self.is_settled:
            if self._known is None:
                self._known = trio.Event()
            await self._known.wait()
        if self.message_id is None:
            assert self.reason is not None, "what is settled has one of the two"
            raise self.reason.with_traceback(None)
        return self.message_id

    def succeed(self, message_id: MessageId) -> None:
        if not self.is_settled:
            self.message_id = message_id
            self._settle()

    def fail(self, reason: ProtocolError) -> None:
        if not self.is_settled:
            self.reason = reason
            self._settle()

    def return_from_topic(self) -> None:
        """It did not get into the topic that it was sent to: it goes to another one as if it were new."""
        self.sequence_id = None
        self.was_written = False

    def _settle(self) -> None:
        self._window.leave(self)
        if self._known is not None:
            self._known.set()


class Window:
    """All messages of a producer that are on their way. Who wants to add one waits for room, in turn."""

    def __init__(
        self, max_pending: int = MAX_PENDING, max_bytes: int = MAX_PENDING_BYTES, timeout: float = SEND_TIMEOUT
    ) -> None:
        self._max_pending = max_pending
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._bytes = 0
        self._sendings: OrderedDict[int, Sending] = OrderedDict()  # by their order
        self._accepted = 0
        self._turn = trio.Lock()
        self._changed = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._sendings)

    async def admit(
        self, messages: Sequence[Message], is_batch: bool, then: Callable[[Sending], None], why: Callable[[], str]
    ) -> Sending:
        """Wait for room and hand the messages to `then`, in the same step, so that nothing gets between.

        No room within the time that a message may take is a failure like no confirmation within it.
        """
        deadline = trio.current_time() + self._timeout
        sending = Sending(self, 0, messages, is_batch, deadline)
        if not self._turn.locked() and self._has_room(sending.size):
            # Others run now and then, not after each message: what is accepted in between is written together.
            if self._accepted % _UNINTERRUPTED == 0:
                await trio.lowlevel.checkpoint()
            if not self._turn.locked() and self._has_room(sending.size):
                return self._accept(sending, then)
        with trio.move_on_at(deadline):
            async with self._turn:
                while not self._has_room(sending.size):
                    await self._changed.park()
                return self._accept(sending, then)
        raise SendTimedOut(f"There was no room for the message within {self._timeout:g} s{why()}")

    def _accept(self, sending: Sending, then: Callable[[Sending], None]) -> Sending:
        self._accepted += 1
        sending.order = self._accepted
        self._sendings[sending.order] = sending
        self._bytes += sending.size
        self._changed.unpark_all()
        then(sending)
        return sending

    async def wait_empty(self) -> None:
        """Until the outcome of every message is known."""
        while self._sendings:
            await self._changed.park()

    async def watch_deadlines(self, expire: Callable[[Sending], None], why: Callable[[], str]) -> None:
        """Fail what takes too long, and tell `expire` of each."""
        while True:
            while not self._sendings:
                await self._changed.park()
            oldest = next(iter(self._sendings.values()))
            await trio.sleep_until(oldest.deadline)
            now = trio.current_time()
            for sending in [sending for sending in self._sendings.values() if sending.deadline <= now]:
                sending.fail(SendTimedOut(f"The message was not confirmed within {self._timeout:g} s{why()}"))
                expire(sending)

    def fail_all(self, reason: ProtocolError) -> None:
        for sending in list(self._sendings.values()):
            sending.fail(reason)

    def leave(self, sending: Sending) -> None:
        """For a message: its outcome is known."""
        if self._sendings.pop(sending.order, None) is not None:
            self._bytes -= sending.size
            self._changed.unpark_all()

    def _has_room(self, size: int) -> bool:
        # A single message of any size passes: the server has its own limit.
        return not self._sendings or (len(self._sendings) < self._max_pending and self._bytes + size <= self._max_bytes)
