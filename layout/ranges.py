"""The hash ring from 0x0000 to 0xFFFF and the inclusive ranges that segments own on it."""

from itertools import pairwise
from typing import Self

from msgspec import Struct

from layout.errors import InvalidRange, InvalidSegmentCount, RangeTooNarrow, SegmentsNotAdjacent

RING_SIZE = 0x1_0000
LAST_HASH = RING_SIZE - 1


def check_hash(value: int, what: str = "A hash") -> None:
    """Refuse a number that is not on the ring."""
    if not 0 <= value <= LAST_HASH:
        raise InvalidRange(f"{what} must lie between 0 and {LAST_HASH} (0xffff), but {value} does not.")


class HashRange(Struct, frozen=True, order=True):
    """The hashes from `start` to `end`, both included. Ordered by start, then end."""

    start: int
    end: int

    def __post_init__(self) -> None:
        check_hash(self.start, "The start of a range")
        check_hash(self.end, "The end of a range")
        if self.end < self.start:
            raise InvalidRange(f"A range must not end before it starts, as {self.start} to {self.end} does.")

    @classmethod
    def full(cls) -> Self:
        return cls(0, LAST_HASH)

    @property
    def size(self) -> int:
        return self.end - self.start + 1

    @property
    def share(self) -> float:
        """The part of the ring that the range covers, from 0 to 1."""
        return self.size / RING_SIZE

    def contains(self, value: int) -> bool:
        return self.start <= value <= self.end

    def overlaps(self, other: "HashRange") -> bool:
        return self.start <= other.end and other.start <= self.end

    def is_adjacent(self, other: "HashRange") -> bool:
        """Whether the two touch without overlapping, on either side; ffff does not touch 0000."""
        return self.end + 1 == other.start or other.end + 1 == self.start

    def split(self) -> "tuple[HashRange, HashRange]":
        """The lower and the upper half; an odd width gives the lower half one hash more."""
        if self.size == 1:
            raise RangeTooNarrow(f"The range {self} is a single hash and cannot be split.")
        middle = self.start + (self.end - self.start) // 2
        return HashRange(self.start, middle), HashRange(middle + 1, self.end)

    def merge(self, other: "HashRange") -> "HashRange":
        if not self.is_adjacent(other):
            raise SegmentsNotAdjacent(f"The ranges {self} and {other} do not touch and cannot be merged.")
        return HashRange(min(self.start, other.start), max(self.end, other.end))

    def __str__(self) -> str:
        return f"{self.start:04x}-{self.end:04x}"


def equal_ranges(count: int) -> tuple[HashRange, ...]:
    """Tile the ring with `count` ranges whose widths differ by at most one."""
    if not 1 <= count <= RING_SIZE:
        raise InvalidSegmentCount(
            f"A topic starts with 1 to {RING_SIZE} segments, not {count}: ask for a number between the two."
        )
    bounds = [index * RING_SIZE // count for index in range(count + 1)]
    return tuple(HashRange(start, after - 1) for start, after in pairwise(bounds))
