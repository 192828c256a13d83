"""The verdict over a replay: what its watchers reached, how late its writes were, and how long until they were shown.

Spark counts it all from the observations of the tasks, however many there are; the numbers come out as one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from spark.replay.fates import count_fates
from spark.replay.latency import shown_writes
from spark.replay.percentiles import Histogram, bucket_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Of a task's clock against the store's: with more than this, a latency says little.
MAX_OFFSET_ERROR_US: Final = 5_000
# What a task notes as the error of such a write.
NOTHING_TO_DELETE: Final = "unknown"


class TaskClock(msgspec.Struct, frozen=True):
    """One task of the replay, and how its clock stood to the store's."""

    task: int
    host: str
    offset_ms: float
    offset_error_ms: float
    cpu_s: float


class Second(msgspec.Struct, frozen=True):
    """What happened in one second of the run; `showings` are writes times the watchers that they were shown to."""

    second: int
    writes: int = 0
    pushes: int = 0
    bytes: int = 0
    showings: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """The numbers of one replay. Latency counts from when a write was due, so the generator's lateness is in it."""

    watchers: int
    events: int
    converged: int
    wrong: int  # watchers whose last state differs from the store's
    missing: int  # states that they did not reach
    duplicate: int
    out_of_order: int
    lost: int  # writes times watchers that were not shown them, though nothing can have cancelled them
    failed: int  # writes that the store refused
    skipped: int  # deletions of what was not there, as a trace with gaps has them
    showings: int  # writes times the watchers that each was shown to
    cancelled: int  # as many that were not shown, because a later write came in the same window
    allowance_us: int  # for that: how far apart such writes may be
    after_reconnect: int  # shown in the first update after a reconnect: left out of the latency
    pushes: int
    snapshots: int
    reconnects: int
    bytes: int
    started_us: int  # of the store's clock
    duration_s: float
    lateness: Histogram
    latency: Histogram
    bytes_per_watcher: Histogram
    tasks: tuple[TaskClock, ...]
    seconds: tuple[Second, ...]
    first_error: str | None

    @property
    def coalescing_ratio(self) -> float:
        """How many changes one push stands for."""
        changes = self.showings + self.cancelled + self.after_reconnect
        return changes / self.pushes if self.pushes else 0.0

    def doubts(self, max_lateness_s: float) -> list[str]:
        """Why the latencies of this run should not be believed; empty if they can be."""
        doubts = []
        lateness = self.lateness.at(0.99) / 1e6
        if lateness > max_lateness_s:
            doubts.append(
                f"1 % of the writes were sent more than {lateness * 1e3:.1f} ms after they were due, and "
                f"{max_lateness_s * 1e3:g} ms is the limit: use more tasks, fewer watchers or a lower speed."
            )
        error = max((task.offset_error_ms for task in self.tasks), default=0.0)
        if error * 1e3 > MAX_OFFSET_ERROR_US:
            doubts.append(
                f"The clock of a task is known to {error:.1f} ms only, and {MAX_OFFSET_ERROR_US / 1e3:g} ms is the "
                "limit: bring the executors closer to the store."
            )
        return doubts


def judge(observations: DataFrame, window_s: float = 0.05) -> Verdict:
    """OBSERVATIONS to numbers; the server gathers changes for `window_s`."""
    totals = _totals(observations)
    clocks = _clocks(observations)
    shown = shown_writes(observations, _tolerance_us(clocks)).persist()
    try:
        fates = count_fates(observations, shown, round(window_s * 1e6))
        measures = _measures(observations, shown)
        seconds = _seconds(observations, shown, totals.started_us)
    finally:
        shown.unpersist()
    nothing = Histogram({})
    latency = measures.get("latency", nothing)
    again = measures.get("after_reconnect", nothing).total
    return Verdict(
        watchers=totals.watchers,
        events=totals.events,
        converged=totals.converged,
        wrong=totals.watchers - totals.converged,
        missing=totals.missing,
        duplicate=totals.duplicate,
        out_of_order=totals.out_of_order,
        lost=fates.lost,
        failed=totals.failed,
        skipped=totals.skipped,
        showings=latency.total,
        cancelled=fates.cancelled,
        allowance_us=fates.allowance_us,
        after_reconnect=again,
        pushes=totals.pushes,
        snapshots=totals.snapshots,
        reconnects=totals.reconnects,
        bytes=totals.bytes,
        started_us=totals.started_us,
        duration_s=(totals.ended_us - totals.started_us) / 1e6,
        lateness=measures.get("lateness", nothing),
        latency=latency,
        bytes_per_watcher=measures.get("bytes", nothing),
        tasks=clocks,
        seconds=seconds,
        first_error=totals.first_error,
    )


def _tolerance_us(clocks: Sequence[TaskClock]) -> int:
    """By how much what is shown may seem to come before it was written: one clock is ahead, another behind."""
    return round(2_000 * max((clock.offset_error_ms for clock in clocks), default=0.0))


class _Totals(msgspec.Struct, frozen=True):
    watchers: int
    converged: int
    missing: int
    duplicate: int
    out_of_order: int
    pushes: int
    snapshots: int
    reconnects: int
    bytes: int
    events: int
    failed: int
    skipped: int
    started_us: int
    ended_us: int
    first_error: str | None


def _totals(observations: DataFrame) -> _Totals:
    watcher, write, task = (F.col("record") == kind for kind in ("watcher", "write", "task"))

    failed = write & (F.col("error") != NOTHING_TO_DELETE)

    def total(column: str) -> Column:
        return F.coalesce(F.sum(F.when(watcher, F.col(column))), F.lit(0)).alias(column)

    [row] = observations.agg(
        F.count_if(watcher).alias("watchers"),
        F.count_if(watcher & F.col("converged")).alias("converged"),
        *map(total, ("missing", "duplicate", "out_of_order", "pushes", "snapshots", "reconnects", "bytes")),
        F.count_if(write).alias("events"),
        F.count_if(failed).alias("failed"),
        F.count_if(write & (F.col("error") == NOTHING_TO_DELETE)).alias("skipped"),
        F.coalesce(F.min(F.when(task, F.col("started_us"))), F.lit(0)).alias("started_us"),
        F.coalesce(F.max(F.when(task, F.col("settled_us"))), F.lit(0)).alias("ended_us"),
        F.min_by("error", F.when(failed, F.col("due_us"))).alias("first_error"),
    ).collect()
    return _Totals(**row.asDict())


def _measures(observations: DataFrame, shown: DataFrame) -> dict[str, Histogram]:
    """The histograms of everything that is measured, in one pass; what was never measured is not in it."""
    latency = F.when(F.col("after_reconnect"), F.lit("after_reconnect")).otherwise(F.lit("latency"))
    measured = (
        shown.select(
            latency.alias("measure"), F.greatest(F.lit(0), F.col("arrival_us") - F.col("due_us")).alias("value")
        )
        .unionByName(
            observations.where(F.col("record") == "write").select(
                F.lit("lateness").alias("measure"), (F.col("sent_us") - F.col("due_us")).alias("value")
            )
        )
        .unionByName(
            observations.where(F.col("record") == "watcher").select(
                F.lit("bytes").alias("measure"), F.col("bytes").alias("value")
            )
        )
    )
    counted = (
        measured.where(F.col("value").isNotNull())
        .groupBy("measure", bucket_column(F.col("value")).alias("bucket"))
        .agg(F.count("*").alias("count"), F.max("value").alias("largest"))
        .collect()
    )
    counts: dict[str, dict[int, int]] = {}
    largest: dict[str, int] = {}
    for row in counted:
        counts.setdefault(row["measure"], {})[row["bucket"]] = row["count"]
        largest[row["measure"]] = max(largest.get(row["measure"], 0), row["largest"])
    return {measure: Histogram(buckets, largest[measure]) for measure, buckets in counts.items()}


def _clocks(observations: DataFrame) -> tuple[TaskClock, ...]:
    tasks = observations.where(F.col("record") == "task").orderBy("task")
    return tuple(
        TaskClock(
            row["task"],
            row["host"] or "",
            (row["offset_us"] or 0) / 1e3,
            (row["offset_error_us"] or 0) / 1e3,
            (row["cpu_us"] or 0) / 1e6,
        )
        for row in tasks.select("task", "host", "offset_us", "offset_error_us", "cpu_us").collect()
    )


def _seconds(observations: DataFrame, shown: DataFrame, started_us: int) -> tuple[Second, ...]:
    """One value for each second from the start in which anything happened."""
    happened = (
        observations.where(F.col("record") == "write")
        .select(F.lit("write").alias("what"), F.col("sent_us").alias("time"), F.lit(0).cast("long").alias("bytes"))
        .unionByName(
            observations.where(F.col("record") == "push").select(
                F.lit("push").alias("what"), F.col("arrival_us").alias("time"), F.col("bytes")
            )
        )
        .unionByName(
            shown.select(
                F.lit("showing").alias("what"), F.col("arrival_us").alias("time"), F.lit(0).cast("long").alias("bytes")
            )
        )
    )
    counted = (
        happened.where(F.col("time") >= started_us)
        .groupBy(F.floor((F.col("time") - F.lit(started_us)) / F.lit(1_000_000)).cast("long").alias("second"))
        .agg(
            F.count_if(F.col("what") == "write").alias("writes"),
            F.count_if(F.col("what") == "push").alias("pushes"),
            F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
            F.count_if(F.col("what") == "showing").alias("showings"),
        )
        .orderBy("second")
        .collect()
    )
    return tuple(Second(**row.asDict()) for row in counted)
