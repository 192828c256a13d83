"""Where the messages of one or more segments are taken from, in turn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import trio

from protocol.client.entries import Item, ReceivedMessage
from protocol.client.receive_buffer import ReceiveBudget
from protocol.errors import ProtocolError


class Source(Protocol):
    """A segment with messages that wait to be taken."""

    @property
    def has_messages(self) -> bool:
        """Whether there is one to take now."""

    def take(self, order: int) -> Item:
        """The next one; `order` tells when it was taken, among all of the inbox."""


class Turns:
    """Sources that have something take turns, one message each. Together they are a source as well."""

    def __init__(self) -> None:
        self.is_paused = False
        self._ready: deque[Source] = deque()
        self._is_ready: set[Source] = set()

    def announce(self, source: Source) -> None:
        if source not in self._is_ready:
            self._is_ready.add(source)
            self._ready.append(source)

    @property
    def has_messages(self) -> bool:
        while self._ready and not self._ready[0].has_messages:
            self._is_ready.discard(self._ready.popleft())
        return bool(self._ready) and not self.is_paused

    def take(self, order: int) -> Item:
        """Of the source whose turn it is; only while there are messages."""
        source = self._ready.popleft()
        self._ready.append(source)  # and out again if it has no more when it is its turn
        return source.take(order)


class Inbox:
    """One place to take the messages of all sources. Any number of tasks may take."""

    def __init__(self) -> None:
        self.taken = 0
        self._turns = Turns()
        self._waiting = trio.lowlevel.ParkingLot()
        self._end: ProtocolError | None = None

    def announce(self, source: Source) -> None:
        """A source has something to take, or more of it."""
        self._turns.announce(source)
        self._waiting.unpark_all()

    def end(self, reason: ProtocolError) -> None:
        """Nothing more will come after what is there; the first reason counts."""
        if self._end is None:
            self._end = reason
            self._waiting.unpark_all()

    def take_nowait(self) -> ReceivedMessage | None:
        """The next message if there is one; raises UnreadableMessage for one that cannot be read."""
        if not self._turns.has_messages:
            return None
        self.taken += 1
        item = self._turns.take(self.taken)
        if isinstance(item, ReceivedMessage):
            return item
        raise item

    async def take(self) -> ReceivedMessage:
        await trio.lowlevel.checkpoint()
        while (message := self.take_nowait()) is None:
            if self._end is not None:
                raise self._end.with_traceback(None)
            await self._waiting.park()
        return message


class InnerInbox(Inbox):
    """The inbox of one of several consumers whose messages are taken from an outer one.

    Each of them has one turn there, however many segments it consumes.
    """

    def __init__(self, outer: Inbox) -> None:
        super().__init__()
        self.ended = trio.Event()
        self._outer = outer

    def announce(self, source: Source) -> None:
        super().announce(source)
        self._outer.announce(self._turns)

    def end(self, reason: ProtocolError) -> None:
        super().end(reason)
        self.ended.set()

    def pause(self) -> None:
        """Let nobody take what is here or still comes."""
        self._turns.is_paused = True


@dataclass(frozen=True, slots=True)
class Intake:
    """Where the messages of a consumer wait, how many of each segment may, and whether taken ones are noted until they
    are acknowledged."""

    inbox: Inbox
    queue_size: int | ReceiveBudget
    tracks_unacked: bool = False
