"""What is counted from the observations of a replay: small runs with the numbers that they must give."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark.replay.latency import shown_writes
from spark.replay.verdict import Second, judge
from tests.spark.replay.observed import (
    Observation,
    dag_push,
    observations,
    push,
    task,
    watcher,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Showing = tuple[str, str, float, int, float]  # op, topic, due, watcher, latency; times in milliseconds

# Each is a run in a namespace of its own; all are matched at once, because Spark takes a second for any number.
RUNS: dict[str, tuple[list[Observation], list[Showing]]] = {
    "write is shown to each watcher when its push arrives": (
        [
            write("create", "a", 10),
            write("create", "b", 20),
            write("delete", "a", 100),
            push(0, 60, added=["a", "b"]),
            push(1, 61, added=["a", "b"]),
            push(0, 151, removed=["a"]),
        ],
        [
            ("create", "a", 10, 0, 50),
            ("create", "a", 10, 1, 51),
            ("create", "b", 20, 0, 40),
            ("create", "b", 20, 1, 41),
            ("delete", "a", 100, 0, 51),
        ],
    ),
    "latency of a late write counts from when it was due": (
        [write("create", "a", 10, sent=45), push(0, 60, added=["a"])],
        [("create", "a", 10, 0, 50)],
    ),
    "push is of the latest creation sent before it": (
        [
            write("create", "a", 10),
            write("delete", "a", 20),
            write("create", "a", 30),
            write("create", "a", 90),
            push(0, 60, added=["a"]),
        ],
        [("create", "a", 30, 0, 30)],
    ),
    "write sent at the same microsecond goes before the push": (
        [write("create", "a", 10), push(0, 10, added=["a"])],
        [("create", "a", 10, 0, 0)],
    ),
    "first of several pushes counts": (
        [write("create", "a", 10), push(0, 60, added=["a"]), push(0, 90, added=["a"])],
        [("create", "a", 10, 0, 50)],
    ),
    "what was seeded and shown is no write": ([push(0, 5, added=["a"]), write("create", "b", 10)], []),
    "failed write is not shown by anything": (
        [write("create", "a", 10, error="The store is full."), push(0, 60, added=["a"])],
        [],
    ),
    "dag of a later epoch shows the earlier ones": (
        [
            watcher(7, topic="a"),
            write("change", "a", 10, epoch=4),
            write("change", "a", 20, epoch=5),
            write("change", "a", 100, epoch=6),
            dag_push(7, "a", 5, 60),
            dag_push(7, "a", 6, 130),
        ],
        [("change", "a", 10, 7, 50), ("change", "a", 20, 7, 40), ("change", "a", 100, 7, 30)],
    ),
    "epochs begin anew with each creation": (
        [
            watcher(7, topic="a"),
            write("change", "a", 10, epoch=4),
            dag_push(7, "a", 4, 30),
            write("delete", "a", 40, epoch=4),
            dag_push(7, "a", None, 70),
            write("create", "a", 100, epoch=0),
            dag_push(7, "a", 0, 115),
            write("change", "a", 200, epoch=1),
            dag_push(7, "a", 1, 222),
        ],
        [
            ("change", "a", 10, 7, 20),
            ("change", "a", 200, 7, 22),
            ("create", "a", 100, 7, 15),
            ("delete", "a", 40, 7, 30),
        ],
    ),
    "epoch that was never pushed is not shown": (
        [watcher(7, topic="a"), write("change", "a", 10, epoch=4), dag_push(7, "a", 3, 60)],
        [],
    ),
    "writes of other topics are nothing to a dag watcher": (
        [watcher(7, topic="a"), write("change", "b", 10, epoch=4), dag_push(7, "a", 4, 60)],
        [],
    ),
}


@pytest.fixture(scope="module")
def showings(spark: SparkSession) -> dict[str, list[Showing]]:
    rows = [{**row, "namespace": name} for name, (run, _) in RUNS.items() for row in run]
    found: dict[str, list[Showing]] = {name: [] for name in RUNS}
    for row in shown_writes(observations(spark, *rows)).collect():
        due, arrival = row["due_us"] / 1e3, row["arrival_us"] / 1e3
        found[row["namespace"]].append((row["op"], row["topic"], due, row["watcher"], arrival - due))
    return found


@pytest.mark.parametrize("claim", RUNS)
def test_showings_are_as_the_claim_says(claim: str, showings: dict[str, list[Showing]]) -> None:
    _, expected = RUNS[claim]
    assert sorted(showings[claim]) == expected


def test_verdict_counts_what_was_shown_cancelled_and_shown_after_a_reconnect(spark: SparkSession) -> None:
    verdict = judge(
        observations(
            spark,
            task(),
            watcher(0, pushes=2),
            watcher(1, pushes=1),
            write("create", "a", 10),
            write("create", "short", 20),
            write("delete", "short", 30),
            write("change", "a", 40, epoch=1),  # nothing that the watchers of a namespace are told
            push(0, 60, added=["a"]),
            push(1, 500, added=["a"], after_reconnect=True),
        )
    )
    assert (verdict.watchers, verdict.converged, verdict.events) == (2, 2, 4)
    assert (verdict.showings, verdict.cancelled, verdict.after_reconnect) == (1, 4, 1)
    assert verdict.latency.milliseconds()["max"] == 50
    assert verdict.coalescing_ratio == 2


@pytest.mark.integration
def test_topic_replaced_within_one_window_is_cancelled_not_missing(spark: SparkSession) -> None:
    verdict = judge(
        observations(spark, task(), watcher(0), write("delete", "a", 10), write("create", "a", 20)),
    )
    assert (verdict.cancelled, verdict.missing, verdict.wrong) == (2, 0, 0)
    assert verdict.coalescing_ratio == 0


def test_verdict_adds_up_what_the_watchers_found(spark: SparkSession) -> None:
    verdict = judge(
        observations(
            spark,
            task(),
            watcher(0, converged=False, missing=2, duplicate=1, pushes=3),
            watcher(1, topic="a", out_of_order=4, reconnects=2, snapshots=5),
            watcher(2, converged=False),
            write("create", "b", 10),
            write("create", "c", 20, error="The store is full."),
        )
    )
    assert (verdict.watchers, verdict.converged, verdict.wrong, verdict.missing) == (3, 1, 2, 2)
    assert (verdict.duplicate, verdict.out_of_order, verdict.reconnects, verdict.snapshots) == (1, 4, 2, 5)
    assert (verdict.events, verdict.failed, verdict.first_error) == (2, 1, "The store is full.")
    assert verdict.bytes_per_watcher.largest == 300


@pytest.mark.integration
def test_seconds_say_what_happened_when(spark: SparkSession) -> None:
    verdict = judge(
        observations(
            spark,
            task(settled=2_500, started_us=0),
            watcher(0, pushes=2),
            write("create", "a", 990),
            write("create", "b", 1_010),
            push(0, 1_030, added=["a"]),
            push(0, 1_060, added=["b"]),
        )
    )
    assert verdict.seconds == (Second(0, writes=1), Second(1, writes=1, pushes=2, bytes=200, showings=2))
    assert verdict.duration_s == 2.5


def test_lateness_above_the_limit_makes_latencies_doubtful(spark: SparkSession) -> None:
    verdict = judge(observations(spark, task(), write("create", "a", 10, sent=40), write("create", "b", 50)))
    assert verdict.lateness.milliseconds()["max"] == 30
    assert verdict.doubts(0.05) == []
    [doubt] = verdict.doubts(0.02)
    assert "30.0 ms" in doubt


@pytest.mark.integration
def test_clock_that_is_hardly_known_makes_latencies_doubtful(spark: SparkSession) -> None:
    verdict = judge(observations(spark, task(0), task(1, offset_error_us=9_000), write("create", "a", 10)))
    assert [clock.offset_error_ms for clock in verdict.tasks] == [0.08, 9.0]
    [doubt] = verdict.doubts(0.02)
    assert "9.0 ms" in doubt


@pytest.mark.integration
def test_run_without_events_or_watchers_has_a_verdict(spark: SparkSession) -> None:
    verdict = judge(observations(spark, task()))
    assert (verdict.watchers, verdict.events, verdict.latency.total) == (0, 0, 0)
    assert verdict.latency.milliseconds()["p99"] == pytest.approx(0)
