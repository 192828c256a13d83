"""A topic's stored record: its layout and properties as the JSON that Pulsar reads and writes.

Fields that this version does not know, of the record and of each segment, are kept as the bytes they came in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta

from layout.errors import InvalidRange, InvalidRecord
from layout.layouts import Layout
from layout.merge_depths import fill_merge_depths
from layout.ranges import LAST_HASH, HashRange
from layout.segments import NO_UNKNOWN_FIELDS, NOT_SEALED, Segment, SegmentState

# What fits a Java long, which is what every other reader of these records stores the numbers in.
_MAX_LONG = 2**63 - 1
_Count = Annotated[int, Meta(ge=0, le=_MAX_LONG)]
_Moment = Annotated[int, Meta(ge=NOT_SEALED, le=_MAX_LONG)]
# What fits a Java int, as Pulsar keeps it.
_MAX_MINUTES = 2**31 - 1
_Hash = Annotated[int, Meta(ge=0, le=LAST_HASH)]


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """All that is stored about a topic. `auto_scale_policy` is the JSON text of the override, if any.

    `retention_minutes`: how long what was consumed stays; negative for ever, None as the namespace says, also about
    `retention_megabytes`: how large a log may be for that; negative for any size.
    """

    layout: Layout
    properties: Mapping[str, str] = field(default_factory=dict)
    auto_scale_policy: bytes | None = None
    retention_minutes: int | None = None
    retention_megabytes: int = -1
    unknown_fields: Mapping[str, bytes] = field(default_factory=lambda: NO_UNKNOWN_FIELDS, repr=False)

    def with_layout(self, layout: Layout) -> Self:
        return replace(self, layout=layout)

    def with_properties(self, properties: Mapping[str, str]) -> Self:
        return replace(self, properties=properties)

    def with_retention(self, minutes: int | None, megabytes: int = -1) -> Self:
        return replace(self, retention_minutes=minutes, retention_megabytes=megabytes)


class _RangeJson(msgspec.Struct):
    start: _Hash
    end: _Hash


class _SegmentJson(msgspec.Struct, rename="camel"):
    segment_id: _Count
    hash_range: _RangeJson
    state: SegmentState
    parent_ids: tuple[_Count, ...] | None = None
    child_ids: tuple[_Count, ...] | None = None
    created_at_epoch: _Count = 0
    sealed_at_epoch: _Moment | None = None
    created_at_ms: _Moment = 0
    sealed_at_ms: _Moment | None = None
    legacy_topic_name: str | None = None
    entry_bucket_splits: tuple[_Hash, ...] | None = None
    merge_depth: _Count | None = None


class _RecordJson(msgspec.Struct, rename="camel"):
    epoch: _Count
    next_segment_id: _Count
    segments: dict[str, _SegmentJson]
    properties: dict[str, str] | None = None
    auto_scale_policy: dict[str, msgspec.Raw] | None = None
    retention_time_in_minutes: Annotated[int, Meta(ge=-1, le=_MAX_MINUTES)] | None = None
    retention_size_in_mb: Annotated[int, Meta(ge=-1, le=_MAX_LONG)] = msgspec.field(
        default=-1, name="retentionSizeInMB"
    )


_KNOWN_OF_SEGMENT = frozenset(_SegmentJson.__struct_encode_fields__)
_KNOWN_OF_RECORD = frozenset(_RecordJson.__struct_encode_fields__)

# Other writers may store these next to the fields they follow from. They are kept like any unknown field, but
# written anew, or sealing a segment would leave `"active":true` behind.
_DERIVED: Mapping[str, Callable[[Segment], bool]] = {
    "active": lambda segment: segment.is_active,
    "sealed": lambda segment: not segment.is_active,
    "legacy": lambda segment: segment.is_legacy,
    "root": lambda segment: not segment.parent_ids,
    "leaf": lambda segment: not segment.child_ids,
}


class _PropertiesJson(msgspec.Struct):
    properties: dict[str, str] | None = None


_properties_decoder = msgspec.json.Decoder(_PropertiesJson)
_typed_decoder = msgspec.json.Decoder(_RecordJson)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_segment_fields_decoder = msgspec.json.Decoder(dict[str, dict[str, msgspec.Raw]])
_encoder = msgspec.json.Encoder()


def decode(data: bytes) -> TopicRecord:
    """Read a stored record; `InvalidRecord` if it is not one. Its layout is not validated."""
    try:
        # Unknown fields are carried along unread, so their text is checked here or never.
        data.decode()
        record = _typed_decoder.decode(data)
        fields = _fields_decoder.decode(data)
        segment_fields = _segment_fields_decoder.decode(fields["segments"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecord(f"The stored record is not that of a scalable topic: {error}.") from error
    segments: dict[int, Segment] = {}
    without_depth: set[int] = set()
    for key, segment_json in record.segments.items():
        segment_id = segment_json.segment_id
        # One spelling per id; "7" and "07" would be two segments with one id.
        if key != str(segment_id):
            raise InvalidRecord(f"The stored record files segment {segment_id} under the key {key!r}.")
        segments[segment_id] = _segment(segment_json, _unknown(segment_fields[key], _KNOWN_OF_SEGMENT))
        if segment_json.merge_depth is None:
            without_depth.add(segment_id)
    if without_depth:
        segments = fill_merge_depths(segments, without_depth)
    policy = bytes(fields["autoScalePolicy"]) if record.auto_scale_policy is not None else None
    return TopicRecord(
        layout=Layout(record.epoch, record.next_segment_id, MappingProxyType(segments)),
        properties=record.properties or {},
        auto_scale_policy=policy,
        retention_minutes=record.retention_time_in_minutes,
        retention_megabytes=record.retention_size_in_mb,
        unknown_fields=_unknown(fields, _KNOWN_OF_RECORD),
    )


def decode_layout(data: bytes) -> Layout:
    """Only the layout of a stored record, at a third of the cost of `decode`: for those who show it and write nothing.

    Unknown fields are left out, and merge depths are as stored.
    """
    try:
        record = _typed_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecord(f"The stored record is not that of a scalable topic: {error}.") from error
    segments = {source.segment_id: _segment(source, NO_UNKNOWN_FIELDS) for source in record.segments.values()}
    return Layout(record.epoch, record.next_segment_id, MappingProxyType(segments))


def decode_properties(data: bytes) -> Mapping[str, str]:
    """Only the properties of a stored record, for those who filter by them."""
    try:
        return _properties_decoder.decode(data).properties or {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRecord(f"The stored record is not that of a scalable topic: {error}.") from error


def encode(record: TopicRecord) -> bytes:
    """The record as Pulsar's JSON: its fields in its order, then ours, then those nobody here knows."""
    layout = record.layout
    fields: dict[str, Any] = {
        "epoch": layout.epoch,
        "nextSegmentId": layout.next_segment_id,
        "segments": {key: _segment_fields(segment) for key, segment in layout.segments.items()},
        "properties": dict(record.properties),
    }
    if record.auto_scale_policy is not None:
        fields["autoScalePolicy"] = msgspec.Raw(record.auto_scale_policy)
    if record.retention_minutes is not None:
        fields["retentionTimeInMinutes"] = record.retention_minutes
        if record.retention_megabytes >= 0:
            fields["retentionSizeInMB"] = record.retention_megabytes
    for name, text in record.unknown_fields.items():
        fields[name] = msgspec.Raw(text)
    return _encoder.encode(fields)


def _segment(source: _SegmentJson, unknown_fields: Mapping[str, bytes]) -> Segment:
    try:
        hash_range = HashRange(source.hash_range.start, source.hash_range.end)
    except InvalidRange as error:
        raise InvalidRecord(f"The stored record gives segment {source.segment_id} no range: {error}") from error
    # A record from before a field existed: Java reads a missing number as 0.
    unstated = NOT_SEALED if source.state is SegmentState.ACTIVE else 0
    return Segment(
        segment_id=source.segment_id,
        range=hash_range,
        state=source.state,
        parent_ids=source.parent_ids or (),
        child_ids=source.child_ids or (),
        created_at_epoch=source.created_at_epoch,
        sealed_at_epoch=unstated if source.sealed_at_epoch is None else source.sealed_at_epoch,
        created_at_ms=source.created_at_ms,
        sealed_at_ms=unstated if source.sealed_at_ms is None else source.sealed_at_ms,
        legacy_topic_name=source.legacy_topic_name,
        entry_bucket_splits=source.entry_bucket_splits or (),
        merge_depth=source.merge_depth or 0,
        unknown_fields=unknown_fields,
    )


def _segment_fields(segment: Segment) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "segmentId": segment.segment_id,
        "hashRange": {"start": segment.range.start, "end": segment.range.end},
        "state": segment.state.value,
        "parentIds": segment.parent_ids,
        "childIds": segment.child_ids,
        "createdAtEpoch": segment.created_at_epoch,
        "sealedAtEpoch": segment.sealed_at_epoch,
        "createdAtMs": segment.created_at_ms,
        "sealedAtMs": segment.sealed_at_ms,
    }
    if segment.legacy_topic_name is not None:
        fields["legacyTopicName"] = segment.legacy_topic_name
    fields["entryBucketSplits"] = segment.entry_bucket_splits
    fields["mergeDepth"] = segment.merge_depth
    for name, text in segment.unknown_fields.items():
        rule = _DERIVED.get(name)
        fields[name] = rule(segment) if rule else msgspec.Raw(text)
    return fields


def _unknown(fields: Mapping[str, msgspec.Raw], known: frozenset[str]) -> Mapping[str, bytes]:
    # Copied out: a `Raw` is a view that would keep the bytes of the whole record alive.
    unknown = {name: bytes(text) for name, text in fields.items() if name not in known}
    return MappingProxyType(unknown) if unknown else NO_UNKNOWN_FIELDS
