"""The findings in figures: what `summary.json` holds and `--json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from spark.analysis.findings import Findings, Question, at_share

FORMAT: Final = "vela-analysis"
FORMAT_VERSION: Final = 1

# From docs/benchmarks.md, on its machine: what is spent once for a changed topic however many watch, in a burst.
TOPIC_COST_US: Final = 79.0
# What a frame costs beside that.
PUSH_COST_US: Final = 9.2
# Memory of a connection with a watch, and of a further watch on a connection.
CONNECTION_BYTES: Final = 4_383
WATCH_BYTES: Final = 369


class Percentiles(msgspec.Struct, frozen=True):
    p50: int | None
    p90: int | None
    p99: int | None
    p999: int | None
    max: int | None


class Churn(msgspec.Struct, frozen=True):
    seeds: int
    creates: int
    deletes: int
    changes: int
    splits: int
    inferred: int
    per_hour: float


class WindowSummary(msgspec.Struct, frozen=True):
    window_ms: int
    diffs: int
    pushes: int
    bytes: int
    bytes_per_watcher: float
    names_per_diff: float
    mean_wait_ms: float


class Reconnects(msgspec.Struct, frozen=True):
    per_watcher_per_hour: float
    downtime_s: float
    reconnects: float
    skipped_share: float | None
    saved_bytes: float
    sent_bytes: float


class Node(msgspec.Struct, frozen=True):
    """Estimates, from costs that were measured on another machine."""

    window_ms: int
    watchers: int
    pushes_per_s: float
    peak_pushes_per_s: int
    bytes_per_s: float
    peak_bytes_per_s: int
    push_cost_us: float
    topic_cost_us: float
    cpu: float  # of one core
    peak_cpu: float
    memory_bytes_own_connections: int
    memory_bytes_shared_connections: int


class Busy(msgspec.Struct, frozen=True):
    namespace: str
    creates: int
    deletes: int
    changes: int
    splits: int
    per_hour: float


class Summary(msgspec.Struct, frozen=True):
    trace: str
    namespaces: int
    operations: int
    duration_s: float
    watchers: int
    churn: Churn
    gaps_us: Percentiles
    bursts: int
    burst_sizes: Percentiles
    peak_per_second: int
    peak_per_100ms: int
    coalescing: tuple[WindowSummary, ...]
    reconnects: Reconnects
    node: Node
    busiest: tuple[Busy, ...]
    format: str = FORMAT
    version: int = FORMAT_VERSION


def summarise(trace: str, asked: Question, found: Findings) -> Summary:
    extent = found.extent
    return Summary(
        trace=trace,
        namespaces=extent.namespaces,
        operations=extent.operations,
        duration_s=extent.duration_us / 1e6,
        watchers=asked.watchers,
        churn=Churn(
            extent.seeds,
            extent.creates,
            extent.deletes,
            extent.changes,
            extent.splits,
            extent.inferred,
            _rounded(extent.operations / extent.hours),
        ),
        gaps_us=_percentiles(found.gaps_us),
        bursts=sum(count for _, count in found.burst_sizes),
        burst_sizes=_percentiles(found.burst_sizes),
        peak_per_second=found.peak_per_second,
        peak_per_100ms=found.peak_per_100ms,
        coalescing=tuple(
            WindowSummary(
                told.window_ms,
                told.diffs,
                told.pushes,
                told.bytes,
                _rounded(told.bytes / asked.watchers),
                _rounded(told.names / max(told.diffs, 1)),
                _rounded(told.waited_us / max(told.names, 1) / 1_000),
            )
            for told in found.told
        ),
        reconnects=Reconnects(
            asked.reconnects_per_hour,
            asked.downtime_us / 1e6,
            _rounded(found.skips.reconnects),
            _rounded(found.skips.skipped / found.skips.reconnects) if found.skips.reconnects else None,
            _rounded(found.skips.saved_bytes),
            _rounded(found.skips.sent_bytes),
        ),
        node=_node(asked, found),
        busiest=tuple(
            Busy(each.namespace, each.creates, each.deletes, each.changes, each.splits, _rounded(each.per_hour))
            for each in found.busiest
        ),
    )


def _node(asked: Question, found: Findings) -> Node:
    told = next(told for told in found.told if told.window_ms == asked.node_window_ms)
    seconds = found.extent.seconds
    cpu_us = told.pushes * asked.push_cost_us + told.names * TOPIC_COST_US
    # In the busiest second as much is told per push as on average.
    peak_us = found.peak_pushes * (cpu_us / told.pushes if told.pushes else 0.0)
    return Node(
        asked.node_window_ms,
        asked.watchers,
        _rounded(told.pushes / seconds),
        found.peak_pushes,
        _rounded(told.bytes / seconds),
        found.peak_bytes,
        asked.push_cost_us,
        TOPIC_COST_US,
        _rounded(cpu_us / 1e6 / seconds),
        _rounded(peak_us / 1e6),
        asked.watchers * CONNECTION_BYTES,
        asked.watchers * WATCH_BYTES,
    )


def _percentiles(counted: Sequence[tuple[int, int]]) -> Percentiles:
    p50, p90, p99, p999 = (at_share(counted, share) for share in (0.5, 0.9, 0.99, 0.999))
    return Percentiles(p50, p90, p99, p999, counted[-1][0] if counted else None)


def _rounded(value: float) -> float:
    """To six digits that count, so that sums in another order print the same."""
    return float(f"{value:.6g}")
