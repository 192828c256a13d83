"""What happened to topics, told from events: rows by hand, and the rows that they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from metadata.traces.events import Kind, TraceEvent
from spark import schemas
from spark.analysis.plain_moves import plain_moves
from spark.clocks import BETWEEN_RUNS_US
from spark.timeline import timeline
from tests.spark.recorded import recorded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = 1_700_000_000_000_000


class Story:
    """Writes events as a recorder would: one after the other, a millisecond apart unless said otherwise."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []
        self.run = 1
        self.now = T0

    def add(self, kind: str, after: int = 1_000, arrival: int | None = None, **columns: Any) -> None:
        self.now += after if self.events else 0
        row: dict[str, Any] = {"bucket": None} | columns
        self.events.append(TraceEvent(len(self.events) + 1, self.run, kind, self.now, arrival, **row))

    def gap(self, bucket: int | None = None, cause: str = "connection") -> None:
        self.add(Kind.GAP, bucket=bucket, detail=cause)

    def base_end(self, bucket: int | None = None) -> None:
        self.add(Kind.BASE_END, bucket=bucket)

    def base(self, topic: str, incarnation: str, version: int = 0, bucket: int = 1) -> None:
        self._topic(Kind.BASE, topic, incarnation, version, bucket)

    def created(self, topic: str, incarnation: str, bucket: int = 1, **more: Any) -> None:
        self._topic(Kind.CREATED, topic, incarnation, 0, bucket, **more)

    def changed(self, topic: str, incarnation: str, version: int, bucket: int = 1, **more: Any) -> None:
        self._topic(Kind.CHANGED, topic, incarnation, version, bucket, **more)

    def deleted(self, topic: str, incarnation: str, version: int = 0, bucket: int = 1, **more: Any) -> None:
        self._topic(Kind.DELETED, topic, incarnation, version, bucket, **more)

    def starts(self, *found: tuple[str, str, int]) -> None:
        """A recorder starts and finds these topics, in buckets of their own."""
        self.gap(cause="start")
        for topic, incarnation, version in found:
            self.base(topic, incarnation, version)
        self.base_end()

    def restarts(self, *found: tuple[str, str, int]) -> None:
        self.run += 1
        self.now = T0 - 3_600_000_000  # another clock, which is an hour behind
        self.starts(*found)

    def _topic(self, kind: str, topic: str, incarnation: str, version: int, bucket: int, **more: Any) -> None:
        epoch = None if kind == Kind.DELETED else version
        self.add(
            kind, namespace="acme/a", topic=topic, incarnation=incarnation, version=version, epoch=epoch, size=100,
            bucket=bucket, **more,
        )  # fmt: skip


Told = Callable[[Story], list[tuple[Any, ...]]]


@pytest.fixture(params=["plain", pytest.param("spark", marks=pytest.mark.integration)])
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Told:
    """What a story comes to, in the order of time, without what the story did not vary.

    The rules are written down twice: as columns for Spark, and one event after the other in plain Python, which the
    analysis is measured against. Both are held to every story.
    """
    if request.param == "plain":
        return lambda story: _told_plainly(story, tmp_path)
    spark = request.getfixturevalue("spark")
    return lambda story: _told_by_spark(spark, story)


def _told_by_spark(spark: SparkSession, story: Story) -> list[tuple[Any, ...]]:
    rows = [msgspec.structs.astuple(event) for event in story.events]
    frame = timeline(spark.createDataFrame(rows, schemas.EVENTS))
    assert frame.columns == schemas.TIMELINE.names
    assert [field.dataType for field in frame.schema] == [field.dataType for field in schemas.TIMELINE]
    found = sorted(frame.collect(), key=lambda row: (row.at_us, row.seq))
    return [(row.at_us, row.topic, row.op, row.incarnation) + (("inferred",) if row.inferred else ()) for row in found]


def _told_plainly(story: Story, directory: Path) -> list[tuple[Any, ...]]:
    moves = plain_moves(recorded(directory, story.events)).get("acme/a", [])
    return [
        (at, topic, op, incarnation) + (("inferred",) if inferred else ())
        for at, _, topic, op, incarnation, _, inferred in moves
    ]


def test_what_the_first_base_found_are_seeds_at_time_zero(told: Told) -> None:
    story = Story()
    story.starts(("t1", "a", 0), ("t2", "b", 3))
    story.created("t3", "c")
    assert told(story) == [(0, "t1", "seed", "a"), (0, "t2", "seed", "b"), (4_000, "t3", "create", "c")]


def test_changes_come_at_their_arrival_and_deletions_hold_no_state(spark: SparkSession) -> None:
    story = Story()
    story.starts()
    story.created("t", "a", arrival=T0 + 1_700)
    story.changed("t", "a", 1)
    story.deleted("t", "a", 1)
    rows = [msgspec.structs.astuple(event) for event in story.events]
    frame = timeline(spark.createDataFrame(rows, schemas.EVENTS))
    found = sorted((row.at_us, row.op, row.epoch, row.size, row.inferred) for row in frame.collect())
    assert found == [
        (1_700, "create", 0, 100, False),
        (3_000, "change", 1, 100, False),
        (4_000, "delete", None, None, False),
    ]


def test_a_lost_bell_leaves_the_order_of_a_topic_as_the_log_has_it(told: Told) -> None:
    story = Story()
    story.starts()
    story.created("t", "a")  # its bell was lost, and it was found with the next one
    story.deleted("t", "a", arrival=T0 + 1_500)
    story.created("u", "b", arrival=T0 + 1_600)
    assert told(story) == [
        (1_600, "u", "create", "b"),
        (2_000, "t", "create", "a"),
        (2_000, "t", "delete", "a"),
    ]


def test_runs_follow_one_another_after_a_second_whatever_their_clocks_say(told: Told) -> None:
    story = Story()
    story.starts(("t", "a", 0))
    story.created("u", "b")  # 3 ms after the start, and the last of this run
    story.restarts(("t", "a", 0), ("u", "b", 0))
    story.deleted("u", "b")
    second = 3_000 + BETWEEN_RUNS_US
    # The clock of the second run begins with its gap, a millisecond after what `now` was set to.
    assert told(story) == [
        (0, "t", "seed", "a"),
        (3_000, "u", "create", "b"),
        (second + 4_000, "u", "delete", "b"),
    ]


def test_a_base_after_a_gap_tells_what_was_missed(told: Told) -> None:
    story = Story()
    story.starts(("kept", "a", 0), ("changed", "b", 0), ("deleted", "c", 0), ("again", "d", 5))
    start = len(story.events)
    story.gap()
    story.base("kept", "a", 0)
    story.base("changed", "b", 2)
    story.base("again", "e", 0)
    story.base("new", "f", 0)
    story.base_end()
    at = [1_000 * (start + index) for index in range(6)]
    assert told(story)[4:] == [
        (at[2], "changed", "change", "b", "inferred"),
        (at[3], "again", "delete", "d", "inferred"),
        (at[3], "again", "create", "e", "inferred"),
        (at[4], "new", "create", "f", "inferred"),
        (at[5], "deleted", "delete", "c", "inferred"),
    ]


def test_a_gap_of_one_bucket_says_nothing_of_the_others(told: Told) -> None:
    story = Story()
    story.gap(cause="start")
    story.base("here", "a", bucket=1)
    story.base("there", "b", bucket=2)
    story.base_end()
    story.gap(bucket=2)
    story.base_end(bucket=2)
    assert told(story)[2:] == [(5_000, "there", "delete", "b", "inferred")]


def test_a_base_that_never_ended_tells_of_no_absence(told: Told) -> None:
    story = Story()
    story.starts(("t", "a", 0))
    story.gap()
    story.gap()
    story.base("t", "a", 0)
    story.base_end()
    story.gap()
    assert told(story) == [(0, "t", "seed", "a")]


def test_a_base_of_all_buckets_may_end_bucket_by_bucket_and_the_other_way_round(told: Told) -> None:
    story = Story()
    story.gap(bucket=1, cause="start")
    story.gap(bucket=2, cause="start")
    story.base("here", "a", bucket=1)
    story.base("there", "b", bucket=2)
    story.base_end()
    story.gap()
    story.gap(bucket=1)
    story.base_end(bucket=2)
    story.base("here", "a", bucket=1)
    story.base_end(bucket=1)
    assert told(story)[2:] == [(7_000, "there", "delete", "b", "inferred")]


def test_a_topic_that_a_base_lacked_and_that_came_back_was_deleted_in_between(told: Told) -> None:
    story = Story()
    story.starts(("t", "a", 0))
    story.gap()
    story.base_end()
    story.created("t", "b", arrival=T0 + 3_500)  # before the end of the base was taken down
    assert told(story) == [
        (0, "t", "seed", "a"),
        (4_000, "t", "delete", "a", "inferred"),
        (4_000, "t", "create", "b"),
    ]


def test_entries_that_a_base_has_told_already_are_no_changes(told: Told) -> None:
    story = Story()
    story.gap(cause="start")
    story.base("t", "b", 2)
    story.deleted("t", "a", 7)  # of an earlier incarnation
    story.created("t", "b")
    story.changed("t", "b", 1)
    story.changed("t", "b", 2)
    story.base_end()
    story.changed("t", "b", 3)
    assert told(story) == [(0, "t", "seed", "b"), (7_000, "t", "change", "b")]


def test_incarnations_that_came_and_went_before_a_base_read_the_topic_are_not_told(told: Told) -> None:
    story = Story()
    story.gap(cause="start")
    story.base("t", "c", 0)
    story.created("t", "b")
    story.deleted("t", "b")
    story.created("t", "c")
    story.base_end()
    story.deleted("t", "c")
    assert told(story) == [(0, "t", "seed", "c"), (6_000, "t", "delete", "c")]


def test_a_base_says_nothing_of_a_topic_with_an_entry_since_the_gap(told: Told) -> None:
    story = Story()
    story.starts(("t", "a", 0), ("u", "b", 0))
    story.gap()
    story.changed("t", "a", 1)
    story.deleted("u", "b")
    story.created("v", "c")
    story.base("t", "a", 0)  # read before the change, and taken down after it
    story.base("u", "b", 0)
    story.base("v", "c", 0)
    story.base_end()
    assert told(story)[2:] == [
        (5_000, "t", "change", "a"),
        (6_000, "u", "delete", "b"),
        (7_000, "v", "create", "c"),
    ]


def test_a_store_that_went_back_is_followed_back(told: Told) -> None:
    story = Story()
    story.starts(("t", "a", 5))
    story.gap(cause="restored")
    story.base("t", "a", 3)
    story.base_end()
    story.changed("t", "a", 4)
    assert told(story)[1:] == [(4_000, "t", "change", "a", "inferred"), (6_000, "t", "change", "a")]


def test_a_topic_changed_before_the_first_base_reached_it_was_there(told: Told) -> None:
    story = Story()
    story.gap(cause="start")
    story.changed("t", "a", 4)
    story.deleted("u", "b", 2)
    story.base("t", "a", 4)
    story.base_end()
    assert told(story) == [(0, "t", "seed", "a")]


def test_leaders_and_consumers_are_no_changes_of_topics(told: Told) -> None:
    story = Story()
    story.starts(("t", "a", 0))
    for kind in (Kind.CONTROLLER, Kind.RESIGNED, Kind.CONSUMERS, Kind.OWNER, Kind.DRAINED, Kind.CLASSIC):
        story.add(kind, namespace="acme/a", topic="t", incarnation="a", bucket=1)
    assert told(story) == [(0, "t", "seed", "a")]


@pytest.mark.parametrize("repeated", [("created", 0), ("changed", 1)])
def test_an_entry_that_comes_twice_counts_once(told: Told, repeated: Sequence[Any]) -> None:
    story = Story()
    story.starts()
    story.created("t", "a")
    for _ in range(2):
        if repeated[0] == "created":
            story.created("u", "b")
        else:
            story.changed("t", "a", 1)
    assert len(told(story)) == 2
