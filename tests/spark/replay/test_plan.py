"""What is asked for becomes a plan, or is refused with a sentence that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from metadata.traces.directories import Trace
from metadata.traces.manifest import Manifest, Part
from spark.durations import parse_duration, show_duration
from spark.errors import JobError
from spark.profiles import Profile
from spark.replay.job import reason_of
from spark.replay.plan import Extent, Options, check_descriptors, cut, description, extent_of, longest_wait_s, make_plan
from spark.replay.plans import Progress
from spark.replay.progress import overview
from spark.schemas import TIMELINE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark.replay.plans import ReplayPlan

EXTENT = Extent(events=600, seeds=4, topics=20, namespaces=("shop/orders", "lab/x"), duration_s=60.0, peak_per_s=33)


def options(**asked: Any) -> Options:
    usual: dict[str, Any] = {"trace": Path("trace"), "target": "pulsar://127.0.0.1:6650", "store_url": "redis://x:1"}
    return Options(**usual | asked)


def plan(slots: int = 4, extent: Extent = EXTENT, **asked: Any) -> ReplayPlan:
    return make_plan(options(**asked), "3f9a2c", Profile(), extent, slots)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"watchers": 0}, "--watchers 1"),
        ({"connections": 0}, "--connections 1"),
        ({"watchers": 10, "connections": 11}, "--connections 10 or fewer"),
        ({"topic_share": 1.5}, "from 0 to 1"),
        ({"speed": 0.0}, "--speed 0"),
        ({"speed": float("nan")}, "--speed nan"),
        ({"tasks": 0}, "--tasks 1"),
        ({"until_s": 0.0}, "--until"),
        ({"target": "http://127.0.0.1:8080"}, "--target"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        options(**asked).check()


def test_usual_options_are_fine() -> None:
    options().check()


def test_plan_has_a_task_for_each_slot() -> None:
    planned = plan(slots=4)
    assert (planned.tasks, planned.prefix, planned.namespaces) == (4, "replay-3f9a2c-", EXTENT.namespaces)
    assert str(planned.namespace_in_store("shop/orders")) == "shop/replay-3f9a2c-orders"


def test_plan_has_no_task_without_a_connection() -> None:
    assert plan(slots=8, watchers=5, connections=3).tasks == 3


def test_fewer_slots_than_tasks_are_refused_with_both_numbers() -> None:
    with pytest.raises(JobError, match=r"5 tasks .* fewer slots than needed, 4"):
        plan(slots=4, tasks=5)


def test_trace_without_topics_is_refused() -> None:
    with pytest.raises(JobError, match="nothing to replay"):
        plan(extent=Extent(0, 0, 0, (), 0.0, 0))


def test_namespace_that_the_prefix_makes_too_long_is_refused() -> None:
    with pytest.raises(JobError, match="longer than 255"):
        plan(extent=Extent(1, 0, 1, ("shop/" + "x" * 250,), 1.0, 1))


def test_more_connections_than_descriptors_are_refused_with_what_fits() -> None:
    planned = plan(slots=2, watchers=4_000, connections=4_000)
    with pytest.raises(JobError, match="--connections 1792 or fewer"):
        check_descriptors(planned, 1_024)
    check_descriptors(planned, 4_096)


def test_barrier_waits_longer_than_the_replay_takes() -> None:
    part = Part("part-000001.parquet", 1, 1, 0, 0, first_us=0, last_us=3_600_000_000)
    trace = Trace(Path("trace"), Manifest("recorded", runs=1, parts=(part,)), ())
    assert 370 < longest_wait_s(trace, options(speed=10.0)) < 3_600
    assert longest_wait_s(trace, options(speed=1.0)) > 3_600
    assert longest_wait_s(trace, options(speed=1.0, until_s=10.0)) < 3_600


def test_description_says_how_much_and_how_long() -> None:
    told = dict(description(options(), plan(slots=2, speed=2.0), EXTENT))
    assert told["events"].startswith("600 changes after 4 topics")
    assert told["tasks"] == "2, with 250 connections each"
    assert told["rate"] == "10 events/s on average, at most 33 in a second"
    assert told["duration"] == "1 min 0 s at 2 times the recorded speed"


def test_extent_is_measured_at_the_speed_asked_for(spark: SparkSession) -> None:
    timeline = spark.createDataFrame(
        [
            _row(0, 1, "b/n", "old", "seed"),
            _row(500_000, 2, "a/n", "x", "create"),
            _row(1_500_000, 3, "a/n", "x", "change"),
            _row(1_600_000, 4, "a/n", "y", "create"),
            _row(7_000_000, 5, "b/n", "old", "delete"),
        ],
        TIMELINE,
    )
    assert extent_of(timeline, 2.0) == Extent(
        events=4, seeds=1, topics=3, namespaces=("a/n", "b/n"), duration_s=3.5, peak_per_s=3
    )
    assert cut(timeline, 2.0).count() == 4


def test_reason_of_a_task_is_the_sentence_it_was_told_in() -> None:
    text = """Job aborted due to stage failure: Could not recover from a failed barrier ResultStage.
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "job.py", line 3, in run
    raise JobError("no")
spark.errors.JobError: The target has been away for more than 10 s: Nothing answers.

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""
    assert reason_of(text) == "The target has been away for more than 10 s: Nothing answers."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Traceback (most recent call last):\n  x\nValueError: too odd\n\n\tat org.x", "ValueError: too odd"),
        ("[SOME_CLASS] Barrier stage needs more slots.\n\tat org.x", "[SOME_CLASS] Barrier stage needs more slots."),
        ("", "no reason given"),
    ],
)
def test_other_failures_are_told_without_a_stack_trace(text: str, reason: str) -> None:
    told = reason_of(text)
    assert told.endswith(reason)
    assert "\n" not in told


def test_progress_adds_up_the_tasks_and_is_as_far_as_the_slowest() -> None:
    planned = plan(slots=2)
    told = [
        Progress("settling", written=300, pushes=40, connected=1_000, behind_ms=1.5),
        Progress("replaying", written=250, failed=2, pushes=30, connected=900, behind_ms=7.0),
    ]
    now = overview(told, planned, 600)
    assert (now.phase, now.done, now.pushes, now.connected, now.behind_ms) == ("replaying", 552, 70, 1_900, 7.0)
    assert "552 of 600 events, 2 failed" in now.line
    assert overview(told[:1], planned, 600).phase == "starting"


@pytest.mark.parametrize(("text", "seconds"), [("50ms", 0.05), ("3s", 3), ("1.5m", 90), ("24h", 86_400)])
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 s", "-1s", "1e3s", "s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.34, "340 ms"), (12, "12 s"), (185, "3 min 5 s"), (7_800, "2 h 10 min")]
)
def test_durations_are_shown_for_reading(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


def _row(at_us: int, seq: int, namespace: str, topic: str, op: str) -> tuple[object, ...]:
    return (at_us, seq, namespace, topic, op, "i", 0, 10, None, False)
