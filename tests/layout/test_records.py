"""Stored records: Pulsar's field names, nothing lost on the way through, and hostile bytes refused."""

import json
from typing import Any

import pytest

from layout.errors import InvalidRecord
from layout.layouts import Layout
from layout.records import TopicRecord, decode, decode_layout, decode_properties, encode
from layout.segments import SegmentState


def stored(**changes: Any) -> dict[str, Any]:
    """A record of one segment, as another writer stores it."""
    record: dict[str, Any] = {
        "epoch": 0,
        "nextSegmentId": 1,
        "segments": {"0": segment()},
        "properties": {},
    }
    return record | changes


def segment(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "segmentId": 0,
        "hashRange": {"start": 0, "end": 65535},
        "state": "ACTIVE",
        "parentIds": [],
        "childIds": [],
        "createdAtEpoch": 0,
        "sealedAtEpoch": -1,
        "createdAtMs": 5,
        "sealedAtMs": -1,
        "entryBucketSplits": [],
    }
    return fields | changes


def read(record: dict[str, Any]) -> TopicRecord:
    return decode(json.dumps(record).encode())


def written(record: TopicRecord) -> dict[str, Any]:
    value = json.loads(encode(record))
    assert isinstance(value, dict)
    return value


def test_record_is_written_with_the_field_names_and_order_of_pulsar() -> None:
    record = TopicRecord(Layout.create(1, 7).split(0, 8), {"team": "sales"})
    assert encode(record) == (
        b'{"epoch":1,"nextSegmentId":3,"segments":{'
        b'"0":{"segmentId":0,"hashRange":{"start":0,"end":65535},"state":"SEALED","parentIds":[],"childIds":[1,2],'
        b'"createdAtEpoch":0,"sealedAtEpoch":1,"createdAtMs":7,"sealedAtMs":8,"entryBucketSplits":[],"mergeDepth":0},'
        b'"1":{"segmentId":1,"hashRange":{"start":0,"end":32767},"state":"ACTIVE","parentIds":[0],"childIds":[],'
        b'"createdAtEpoch":1,"sealedAtEpoch":-1,"createdAtMs":8,"sealedAtMs":-1,"entryBucketSplits":[],"mergeDepth":0},'
        b'"2":{"segmentId":2,"hashRange":{"start":32768,"end":65535},"state":"ACTIVE","parentIds":[0],"childIds":[],'
        b'"createdAtEpoch":1,"sealedAtEpoch":-1,"createdAtMs":8,"sealedAtMs":-1,"entryBucketSplits":[],"mergeDepth":0}},'
        b'"properties":{"team":"sales"}}'
    )


def test_written_record_reads_back_equal() -> None:
    layout = Layout.create(5, 7).split(0, 8).merge(6, 1, 9).prune(0)
    record = TopicRecord(layout, {"a": "ä", "": "empty key"}, b'{"enabled":false}')
    assert decode(encode(record)) == record


def test_foreign_record_gains_only_the_merge_depth() -> None:
    foreign = stored()
    assert written(read(foreign)) == foreign | {"segments": {"0": segment(mergeDepth=0)}}


def test_unknown_fields_of_record_and_segment_survive_byte_for_byte() -> None:
    data = (
        b'{"future":{"b":1.10,"a":[123456789012345678901234567890,null]},"epoch":0,"nextSegmentId":1,"segments":{"0":'
        b'{"owner":"n 1","hashRange":{"start":0,"end":65535},"state":"ACTIVE","segmentId":0,"tags":[ 1 ]}},'
        b'"migratedFrom":null}'
    )
    record = decode(data)
    assert record.unknown_fields == {
        "future": b'{"b":1.10,"a":[123456789012345678901234567890,null]}',
        "migratedFrom": b"null",
    }
    assert record.layout.segments[0].unknown_fields == {"owner": b'"n 1"', "tags": b"[ 1 ]"}
    changed = record.with_layout(record.layout.split(0, 9)).with_properties({"x": "y"})
    again = decode(encode(changed))
    assert again == changed
    assert again.unknown_fields == record.unknown_fields
    assert again.layout.segments[0].unknown_fields == record.layout.segments[0].unknown_fields
    assert not again.layout.segments[1].unknown_fields


def test_stored_flags_that_follow_from_other_fields_do_not_go_stale() -> None:
    flags = {"active": True, "sealed": False, "legacy": False, "root": True, "leaf": True}
    record = read(stored(segments={"0": segment(**flags)}))
    assert written(record)["segments"]["0"].items() >= flags.items()
    sealed = written(record.with_layout(record.layout.split(0, 9)))["segments"]
    assert sealed["0"].items() >= (flags | {"active": False, "sealed": True, "leaf": False}).items()
    assert not flags.keys() & sealed["1"].keys()


def test_order_of_segments_survives_also_an_unusual_one() -> None:
    layout = Layout.create(4, 0)
    shuffled = Layout(0, 4, {key: layout.segments[key] for key in (2, 0, 3, 1)})
    again = decode(encode(TopicRecord(shuffled)))
    assert list(again.layout.segments) == [2, 0, 3, 1]
    assert list(again.layout.split(3, 1).segments) == [2, 0, 3, 1, 4, 5]


def test_null_and_missing_lists_read_as_empty() -> None:
    nulls = segment(parentIds=None, childIds=None, entryBucketSplits=None, legacyTopicName=None)
    record = read(stored(segments={"0": nulls}, properties=None, autoScalePolicy=None))
    only = record.layout.segments[0]
    assert only.parent_ids == only.child_ids == only.entry_bucket_splits == ()
    assert (only.legacy_topic_name, record.properties, record.auto_scale_policy) == (None, {}, None)
    assert written(record) == written(read(stored()))


def test_record_from_before_the_clock_fields_reads_and_validates() -> None:
    old = {"segmentId": 0, "hashRange": {"start": 0, "end": 65535}, "state": "SEALED", "childIds": [1]}
    new = {"segmentId": 1, "hashRange": {"start": 0, "end": 65535}, "state": "ACTIVE", "parentIds": [0]}
    layout = read(stored(segments={"0": old, "1": new}, nextSegmentId=2)).layout
    layout.validate()
    assert (layout.segments[0].sealed_at_epoch, layout.segments[0].sealed_at_ms) == (0, 0)
    assert (layout.segments[1].sealed_at_epoch, layout.segments[1].sealed_at_ms) == (-1, -1)


def test_buckets_and_legacy_name_of_a_foreign_segment_are_kept_and_not_inherited() -> None:
    name = "persistent://public/default/old-partition-0"
    foreign = stored(segments={"0": segment(entryBucketSplits=[16384, 32768], legacyTopicName=name)})
    record = read(foreign)
    after = written(record.with_layout(record.layout.split(0, 9)))["segments"]
    assert (after["0"]["entryBucketSplits"], after["0"]["legacyTopicName"]) == ([16384, 32768], name)
    assert after["1"]["entryBucketSplits"] == []
    assert "legacyTopicName" not in after["1"]


def test_auto_scale_policy_is_kept_as_it_was_written() -> None:
    data = json.dumps(stored()).encode()[:-1] + b',"autoScalePolicy":{"splitMsgRateInThreshold":1e4, "x":[]}}'
    record = decode(data)
    assert record.auto_scale_policy == b'{"splitMsgRateInThreshold":1e4, "x":[]}'
    assert decode(encode(record.with_layout(record.layout.split(0, 1)))).auto_scale_policy == record.auto_scale_policy


def test_largest_numbers_of_other_writers_are_exact() -> None:
    largest = 2**63 - 1
    record = read(
        stored(
            epoch=largest - 1,
            nextSegmentId=largest,
            segments={str(largest - 1): segment(segmentId=largest - 1, createdAtMs=largest)},
        )
    )
    assert record.layout.segments[largest - 1].created_at_ms == largest
    assert decode(encode(record)) == record


def test_missing_merge_depth_is_counted_and_then_stored() -> None:
    layout = Layout.create(2, 0).merge(0, 1, 1).split(2, 2)
    fields = written(TopicRecord(layout))
    for fields_of_segment in fields["segments"].values():
        del fields_of_segment["mergeDepth"]
    record = read(fields)
    assert record.layout == layout
    assert [s["mergeDepth"] for s in written(record)["segments"].values()] == [0, 0, 1, 1, 1]


def test_state_reads_as_the_enum() -> None:
    assert read(stored()).layout.segments[0].state is SegmentState.ACTIVE


HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "not json": b"<xml/>",
    "truncated": json.dumps(stored()).encode()[:-1],
    "trailing": json.dumps(stored()).encode() + b"x",
    "a list": b"[]",
    "null": b"null",
    "no segments": b'{"epoch":0,"nextSegmentId":0}',
    "bytes that are no text": b'{"epoch":0,"nextSegmentId":0,"segments":{},"x":"\xff"}',
    "deeply nested": b'{"epoch":0,"nextSegmentId":0,"segments":{},"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
} | {
    name: json.dumps(record).encode()
    for name, record in {
        "epoch as text": stored(epoch="1"),
        "epoch as fraction": stored(epoch=1.5),
        "epoch as truth value": stored(epoch=True),
        "negative epoch": stored(epoch=-1),
        "epoch beyond a long": stored(epoch=2**63),
        "epoch null": stored(epoch=None),
        "segments as list": stored(segments=[segment()]),
        "segments null": stored(segments=None),
        "segment null": stored(segments={"0": None}),
        "key is not the id": stored(segments={"1": segment()}),
        "key in another spelling": stored(segments={"00": segment()}),
        "negative id": stored(segments={"-1": segment(segmentId=-1)}),
        "range missing": stored(segments={"0": {"segmentId": 0, "state": "ACTIVE"}}),
        "range null": stored(segments={"0": segment(hashRange=None)}),
        "range backwards": stored(segments={"0": segment(hashRange={"start": 9, "end": 3})}),
        "range off the ring": stored(segments={"0": segment(hashRange={"start": 0, "end": 65536})}),
        "range as list": stored(segments={"0": segment(hashRange=[0, 65535])}),
        "unknown state": stored(segments={"0": segment(state="MELTING")}),
        "state null": stored(segments={"0": segment(state=None)}),
        "parents as text": stored(segments={"0": segment(parentIds="0")}),
        "null among parents": stored(segments={"0": segment(parentIds=[None])}),
        "bucket off the ring": stored(segments={"0": segment(entryBucketSplits=[70000])}),
        "legacy name as number": stored(segments={"0": segment(legacyTopicName=4)}),
        "merge depth as text": stored(segments={"0": segment(mergeDepth="2")}),
        "property as number": stored(properties={"a": 1}),
        "property null": stored(properties={"a": None}),
        "properties as list": stored(properties=["a"]),
        "policy as text": stored(autoScalePolicy="on"),
    }.items()
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_record_is_refused_with_a_sentence(case: str) -> None:
    with pytest.raises(InvalidRecord, match="stored record"):
        decode(HOSTILE[case])


def test_the_layout_alone_is_that_of_the_whole_record() -> None:
    layout = Layout.create(3, 7).split(1, 8).merge(0, 3, 9)
    data = encode(TopicRecord(layout, {"team": "sales"}, auto_scale_policy=b'{"enabled":true}'))
    assert decode_layout(data) == decode(data).layout == layout


def test_the_layout_alone_passes_over_what_it_does_not_know() -> None:
    record = stored(future=[1, {"a": None}], segments={"0": segment(future="x", mergeDepth=4)})
    layout = decode_layout(json.dumps(record).encode())
    assert layout.segments[0].merge_depth == 4
    assert not layout.segments[0].unknown_fields
    assert [segment.segment_id for segment in layout.active] == [0]


@pytest.mark.parametrize(
    ("fields", "properties"),
    [
        ({"properties": {"team": "sales", "": "", "ключ": "𝄞"}}, {"team": "sales", "": "", "ключ": "𝄞"}),
        ({"properties": {}}, {}),
        ({"properties": None}, {}),
        ({"future": [1, {"a": None}]}, {}),
    ],
)
def test_the_properties_alone_are_those_of_the_whole_record(fields: dict[str, Any], properties: dict[str, str]) -> None:
    data = json.dumps(stored() | fields).encode()
    assert decode_properties(data) == decode(data).properties == properties


def test_the_properties_are_found_in_a_record_whose_layout_cannot_be_read() -> None:
    data = json.dumps(stored(segments="nonsense", properties={"a": "1"})).encode()
    assert decode_properties(data) == {"a": "1"}
    with pytest.raises(InvalidRecord):
        decode_layout(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"null",
        b'{"properties":[]}',
        b'{"properties":{"a":1}}',
        b'{"properties":{"a":null}}',
        b'{"properties":{"a":"\xff"}}',
        b'{"properties":{"a":"b"}',
        b'{"properties":{"a":"b"}}{}',
        b'{"future":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_bytes_without_readable_properties_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_properties(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"{}",
        b'{"epoch":0}',
        json.dumps(stored(segments={"0": segment(state="LOST")})).encode(),
        json.dumps(stored(segments={"0": segment(hashRange={"start": 9, "end": 8})})).encode(),
        json.dumps(stored(epoch=-1)).encode(),
        b'{"future":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_bytes_without_a_readable_layout_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_layout(data)
