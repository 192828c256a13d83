"""What one namespace is generated from: distributions as quantiles, and probabilities of what happens next.

A model comes from a recording or from a profile; the generator does not care which.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US

# A distribution is its values at these probabilities; empty where nothing is known.
Quantiles = tuple[float, ...]
PROBABILITIES: Final = (0.0, 0.001, 0.005, *(percent / 100 for percent in range(1, 100)), 0.995, 0.999, 1.0)

# Equally probable values that a distribution is drawn from: one multiplication and one look-up per draw.
CELLS: Final = 1_024

CREATE: Final = 0
CHANGE: Final = 1
DELETE: Final = 2
OPS: Final = ("create", "change", "delete")
NOTHING: Final = "nothing"  # before the first of all

# Events are one burst while they are at most a quarter of the namespace's mean gap apart, and no more than a second.
# Relative, or all of a busy namespace would be one burst.
BURST_SHARE: Final = 0.25
LONGEST_BURST_GAP_US: Final = 1_000_000
# Closer than this is together: clocks and batches say nothing about what is below.
TOGETHER_US: Final = 100

# How often each op follows: by the op before it, and whether that was in the same burst. In the order of `step_rows`.
Steps = tuple[tuple[float, float, float], ...]


def threshold_us(mean_gap_us: float) -> float:
    """The widest gap inside a burst."""
    return min(mean_gap_us * BURST_SHARE, LONGEST_BURST_GAP_US)


def step_rows() -> list[tuple[str, bool]]:
    """What the rows of `Steps` are about: the op before, and whether it was in the same burst."""
    return [(previous, inside) for previous in (*OPS, NOTHING) for inside in (False, True)]


class NamespaceModel(msgspec.Struct, frozen=True):
    """Times are microseconds. `per_hour` rules: gaps between bursts are scaled so that it comes out."""

    name: str  # the namespace that it was learned from
    per_hour: float  # events
    inside: Quantiles  # gaps within bursts
    between: Quantiles  # gaps from the end of a burst to the next one
    burst_sizes: Quantiles
    steps: Steps
    topics: int  # at the start
    fewest: int  # topics, as long as it lasts
    most: int
    again: float  # share of changes to the topic of the event before
    resized: float  # share of changes that are splits and merges: the epoch grows
    recreated: float  # share of creations with the name of a deleted topic
    lifetimes: Quantiles  # of topics that were created and deleted; empty: any topic may be the next to go
    lasting: float  # share of deletions of topics that were there before all creations
    created_sizes: Quantiles
    changed_sizes: Quantiles
    epochs: Quantiles  # of the topics at the start
    name_length: int


class Surroundings(msgspec.Struct, frozen=True):
    """What all namespaces of a trace share."""

    seed: int
    namespaces: int
    duration_us: int
    lags: Quantiles  # from the store's time of a change to the arrival of its notification
    delay_us: int  # from there until the recorder took it in
    stretch: float = 1.0  # all gaps are that much longer than in the models
    daily_amplitude: float = 0.0


@lru_cache(maxsize=256)
def smooth_cells(quantiles: Quantiles) -> tuple[float, ...]:
    """Draws from a continuous positive distribution: between two quantiles by their logarithms."""
    logarithms = [math.log(max(value, 0.5)) for value in quantiles]
    cells = []
    for cell in range(CELLS):
        probability = (cell + 0.5) / CELLS
        right = bisect_left(PROBABILITIES, probability)
        low, high = PROBABILITIES[right - 1], PROBABILITIES[right]
        share = (probability - low) / (high - low)
        cells.append(math.exp(logarithms[right - 1] + share * (logarithms[right] - logarithms[right - 1])))
    return tuple(cells)


@lru_cache(maxsize=256)
def stepped_cells(quantiles: Quantiles) -> tuple[int, ...]:
    """Draws from a distribution of whole numbers: none that was not there."""
    return tuple(
        int(quantiles[bisect_left(PROBABILITIES, (cell + 0.5) / CELLS)]) for cell in range(CELLS)
    )  # the smallest value that reaches the probability, as Spark's percentile_approx defines it


def quantiles_of(values: Sequence[float]) -> Quantiles:
    """The quantiles of a few values, defined as Spark does."""
    if not values:
        return ()
    ordered = sorted(values)
    return tuple(ordered[max(0, math.ceil(p * len(ordered)) - 1)] for p in PROBABILITIES)


class Gaps(msgspec.Struct, frozen=True):
    """What the times of a namespace are drawn from."""

    inside: tuple[int, ...]
    between: tuple[int, ...]
    burst_sizes: tuple[int, ...]


# Where no gap between bursts was seen: those of events that know nothing of each other.
_INDEPENDENT: Final = tuple(-math.log(1 - min(p, 0.9999)) + 1e-6 for p in PROBABILITIES)


def gaps_of(model: NamespaceModel, stretch: float) -> Gaps:
    """Cells to draw from, such that the model's rate comes out.

    The ends of a recording cut gaps off, and cells round; both would change the rate, so the gaps between bursts make
    up for it.
    """
    sizes = stepped_cells(model.burst_sizes) if model.burst_sizes else (1,) * CELLS
    inside = smooth_cells(model.inside) if model.inside else (1.0,) * CELLS
    between = smooth_cells(tuple(1e6 * value for value in _INDEPENDENT) if not model.between else model.between)
    mean_size = sum(sizes) / CELLS
    mean_inside = sum(inside) / CELLS
    cycle = mean_size * HOUR_US / model.per_hour
    wanted = max(cycle - (mean_size - 1) * mean_inside, mean_inside)
    scale = wanted / (sum(between) / CELLS)
    return Gaps(
        tuple(max(1, round(gap * stretch)) for gap in inside),
        tuple(max(1, round(gap * scale * stretch)) for gap in between),
        sizes,
    )


def cumulative(steps: Steps) -> list[tuple[float, float]]:
    """For each row of `steps` the bounds below which an op is a creation, or a change; rows never seen take the mix."""
    mix = [sum(row[op] for row in steps) for op in range(len(OPS))]
    bounds = []
    for row in steps:
        chosen = row if sum(row) > 0 else mix
        total = sum(chosen)
        bounds.append((chosen[CREATE] / total, (chosen[CREATE] + chosen[CHANGE]) / total))
    return bounds


def daily_rate(at_us: float, amplitude: float) -> float:
    """The rate at a time of the day against the mean: lowest at midnight, highest at noon."""
    return 1.0 - amplitude * math.cos(2 * math.pi * (at_us % DAY_US) / DAY_US)
