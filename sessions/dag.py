"""A topic's DAG as bytes: encoded once per content, spliced with each session's id when it is sent.

A SCALABLE_TOPIC_UPDATE frame is a head (sizes and tags, which depend on the length of the session id alone), the
session id, and a tail that all watches of the topic share.
"""

from __future__ import annotations

import struct
from typing import Final

from layout.layouts import Layout
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api

_SIZES: Final = struct.Struct(">II")
_UPDATE: Final = api.BaseCommand.SCALABLE_TOPIC_UPDATE
# Type and sub-message share their number, here as everywhere in BaseCommand.
_COMMAND_HEAD: Final = b"\x08" + bytes([_UPDATE]) + b"\xba\x04"
_DAG_TAG: Final = b"\x12"
_RESOLVED_NAME_TAG: Final = b"\x2a"


def session_field(session_id: int) -> bytes:
    """The `session_id` field as it stands in every frame of a watch."""
    return b"\x08" + varint(session_id)


def frame_head(session_length: int, tail: bytes) -> bytes:
    """What goes before a session field of this length and this tail."""
    body_length = session_length + len(tail)
    head = _COMMAND_HEAD + varint(body_length)
    return _SIZES.pack(len(head) + body_length + 4, len(head) + body_length) + head


def encode_tail(layout: Layout, *, name: str, owner_url: str, controller_url: str | None = None) -> bytes:
    """The DAG and the resolved name: all segments in record order, every active one served at `owner_url`."""
    dag = api.ScalableTopicDAG(epoch=layout.epoch)
    for segment in layout.segments.values():
        wire = dag.segments.add(
            segment_id=segment.segment_id,
            hash_start=segment.range.start,
            hash_end=segment.range.end,
            state=api.ACTIVE if segment.is_active else api.SEALED,
            created_at_epoch=segment.created_at_epoch,
            created_at_ms=max(0, segment.created_at_ms),
        )
        # Assigned only where there is something: this runs for every segment at every change.
        if segment.parent_ids:
            wire.parent_ids.extend(segment.parent_ids)
        if segment.child_ids:
            wire.child_ids.extend(segment.child_ids)
        if segment.entry_bucket_splits:
            wire.entry_bucket_splits.extend(segment.entry_bucket_splits)
        if segment.sealed_at_epoch >= 0:
            wire.sealed_at_epoch = segment.sealed_at_epoch
        if segment.sealed_at_ms >= 0:
            wire.sealed_at_ms = segment.sealed_at_ms
        if segment.legacy_topic_name:
            wire.legacy_topic_name = segment.legacy_topic_name
    for segment in layout.active:
        dag.segment_brokers.add(segment_id=segment.segment_id, broker_url=owner_url)
    if controller_url is not None:
        dag.controller_broker_url = controller_url
    encoded, resolved = dag.SerializeToString(), name.encode()
    return b"".join((_DAG_TAG, varint(len(encoded)), encoded, _RESOLVED_NAME_TAG, varint(len(resolved)), resolved))


def error_frame(session_id: int, server_error: int, message: str) -> bytes:
    """The last word on a watch. Clients insist on a text."""
    command = api.BaseCommand(type=_UPDATE)
    update = command.scalableTopicUpdate
    update.session_id = session_id
    update.error = api.ServerError.ValueType(server_error)
    update.message = message or "unknown reason"
    return encode(command)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
