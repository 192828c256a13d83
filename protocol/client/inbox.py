"""Where the messages of one or more segments are taken from, in turn."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import trio

from protocol.client.entries import Item, ReceivedMessage
from protocol.errors import ProtocolError


class Source(Protocol):
    """A segment with messages that wait to be taken."""

    @property
    def has_messages(self) -> bool:
        """Whether there is one to take now."""

    def take(self, order: int) -> Item:
        """The next one; `order` tells when it was taken, among all of the inbox."""


class Inbox:
    """Sources that have something take turns, one message each. Any number of tasks may take."""

    def __init__(self) -> None:
        self.taken = 0
        self._ready: deque[Source] = deque()
        self._is_ready: set[Source] = set()
        self._waiting = trio.lowlevel.ParkingLot()
        self._end: ProtocolError | None = None

    def announce(self, source: Source) -> None:
        """A source has something to take, or more of it."""
        if source not in self._is_ready:
            self._is_ready.add(source)
            self._ready.append(source)
        self._waiting.unpark_all()

    def end(self, reason: ProtocolError) -> None:
        """Nothing more will come after what is there; the first reason counts."""
        if self._end is None:
            self._end = reason
            self._waiting.unpark_all()

    def take_nowait(self) -> ReceivedMessage | None:
        """The next message if there is one; raises UnreadableMessage for one that cannot be read."""
        while self._ready:
            source = self._ready.popleft()
            if not source.has_messages:
                self._is_ready.discard(source)
                continue
            self.taken += 1
            item = source.take(self.taken)
            self._ready.append(source)  # and out again if it has no more when it is its turn
            if isinstance(item, ReceivedMessage):
                return item
            raise item
        return None

    async def take(self) -> ReceivedMessage:
        await trio.lowlevel.checkpoint()
        while (message := self.take_nowait()) is None:
            if self._end is not None:
                raise self._end.with_traceback(None)
            await self._waiting.park()
        return message
