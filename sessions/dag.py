"""A topic's DAG as bytes: encoded once per content, spliced with each session's id when it is sent."""

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


class Dag:
    """One content of a watch point: all watches share every byte of its frame but their session id."""

    __slots__ = ("_heads", "tail")

    def __init__(self, encoded: bytes, resolved_name: str) -> None:
        name = resolved_name.encode()
        self.tail = b"".join((_DAG_TAG, varint(len(encoded)), encoded, _RESOLVED_NAME_TAG, varint(len(name)), name))
        self._heads: dict[int, bytes] = {}

    def frame(self, session_field: bytes) -> tuple[bytes, bytes, bytes]:
        """The parts of a SCALABLE_TOPIC_UPDATE frame for the session whose id `session_field` holds."""
        length = len(session_field)
        head = self._heads.get(length)
        if head is None:
            head = self._heads[length] = self._head(length)
        return head, session_field, self.tail

    def _head(self, session_length: int) -> bytes:
        body_length = session_length + len(self.tail)
        head = _COMMAND_HEAD + varint(body_length)
        return _SIZES.pack(len(head) + body_length + 4, len(head) + body_length) + head


def session_field(session_id: int) -> bytes:
    """The `session_id` field as it stands in every frame of a watch."""
    return b"\x08" + varint(session_id)


def encode_dag(layout: Layout, *, name: str, owner_url: str, controller_url: str | None = None) -> Dag:
    """All segments in record order; every active one is served at `owner_url`."""
    dag = api.ScalableTopicDAG(epoch=layout.epoch)
    for segment in layout.segments.values():
        wire = dag.segments.add(
            segment_id=segment.segment_id,
            hash_start=segment.range.start,
            hash_end=segment.range.end,
            state=api.ACTIVE if segment.is_active else api.SEALED,
            parent_ids=segment.parent_ids,
            child_ids=segment.child_ids,
            created_at_epoch=segment.created_at_epoch,
            created_at_ms=max(0, segment.created_at_ms),
            entry_bucket_splits=segment.entry_bucket_splits,
        )
        if segment.sealed_at_epoch >= 0:
            wire.sealed_at_epoch = segment.sealed_at_epoch
        if segment.sealed_at_ms >= 0:
            wire.sealed_at_ms = segment.sealed_at_ms
        if segment.is_legacy:
            wire.legacy_topic_name = segment.legacy_topic_name or ""
        if segment.is_active:
            dag.segment_brokers.add(segment_id=segment.segment_id, broker_url=owner_url)
    if controller_url is not None:
        dag.controller_broker_url = controller_url
    return Dag(dag.SerializeToString(), name)


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
