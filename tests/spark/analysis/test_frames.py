"""The arithmetic of frames, against the encoder of the wire and against the frames that the server makes."""

from __future__ import annotations

import pytest

from metadata import keys
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from sessions.splice import frame_head, id_field
from sessions.topic_sets import TopicSet
from spark.analysis.frames import diff_bytes, entry_bytes, snapshot_bytes, varint_length

PREFIX = "topic://acme/a/"


def entries(names: list[str], prefix: str = PREFIX) -> list[int]:
    return [entry_bytes(len((prefix + name).encode())) for name in names]


def encoded(update: api.CommandWatchScalableTopicsUpdate) -> int:
    kind = api.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE
    return len(encode(api.BaseCommand(type=kind, watchScalableTopicsUpdate=update)))


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_numbers_take_seven_bits_a_byte(value: int) -> None:
    assert varint_length(value) == len(id_field(value)) - 1


@pytest.mark.parametrize(
    ("removed", "added"),
    [
        ([], ["t"]),
        (["t"], []),
        (["t"], ["t"]),
        (["x" * 90], ["y" * 107, "y" * 113, "ü" * 60]),
        ([f"gone-{index}" for index in range(700)], [f"come-{index}" for index in range(900)]),
    ],
)
def test_a_diff_has_the_bytes_that_the_encoder_gives_it(removed: list[str], added: list[str]) -> None:
    update = api.CommandWatchScalableTopicsUpdate(watch_id=1)
    update.diff.added.extend(PREFIX + name for name in added)
    update.diff.removed.extend(PREFIX + name for name in removed)
    assert diff_bytes(entries(removed), entries(added)) == encoded(update)


@pytest.mark.parametrize("count", [0, 1, 5, 3_000])
def test_a_snapshot_has_the_bytes_that_the_encoder_gives_it(count: int) -> None:
    update = api.CommandWatchScalableTopicsUpdate(watch_id=1)
    names = [f"topic-{index}" for index in range(count)]
    update.snapshot.SetInParent()
    update.snapshot.topics.extend(PREFIX + name for name in names)
    assert snapshot_bytes(sum(entries(names))) == encoded(update)


@pytest.mark.parametrize("limit", [200, 1_000, 100_000])
def test_what_does_not_fit_one_frame_is_cut_as_the_server_cuts_it(limit: int) -> None:
    names = [f"topic-{index:04d}" for index in range(40)]
    topics = TopicSet(PREFIX, limit)
    for name in names[:20]:
        topics.update(keys.bucket_of(name), name, "a")
    topics.flush()
    for name in names[:20]:
        topics.update(keys.bucket_of(name), name, None)
    for name in names[20:]:
        topics.update(keys.bucket_of(name), name, "b")
    topics.flush()
    field = id_field(1)
    kind = api.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE
    sent = sum(len(frame_head(kind, len(field), tail)) + len(field) + len(tail) for tail in topics.since(1))
    assert diff_bytes(entries(names[:20]), entries(names[20:]), most=limit - 64) == sent


def test_nothing_to_tell_is_no_frame() -> None:
    assert diff_bytes([], []) == 0
