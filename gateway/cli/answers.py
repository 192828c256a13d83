"""What the admin API answers, as values; fields that this version does not know are left out."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from gateway.admin_client import AdminClient, AdminError

Answer = TypeVar("Answer")

# The end of a segment's name: first hash, last hash, id.
_DESCRIPTOR = re.compile(r"/([0-9a-f]{4}-[0-9a-f]{4})-[0-9]+", re.ASCII)

QUEUE = "QUEUE"


class SegmentStats(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    state: str
    parent_ids: tuple[int, ...] = ()
    child_ids: tuple[int, ...] = ()
    entry_buckets: int = 0
    owner_broker: str | None = None
    storage_size: int = 0
    msg_rate_in: float = 0.0
    msg_rate_out: float = 0.0

    @property
    def is_active(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def hash_range(self) -> str:
        """As in `0000-7fff`; nothing for a segment that was a topic of its own once, whose name does not tell."""
        match = _DESCRIPTOR.search(self.name, self.name.rfind("/"))
        return match[1] if match else ""


class LayoutStats(msgspec.Struct, frozen=True):
    epoch: int
    segments: dict[int, SegmentStats]

    def range_of(self, segment_id: int) -> str:
        """Nothing for a segment that was pruned meanwhile."""
        segment = self.segments.get(segment_id)
        return "" if segment is None else segment.hash_range


class LeaderStats(msgspec.Struct, frozen=True, rename="camel"):
    session: str
    pulsar_url: str
    http_url: str
    term: int


class ConsumerStats(msgspec.Struct, frozen=True, rename="camel"):
    consumer_name: str
    connected: bool
    segment_ids: tuple[int, ...] = ()
    address: str | None = None
    connected_since: str | None = None


class SubscriptionStats(msgspec.Struct, frozen=True, rename="camel"):
    type: str | None
    consumers: tuple[ConsumerStats, ...] = ()
    drained_segment_ids: frozenset[int] = frozenset()
    msg_backlog: int = 0
    unacked_messages: int = 0
    msg_rate_out: float = 0.0

    @property
    def assigns_segments(self) -> bool:
        """Whether each segment is one consumer's; not in a queue, and not known before the first consumer."""
        return self.type not in (QUEUE, None)


class ProducerStats(msgspec.Struct, frozen=True, rename="camel"):
    producer_name: str


class TopicStats(msgspec.Struct, frozen=True, rename="camel"):
    layout: LayoutStats
    subscriptions: dict[str, SubscriptionStats]
    leader: LeaderStats | None = None
    producers: tuple[ProducerStats, ...] = ()
    msg_rate_in: float = 0.0
    byte_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    byte_rate_out: float = 0.0
    storage_size: int = 0
    backlog_size: int = 0


class ClassicTopic(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    partitions: int
    sealed: bool
    created_at_ms: int
    properties: dict[str, str] = {}


class SubscriptionSummary(msgspec.Struct, frozen=True, rename="camel"):
    type: str | None
    created_at_ms: int
    consumers: int


class Retention(msgspec.Struct, frozen=True):
    retention_time_in_minutes: int = msgspec.field(name="retentionTimeInMinutes")
    retention_size_in_mb: int = msgspec.field(default=-1, name="retentionSizeInMB")


class TopicSchema(msgspec.Struct, frozen=True):
    version: int
    type: str
    timestamp: int = 0
    data: str = ""
    properties: dict[str, str] = {}


class TopicSchemas(msgspec.Struct, frozen=True, rename="camel"):
    get_schema_responses: tuple[TopicSchema, ...]


class SchemaVersion(msgspec.Struct, frozen=True):
    version: int


class SchemaFit(msgspec.Struct, frozen=True, rename="camel"):
    compatibility: bool
    schema_compatibility_strategy: str


class NodeSummary(msgspec.Struct, frozen=True, rename="camel"):
    session: str
    pulsar_url: str
    http_url: str
    leads: int | None
    is_self: bool = msgspec.field(name="self")


def read(client: AdminClient, content: bytes, kind: type[Answer], what: str) -> Answer:
    """The value in an answer, or the complaint that it is no such thing."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise AdminError(f"{client.url} answered with something that is no {what}: is it a Vela?") from None


def type_in_words(kind: str | None) -> str:
    """The type of a subscription as it is shown; it is open until the first consumer decides."""
    return "open" if kind is None else kind.lower()


def unassigned(stats: TopicStats, subscription: SubscriptionStats) -> list[int]:
    """The segments that no consumer of a subscription has, without those that hold nothing more for it.

    Consumers of a queue share all of them.
    """
    if not subscription.assigns_segments:
        return []
    taken = {segment_id for consumer in subscription.consumers for segment_id in consumer.segment_ids}
    taken |= subscription.drained_segment_ids
    return [segment_id for segment_id in stats.layout.segments if segment_id not in taken]
