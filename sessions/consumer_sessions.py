"""One registered consumer of one connection: who it is, what the store knows of it, and what it was told."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from metadata.subscriptions import AssignedSegment, Attachment, SubscriptionType
from protocol.names import SegmentName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from sessions.outbox import Outbox

# Queued assignments stand beside the states of watches, whose numbers are lower.
_KEY_OFFSET: Final = 1 << 66


class ConsumerSession:
    """One consumer of one connection."""

    __slots__ = (
        "address",
        "attached_as",
        "attached_at",
        "closed",
        "consumer_id",
        "doubted",
        "epoch",
        "incarnation",
        "kind",
        "leaving",
        "name",
        "nonce",
        "outbox",
        "registering",
        "registry",
        "request_id",
        "since_ms",
        "subscription",
        "subscription_id",
        "told",
        "topic",
        "tried_as",
    )

    def __init__(
        self,
        outbox: Outbox,
        registry: dict[int, ConsumerSession],
        request: api.CommandScalableTopicSubscribe,
        topic: TopicName,
        address: str,
        since_ms: int,
    ) -> None:
        self.outbox = outbox
        self.registry = registry
        self.request_id = request.request_id
        self.consumer_id = request.consumer_id
        self.topic = topic
        self.subscription = request.subscription
        self.name = request.consumer_name
        self.kind = SubscriptionType(api.ScalableConsumerType.Name(request.consumer_type))
        self.address = address
        self.nonce = os.urandom(8).hex()
        self.since_ms = since_ms  # by the store's clock: of two connections the later one has the consumer
        self.tried_as = ""  # the node session under which it may be attached
        self.attached_as = ""  # and the one under which it surely was
        self.attached_at = 0.0
        self.doubted = False  # the store may have lost what it knew of it
        self.incarnation = ""
        self.subscription_id: str | None = None  # that it was attached to; None if that cannot be told
        self.epoch = 0
        self.told: tuple[AssignedSegment, ...] | None = None  # None until the request is answered
        self.closed = False
        self.registering = 0  # registrations that are on their way
        self.leaving = False  # for good, and not only because its connection is gone

    @property
    def key(self) -> int:
        return _KEY_OFFSET + self.consumer_id

    def attachment(self, node: str) -> Attachment:
        return Attachment(node, self.nonce, self.since_ms, self.address)


def assigned(topic: TopicName, epoch: int, segments: Iterable[AssignedSegment]) -> api.ScalableConsumerAssignment:
    content = api.ScalableConsumerAssignment(layout_epoch=epoch)
    for segment in segments:
        # Clients open what is named here, and the log of a legacy segment has the name of a classic topic.
        name = segment.legacy or str(SegmentName(topic, segment.start, segment.end, segment.segment_id))
        content.segments.add(
            segment_id=segment.segment_id, hash_start=segment.start, hash_end=segment.end, segment_topic=name
        )
    return content
