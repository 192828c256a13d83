"""The analysis as a Spark job: from a trace to tables, and from those to what is small enough to hold."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from metadata.traces.directories import Trace
from metadata.traces.errors import TraceError
from spark.analysis import churn, reconnects, telling
from spark.analysis.findings import Bin, Extent, Findings, Namespace, Question, Skips, Told
from spark.analysis.moves import moves, population
from spark.timeline import timeline
from spark.traces import read_events

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BUSIEST: Final = 15


def analyse(session: SparkSession, trace: Trace, asked: Question, out: Path) -> Findings:
    """Write the tables of `spark.analysis.schemas` to a directory, and say what is in them."""
    moved = moves(timeline(read_events(session, trace))).persist(StorageLevel.MEMORY_AND_DISK)
    extent = _extent(moved)
    if not extent.namespaces:
        raise TraceError(f"{trace.directory} tells of no topics: record while there are some.")
    watching = population(moved, asked.watchers).persist()
    tables = _Tables(session, out)

    by_namespace = tables.write("namespaces", churn.namespaces(moved, watching, extent.hours))
    rates = tables.write("rates", churn.rates(moved))
    bursts = tables.write("burst_sizes", churn.all_burst_sizes(moved))
    gaps = tables.write("gaps", churn.all_gaps(moved))
    told = telling.told(moved, asked.windows_ms, asked.node_window_ms).persist(StorageLevel.MEMORY_AND_DISK)
    coalescing = tables.write("coalescing", telling.coalescing(told, watching))
    load = tables.write("load", telling.load(told, watching))
    pattern = (asked.reconnects_per_hour, asked.downtime_us, extent.duration_us)
    skips = tables.write("reconnects", reconnects.reconnects(moved, watching, *pattern))

    changes = F.col("creates") + F.col("changes") + F.col("deletes")
    change_bins = _bins(rates, changes, extent.bin_s)
    push_bins = _bins(load, F.col("pushes"), extent.bin_s)
    return Findings(
        extent=dataclasses.replace(extent, splits=_one(by_namespace.agg(F.sum("splits")))[0]),
        busiest=_busiest(by_namespace),
        rates=change_bins,
        peak_per_second=max((each.most for each in change_bins), default=0),
        peak_per_100ms=_one(churn.most_in_a_tenth(moved))[0],
        burst_sizes=_counted(bursts),
        gaps_us=_counted(gaps),
        told=_told(coalescing),
        pushes=push_bins,
        peak_pushes=max((each.most for each in push_bins), default=0),
        peak_bytes=_one(load.agg(F.max("bytes")))[0] or 0,
        skips=Skips(*_one(skips.agg(*map(F.sum, ("reconnects", "skipped", "saved_bytes", "sent_bytes"))))),
    )


class _Tables:
    """Tables that are written, and then read instead of being made again."""

    def __init__(self, session: SparkSession, out: Path) -> None:
        self._session = session
        self._out = out

    def write(self, name: str, table: DataFrame) -> DataFrame:
        path = str(self._out / name)
        table.write.parquet(path)
        return self._session.read.schema(table.schema).parquet(path)


def _extent(moved: DataFrame) -> Extent:
    counts = [F.sum((F.col("op") == op).cast("long")) for op in ("seed", "create", "delete", "change")]
    namespaces = F.count_distinct("namespace")
    row = _one(moved.agg(namespaces, F.max("at_us"), *counts, F.sum("inferred")))
    found, duration, seeds, creates, deletes, changes, inferred = (each or 0 for each in row)
    return Extent(found, duration, seeds, creates, deletes, changes, 0, inferred)


def _busiest(by_namespace: DataFrame) -> list[Namespace]:
    names = list(Namespace.__dataclass_fields__)
    rows = by_namespace.orderBy(F.desc("per_hour"), "namespace").limit(_BUSIEST).select(*names).collect()
    return [Namespace(**row.asDict()) for row in rows]


def _bins(table: DataFrame, value: Column, seconds: int) -> list[Bin]:
    start = (F.floor(F.col("second") / seconds) * seconds).alias("second")
    rows = table.groupBy(start).agg(F.sum(value), F.max(value)).collect()
    return sorted((Bin(*row) for row in rows), key=lambda each: each.second)


def _counted(table: DataFrame) -> list[tuple[int, int]]:
    return sorted(tuple(row) for row in table.collect())


def _told(coalescing: DataFrame) -> list[Told]:
    rows = coalescing.groupBy("window_ms").agg(
        F.sum("diffs"),
        F.sum("names"),
        F.sum("waited_us"),
        F.sum(F.col("diffs") * F.col("watchers")),
        F.sum(F.col("bytes") * F.col("watchers")),
    )
    return sorted((Told(*row) for row in rows.collect()), key=lambda each: each.window_ms)


def _one(table: DataFrame) -> tuple[Any, ...]:
    row = table.first()
    assert row is not None, "a sum over everything has one row"
    return tuple(row)
