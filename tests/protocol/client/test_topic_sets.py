"""What a client keeps of a namespace, and the one event that makes up for all that happened meanwhile."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.client.topic_sets import Change, Snapshot, TopicSet
from protocol.hashing import topic_set_hash


def told(*topics: str, small_change: int = 1_000) -> TopicSet:
    """A set whose first snapshot was passed on."""
    topic_set = TopicSet(small_change)
    topic_set.replace(topics)
    assert topic_set.take() == Snapshot(frozenset(topics))
    return topic_set


@pytest.mark.parametrize("topics", [(), ("a", "b")])
def test_the_first_snapshot_is_news_even_if_it_is_empty(topics: tuple[str, ...]) -> None:
    topic_set = TopicSet()
    assert topic_set.take() is None
    topic_set.replace(topics)
    assert topic_set.take() == Snapshot(frozenset(topics))
    assert topic_set.take() is None


def test_a_change_is_passed_on_as_it_came() -> None:
    topic_set = told("a", "b")
    topic_set.change(["d", "c"], ["b", "a"])
    assert topic_set.told == {"a", "b"}
    assert topic_set.take() == Change(("d", "c"), ("b", "a"))
    assert topic_set.told == {"c", "d"}
    assert topic_set.take() is None


def test_changes_that_nobody_took_become_one() -> None:
    topic_set = told("a", "b")
    topic_set.change(["c", "d"], ["a"])
    topic_set.change(["e"], ["b", "c"])
    assert topic_set.take() == Change(("d", "e"), ("a", "b"))


def test_a_topic_created_again_stands_in_both_lists_and_stays() -> None:
    topic_set = told("a", "b")
    topic_set.change(["a"], ["a"])
    assert topic_set.take() == Change(("a",), ("a",))
    assert topic_set.told == {"a", "b"}


def test_a_topic_created_again_over_two_changes_stands_in_both_lists_too() -> None:
    topic_set = told("a")
    topic_set.change([], ["a"])
    topic_set.change(["a"], [])
    assert topic_set.take() == Change(("a",), ("a",))


def test_what_came_and_went_unseen_is_no_news() -> None:
    topic_set = told("a")
    topic_set.change(["b"], [])
    topic_set.change([], ["b"])
    assert not topic_set.has_news
    assert topic_set.take() is None


def test_a_topic_created_again_and_deleted_after_all_is_only_gone() -> None:
    topic_set = told("a")
    topic_set.change(["a"], ["a"])
    topic_set.change([], ["a"])
    assert topic_set.take() == Change((), ("a",))


def test_repeated_names_and_unknown_ones_are_no_news() -> None:
    topic_set = told("a")
    topic_set.change(["a"], ["b"])
    assert topic_set.take() is None


def test_a_snapshot_of_what_is_known_is_no_news_and_keeps_what_is_pending() -> None:
    topic_set = told("a", "b")
    topic_set.replace(["b", "a"])
    assert topic_set.take() is None
    topic_set.change(["a"], ["a"])
    topic_set.replace(["a", "b"])
    assert topic_set.take() == Change(("a",), ("a",))


def test_another_snapshot_replaces_what_is_pending_and_later_changes_go_into_it() -> None:
    topic_set = told("a", "b")
    topic_set.change(["c"], ["a"])
    topic_set.replace(["x", "y"])
    topic_set.change(["z"], ["x"])
    assert topic_set.take() == Snapshot(frozenset("yz"))
    assert topic_set.told == {"y", "z"}


def test_a_change_before_any_snapshot_says_nothing() -> None:
    topic_set = TopicSet()
    topic_set.change(["a"], [])
    assert not topic_set.is_known
    assert topic_set.take() is None


def test_many_merged_changes_become_a_snapshot() -> None:
    topic_set = told("a", "b", small_change=3)
    topic_set.change(["c", "d"], [])
    topic_set.change(["e"], [])
    assert topic_set.has_news
    topic_set.change(["a"], ["a"])
    topic_set.change(["f"], ["b"])
    assert topic_set.take() == Snapshot(frozenset("acdef"))


def test_one_large_change_stays_a_change_for_who_keeps_up() -> None:
    topic_set = told("a", small_change=3)
    topic_set.change("bcdefg", [])
    assert topic_set.take() == Change(tuple("bcdefg"), ())


def test_the_hash_is_that_of_what_the_server_said_last() -> None:
    topic_set = told("a", "b")
    assert topic_set.hash == topic_set_hash(["a", "b"])
    topic_set.change(["c"], ["a"])
    assert topic_set.hash == topic_set_hash(["b", "c"])
    topic_set.replace(["z"])
    assert topic_set.hash == topic_set_hash(["z"])


names = st.lists(st.sampled_from("abcdefgh"), unique=True)
steps = st.one_of(
    st.tuples(st.just("snapshot"), names),
    st.tuples(st.just("diff"), names, names),
    st.just(("take",)),
)


@given(st.lists(steps), st.integers(0, 5))
def test_events_always_add_up_to_what_the_server_said(
    script: Iterable[tuple[str, *tuple[list[str], ...]]], small_change: int
) -> None:
    said, heard = set[str](), set[str]()
    topic_set = told(small_change=small_change)

    def take() -> None:
        nonlocal heard
        match topic_set.take():
            case Snapshot(topics):
                heard = set(topics)
            case Change(added, removed):
                assert added or removed
                assert set(removed) <= heard
                assert not set(added) & (heard - set(removed))
                heard = heard - set(removed) | set(added)
        assert heard == said == topic_set.told
        assert not topic_set.has_news

    for step in script:
        match step:
            case ("snapshot", topics):
                said = set(topics)
                topic_set.replace(topics)
            case ("diff", added, removed):
                said = said - set(removed) | set(added)
                topic_set.change(added, removed)
            case _:
                take()
        assert topic_set.hash == topic_set_hash(said)
        assert topic_set.told == heard
    take()
