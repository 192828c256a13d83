"""The gateway's rule as a fold: what is told when, and what is not told at all."""

from __future__ import annotations

import random

import pytest

from metadata import keys
from sessions.topic_sets import TopicSet
from spark.analysis.coalescing import Change, Coalescing, Telling

MS = 1_000


def fold(window_ms: int, *changes: tuple[int, str, str | None], seeds: tuple[str, ...] = ()) -> list[Telling]:
    """What is told; times are in milliseconds here, and seeds have the incarnation "0"."""
    folding = Coalescing([window_ms], keep=True)
    for name in seeds:
        folding.seed(name, "0")
    for at, name, incarnation in changes:
        folding.change((at * MS, name, incarnation, 10))
    folding.end()
    return folding.windows[0].tellings


def told(tellings: list[Telling]) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
    return [(telling.at_us // MS, telling.removed, telling.added) for telling in tellings]


def test_the_first_change_after_quiet_is_told_at_once_and_later_ones_when_the_window_has_passed() -> None:
    tellings = fold(50, (100, "a", "1"), (110, "b", "1"), (149, "c", "1"), (260, "d", "1"))
    assert told(tellings) == [(100, (), ("a",)), (150, (), ("b", "c")), (260, (), ("d",))]


def test_a_window_begins_with_each_telling() -> None:
    tellings = fold(50, *((at, f"t{at}", "1") for at in range(0, 200, 20)))
    assert [telling.at_us // MS for telling in tellings] == [0, 50, 100, 150, 200]


def test_without_a_window_everything_is_told_by_itself() -> None:
    assert told(fold(0, (1, "a", "1"), (2, "a", None), (3, "a", "2"))) == [
        (1, (), ("a",)),
        (2, ("a",), ()),
        (3, (), ("a",)),
    ]


def test_what_happens_at_one_time_is_told_at_one_time() -> None:
    assert told(fold(0, (1, "a", "1"), (1, "b", "1"))) == [(1, (), ("a", "b"))]


def test_what_came_and_went_within_a_window_is_not_mentioned_and_begins_no_window() -> None:
    tellings = fold(50, (0, "x", "1"), (10, "a", "1"), (20, "a", None), (70, "b", "1"), (80, "c", "1"))
    assert told(tellings) == [(0, (), ("x",)), (70, (), ("b",)), (120, (), ("c",))]


def test_what_was_deleted_and_made_anew_stands_in_both_lists() -> None:
    tellings = fold(50, (0, "x", "1"), (10, "a", None), (20, "a", "1"), seeds=("a",))
    assert told(tellings) == [(0, (), ("x",)), (50, ("a",), ("a",))]


def test_what_comes_back_under_its_incarnation_was_never_away() -> None:
    assert told(fold(50, (0, "x", "1"), (10, "a", None), (20, "a", "0"), seeds=("a",))) == [(0, (), ("x",))]


def test_a_change_in_the_moment_of_a_telling_is_told_in_it() -> None:
    assert told(fold(50, (0, "a", "1"), (10, "b", "1"), (50, "c", "1"))) == [(0, (), ("a",)), (50, (), ("b", "c"))]


def test_the_time_that_names_wait_and_the_seconds_of_tellings_are_counted() -> None:
    folding = Coalescing([0, 100], by_second_ms=100)
    for at, name in ((0, "a"), (20, "b"), (60, "c"), (1_500, "d")):
        folding.change((at * MS, name, "1", 10))
    folding.end()
    at_once, windowed = folding.windows
    assert (at_once.totals.diffs, at_once.totals.waited_us, at_once.per_second) == (4, 0, {})
    assert (windowed.totals.diffs, windowed.totals.names, windowed.totals.waited_us) == (3, 4, (80 + 40) * MS)
    assert {second: diffs for second, (diffs, _) in windowed.per_second.items()} == {0: 2, 1: 1}


@pytest.mark.parametrize("seed", range(20))
def test_every_telling_is_the_diff_that_the_servers_own_set_gives(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"t{index}" for index in range(6)]
    changes: list[Change] = []
    at = 0
    for _ in range(200):
        at += chance.choice([0, 1, 7, 30, 90]) * MS
        changes.append((at, chance.choice(names), chance.choice([None, "1", "2"]), 10))
    folding = Coalescing([50], keep=True)
    for change in changes:
        folding.change(change)
    folding.end()

    topics = TopicSet("topic://acme/a/", 5_000_000)
    rest = iter([*changes, (1 << 60, "", None, 0)])
    change = next(rest)
    for telling in folding.windows[0].tellings:
        while change[0] <= telling.at_us:
            topics.update(keys.bucket_of(change[1]), change[1], change[2])
            change = next(rest)
        pending = {name: before for name, (_, before) in topics._told.items()}
        assert set(telling.removed) == {name for name, before in pending.items() if before is not None}
        true = {name for members in topics._true.values() for name in members}
        assert set(telling.added) == {name for name in pending if name in true}
        topics.flush()
    assert not topics.changed
