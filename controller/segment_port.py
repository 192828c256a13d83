"""What the controller asks of the segments' storage. Until there is a data plane, nothing is written to a segment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from layout.segments import Segment
from protocol.names import TopicName

# A consumer and a segment that it has open.
Claim = tuple[str, int]


class SegmentPort(Protocol):
    async def drained(self, topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
        """Which of these sealed segments hold nothing more for the subscription."""

    async def still_open(self, topic: TopicName, subscription: str, claims: Collection[Claim]) -> frozenset[Claim]:
        """Which of these consumers still have these segments open."""

    async def seek(self, topic: TopicName, subscription: str, segment: Segment, timestamp_ms: int) -> None:
        """Move the subscription's cursor on a segment to the first message of that time or later."""

    async def skip_all(self, topic: TopicName, subscription: str, segment: Segment) -> None:
        """Move the subscription's cursor on a segment to its end."""


class UnwrittenSegments:
    """Segments that nobody can write to or consume from: what is sealed is drained, and nothing is open."""

    async def drained(self, topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
        return frozenset(segment.segment_id for segment in segments)

    async def still_open(self, topic: TopicName, subscription: str, claims: Collection[Claim]) -> frozenset[Claim]:
        return frozenset()

    async def seek(self, topic: TopicName, subscription: str, segment: Segment, timestamp_ms: int) -> None:
        """There is nothing to seek in."""

    async def skip_all(self, topic: TopicName, subscription: str, segment: Segment) -> None:
        """There is nothing to skip."""
