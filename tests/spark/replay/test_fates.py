"""Which writes were lost, and which merely cancelled one another: small runs with what must be found in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark.replay.fates import GRACE_US, concerned_watchers, count_fates, unexplained
from spark.replay.latency import shown_writes
from tests.spark.replay.observed import Observation, absence, dag_push, observations, push, task, watcher, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Lost = tuple[str, str, float]  # op, topic, when it was sent in milliseconds

# As far apart as writes may be that became one, in milliseconds.
ALLOWANCE = 1_050

# Each is a run in a namespace of its own with the watcher of its own number; all are matched at once, because Spark
# takes a second for any number.
RUNS: dict[str, tuple[list[Observation], list[Lost]]] = {
    "what was shown is not lost": (
        [watcher(0), write("create", "a", 0), push(0, 20, added=["a"])],
        [],
    ),
    "topic that came and went within the allowance is cancelled": (
        [watcher(1), write("create", "a", 0), write("delete", "a", 1_000)],
        [],
    ),
    "topic that was there for longer should have been shown": (
        [watcher(2), write("create", "a", 0), write("delete", "a", 2_000)],
        [("create", "a", 0), ("delete", "a", 2_000)],
    ),
    "topic that was away for longer should have been shown": (
        [watcher(3), write("delete", "a", 0), write("create", "a", 2_000)],
        [("create", "a", 2_000), ("delete", "a", 0)],
    ),
    "one diff of many that did not come is found": (
        [
            watcher(4),
            *(write("create", f"t{n}", n * 10) for n in range(5)),
            *(push(4, n * 10 + 5, added=[f"t{n}"]) for n in range(5) if n != 3),
            *(write("delete", f"t{n}", 5_000 + n * 10) for n in range(5)),
            *(push(4, 5_005 + n * 10, removed=[f"t{n}"]) for n in range(5)),
        ],
        [("create", "t3", 30)],
    ),
    "change of mind within the allowance hides two of three writes": (
        [
            watcher(5),
            write("create", "a", 0),
            write("delete", "a", 10),
            write("create", "a", 20),
            push(5, 60, added=["a"]),
        ],
        [],
    ),
    "unseen pair does not excuse the writes around it": (
        [
            watcher(6),
            write("create", "a", 0),
            write("delete", "a", 5_000),
            write("create", "a", 5_010),
            write("delete", "a", 10_000),
        ],
        [("create", "a", 0), ("delete", "a", 10_000)],
    ),
    "write just after one that was shown is not excused by that": (
        [
            watcher(7),
            write("delete", "a", 0),
            push(7, 10, removed=["a"]),
            write("create", "a", 20),
            write("delete", "a", 9_000),
            push(7, 9_010, removed=["a"]),
        ],
        [("create", "a", 20)],
    ),
    "final state that is missing is not lost as well": (
        [watcher(8, converged=False, missing=1), write("create", "a", 0)],
        [],
    ),
    "what came before a final state that is missing is lost": (
        [
            watcher(9, converged=False, missing=1),
            write("delete", "a", 0),
            write("create", "a", 5_000),
            write("delete", "a", 10_000),
        ],
        [("create", "a", 5_000), ("delete", "a", 0)],
    ),
    "what came and went while the watcher was away is cancelled": (
        [watcher(10), absence(10, 1_000, 20_000), write("create", "a", 2_000), write("delete", "a", 19_000)],
        [],
    ),
    "what was on its way when the watcher left, or when it was back, is excused": (
        [watcher(11), absence(11, 1_000, 20_000), write("create", "a", 900), write("delete", "a", 20_500)],
        [],
    ),
    "absence at another time, or of another watcher, excuses nothing": (
        [
            watcher(12),
            absence(12, 30_000, 40_000),
            absence(99, 0, 40_000),
            write("create", "a", 2_000),
            write("delete", "a", 19_000),
        ],
        [("create", "a", 2_000), ("delete", "a", 19_000)],
    ),
    "absences that follow each other at once are one": (
        [
            watcher(13),
            absence(13, 1_000, 5_000),
            absence(13, 5_500, 10_000),
            write("create", "a", 2_000),
            write("delete", "a", 9_000),
        ],
        [],
    ),
    "layout that was replaced at once need not be shown": (
        [
            watcher(14, topic="a"),
            write("change", "a", 0, epoch=4),
            write("change", "a", 40, epoch=5),
            dag_push(14, "a", 5, 60),
        ],
        [],
    ),
    "layout that only a much later one stood for is lost": (
        [
            watcher(15, topic="a"),
            write("change", "a", 0, epoch=4),
            write("change", "a", 8_000, epoch=5),
            dag_push(15, "a", 5, 8_010),
        ],
        [("change", "a", 0)],
    ),
    "layout that was told while the watcher was away is excused": (
        [
            watcher(16, topic="a"),
            absence(16, 0, 6_000),
            write("change", "a", 10, epoch=4),
            write("change", "a", 6_500, epoch=5),
            dag_push(16, "a", 5, 6_600),
        ],
        [],
    ),
    "what comes after the end of a topic is no matter of its watchers": (
        [
            watcher(17, topic="a"),
            write("change", "a", 0, epoch=4),
            dag_push(17, "a", 4, 10),
            write("delete", "a", 5_000),
            write("create", "a", 10_000, epoch=0),
            write("change", "a", 15_000, epoch=1),
        ],
        [],
    ),
    "changes that leave the layout are told to nobody": (
        [watcher(18, topic="a"), watcher(19), write("touch", "a", 0, epoch=4)],
        [],
    ),
}


@pytest.fixture(scope="module")
def lost(spark: SparkSession) -> dict[str, list[Lost]]:
    rows = [{**row, "namespace": name} for name, (run, _) in RUNS.items() for row in run]
    seen = observations(spark, *rows)
    found: dict[str, list[Lost]] = {name: [] for name in RUNS}
    concerned = concerned_watchers(seen, shown_writes(seen))
    for row in unexplained(seen, concerned, ALLOWANCE * 1_000).where("lost").collect():
        found[row["namespace"]].append((row["op"], row["topic"], row["sent_us"] / 1e3))
    return found


@pytest.mark.parametrize("claim", RUNS)
def test_lost_writes_are_as_the_claim_says(claim: str, lost: dict[str, list[Lost]]) -> None:
    _, expected = RUNS[claim]
    assert sorted(lost[claim]) == expected


def test_slow_server_may_gather_for_as_long_as_it_took_to_tell_anything(spark: SparkSession) -> None:
    pair = [write("create", "a", 0), write("delete", "a", 2_500)]
    slow = [write("create", "b", 0), push(0, 3_000, added=["b"])]
    prompt = [write("create", "b", 0), push(0, 30, added=["b"])]
    for others, expected in ((slow, (2, 0, 3_050_000)), (prompt, (0, 2, GRACE_US + 50_000))):
        seen = observations(spark, task(), watcher(0), *pair, *others)
        fates = count_fates(seen, shown_writes(seen), 50_000)
        assert (fates.cancelled, fates.lost, fates.allowance_us) == expected


def test_clocks_that_differ_do_not_make_a_write_lost(spark: SparkSession) -> None:
    seen = observations(spark, watcher(0), write("create", "a", 10), push(0, 9, added=["a"]))
    assert [count_fates(seen, shown_writes(seen, tolerance), 50_000).lost for tolerance in (0, 2_000)] == [1, 0]
