"""The shape of a trace in a few distributions, and how far apart the shapes of two traces are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from spark.synth.model import PROBABILITIES, Quantiles

# Below this, two samples of a few hundred events of one source often differ as much.
CLOSE: Final = 0.1


class Shape(msgspec.Struct, frozen=True):
    """What is compared. Gaps are microseconds; rates and topics are distributions over the namespaces."""

    events: int
    namespaces: int
    gaps: Quantiles
    burst_sizes: Quantiles
    mix: tuple[float, float, float]  # shares of creations, changes, deletions
    per_hour: Quantiles
    topics: Quantiles
    sizes: Quantiles  # of records; empty where none are meant


class Distance(msgspec.Struct, frozen=True):
    """One comparison: 0 is alike, 1 has nothing in common (an earth mover's distance may be more)."""

    of: str
    measure: str  # KS Kolmogorov-Smirnov; EMD earth mover's, in means of the source; TV total variation
    source: float  # a number to compare by eye: `unit` says which
    result: float
    unit: str
    distance: float

    @property
    def close(self) -> bool:
        return self.distance <= CLOSE


def distances(source: Shape, result: Shape) -> list[Distance]:
    def ks(of: str, name: str, unit: str) -> Distance:
        one, other = getattr(source, name), getattr(result, name)
        return Distance(of, "KS", median(one), median(other), unit, kolmogorov_smirnov(one, other))

    def earth(of: str, name: str, unit: str) -> Distance:
        one, other = getattr(source, name), getattr(result, name)
        return Distance(of, "EMD", mean(one), mean(other), unit, earth_movers(one, other))

    variation = sum(abs(one - other) for one, other in zip(source.mix, result.mix, strict=True)) / 2
    found = [
        ks("inter-arrival", "gaps", "us, median"),
        ks("burst sizes", "burst_sizes", "median"),
        Distance("mix of changes", "TV", source.mix[1], result.mix[1], "share changed", variation),
        earth("events/namespace/hour", "per_hour", "mean"),
        earth("topics/namespace", "topics", "mean"),
    ]
    return [*found, ks("record sizes", "sizes", "bytes, median")] if source.sizes else found


def verdict(found: Sequence[Distance]) -> str:
    far = [each.of for each in found if not each.close]
    return f"differs in {', '.join(far)}" if far else "the same shape"


def kolmogorov_smirnov(one: Quantiles, other: Quantiles) -> float:
    """The largest difference of the two distribution functions, as far as their quantiles tell."""
    if not one or not other:
        return 0.0 if one == other else 1.0
    return max(abs(_reached(one, value) - _reached(other, value)) for value in (*one, *other))


def earth_movers(one: Quantiles, other: Quantiles) -> float:
    """How far the values have to be moved on average to make one of the other, in means of the first."""
    if not one or not other or not mean(one):
        return 0.0 if one == other else 1.0
    return mean([abs(a - b) for a, b in zip(one, other, strict=True)]) / mean(one)


def mean(quantiles: Sequence[float]) -> float:
    """Quantiles are not evenly spaced, so each counts for the probability up to it."""
    if not quantiles:
        return 0.0
    widths = [high - low for low, high in pairwise(PROBABILITIES)]
    return sum(value * width for value, width in zip(quantiles[1:], widths, strict=True))


def median(quantiles: Quantiles) -> float:
    return quantiles[PROBABILITIES.index(0.5)] if quantiles else 0.0


def _reached(quantiles: Quantiles, value: float) -> float:
    count = bisect_right(quantiles, value)
    return PROBABILITIES[count - 1] if count else 0.0
