"""Assignments of a topic as its leader would write them, without a leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from gateway.node import Node
from layout import records
from metadata import keys
from metadata.store import operation_id
from metadata.subscriptions import AssignedSegment, Assignment, Attachment
from protocol.names import SegmentName, TopicName
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually


class Assigned:
    """Of the subscription `s`, straight in the store."""

    def __init__(self, valkey: ValkeyProcess, topic: TopicName) -> None:
        self.topic = topic
        self.path = keys.path_of(topic)
        self._bucket = keys.bucket_of(self.path)
        self._client = valkey.client()
        self._client.hset(keys.subscriptions_key(self.path), "s", "STREAM {}")

    def to(self, name: str, log: str, *, told: bool = True) -> None:
        """Only this consumer has this log; the others have nothing."""
        for other in self._names() - {name}:
            self._write(other, ())
        self._write(name, (self._segment(log),))
        if told:
            self._tell()

    def register(self, name: str) -> None:
        """It has nothing."""
        self._write(name, ())
        self._tell()

    def evict(self, name: str) -> None:
        self._client.hdel(keys.members_key(self.path, "s"), f"c:{name}", f"a:{name}")
        self._tell()

    def segment_key(self, log: str) -> bytes:
        return keys.segment_key(self.path, SegmentName.parse(log).descriptor)

    def _segment(self, log: str) -> AssignedSegment:
        value: Any = self._client.hget(keys.record_key(self.path), "value")
        for segment in records.decode_layout(value).segments.values():
            legacy = segment.legacy_topic_name or ""
            if log in (legacy, f"segment://{log_path(self.topic)}/{segment.descriptor}"):
                return AssignedSegment(segment.segment_id, segment.range.start, segment.range.end, legacy)
        raise AssertionError(f"{log} is no segment of {self.topic}")

    def _names(self) -> set[str]:
        fields: Any = self._client.hkeys(keys.members_key(self.path, "s"))
        return {field[2:].decode() for field in fields if field.startswith(b"c:")}

    def _write(self, name: str, segments: tuple[AssignedSegment, ...]) -> None:
        attachment = Attachment("somewhere", f"nonce of {name}")
        self._client.hset(
            keys.members_key(self.path, "s"),
            mapping={f"c:{name}": attachment.entry, f"a:{name}": Assignment(0, segments).entry},
        )

    def _tell(self) -> None:
        self._client.xadd(
            keys.changes_key(self._bucket),
            {"topic": self.path, "kind": "consumers", "incarnation": "", "op": operation_id()},
        )


def log_path(topic: TopicName) -> str:
    return f"{topic.tenant}/{topic.namespace}/{topic.local}"


def until_held(node: Node) -> Callable[[], Awaitable[None]]:
    """Call it before a SUBSCRIBE, and what is returned after it, to wait until one more consumer is held."""
    before = _held(node)

    async def more() -> None:
        await eventually(lambda: _held(node) > before)

    return more


def _held(node: Node) -> int:
    return sum(len(seat.waiting) for seats in node.data.plane.seats._seats.values() for seat in seats.values())
