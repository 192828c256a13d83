"""Percentiles of any number of values: counts in buckets that are linear within each power of two.

A bucket is at most a thousandth of its values wide, so percentiles are right to three digits. Counts of the same bucket
add up, so histograms of parts are merged without loss; Spark counts them with a column expression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

# Values below are buckets of their own; above, each power of two has half as many.
_LINEAR_BITS: Final = 11
_HALF: Final = 1 << (_LINEAR_BITS - 1)

PERCENTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
# Further out than the number of values allows, a curve would only repeat the maximum.
_CURVE_STEPS: Final = 5


def bucket_of(value: int) -> int:
    """The bucket of a value; one below zero counts as zero."""
    value = max(0, value)
    shift = max(0, value.bit_length() - _LINEAR_BITS)
    return shift * _HALF + (value >> shift)


def highest_in(bucket: int) -> int:
    """The largest value of a bucket."""
    if bucket < 2 * _HALF:
        return bucket
    shift = bucket // _HALF - 1
    return ((bucket - shift * _HALF + 1) << shift) - 1


def bucket_column(value: Column) -> Column:
    """`bucket_of` as Spark computes it. Through the binary digits, because a logarithm is not exact."""
    from pyspark.sql import functions as F  # noqa: N812

    floored = F.greatest(value.cast("long"), F.lit(0).cast("long"))
    shift = F.greatest(F.length(F.bin(floored)) - F.lit(_LINEAR_BITS), F.lit(0))
    return (shift * F.lit(_HALF) + F.call_function("shiftright", floored, shift)).cast("int")


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values are in each bucket, and the largest of all exactly."""

    counts: Mapping[int, int]
    largest: int = 0

    @classmethod
    def of(cls, values: Iterable[int]) -> Histogram:
        known = list(values)
        return cls(Counter(map(bucket_of, known)), max(known, default=0))

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def merged(self, other: Histogram) -> Histogram:
        return Histogram(Counter(self.counts) + Counter(other.counts), max(self.largest, other.largest))

    def at(self, share: float) -> int:
        """The value that this share of all values does not exceed; 0 where there are none."""
        return next(self._at([share]), 0)

    def milliseconds(self) -> dict[str, float]:
        """The usual percentiles of microseconds, in milliseconds; empty histograms have none above zero."""
        values = self._at(PERCENTILES.values())
        return {
            **{name: next(values, 0) / 1_000 for name in PERCENTILES},
            "max": self.largest / 1_000,
        }

    def curve(self) -> list[tuple[float, int]]:
        """(share, value) for a plot over 1 / (1 - share): ever closer to the maximum, as far as there are values."""
        shares = [
            share
            for nines in range(_CURVE_STEPS + 1)
            for step in range(9)
            if (share := 1 - 0.1**nines * (1 - step / 10)) <= 1 - 1 / max(1, self.total)
        ]
        return [*zip(shares, self._at(shares), strict=True), (1.0, self.largest)] if self.total else []

    def _at(self, shares: Iterable[float]) -> Iterator[int]:
        """The values at rising shares, in one pass over the buckets."""
        buckets = iter(sorted(self.counts.items()))
        total = self.total
        passed, value = 0, 0
        for share in shares:
            # A share of 0.9 of ten values is nine of them, whatever the product of the floats says.
            wanted = max(1, ceil(share * total - 1e-9))
            while passed < wanted:
                found = next(buckets, None)
                if found is None:
                    break
                value = min(highest_in(found[0]), self.largest)
                passed += found[1]
            yield value
