"""Spliced frames of namespace watches are byte for byte what protobuf would have written."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from sessions.splice import frame_head, id_field, tagged_length, varint
from sessions.topic_sets import TopicSet

PREFIX = "topic://public/default/"
WATCH_IDS = [0, 1, 127, 128, 16_383, 16_384, 2**32, 2**63, 2**64 - 1]
COUNTS = [0, 1, 4, 5, 600, 700, 20_000]  # around the lengths at which a size takes one byte more


def spliced(tail: bytes, watch_id: int) -> bytes:
    field = id_field(watch_id)
    return frame_head(api.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE, len(field), tail) + field + tail


def update_of(watch_id: int) -> tuple[api.BaseCommand, api.CommandWatchScalableTopicsUpdate]:
    command = api.BaseCommand(type=api.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
    command.watchScalableTopicsUpdate.watch_id = watch_id
    return command, command.watchScalableTopicsUpdate


def set_of(names: Iterable[str]) -> TopicSet:
    topics = TopicSet(PREFIX, 5_000_000)
    for name in names:
        topics.update(7, name, "1")
    topics.flush()
    return topics


@pytest.mark.parametrize("watch_id", WATCH_IDS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_spliced_snapshot_equals_protobuf(watch_id: int, count: int) -> None:
    names = [f"topic-{number}" for number in range(count)]
    command, update = update_of(watch_id)
    update.snapshot.SetInParent()
    update.snapshot.topics.extend(PREFIX + name for name in names)
    [tail] = set_of(names).snapshot()
    assert spliced(tail, watch_id) == encode(command)


@pytest.mark.parametrize("watch_id", WATCH_IDS)
@pytest.mark.parametrize(("came", "went"), [(0, 1), (1, 0), (1, 1), (5, 700), (20_000, 3)])
def test_a_spliced_diff_equals_protobuf(watch_id: int, came: int, went: int) -> None:
    old, new = [f"old-{number}" for number in range(went)], [f"neü-{number}" for number in range(came)]
    topics = set_of(["anew", *old])
    step = topics.step
    topics.update(7, "anew", "2")
    for name in old:
        topics.update(7, name, None)
    for name in new:
        topics.update(7, name, "1")
    topics.flush()
    command, update = update_of(watch_id)
    update.diff.added.extend(PREFIX + name for name in ("anew", *new))
    update.diff.removed.extend(PREFIX + name for name in ("anew", *old))
    [tail] = topics.since(step)
    assert spliced(tail, watch_id) == encode(command)


@given(st.integers(0, 2**64 - 1))
def test_an_id_field_equals_protobuf(watch_id: int) -> None:
    message = api.CommandWatchScalableTopicsClose(watch_id=watch_id)
    assert id_field(watch_id) == message.SerializeToString()


@given(st.text(max_size=300))
def test_a_tagged_length_equals_protobuf(text: str) -> None:
    data = text.encode("utf-8", "replace")
    message = api.ScalableTopicsDiff(removed=[data.decode()])
    assert tagged_length(2, len(data)) + data == message.SerializeToString()


@pytest.mark.parametrize(("value", "encoded"), [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02")])
def test_a_varint_is_little_endian_in_groups_of_seven_bits(value: int, encoded: bytes) -> None:
    assert varint(value) == encoded


def test_the_splice_knows_every_field_of_the_messages() -> None:
    # A new field would silently be missing from spliced frames: teach `sessions.topic_sets` about it, then this list.
    def fields(message: type[object]) -> dict[str, int]:
        return {field.name: field.number for field in message.DESCRIPTOR.fields}  # type: ignore[attr-defined] # generated

    assert fields(api.CommandWatchScalableTopicsUpdate) == {
        "watch_id": 1,
        "snapshot": 2,
        "diff": 3,
        "error": 4,
        "message": 5,
    }
    assert fields(api.ScalableTopicsSnapshot) == {"topics": 1}
    assert fields(api.ScalableTopicsDiff) == {"added": 1, "removed": 2}
    base = api.BaseCommand.DESCRIPTOR.fields_by_name["watchScalableTopicsUpdate"]
    assert base.number == api.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE == 77
