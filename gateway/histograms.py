"""Durations as metrics show them: how many were below each bound, their sum, and the longest since the last look."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

# In seconds: from what nobody notices to what ends leases.
BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Durations:
    __slots__ = ("_counts", "_longest", "total")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._longest = 0.0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds
        self._longest = max(self._longest, seconds)

    def buckets(self) -> Iterator[tuple[str, float]]:
        """The bounds, each with how many were not longer."""
        names = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        return zip(names, map(float, accumulate(self._counts)), strict=True)

    def take_longest(self) -> float:
        """The longest since this was last called."""
        longest, self._longest = self._longest, 0.0
        return longest
