"""A set of buckets, of which there is one or more for every pattern and filter that is watched. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metadata import keys

_ALL = (1 << keys.BUCKETS) - 1


class BucketSet:
    """As small as a number: a plain set of all buckets takes 8 KB, and keeps them when it is empty again."""

    __slots__ = ("_bits",)

    def __init__(self, buckets: Iterable[int] = ()) -> None:
        self._bits = 0
        self.update(buckets)

    @classmethod
    def whole(cls) -> BucketSet:
        made = cls()
        made._bits = _ALL
        return made

    def __contains__(self, bucket: int) -> bool:
        return bool(self._bits >> bucket & 1)

    def __bool__(self) -> bool:
        return self._bits != 0

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __iter__(self) -> Iterator[int]:
        """In order, as the set is now."""
        bits = self._bits
        while bits:
            lowest = bits & -bits
            yield lowest.bit_length() - 1
            bits ^= lowest

    def add(self, bucket: int) -> None:
        self._bits |= 1 << bucket

    def discard(self, bucket: int) -> None:
        self._bits &= ~(1 << bucket)

    def update(self, buckets: Iterable[int]) -> None:
        for bucket in buckets:
            self.add(bucket)

    def difference_update(self, buckets: Iterable[int]) -> None:
        for bucket in buckets:
            self.discard(bucket)
