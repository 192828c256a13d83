"""What the controller asks of the segments' storage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from layout.segments import Segment
from metadata.cursor_requests import PendingMove
from metadata.log_figures import LogFigures
from metadata.subscriptions import Registration
from protocol.names import TopicName

# A consumer and a segment that it has open.
Claim = tuple[str, int]


class SegmentPort(Protocol):
    async def drained(self, topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
        """Which of these sealed segments hold nothing more for the subscription."""

    async def still_open(self, topic: TopicName, subscription: str, claims: Collection[Claim]) -> frozenset[Claim]:
        """Which of these consumers still have these segments open."""

    async def request_move(
        self, topic: TopicName, incarnation: str, subscription: str, segment: Segment, to_ms: int | None
    ) -> PendingMove | None:
        """Store that the cursor on a segment goes to the first message of a time or later, or to the end.

        From then on the segment is not drained until that is carried out. None where the segment holds nothing.
        """

    async def moved(self, moves: Sequence[PendingMove]) -> None:
        """Return when these cursors are moved."""

    async def backlog(self, topic: TopicName, subscription: str, segment: Segment, registration: Registration) -> int:
        """How many entries of a segment the subscription has not acknowledged."""

    async def figures(
        self, topic: TopicName, incarnation: str, segments: Sequence[Segment], subscriptions: Mapping[str, Registration]
    ) -> Mapping[int, LogFigures]:
        """What there is to know about these segments, by their ids."""

    async def classic_figures(self, topics: Sequence[TopicName], incarnation: str) -> Sequence[LogFigures]:
        """The same about a classic topic or partitions of one, in their order."""
