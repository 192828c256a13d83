"""Entries that are not due yet: when the next one is, and which are. Bounded, however many there are.

The exact time is kept of those that are due first. Of the others it is only known which they are, a bit for each, and
of every thousand of these when the first one is due. Then they are read again, and find their places anew.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

# Entries of which the exact time is kept: so many at least, and up to twice as many, at some 60 bytes each.
KEPT: Final = 50_000

_INDEX_BITS: Final = 64
_INDEX: Final = (1 << _INDEX_BITS) - 1

_SHIFT: Final = 10
_LOW: Final = (1 << _SHIFT) - 1


class IndexSet:
    """Indexes as bits, in blocks of 1,024."""

    __slots__ = ("_blocks", "_count")

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, index: int) -> bool:
        return bool(self._blocks.get(index >> _SHIFT, 0) >> (index & _LOW) & 1)

    def add(self, index: int) -> None:
        if index not in self:
            number = index >> _SHIFT
            self._blocks[number] = self._blocks.get(number, 0) | 1 << (index & _LOW)
            self._count += 1

    def discard(self, index: int) -> bool:
        """Whether it was there."""
        if index not in self:
            return False
        number = index >> _SHIFT
        block = self._blocks[number] ^ 1 << (index & _LOW)
        if block:
            self._blocks[number] = block
        else:
            del self._blocks[number]
        self._count -= 1
        return True

    def add_block(self, number: int, block: int) -> None:
        """Several of one block, which are not here."""
        if block:
            self._blocks[number] = self._blocks.get(number, 0) | block
            self._count += block.bit_count()

    def discard_block(self, number: int, block: int) -> int:
        """Several of one block; those that were there."""
        before = self._blocks.get(number, 0)
        found = before & block
        if found == before:
            self._blocks.pop(number, None)
        else:
            self._blocks[number] = before ^ found
        self._count -= found.bit_count()
        return found

    def take(self, number: int) -> list[int]:
        """All of a block, which leave."""
        found = list(_members(number, self._blocks.pop(number, 0)))
        self._count -= len(found)
        return found

    def drop_below(self, index: int) -> None:
        number = index >> _SHIFT
        kept = {each: block for each, block in self._blocks.items() if each >= number}
        if number in kept:
            kept[number] &= -1 << (index & _LOW)
            if not kept[number]:
                del kept[number]
        self._blocks = kept
        self._count = sum([block.bit_count() for block in kept.values()])


def _members(number: int, block: int) -> Iterator[int]:
    while block:
        lowest = block & -block
        yield (number << _SHIFT) + lowest.bit_length() - 1
        block ^= lowest


class Delayed:
    """Entries with the times at which they are due, in milliseconds."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        # A heap of time and index in one number, which is smaller than a pair: by time, and those of one time by index,
        # because the chunks of a message are due together. What was dropped stays until its time, without its bit.
        self._heap: list[int] = []
        self._near = IndexSet()
        self._far = IndexSet()
        self._far_dues: dict[int, int] = {}  # of each block, the earliest
        self._next_far: int | None = None  # of all of them

    def __len__(self) -> int:
        return len(self._near) + len(self._far)

    @property
    def next_due(self) -> int | None:
        """When the next one may be due."""
        if not self:
            return None
        near = self._heap[0] >> _INDEX_BITS if self._heap else None
        if near is None or self._next_far is None:
            return self._next_far if near is None else near
        return min(near, self._next_far)

    def add(self, index: int, due_ms: int) -> None:
        """One that is not here."""
        heappush(self._heap, due_ms << _INDEX_BITS | index)
        self._near.add(index)
        if len(self._heap) >= 2 * self._kept:
            self._heap.sort()
            self._send_far(self._heap[self._kept :])
            del self._heap[self._kept :]

    def _send_far(self, items: Sequence[int]) -> None:
        """Tens of thousands at once, for which everything else waits: by blocks instead of one by one."""
        blocks: dict[int, int] = {}
        for item in items:
            index = item & _INDEX
            number = index >> _SHIFT
            if number not in blocks:
                blocks[number] = 0
                # The first of a block is due first, because they are in order.
                due_ms = item >> _INDEX_BITS
                self._far_dues[number] = min(due_ms, self._far_dues.get(number, due_ms))
            blocks[number] |= 1 << (index & _LOW)
        for number, block in blocks.items():
            self._far.add_block(number, self._near.discard_block(number, block))
        self._next_far = min(self._far_dues.values(), default=None)

    def take_due(self, now_ms: int, most: int) -> list[int]:
        """Some that are due, or may be: so many, or up to a block more. They are not here any more."""
        found: list[int] = []
        while len(found) < most and self._next_far is not None and self._next_far <= now_ms:
            number = min(self._far_dues, key=self._far_dues.__getitem__)
            del self._far_dues[number]
            self._next_far = min(self._far_dues.values(), default=None)
            found += self._far.take(number)
        while len(found) < most and self._heap and self._heap[0] >> _INDEX_BITS <= now_ms:
            index = heappop(self._heap) & _INDEX
            if self._near.discard(index):
                found.append(index)
        return found

    def discard(self, index: int) -> None:
        if not self._near.discard(index):
            self._far.discard(index)

    def drop_below(self, index: int) -> None:
        if not self:
            return
        self._near.drop_below(index)
        self._far.drop_below(index)
        self._heap = [item for item in self._heap if item & _INDEX >= index]
        heapify(self._heap)
        self._far_dues = {number: due for number, due in self._far_dues.items() if number >= index >> _SHIFT}
        self._next_far = min(self._far_dues.values(), default=None)

    def clear(self) -> None:
        self.__init__(self._kept)  # type: ignore[misc]  # nothing is left of it, whatever it has
