"""The set of a pattern as updates tell it: pieces that fit frames, and the hash with the last of them."""

from collections.abc import Iterable

from protocol.hashing import topic_set_hash
from protocol.wire import pulsar_api_pb2 as api
from sessions.log_sets import LogSet
from sessions.splice import id_field

PREFIX = "persistent://t/n/"


def updates(tails: Iterable[bytes]) -> list[api.CommandWatchTopicUpdate]:
    return [api.CommandWatchTopicUpdate.FromString(id_field(1) + tail) for tail in tails]


def told(logs: LogSet, *names: str) -> LogSet:
    for name in names:
        logs.update(0, name, "i")
    logs.flush()
    return logs


def test_a_step_tells_what_is_new_what_is_gone_and_the_hash_of_all() -> None:
    logs = told(LogSet(PREFIX, 10_000), "a", "b")
    step = logs.step
    logs.update(0, "a", None)
    logs.update(0, "c", "i")
    logs.flush()
    [update] = updates(logs.since(step))
    assert (list(update.new_topics), list(update.deleted_topics)) == ([f"{PREFIX}c"], [f"{PREFIX}a"])
    assert update.topics_hash == topic_set_hash([f"{PREFIX}b", f"{PREFIX}c"])


def test_what_does_not_fit_one_frame_comes_in_pieces_of_which_the_last_has_the_hash() -> None:
    logs = told(LogSet(PREFIX, 300), "gone")
    step = logs.step
    names = [f"{'x' * 50}-{number}" for number in range(20)]
    logs.update(0, "gone", None)
    told(logs, *names)
    pieces = updates(logs.since(step))
    assert len(pieces) > 5
    assert [piece.topics_hash for piece in pieces[:-1]] == [""] * (len(pieces) - 1)
    assert pieces[-1].topics_hash == topic_set_hash(PREFIX + name for name in names)
    assert [name for piece in pieces for name in piece.deleted_topics] == [f"{PREFIX}gone"]
    assert [name for piece in pieces for name in piece.new_topics] == [PREFIX + name for name in names]
    assert logs.whole() is None


def test_one_that_is_too_far_behind_is_told_all_there_is() -> None:
    logs = told(LogSet(PREFIX, 10_000), "a")
    step = logs.step
    for number in range(1_000):
        logs.update(0, "flicker", None if number % 2 else "i")
        logs.flush()
    [update] = updates(logs.since(step))
    assert (list(update.new_topics), update.topics_hash) == ([f"{PREFIX}a"], topic_set_hash([f"{PREFIX}a"]))
    logs.update(0, "a", None)
    logs.flush()
    [update] = updates(logs.since(step))
    assert (list(update.new_topics), update.topics_hash) == ([], "00000000")


def test_the_first_answer_has_all_topics_and_their_hash() -> None:
    logs = told(LogSet(PREFIX, 10_000), "a", "b")
    tail = logs.whole()
    assert tail is not None
    success = api.CommandWatchTopicListSuccess.FromString(b"\x08\x05\x10\x06" + tail)
    assert (success.request_id, success.watcher_id) == (5, 6)
    assert list(success.topic) == [f"{PREFIX}a", f"{PREFIX}b"]
    assert success.topics_hash == topic_set_hash(success.topic)
    told(logs, "c")
    assert logs.whole() != tail
