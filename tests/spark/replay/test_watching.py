"""What watchers show and count: right updates, wrong ones, and connections that come and go."""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import pytest

from protocol.framing import encode
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from spark.profiles import ReconnectPattern
from spark.replay.expecting import Expected, NamespaceState, TopicState
from spark.replay.reconnects import drops
from spark.replay.views import NamespaceView, Segments, TopicView, View, frame_size

IN_STORE = NamespaceName("public", "replay-r1-shop")
PREFIX = f"topic://{IN_STORE}/"


def names(*topics: str) -> list[str]:
    return [PREFIX + topic for topic in topics]


def snapshot(*topics: str) -> api.CommandWatchScalableTopicsUpdate:
    update = api.CommandWatchScalableTopicsUpdate(watch_id=1)
    update.snapshot.SetInParent()
    update.snapshot.topics.extend(names(*topics))
    return update


def diff(added: str = "", removed: str = "") -> api.CommandWatchScalableTopicsUpdate:
    update = api.CommandWatchScalableTopicsUpdate(watch_id=1)
    update.diff.added.extend(names(*added.split()))
    update.diff.removed.extend(names(*removed.split()))
    return update


def dag(epoch: int, *segments: int, created_ms: int = 1_000) -> api.CommandScalableTopicUpdate:
    update = api.CommandScalableTopicUpdate(session_id=1)
    update.dag.epoch = epoch
    for number in segments:
        update.dag.segments.add(
            segment_id=number,
            hash_start=number,
            hash_end=number,
            state=api.ACTIVE,
            created_at_epoch=0,
            created_at_ms=created_ms,
        )
    return update


def segments(*numbers: int, created_ms: int = 1_000) -> Segments:
    """As in `dag`."""
    return {number: (number, number, created_ms) for number in numbers}


def namespace_view(*topics: str) -> NamespaceView:
    view = NamespaceView(5, "public/shop", IN_STORE)
    assert view.take(snapshot(*topics)) is None
    return view


def topic_view(first: api.CommandScalableTopicUpdate, now_us: int = 0) -> TopicView:
    view = TopicView(5, "public/shop", IN_STORE, "orders")
    assert view.take(first, now_us) is None
    return view


def expected(*topics: str, state: TopicState | None = None) -> Expected:
    full = frozenset(names(*topics))
    return Expected(
        {IN_STORE: NamespaceState(full, topic_set_hash(full), topics)}, {PREFIX + "orders": state} if state else {}
    )


def test_changes_are_applied_and_told_as_they_came() -> None:
    view = namespace_view("a", "b")
    assert view.take(diff("c d", "a")) == (names("c", "d"), names("a"), False)
    assert view.names == set(names("b", "c", "d"))
    assert view.duplicate == 0


def test_topic_made_anew_stands_in_both_lists_and_is_no_duplicate() -> None:
    view = namespace_view("a")
    assert view.take(diff("a", "a")) == (names("a"), names("a"), False)
    assert (view.names, view.duplicate) == (set(names("a")), 0)


@pytest.mark.parametrize(
    ("update", "count"),
    [(diff("a"), 1), (diff("", "x"), 1), (diff("a x", "y b"), 2), (diff("n n"), 1), (snapshot("a", "a", "b"), 1)],
)
def test_what_is_told_twice_is_counted(update: api.CommandWatchScalableTopicsUpdate, count: int) -> None:
    view = namespace_view("a", "b")
    view.take(update)
    assert view.duplicate == count


def test_snapshot_after_a_reconnect_tells_the_difference_and_is_marked() -> None:
    view = namespace_view("a", "b")
    view.note_reconnected(0)
    assert view.take(snapshot("b", "c")) == (tuple(names("c")), tuple(names("a")), True)
    assert view.take(diff("d")) == (names("d"), (), False)
    assert (view.snapshots, view.reconnects) == (1, 1)


def test_watch_that_is_opened_again_on_its_connection_is_no_reconnect() -> None:
    view = topic_view(dag(3, 0, 1))
    view.end()
    view.note_reopened()
    assert view.take(dag(0, 0, created_ms=2_000), 0) == (0, True)
    assert view.reconnects == 0


def test_change_after_a_reconnect_with_the_right_hash_counts_as_any_other() -> None:
    view = namespace_view("a")
    view.note_reconnected(0)
    assert view.take(diff("b")) == (names("b"), (), False)


def test_hash_follows_the_set() -> None:
    view = namespace_view("a")
    assert view.hash == topic_set_hash(names("a"))
    view.take(diff("b"))
    assert view.hash == topic_set_hash(names("a", "b"))


def test_namespace_that_differs_is_missing_as_many_as_differ() -> None:
    view = namespace_view("a", "b")
    assert expected("a", "b").missing_from(view) == 0
    assert expected("a", "c").missing_from(view) == 2
    assert expected().missing_from(view) == 2
    assert view.row(2)["converged"] is False


def test_empty_namespace_is_shown_only_after_it_was_told() -> None:
    silent = NamespaceView(5, "public/shop", IN_STORE)
    assert not expected().is_shown_by(silent)
    assert expected().missing_from(silent) == 1
    assert expected().missing_from(namespace_view()) == 0


def test_lower_epoch_of_the_same_topic_is_out_of_order() -> None:
    view = topic_view(dag(3, 0, 1))
    assert view.take(dag(4, 1, 2), 0) == (4, False)
    view.take(dag(3, 0, 1), 0)
    assert view.out_of_order == 1


def test_topic_made_anew_may_start_at_a_lower_epoch() -> None:
    view = topic_view(dag(3, 0, 1))
    view.take(dag(0, 0, created_ms=2_000), 0)
    assert view.out_of_order == 0


def test_records_without_times_raise_no_alarm() -> None:
    view = topic_view(dag(3, 0, created_ms=0))
    view.take(dag(0, 0, created_ms=0), 0)
    assert view.out_of_order == 0


def test_topic_is_shown_with_epoch_and_segments_of_the_store() -> None:
    view = topic_view(dag(3, 0, 1), now_us=500)
    assert expected(state=TopicState(3, segments(0, 1), 100)).missing_from(view) == 0
    assert expected(state=TopicState(4, segments(0, 1), 100)).missing_from(view) == 1
    assert expected(state=TopicState(3, segments(0, 2), 100)).missing_from(view) == 1
    assert expected().missing_from(view) == 1


def test_layout_of_a_topic_that_was_deleted_and_made_anew_is_not_its_layout() -> None:
    view = topic_view(dag(0, 0), now_us=500)
    assert expected(state=TopicState(0, segments(0), 100)).missing_from(view) == 0
    assert expected(state=TopicState(0, segments(0, created_ms=2_000), 900)).missing_from(view) == 1


def test_same_layout_twice_is_a_duplicate_except_after_a_reconnect() -> None:
    view = topic_view(dag(3, 0, 1))
    view.note_reconnected(0)
    view.take(dag(3, 0, 1), 0)
    assert view.duplicate == 0
    view.take(dag(3, 0, 1), 0)
    assert view.duplicate == 1
    view.take(dag(4, 1, 2), 0)
    assert view.duplicate == 1


def test_absences_last_from_the_first_loss_until_the_watch_is_opened_again() -> None:
    view = namespace_view("a")
    view.note_left(10)
    view.note_left(20)
    view.note_reconnected(30)
    view.note_left(40)
    view.end_absence(50)
    view.end_absence(60)
    assert view.absences == [(10, 30), (40, 50)]


def test_deleted_topic_is_shown_by_who_was_told_so() -> None:
    view = topic_view(dag(3, 0, 1))
    view.end()
    assert expected().missing_from(view) == 0


def test_who_was_told_of_a_deletion_that_never_was_misses_the_topic() -> None:
    view = topic_view(dag(3, 0, 1), now_us=500)
    view.end()
    there_all_along = expected(state=TopicState(3, segments(0, 1), created_us=100))
    assert not there_all_along.was_recreated(view)
    assert there_all_along.missing_from(view) == 1
    assert expected(state=TopicState(0, segments(0), created_us=900)).was_recreated(view)


@pytest.mark.parametrize("topics", [0, 1, 10, 2_000])
def test_size_of_the_frame_is_what_came_over_the_wire(topics: int) -> None:
    command = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
    command.watchScalableTopicsUpdate.CopyFrom(snapshot(*(f"topic-{number}" for number in range(topics))))
    assert frame_size(command.watchScalableTopicsUpdate) == len(encode(command))
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE)
    command.scalableTopicUpdate.CopyFrom(dag(3, *range(topics)))
    assert frame_size(command.scalableTopicUpdate) == len(encode(command))


def test_views_count_the_local_names_behind_their_prefix() -> None:
    view: View = namespace_view("a")
    assert names("a")[0][view.cut :] == "a"


def test_pattern_without_rates_drops_nothing() -> None:
    assert list(drops(ReconnectPattern(), Random(1))) == []


def test_storms_come_to_all_at_once_and_each_comes_back_in_its_own_time() -> None:
    pattern = ReconnectPattern(storm_every_s=10, downtime_ms=(100, 2_000))
    one, other = (list(islice(drops(pattern, Random(seed)), 3)) for seed in (1, 2))
    assert [at for at, _ in one] == [at for at, _ in other] == [10, 20, 30]
    assert one != other
    assert all(0.1 <= downtime <= 2 for _, downtime in (*one, *other))


def test_drops_come_in_order_and_as_often_as_the_pattern_says() -> None:
    pattern = ReconnectPattern(per_minute=6, storm_every_s=60)
    found = [at for at, _ in islice(drops(pattern, Random(3)), 7_000)]
    assert all(earlier <= later for earlier, later in pairwise(found))
    assert 6.5 < len(found) / (found[-1] / 60) < 7.5
