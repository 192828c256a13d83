"""How a plan shares watchers and connections out, and what it refuses."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from spark.errors import JobError
from tests.spark.replay.replays import NAMESPACE, plan_for


def test_every_watcher_lives_in_exactly_one_task() -> None:
    plan = plan_for("pulsar://x", "redis://x", tasks=3, watchers=100)
    assert sorted(number for task in range(3) for number in plan.watchers_of(task)) == list(range(100))


def test_connections_add_up_unless_there_are_more_than_watchers() -> None:
    plan = plan_for("pulsar://x", "redis://x", tasks=3, watchers=100, connections=50)
    assert sum(plan.connections_of(task) for task in range(3)) == 50
    few = plan_for("pulsar://x", "redis://x", tasks=3, watchers=4, connections=50)
    assert [few.connections_of(task) for task in range(3)] == [2, 1, 1]


@pytest.mark.parametrize("tasks", [1, 2, 4, 5])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_topic_watchers_are_spread_evenly_over_the_tasks(tasks: int, share: float) -> None:
    plan = plan_for("pulsar://x", "redis://x", tasks=tasks, watchers=2_000, topic_share=share)
    for task in range(tasks):
        own = plan.watchers_of(task)
        assert abs(sum(map(plan.watches_topic, own)) / len(own) - share) < 0.05


def test_plan_reaches_executors_as_it_is() -> None:
    plan = plan_for("pulsar://x", "redis://x")
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tasks": 0}, "at least one task"),
        ({"speed": 0.0}, "speed 0"),
        ({"speed": float("nan")}, "speed nan"),
        ({"watchers": -1}, "negative"),
        ({"connections": 1}, "at least 2 connections"),
        ({"topic_share": 1.5}, "between 0 and 1"),
        ({"namespaces": ()}, "nothing to watch"),
        ({"namespaces": ("public/" + "n" * 250,)}, "no place in the store"),
        ({"prefix": "a/b"}, "no place in the store"),
    ],
)
def test_plan_that_no_task_could_follow_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(JobError, match=reason):
        plan_for("pulsar://x", "redis://x", **changes).check()


def test_plan_without_watchers_needs_no_connections() -> None:
    plan_for("pulsar://x", "redis://x", watchers=0, connections=0, namespaces=(NAMESPACE,)).check()
