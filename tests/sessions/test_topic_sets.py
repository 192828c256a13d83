"""What a group tells: whoever applies the frames from any step on holds exactly what was told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata import keys
from protocol.hashing import topic_set_hash
from protocol.wire import pulsar_api_pb2 as api
from sessions import topic_sets
from sessions.splice import frame_head, id_field
from sessions.topic_sets import TopicSet

PREFIX = "topic://t/n/"
LONGEST_ID = id_field(2**64 - 1)
# Small ones, so that a short run of the model trims its history and splits its frames.
FRAME_LIMIT = 200
REMEMBERED_NAMES = 8
REMEMBERED_STEPS = 5
NAMES = ["a", "b", "c", "d/e", "日本", "𝄞", "long-" + "x" * 40, "long-" + "y" * 41, "long-" + "z" * 42, "ü" * 20]


def decode(tails: Iterable[bytes]) -> list[api.CommandWatchScalableTopicsUpdate]:
    return [api.CommandWatchScalableTopicsUpdate.FromString(id_field(0) + tail) for tail in tails]


def frame_size(tail: bytes) -> int:
    head = frame_head(api.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE, len(LONGEST_ID), tail)
    return len(head) + len(LONGEST_ID) + len(tail)


def apply(held: set[str], tails: Iterable[bytes]) -> set[str]:
    """What a client that holds this makes of the frames."""
    for update in decode(tails):
        if update.WhichOneof("event") == "snapshot":
            held = set(update.snapshot.topics)
        else:
            held = (held - set(update.diff.removed)) | set(update.diff.added)
    return held


def full(names: Iterable[str]) -> set[str]:
    return {PREFIX + name for name in names}


def filled(names: Iterable[str], frame_limit: int = 100_000) -> TopicSet:
    topics = TopicSet(PREFIX, frame_limit)
    for number, name in enumerate(names):
        topics.update(number % keys.BUCKETS, name, "1")
    topics.flush()
    return topics


@dataclass
class Client:
    """A session that has seen everything up to a step; `held` is what was told then, with incarnations."""

    step: int
    held: dict[str, str]


class Model:
    """The set as plain dictionaries, and clients who fell behind by as much as they like."""

    def __init__(self) -> None:
        self.topics = TopicSet(PREFIX, FRAME_LIMIT)
        self.true: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self.clients: list[Client] = []
        self.step_sizes: list[int] = []

    def update(self, name: str, incarnation: str | None) -> None:
        self.topics.update(bucket_of(name), name, incarnation)
        self.true.pop(name, None)
        if incarnation is not None:
            self.true[name] = incarnation

    def replace(self, bucket: int, members: dict[str, str]) -> None:
        members = {name: incarnation for name, incarnation in members.items() if bucket_of(name) == bucket}
        self.topics.replace(bucket, members)
        self.true = {name: inc for name, inc in self.true.items() if bucket_of(name) != bucket} | members

    def flush(self) -> None:
        changed = [name for name in NAMES if self.true.get(name) != self.told.get(name)]
        assert self.topics.changed == bool(changed)
        self.topics.flush(remember=bool(self.clients))
        if changed:
            self.step_sizes.append(len(changed))
        self.told = dict(self.true)
        assert self.topics.step == len(self.step_sizes)

    def join(self) -> None:
        assert apply(set(), self.topics.snapshot()) == full(self.told)
        self.clients.append(Client(self.topics.step, dict(self.told)))

    def catch_up(self, client: Client) -> None:
        tails = self.topics.since(client.step)
        updates = decode(tails)
        assert apply(full(client.held), tails) == full(self.told)
        assert all(frame_size(tail) <= FRAME_LIMIT for tail in tails)
        missed = self.step_sizes[client.step :]
        if updates and updates[0].HasField("snapshot"):
            assert len(missed) > REMEMBERED_STEPS or sum(missed) > REMEMBERED_NAMES
            assert not any(update.diff.removed for update in updates)
        else:
            assert len(missed) <= REMEMBERED_STEPS
            removed = [name for update in updates for name in update.diff.removed]
            added = [name for update in updates for name in update.diff.added]
            went = {name for name, incarnation in client.held.items() if self.told.get(name) != incarnation}
            came = {name for name, incarnation in self.told.items() if client.held.get(name) != incarnation}
            assert (sorted(removed), sorted(added)) == (sorted(full(went)), sorted(full(came)))
            assert all(update.diff.removed or update.diff.added for update in updates)
        client.step, client.held = self.topics.step, dict(self.told)
        assert self.topics.since(client.step) == ()

    def check(self) -> None:
        assert self.topics.hash() == topic_set_hash(full(self.told))
        assert len(self.topics) == len(self.true)
        snapshot = decode(self.topics.snapshot())
        assert snapshot[0].HasField("snapshot")
        assert sum(len(update.snapshot.topics) + len(update.diff.added) for update in snapshot) == len(self.told)
        assert all(frame_size(tail) <= FRAME_LIMIT for tail in self.topics.snapshot())


def bucket_of(name: str) -> int:
    return len(name) % 3


INCARNATIONS = st.sampled_from(["1", "2", "3"])
OPERATIONS = st.one_of(
    st.tuples(st.just("update"), st.sampled_from(NAMES), st.one_of(st.none(), INCARNATIONS)),
    st.tuples(st.just("replace"), st.integers(0, 2), st.dictionaries(st.sampled_from(NAMES), INCARNATIONS)),
    st.tuples(st.just("flush"), st.none(), st.none()),
    st.tuples(st.just("join"), st.none(), st.none()),
    st.tuples(st.just("catch up"), st.integers(0, 5), st.none()),
)


@given(st.lists(OPERATIONS, max_size=80))
def test_a_client_at_any_step_ends_at_exactly_what_was_told(operations: list[tuple[str, object, object]]) -> None:
    with (
        patch.object(topic_sets, "_REMEMBERED_NAMES", REMEMBERED_NAMES),
        patch.object(topic_sets, "_REMEMBERED_STEPS", REMEMBERED_STEPS),
    ):
        model = Model()
        for operation, first, second in operations:
            match operation, first, second:
                case "update", str(name), (str() | None) as incarnation:
                    model.update(name, incarnation)
                case "replace", int(bucket), dict(members):
                    model.replace(bucket, members)
                case "flush", _, _:
                    model.flush()
                case "join", _, _:
                    model.join()
                case "catch up", int(number), _ if number < len(model.clients):
                    model.catch_up(model.clients[number])
            model.check()
        for client in model.clients:
            model.catch_up(client)


def test_an_empty_set_is_one_empty_snapshot() -> None:
    [update] = decode(TopicSet(PREFIX, 1_000).snapshot())
    assert update.WhichOneof("event") == "snapshot"
    assert not update.snapshot.topics


def test_what_was_not_flushed_is_not_told() -> None:
    topics = filled(["a", "b"])
    expected = topic_set_hash(full(["a", "b"]))
    topics.update(0, "a", None)
    topics.update(2, "c", "1")
    topics.update(1, "b", "2")
    assert topics.changed
    assert topics.since(0) == topics.since(0)
    assert apply(set(), topics.snapshot()) == full(["a", "b"])
    assert topics.hash() == expected
    topics.flush()
    assert apply(set(), topics.snapshot()) == full(["b", "c"])
    assert topics.hash() == topic_set_hash(full(["b", "c"]))


def test_a_topic_that_was_made_anew_stands_in_both_lists() -> None:
    topics = filled(["a", "b"])
    topics.update(0, "a", None)
    topics.update(0, "a", "2")
    topics.flush()
    [update] = decode(topics.since(1))
    assert (list(update.diff.removed), list(update.diff.added)) == ([PREFIX + "a"], [PREFIX + "a"])


def test_a_topic_made_anew_over_several_steps_still_stands_in_both_lists() -> None:
    topics = filled(["a", "b"])
    for incarnation in (None, "2"):
        topics.update(0, "a", incarnation)
        topics.flush()
    [update] = decode(topics.since(1))
    assert (list(update.diff.removed), list(update.diff.added)) == ([PREFIX + "a"], [PREFIX + "a"])


def test_what_came_and_went_between_two_flushes_is_no_step() -> None:
    topics = filled(["a"])
    topics.update(1, "b", "1")
    topics.update(1, "b", None)
    topics.update(0, "a", None)
    topics.update(0, "a", "1")
    assert not topics.changed
    topics.flush()
    assert topics.step == 1


def test_steps_that_cancel_each_other_lead_nowhere() -> None:
    topics = filled(["a"])
    topics.update(1, "b", "1")
    topics.flush()
    topics.update(1, "b", None)
    topics.flush()
    assert topics.since(1) == ()
    assert apply(full(["a", "b"]), topics.since(2)) == full(["a"])


def test_reading_a_bucket_again_touches_no_other() -> None:
    topics = filled(["a", "b"])
    topics.replace(0, {"c": "1"})
    topics.replace(1, {"b": "1"})
    topics.flush()
    [update] = decode(topics.since(1))
    assert (list(update.diff.removed), list(update.diff.added)) == ([PREFIX + "a"], [PREFIX + "c"])


def test_who_is_further_behind_than_is_remembered_gets_a_snapshot() -> None:
    topics = filled(["a"])
    for number in range(topic_sets._REMEMBERED_STEPS + 1):
        topics.update(1, f"b-{number}", "1")
        topics.flush()
    first, second = decode(topics.since(1)), decode(topics.since(2))
    assert first[0].WhichOneof("event") == "snapshot"
    assert [update.WhichOneof("event") for update in second] == ["diff"]
    assert len(second[0].diff.added) == topic_sets._REMEMBERED_STEPS


def test_one_large_step_is_remembered_whole_and_what_was_before_it_is_not() -> None:
    topics = filled(["a"], 1_000_000)
    topics.update(1, "b", "1")
    topics.flush()
    many = {f"topic-{number}": "1" for number in range(2 * topic_sets._REMEMBERED_NAMES)}
    topics.replace(2, many)
    topics.flush()
    assert decode(topics.since(1))[0].HasField("snapshot")
    [update] = decode(topics.since(2))
    assert set(update.diff.added) == full(many)


def test_one_encoding_serves_all_who_are_at_the_same_step() -> None:
    topics = filled(["a"])
    topics.update(1, "b", "1")
    topics.flush()
    assert topics.since(1) is topics.since(1)
    assert topics.snapshot() is topics.snapshot()


@pytest.mark.parametrize("frame_limit", [1_024, 4_096, 65_536])
def test_a_large_set_is_a_snapshot_and_diffs_that_each_fit_a_frame(frame_limit: int) -> None:
    names = [f"topic-{number:06d}-{'é' * (number % 50)}" for number in range(5_000)]
    topics = filled(names, frame_limit)
    tails = topics.snapshot()
    updates = decode(tails)
    assert [update.WhichOneof("event") for update in updates] == ["snapshot"] + ["diff"] * (len(updates) - 1)
    assert max(map(frame_size, tails)) <= frame_limit
    # Full ones, or there would be more of them than need be; the longest name would not have fitted any more.
    assert min(map(frame_size, tails[:-1])) > frame_limit - 2 * 64 - len((PREFIX + max(names, key=len)).encode())
    assert apply({"stale"}, tails) == full(names)
    assert sum(len(update.snapshot.topics) + len(update.diff.added) for update in updates) == len(names)


def test_a_large_diff_takes_out_everything_before_it_puts_in_anything() -> None:
    names = [f"topic-{number}" for number in range(500)]
    topics = filled(names, 1_024)
    for number, name in enumerate(names):
        topics.update(number % keys.BUCKETS, name, "2" if number % 3 else None)
    topics.flush()
    tails = topics.since(1)
    updates = decode(tails)
    assert max(map(frame_size, tails)) <= 1_024
    kinds = [(bool(update.diff.removed), bool(update.diff.added)) for update in updates]
    assert kinds == sorted(kinds, reverse=True)
    assert sum(len(update.diff.removed) for update in updates) == 500
    assert apply(full(names), tails) == full(name for number, name in enumerate(names) if number % 3)


@pytest.mark.parametrize("size", range(330, 420))
def test_a_diff_near_the_limit_of_a_frame_fits_it(size: int) -> None:
    topics = filled(["a" * size], 1_024)
    topics.update(0, "a" * size, None)
    topics.update(1, "b" * size, "1")
    topics.update(2, "c" * (size // 2), "1")
    topics.flush()
    tails = topics.since(1)
    assert max(map(frame_size, tails)) <= 1_024
    assert apply(full(["a" * size]), tails) == full(["b" * size, "c" * (size // 2)])
