"""The job on a small trace by hand: expected rows, and the same findings as plain Python has."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from metadata.traces.events import Kind, TraceEvent
from spark.analysis import frames, plain, schemas
from spark.analysis.columns import snapshot_bytes, varint_length
from spark.analysis.findings import Findings, Question
from spark.analysis.job import analyse
from spark.analysis.report import page
from spark.analysis.summary import summarise
from tests.spark.recorded import recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MS = 1_000
ASKED = Question(
    watchers=5, windows_ms=(0, 50), node_window_ms=50, reconnects_per_hour=2.0, downtime_us=500 * MS, push_cost_us=10.0
)


def events() -> list[TraceEvent]:
    """Namespace a: a burst of three, a split, and later a deletion; b: one creation. Two topics were there before."""
    rows: list[tuple[int, str, dict[str, Any]]] = [
        (0, Kind.GAP, {"detail": "start"}),
        (0, Kind.BASE, _topic("acme/a", "old", "i1", 0, 4)),
        (0, Kind.BASE, _topic("acme/b", "there", "i2", 0, 0)),
        (0, Kind.BASE_END, {}),
        (1_000, Kind.CREATED, _topic("acme/a", "x", "i3", 0, 0)),
        (1_010, Kind.CREATED, _topic("acme/a", "y", "i4", 0, 0)),
        (1_020, Kind.DELETED, _topic("acme/a", "y", "i4", 0, None)),
        (1_500, Kind.CHANGED, _topic("acme/a", "old", "i1", 1, 6)),
        (3_000, Kind.CREATED, _topic("acme/b", "z", "i5", 0, 0)),
        (5_000, Kind.DELETED, _topic("acme/a", "x", "i3", 0, None)),
    ]
    return [
        TraceEvent(seq, 1, kind, 1_000_000 + at * MS, None, **columns) for seq, (at, kind, columns) in enumerate(rows)
    ]


def _topic(namespace: str, name: str, incarnation: str, version: int, epoch: int | None) -> dict[str, Any]:
    return {
        "bucket": 1,
        "namespace": namespace,
        "topic": name,
        "incarnation": incarnation,
        "version": version,
        "epoch": epoch,
    }


@pytest.mark.slow
@pytest.mark.timeout(600)  # some twenty small jobs, for which a busy machine takes its time
def test_tables_hold_what_happened_and_plain_python_finds_the_same(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    (tmp_path / "out").mkdir()
    trace = recorded(tmp_path / "trace", events())
    found = analyse(spark, trace, ASKED, tmp_path / "out")
    plainly = plain.find(trace, ASKED)
    assert _comparable(found) == _comparable(plainly)
    assert summarise("t", ASKED, found) == summarise("t", ASKED, plainly)

    def table(name: str) -> list[dict[str, Any]]:
        frame = spark.read.parquet(str(tmp_path / "out" / name))
        assert frame.columns == getattr(schemas, name.upper()).names
        return [row.asDict() for row in frame.collect()]

    first, second = sorted(table("namespaces"), key=lambda row: str(row["namespace"]))
    assert first == {
        "namespace": "acme/a", "watchers": 3, "seeds": 1, "creates": 2, "deletes": 2, "changes": 1, "splits": 2,
        "inferred": 0, "per_hour": 5 / (5 / 3_600), "gap_us_p50": 10 * MS, "gap_us_p90": 3_500 * MS,
        "gap_us_p99": 3_500 * MS, "gap_us_max": 3_500 * MS, "bursts": 3, "burst_p50": 1, "burst_p99": 3,
        "burst_max": 3, "peak_per_second": 4, "peak_per_100ms": 3,
    }  # fmt: skip
    assert (second["namespace"], second["watchers"], second["creates"], second["gap_us_p50"]) == ("acme/b", 2, 1, None)
    told = {(row["namespace"], row["window_ms"]): row for row in table("coalescing")}
    # Without a window y is told twice; with one, x goes out at once and y was never there.
    assert [told["acme/a", window]["diffs"] for window in (0, 50)] == [4, 2]
    assert [told["acme/b", window]["diffs"] for window in (0, 50)] == [1, 1]
    entry = frames.entry_bytes(len("topic://acme/a/x"))
    assert told["acme/a", 50]["bytes"] == 2 * frames.frame_bytes(entry)
    assert sorted((row["second"], row["pushes"]) for row in table("load")) == [(1, 3), (3, 2), (5, 3)]
    assert sorted((row["second"], row["creates"], row["changes"], row["deletes"]) for row in table("rates")) == [
        (1, 2, 1, 1),
        (3, 1, 0, 0),
        (5, 0, 0, 1),
    ]
    # Of five seconds, those of b until its change, and from half a second after it.
    back = {row["namespace"]: row for row in table("reconnects")}
    rate = 2 * 2.0 / 3_600
    assert back["acme/b"]["reconnects"] == pytest.approx(rate * 4.5)
    assert back["acme/b"]["skipped"] == pytest.approx(rate * 4.0)
    assert back["acme/b"]["sent_bytes"] == pytest.approx(rate * 0.5 * frames.snapshot_bytes(_entries("there", "z")))

    html = page(summarise("t", ASKED, found), found).html()
    assert "What one node would need" in html
    assert "acme/a" in html


@pytest.mark.slow
def test_sizes_as_columns_are_those_of_the_arithmetic(spark: SparkSession) -> None:
    most = frames.MOST_IN_A_FRAME
    sizes = [0, 1, 127, 128, 16_383, 16_384, 2_097_152, most - 1, most, most + 1, 3 * most, 3 * most + 7]
    frame = spark.createDataFrame([(size,) for size in sizes], "size long")
    rows = frame.select("size", varint_length(frame["size"]), snapshot_bytes(frame["size"])).collect()
    assert [tuple(row) for row in rows] == [
        (size, frames.varint_length(size), frames.snapshot_bytes(size)) for size in sizes
    ]


def _entries(*names: str) -> int:
    return sum(frames.entry_bytes(len(f"topic://acme/b/{name}")) for name in names)


def _comparable(found: Findings) -> Findings:
    """Sums of floats depend on their order in the last digits; sequences may be lists or tuples."""
    skips = found.skips
    rounded = replace(skips, **{name: _digits(getattr(skips, name)) for name in skips.__dataclass_fields__})
    busiest = [replace(each, per_hour=_digits(each.per_hour)) for each in found.busiest]
    return replace(found, skips=rounded, busiest=busiest)


def _digits(value: float) -> float:
    return value if not value else round(value, 9 - math.ceil(math.log10(abs(value))))
