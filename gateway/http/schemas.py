"""The JSON of the admin API, with Pulsar's field names, as far as the OpenAPI document has to describe it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Reason(msgspec.Struct, frozen=True):
    """Every refusal: one sentence that says what to do."""

    reason: str


class HashRange(msgspec.Struct, frozen=True):
    """A part of the hash ring, both ends included."""

    start: Annotated[int, Meta(ge=0, le=65_535)]
    end: Annotated[int, Meta(ge=0, le=65_535)]


class SegmentInfo(msgspec.Struct, frozen=True, rename="camel"):
    """One segment of a layout; -1 stands for "not sealed" in the sealing epoch and time."""

    segment_id: int
    hash_range: HashRange
    state: Literal["ACTIVE", "SEALED"]
    parent_ids: list[int]
    child_ids: list[int]
    created_at_epoch: int
    sealed_at_epoch: int
    created_at_ms: int
    sealed_at_ms: int


class ScalableTopicMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """A topic's record: its layout, sealed segments included, and its properties."""

    epoch: int
    next_segment_id: int
    segments: dict[str, SegmentInfo]
    properties: dict[str, str]
    retention_time_in_minutes: int | None = None
    retention_size_in_mb: int | None = msgspec.field(default=None, name="retentionSizeInMB")


class ClassicTopicInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A classic topic or one partition of one; a sealed one takes no messages any more, because it was migrated."""

    name: str
    partitions: int
    sealed: bool
    created_at_ms: int
    properties: dict[str, str]


class PartitionedTopicMetadata(msgspec.Struct, frozen=True):
    """As Pulsar answers it: no partitions stand for a topic that has none."""

    partitions: int
    deleted: bool = False
    properties: dict[str, str] = {}


class SubscriptionInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A subscription, and how many consumers are registered at it, connected or not.

    `type` is null until its first consumer decides.
    """

    type: Literal["STREAM", "QUEUE", "CHECKPOINT"] | None
    created_at_ms: int
    consumers: int


class SegmentStats(msgspec.Struct, frozen=True, rename="camel"):
    """A segment as the layout has it. `owner_broker` is null while no living node owns it."""

    name: str
    state: Literal["ACTIVE", "SEALED"]
    parent_ids: list[int]
    child_ids: list[int]
    entry_buckets: int
    owner_broker: str | None
    storage_size: int = 0
    backlog_size: int = 0
    msg_rate_in: float = 0.0
    byte_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    byte_rate_out: float = 0.0
    producer_count: int = 0


class SegmentState(msgspec.Struct, frozen=True, rename="camel"):
    """A segment as the first milestone of Pulsar 5 tells it."""

    name: str
    state: Literal["ACTIVE", "SEALED"]


class LayoutStats(msgspec.Struct, frozen=True, rename="camel"):
    epoch: int
    segments: dict[str, SegmentStats]


class LeaderStats(msgspec.Struct, frozen=True, rename="camel"):
    """The node that leads a topic."""

    session: str
    pulsar_url: str
    http_url: str
    term: int


class ProducerStats(msgspec.Struct, frozen=True, rename="camel"):
    """A producer at all segments to which it sends; of very many at a segment, the first are told."""

    producer_name: str
    msg_rate_in: float
    byte_rate_in: float
    average_msg_size: float
    access_mode: str
    address: str
    connected_since: str
    client_version: str | None = None
    segment_ids: list[int] = []
    msg_in_counter: int = 0
    bytes_in_counter: int = 0


class SubscriptionSegmentStats(msgspec.Struct, frozen=True, rename="camel"):
    msg_backlog: int = 0
    backlog_size: int = 0
    delayed_message_count: int = 0
    unacked_messages: int = 0
    msg_rate_out: float = 0.0
    byte_rate_out: float = 0.0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    consumer_count: int = 0


class ConsumerStats(msgspec.Struct, frozen=True, rename="camel"):
    """A registered consumer is connected while the node that holds its connection is alive, until its grace is over.

    One that has segments open without being registered, as those of a queue, is there as long as it has.
    """

    consumer_name: str
    connected: bool
    segment_ids: list[int]
    address: str
    connected_since: str | None
    msg_rate_out: float = 0.0
    byte_rate_out: float = 0.0
    unacked_messages: int = 0
    available_permits: int = 0
    client_version: str | None = None


class SubscriptionStats(msgspec.Struct, frozen=True, rename="camel"):
    """`segments` has those where there is something to tell, `drained_segment_ids` sealed ones with nothing left.

    `msg_backlog` and `message_ack_rate` count entries, of which a batch is one; `backlog_size` is an estimate.
    `delayed_message_count` has those of the backlog that wait for the time of their delivery. `type` is null
    until the first consumer decides.
    """

    type: Literal["STREAM", "QUEUE", "CHECKPOINT"] | None
    segments: dict[str, SubscriptionSegmentStats]
    consumers: list[ConsumerStats]
    drained_segment_ids: list[int]
    msg_backlog: int = 0
    backlog_size: int = 0
    delayed_message_count: int = 0
    unacked_messages: int = 0
    msg_rate_out: float = 0.0
    byte_rate_out: float = 0.0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    consumer_count: int = 0


class ScalableTopicStats(msgspec.Struct, frozen=True, rename="camel"):
    """Sizes and backlogs are the store's, backlogs in entries; rates and clients as the owners of segments told them.

    `epoch`, the numbers of segments and `segments` repeat what stands in `layout`, for older clients.
    """

    layout: LayoutStats
    leader: LeaderStats | None
    subscriptions: dict[str, SubscriptionStats]
    producers: list[ProducerStats] = []
    msg_rate_in: float = 0.0
    byte_rate_in: float = 0.0
    msg_rate_out: float = 0.0
    byte_rate_out: float = 0.0
    average_msg_size: float = 0.0
    storage_size: int = 0
    backlog_size: int = 0
    epoch: int = 0
    total_segments: int = 0
    active_segments: int = 0
    sealed_segments: int = 0
    segments: dict[str, SegmentState] = {}


class PublisherStats(msgspec.Struct, frozen=True, rename="camel"):
    producer_name: str
    producer_id: int
    access_mode: str
    address: str
    connected_since: str
    msg_rate_in: float
    msg_throughput_in: float
    average_msg_size: float
    client_version: str | None = None


class ClassicConsumerStats(msgspec.Struct, frozen=True, rename="camel"):
    consumer_name: str
    address: str
    connected_since: str
    msg_rate_out: float
    msg_throughput_out: float
    msg_out_counter: int
    bytes_out_counter: int
    unacked_messages: int
    available_permits: int
    client_version: str | None = None


class ClassicSubscriptionStats(msgspec.Struct, frozen=True, rename="camel"):
    """`type` is null while it has no consumers; a backlog is in entries, and its size is an estimate.

    `msg_delayed` has those of it that wait for the time of their delivery, and so has `delayed_message_count`, which is
    the name for scalable topics.
    """

    type: str | None = None
    msg_backlog: int = 0
    backlog_size: int = 0
    msg_backlog_no_delayed: int = 0
    msg_delayed: int = 0
    delayed_message_count: int = 0
    unacked_messages: int = 0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    consumers: list[ClassicConsumerStats] = []


class ClassicTopicStats(msgspec.Struct, frozen=True, rename="camel"):
    """Rates are per second. Subscriptions are the durable ones; of very many clients the first are told."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    average_msg_size: float = 0.0
    storage_size: int = 0
    backlog_size: int = 0
    publishers: list[PublisherStats] = []
    subscriptions: dict[str, ClassicSubscriptionStats] = {}


class PartitionedStats(ClassicTopicStats, frozen=True, rename="camel", kw_only=True):
    """All partitions together, and each by its name."""

    metadata: PartitionedTopicMetadata
    partitions: dict[str, ClassicTopicStats]


class TopicSchema(msgspec.Struct, frozen=True):
    """A version of the schema of a topic; `data` is its definition, of key and value together where it has both."""

    version: int
    type: str
    timestamp: int
    data: str
    properties: dict[str, str]


class TopicSchemas(msgspec.Struct, frozen=True, rename="camel"):
    """All versions that are in force, the oldest first."""

    get_schema_responses: list[TopicSchema]


class SchemaVersion(msgspec.Struct, frozen=True):
    """The number of a version; -1 where there is none."""

    version: int


class SchemaFit(msgspec.Struct, frozen=True, rename="camel"):
    """Whether a schema would be taken, and the strategy that decides it."""

    compatibility: bool
    schema_compatibility_strategy: str


class NodeInfo(
    msgspec.Struct, frozen=True, rename={"is_self": "self", "pulsar_url": "pulsarUrl", "http_url": "httpUrl"}
):
    """A node that is alive; `leads` is how many topics it leads, null while the store cannot say."""

    session: str
    pulsar_url: str
    http_url: str
    is_self: bool
    leads: int | None


class TenantInfo(msgspec.Struct, frozen=True, rename="camel"):
    """What Pulsar's admin clients expect to learn about a tenant."""

    admin_roles: list[str]
    allowed_clusters: list[str]


class Health(msgspec.Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether this node can serve; otherwise `reason` joins all that stands in the way."""

    ready: bool
    reason: str = ""
    reasons: list[str] = []
