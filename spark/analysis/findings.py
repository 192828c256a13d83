"""What an analysis found, small enough to hold: the report and the summary are made of it, and of nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SECOND: Final = 1_000_000
# So many points make a chart over time.
POINTS: Final = 240


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked: who watches, which windows, how often watchers reconnect, and what a push costs."""

    watchers: int
    windows_ms: tuple[int, ...]
    node_window_ms: int
    reconnects_per_hour: float
    downtime_us: int
    push_cost_us: float


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is."""

    namespaces: int
    duration_us: int  # from the first event to the last change
    seeds: int
    creates: int
    deletes: int
    changes: int
    splits: int
    inferred: int

    @property
    def operations(self) -> int:
        return self.creates + self.deletes + self.changes

    @property
    def seconds(self) -> float:
        """Never zero, because rates are by it."""
        return max(self.duration_us, _SECOND) / _SECOND

    @property
    def hours(self) -> float:
        return self.seconds / 3_600

    @property
    def bin_s(self) -> int:
        """How many seconds one point of a chart over time stands for."""
        return max(1, -(-int(self.seconds) // POINTS))


@dataclass(frozen=True, slots=True)
class Namespace:
    """One of the busiest."""

    namespace: str
    watchers: int
    creates: int
    deletes: int
    changes: int
    splits: int
    per_hour: float
    gap_us_p50: int | None
    burst_p99: int
    burst_max: int
    peak_per_second: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Some seconds of a rate: the sum in them, and the most in one of them."""

    second: int
    total: int
    most: int


@dataclass(frozen=True, slots=True)
class Told:
    """What all watchers together would have been sent under one window; diffs and names once per namespace."""

    window_ms: int
    diffs: int
    names: int
    waited_us: int
    pushes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Skips:
    """Expected reconnects, those of them that needed no snapshot, and the bytes of snapshots."""

    reconnects: float
    skipped: float
    saved_bytes: float
    sent_bytes: float


@dataclass(frozen=True, slots=True)
class Findings:
    extent: Extent
    busiest: Sequence[Namespace]
    rates: Sequence[Bin]
    peak_per_second: int
    peak_per_100ms: int
    burst_sizes: Sequence[tuple[int, int]]  # size, how often; in order
    gaps_us: Sequence[tuple[int, int]]  # time between changes, how often; in order
    told: Sequence[Told]  # in the order of windows
    pushes: Sequence[Bin]
    peak_pushes: int
    peak_bytes: int
    skips: Skips


def at_share(counted: Sequence[tuple[int, int]], share: float) -> int | None:
    """The value that `share` of all do not exceed, of values with their counts in order; None if there are none."""
    total = sum(count for _, count in counted)
    rank = share * total
    seen = 0
    for value, count in counted:
        seen += count
        if seen >= rank:
            return value
    return None
