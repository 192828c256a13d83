"""What the ways to distribute a log have in common: a read position, and how much to fetch at once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

from metadata.log_entries import StoredEntry
from segments.cursors import LARGEST_BATCH, Cursor
from segments.dispatch.receivers import Delivery, R, Seat

# As much as is asked for at once: enough to fill a socket, not so much that a large one holds up the others.
SLICE_ENTRIES = 256
SLICE_BYTES = 4 * 1024 * 1024
# With so many entries passed over because they wait for one receiver, reading on stops until some are handed out: the
# rest of the log would follow.
LOOK_AHEAD = 20_000
# Until the first entries have shown how large they are.
_FIRST_GUESS_BYTES = SLICE_BYTES / 32
# Entries of many that are looked at to learn how large they are.
_SAMPLE = 16


class Pace:
    """How large entries were lately, in messages and bytes: permits count messages, the log has entries."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self) -> None:
        self._messages = 1.0
        self._bytes: float = _FIRST_GUESS_BYTES

    def learn(self, entries: Sequence[StoredEntry]) -> None:
        if len(entries) > 2 * _SAMPLE:
            entries = entries[:: len(entries) // _SAMPLE]
        count = len(entries)
        if count:
            messages = min(LARGEST_BATCH, sum([entry.messages for entry in entries]) / count)
            self._messages = (self._messages + max(1.0, messages)) / 2
            self._bytes = (self._bytes + max(1.0, sum([len(entry.body) for entry in entries]) / count)) / 2

    def entries(self, messages: int) -> int:
        """How many entries are worth fetching for receivers that can take so many messages."""
        return max(1, min(SLICE_ENTRIES, int(SLICE_BYTES / self._bytes), round(messages / self._messages)))


class Distribution(ABC, Generic[R]):
    """Hands the entries of a log to seats.

    Every entry below `read` is acknowledged, with one receiver, due, or delayed; every entry from there on has not been
    handed out. So an offered entry either stands at the read position, or is due, or is no longer wanted.
    """

    def __init__(self, cursor: Cursor, read: int) -> None:
        self.cursor = cursor
        self.read = read
        self.pace = Pace()

    @property
    @abstractmethod
    def active(self) -> Seat[R] | None:
        """The only one that is served, if there is such a one."""

    @abstractmethod
    def join(self, seat: Seat[R]) -> None: ...

    @abstractmethod
    def leave(self, seats: Sequence[Seat[R]]) -> None:
        """Some go together. What they hold becomes due."""

    @abstractmethod
    def wanted(self, end: int, now_ms: int) -> list[int] | range | None: ...

    @abstractmethod
    def offer(self, entries: Sequence[StoredEntry], now_ms: int) -> list[Delivery[R]]: ...

    @property
    @abstractmethod
    def weight(self) -> int:
        """About how many steps it takes to say what is wanted."""

    @property
    def delayed(self) -> int:
        """Entries that were passed over because they are not due."""
        return 0

    @property
    def next_due(self) -> int | None:
        """When the next of these may be due."""
        return None

    @abstractmethod
    def settle(self, index: int) -> None:
        """The cursor has acknowledged an entry, by whoever's word."""

    @abstractmethod
    def settle_partly(self, index: int) -> None:
        """The cursor has acknowledged some messages of an entry."""

    @abstractmethod
    def settle_below(self) -> None:
        """The cursor's mark has been moved."""

    @abstractmethod
    def take_back(self, seat: Seat[R], indexes: Sequence[int] | None) -> None:
        """Make what a seat holds due again; all of it, or these."""

    @abstractmethod
    def unacked(self, seat: Seat[R]) -> int: ...

    @abstractmethod
    def restart(self) -> None:
        """The cursor was moved: nothing is outstanding, and reading starts behind its mark."""

    def ahead(self, end: int, count: int) -> list[int] | range:
        """The next `count` entries from the read position on, without the acknowledged ones."""
        cursor = self.cursor
        start = index = cursor.next_unacked(self.read)
        if start > cursor.top:
            return range(start, max(start, min(end, start + count)))
        indexes: list[int] = []
        while index < end and len(indexes) < count:
            indexes.append(index)
            index = cursor.next_unacked(index + 1)
        if indexes and indexes[-1] - start + 1 == len(indexes):
            return range(start, indexes[-1] + 1)
        return indexes

    def part(self, entry: StoredEntry) -> tuple[int, tuple[int, ...]]:
        """How many messages of an entry are left, and its ack_set. None left: the cursor has just learned it."""
        index, cursor = entry.index, self.cursor
        if not cursor.remaining(index):
            return messages_of(entry), ()
        # Bits beyond the batch may have been kept while its size was not known.
        cursor.ack_batch(index, cursor.ack_set_of(index), entry.messages)
        return cursor.remaining(index).bit_count(), cursor.ack_set_of(index)


def messages_of(entry: StoredEntry) -> int:
    """What an entry counts as; more than a batch can hold is not believed."""
    count = entry.messages
    return count if 0 < count <= LARGEST_BATCH else min(max(1, count), LARGEST_BATCH)
