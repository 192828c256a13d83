"""Consumers as the store has them, registered without a connection, and segments that remember what they were told."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from controller.segment_port import Claim
from layout.segments import Segment
from metadata.subscriptions import Attachment, SubscriptionType
from protocol.names import TopicName
from tests.gateway.http.running import Api
from tests.support.unwritten_segments import UnwrittenSegments

TOPIC = TopicName.scalable("public", "default", "t")
# 2026-11-16T03:35:32.256Z
SINCE_MS = 1_794_800_132_256
A_DEAD_NODE = "0123456789abcdef"


async def register(
    api: Api,
    consumer: str,
    subscription: str = "s",
    *,
    topic: TopicName = TOPIC,
    kind: SubscriptionType = SubscriptionType.STREAM,
    node: str | None = None,
) -> Attachment:
    """Attach a consumer by a connection of this node, or of another one."""
    holder = api.session.record.session if node is None else node
    attachment = Attachment(holder, f"nonce-{consumer}", SINCE_MS, "192.0.2.7:4711")
    await api.registrations.attach(topic, subscription, kind, consumer, attachment)
    return attachment


class RecordingSegments(UnwrittenSegments):
    """Says that these sealed segments are drained, and notes every move of a cursor."""

    def __init__(self, drained: Collection[int] = ()) -> None:
        self.are_drained = set(drained)
        self.moves: list[tuple[str, str, int | None]] = []  # subscription, descriptor, time or None for its end

    async def drained(self, topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
        return frozenset(segment.segment_id for segment in segments if segment.segment_id in self.are_drained)

    async def still_open(self, topic: TopicName, subscription: str, claims: Collection[Claim]) -> frozenset[Claim]:
        return frozenset()

    async def request_move(
        self, topic: TopicName, incarnation: str, subscription: str, segment: Segment, to_ms: int | None
    ) -> None:
        self.moves.append((subscription, segment.descriptor, to_ms))
