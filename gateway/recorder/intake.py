"""What the loop tells the writer, and the queue between the two: it never waits, and is bounded in events and bytes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from metadata.link import Reply
from metadata.records import StoredTopic

# More than a few seconds of the busiest feed, in some 50 MB.
MOST_EVENTS: Final = 40_000
MOST_BYTES: Final = 64 * 1024 * 1024


class Entries(msgspec.Struct, frozen=True, gc=False):
    """Entries of the change log of a bucket, read at `taken`, and when the notification of each came."""

    bucket: int
    entries: Sequence[Reply]
    arrivals: Sequence[float | None]
    taken: float


class Value(msgspec.Struct, frozen=True, gc=False):
    """The record of a topic, as it was read back."""

    path: str
    incarnation: str
    version: int
    value: bytes


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Changes may be missing; `buckets` is None for all of them."""

    buckets: Sequence[int] | None
    cause: str
    dropped: int
    taken: float


class Base(msgspec.Struct, frozen=True, gc=False):
    """Topics as they were found, each with its bucket."""

    found: Sequence[tuple[int, StoredTopic]]
    taken: float


class BaseEnd(msgspec.Struct, frozen=True, gc=False):
    buckets: Sequence[int] | None
    taken: float


Item = Entries | Value | Gap | Base | BaseEnd


class Intake:
    """The queue. One thread puts, one takes; each counter is written by one of them, so no lock is needed."""

    def __init__(self, most_events: int = MOST_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self._most_events = most_events
        self._most_bytes = most_bytes
        self._items: deque[tuple[Item, int, int]] = deque()
        self._put_events = self._put_bytes = 0
        self._taken_events = self._taken_bytes = 0
        self._asleep = False
        self._wake = threading.Event()
        self.closed = False

    @property
    def events(self) -> int:
        """How many wait."""
        return self._put_events - self._taken_events

    @property
    def has_room(self) -> bool:
        """Whether so much is free that it is worth going on after something did not fit."""
        return 2 * self.events <= self._most_events and 2 * self._bytes <= self._most_bytes

    @property
    def _bytes(self) -> int:
        return self._put_bytes - self._taken_bytes

    # What the loop calls.

    def offer(self, item: Item, events: int, size: int) -> bool:
        """Put an item that stands for so many events and bytes; False, and it is not put, if it does not fit."""
        # What has no bytes is not refused because of those of others: large records must not cost changes.
        if self.events + events > self._most_events or (size and self._bytes + size > self._most_bytes):
            return False
        self.put(item, events, size)
        return True

    def put(self, item: Item, events: int = 1, size: int = 0) -> None:
        """Put what must not be missing, whether it fits or not."""
        self._put_events += events
        self._put_bytes += size
        self._items.append((item, events, size))
        if self._asleep:
            self._asleep = False
            self._wake.set()

    def close(self) -> None:
        """Nothing more is put."""
        self.closed = True
        self._wake.set()

    # What the writer calls.

    def sleep(self, limit: float | None) -> None:
        """Wait until something is put, or it is closed, or the time is over."""
        self._wake.clear()
        self._asleep = True
        # Looked at after the announcement: what is put from now on wakes us.
        if not self._items and not self.closed:
            self._wake.wait(limit)
        self._asleep = False

    def take(self, most: int) -> list[Item]:
        """Take items for about so many events, in their order; none if there are none."""
        taken: list[Item] = []
        while self._items and most > 0:
            item, events, size = self._items.popleft()
            self._taken_events += events
            self._taken_bytes += size
            most -= events or 1
            taken.append(item)
        return taken
