"""Key_Shared: which receiver a key belongs to. Three ways: spread by the server, asked for, or by entry buckets."""

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import Generic

from layout.ranges import LAST_HASH
from metadata.log_entries import StoredEntry
from protocol.hashing import bucket_hash
from segments.dispatch.errors import ConsumerAssignError
from segments.dispatch.key_hashes import key_hash
from segments.dispatch.receivers import R, Seat

# Places that each receiver takes on the ring: enough that shares differ by some ten per cent only.
_PLACES = 100
# So many ranges are found one by one when their receiver goes; of more, going through all of them is faster.
_FEW = 64
# The ring in words of so many bits.
_SHIFT = 10
_LOW = (1 << _SHIFT) - 1


class KeySharing(Enum):
    AUTO_SPLIT = "auto split"
    STICKY = "sticky"
    ENTRY_BUCKETS = "entry buckets"


class KeyOwners(ABC, Generic[R]):
    """Entries fall into slots, and each slot has at most one owner. Order is kept within a slot."""

    def slot(self, entry: StoredEntry) -> int:
        return key_hash(entry)

    @abstractmethod
    def owner(self, slot: int) -> Seat[R] | None: ...

    @abstractmethod
    def join(self, seat: Seat[R]) -> None:
        """Raises ConsumerAssignError, and then nothing has changed."""

    @abstractmethod
    def leave(self, seat: Seat[R]) -> None: ...


class SplitByServer(KeyOwners[R]):
    """Each receiver takes many places on the ring, and owns what lies between them and the place before.

    So a newcomer takes a little from everybody, and what one leaves goes to everybody: nothing else moves. The
    places follow from the name, so that a receiver that comes back gets its keys again.
    """

    def __init__(self) -> None:
        self._seats: dict[str, Seat[R]] = {}
        self._labels: dict[Seat[R], str] = {}
        self._places: dict[Seat[R], array[int]] = {}  # those that each has, because hashing them is most of the work
        self._taken = TakenPlaces()
        self._takers: dict[int, list[str]] = {}  # several where they meet, of whom the first by name owns it

    def owner(self, slot: int) -> Seat[R] | None:
        place = self._taken.at_or_after(slot)
        return None if place is None else self._seats[self._takers[place][0]]

    def join(self, seat: Seat[R]) -> None:
        number, label = 0, seat.receiver.name
        while label in self._seats:  # names need not be different
            number += 1
            label = f"{seat.receiver.name}\0{number}"
        self._seats[label] = seat
        self._labels[seat] = label
        places = self._places[seat] = array("H", _places(label))
        for place in places:
            takers = self._takers.get(place)
            if takers is None:
                self._takers[place] = [label]
                self._taken.add(place)
            else:
                insort(takers, label)

    def leave(self, seat: Seat[R]) -> None:
        label = self._labels.pop(seat)
        del self._seats[label]
        places = self._places.pop(seat)
        if not self._seats:
            self._takers, self._taken = {}, TakenPlaces()
            return
        for place in places:
            takers = self._takers[place]
            takers.remove(label)
            if not takers:
                del self._takers[place]
                self._taken.discard(place)


def _places(label: str) -> set[int]:
    return {bucket_hash(f"{label}\0{number}".encode()) for number in range(_PLACES)}


class TakenPlaces:
    """Some of the hashes of the ring, as bits in words, so that one comes and goes without moving the others."""

    __slots__ = ("_used", "_words")

    def __init__(self) -> None:
        self._words = [0] * (LAST_HASH + 1 >> _SHIFT)
        self._used = 0  # a bit for each word that is not empty

    def add(self, place: int) -> None:
        number = place >> _SHIFT
        self._words[number] |= 1 << (place & _LOW)
        self._used |= 1 << number

    def discard(self, place: int) -> None:
        number = place >> _SHIFT
        self._words[number] &= ~(1 << (place & _LOW))
        if not self._words[number]:
            self._used &= ~(1 << number)

    def at_or_after(self, slot: int) -> int | None:
        """The next one on the ring, which has no end; None if there is none at all."""
        number = slot >> _SHIFT
        if word := self._words[number] >> (slot & _LOW):
            return slot + (word & -word).bit_length() - 1  # `_lowest`, without a call: most messages come this way
        if not self._used:
            return None
        later = self._used >> (number + 1)
        number = number + 1 + _lowest(later) if later else _lowest(self._used)
        return (number << _SHIFT) + _lowest(self._words[number])


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


class AskedFor(KeyOwners[R]):
    """Receivers say which hashes they want. What nobody has asked for waits until somebody does."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, Seat[R]]] = []
        self._starts: dict[Seat[R], list[int]] = {}

    def owner(self, slot: int) -> Seat[R] | None:
        position = bisect_right(self._ranges, slot, key=_start) - 1
        if position < 0:
            return None
        _, end, seat = self._ranges[position]
        return seat if slot <= end else None

    def join(self, seat: Seat[R]) -> None:
        asked = seat.receiver.key_ranges
        _check_ranges(asked)
        new = sorted(asked)
        for (_, end), (start, _) in pairwise(new):
            if start <= end:
                raise ConsumerAssignError(f"Hash {start} is asked for twice: name ranges that do not overlap.")
        for start, end in new:
            position = bisect_right(self._ranges, end, key=_start)
            if position and self._ranges[position - 1][1] >= start:
                taken, _, other = self._ranges[position - 1]
                name = other.receiver.name
                raise ConsumerAssignError(
                    f"Hash {max(start, taken)} belongs to consumer {name!r} already: ask for other ranges."
                )
        # Sorted runs, which is what the sort is fastest at.
        self._ranges += [(start, end, seat) for start, end in new]
        self._ranges.sort(key=_start)
        self._starts[seat] = [start for start, _ in new]

    def leave(self, seat: Seat[R]) -> None:
        starts = self._starts.pop(seat)
        if len(starts) > _FEW:
            self._ranges = [held for held in self._ranges if held[2] is not seat]
            return
        for start in starts:
            del self._ranges[bisect_left(self._ranges, start, key=_start)]


def _start(held: tuple[int, int, Seat[R]]) -> int:
    return held[0]


class EntryBuckets(KeyOwners[R]):
    """All receivers name the buckets of the segment, and share them: contiguous parts, in the order of their names.

    Producers put messages of one bucket into one entry and stamp it, so a slot is a bucket. All of a bucket's
    keys go the same way.
    """

    def __init__(self) -> None:
        self._sharers: list[Seat[R]] = []
        self._starts: list[int] = []

    def slot(self, entry: StoredEntry) -> int:
        place = key_hash(entry) if entry.hash_range is None else entry.hash_range[0]
        return bisect_right(self._starts, place) - 1

    def owner(self, slot: int) -> Seat[R] | None:
        count = len(self._sharers)
        if not count:
            return None
        # Sharer j of k has the buckets from j*N//k to before (j+1)*N//k.
        return self._sharers[((slot + 1) * count - 1) // len(self._starts)]

    def join(self, seat: Seat[R]) -> None:
        buckets = seat.receiver.key_ranges
        _check_ranges(buckets)
        starts = [start for start, _ in buckets]
        if (
            starts[0] != 0
            or buckets[-1][1] != LAST_HASH
            or any(end + 1 != start for (_, end), (start, _) in pairwise(buckets))
        ):
            raise ConsumerAssignError(f"Entry buckets must cover 0 to {LAST_HASH} in order and without gaps.")
        if self._sharers and starts != self._starts:
            raise ConsumerAssignError("Others share this segment by different entry buckets: look up its layout again.")
        self._starts = starts
        insort(self._sharers, seat, key=lambda sharer: sharer.receiver.name)

    def leave(self, seat: Seat[R]) -> None:
        self._sharers.remove(seat)


def _check_ranges(ranges: Sequence[tuple[int, int]]) -> None:
    if not ranges:
        raise ConsumerAssignError("No hash ranges are given: name at least one.")
    for start, end in ranges:
        if not 0 <= start <= end <= LAST_HASH:
            raise ConsumerAssignError(f"Hashes {start} to {end} are no range within 0 to {LAST_HASH}.")
