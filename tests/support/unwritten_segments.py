"""Segments as tests of the controller have them that need no messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from controller.segment_port import Claim
from layout.segments import Segment
from metadata.cursor_requests import PendingMove
from metadata.log_figures import LogFigures
from metadata.subscriptions import Registration
from protocol.names import TopicName


class UnwrittenSegments:
    """Segments that nobody can write to or consume from: what is sealed is drained, and nothing is open."""

    async def drained(self, topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
        return frozenset(segment.segment_id for segment in segments)

    async def still_open(self, topic: TopicName, subscription: str, claims: Collection[Claim]) -> frozenset[Claim]:
        return frozenset()

    async def request_move(
        self, topic: TopicName, incarnation: str, subscription: str, segment: Segment, to_ms: int | None
    ) -> PendingMove | None:
        """There is no cursor to move."""
        return None

    async def moved(self, moves: Sequence[PendingMove]) -> None:
        """Nothing was to be moved."""

    async def backlog(self, topic: TopicName, subscription: str, segment: Segment, registration: Registration) -> int:
        return 0

    async def figures(
        self, topic: TopicName, incarnation: str, segments: Sequence[Segment], subscriptions: Mapping[str, Registration]
    ) -> Mapping[int, LogFigures]:
        return {}

    async def classic_figures(self, topics: Sequence[TopicName], incarnation: str) -> Sequence[LogFigures]:
        return [LogFigures() for _ in topics]
