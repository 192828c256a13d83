"""What a consumer asks for: the subscription, its type, and where reading begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from protocol.client.message_ids import Edge, MessageId, edge_to_wire
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

if TYPE_CHECKING:
    from typing import TypeAlias

    # Exists in the generated stub only.
    SubscriptionType: TypeAlias = api.CommandSubscribe.SubType.ValueType

EXCLUSIVE = api.CommandSubscribe.Exclusive
SHARED = api.CommandSubscribe.Shared
FAILOVER = api.CommandSubscribe.Failover
KEY_SHARED = api.CommandSubscribe.Key_Shared


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader begins: at an edge of the topic, or at a message, which it gets too or not."""

    at: Edge | MessageId
    is_inclusive: bool = False

    def to_wire(self) -> api.MessageIdData:
        return self.at.to_wire() if isinstance(self.at, MessageId) else edge_to_wire(self.at)

    def precedes(self, message_id: MessageId) -> bool:
        """Whether a message is among those to read; servers begin with a whole entry, also in the middle of it."""
        if not isinstance(self.at, MessageId):
            return True
        if self.at.batch_index < 0:
            here, there = (*self.at.entry, 0), (*message_id.entry, 0)
        else:
            here, there = self.at.position, message_id.position
        return there > here or (self.is_inclusive and there == here)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription of one topic as it is asked for, the same every time."""

    name: str
    kind: SubscriptionType = EXCLUSIVE
    consumer_name: str | None = None
    initial_position: Edge = "latest"
    priority: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)
    # Ranges of hashes, both ends included, that a consumer of a Key_Shared subscription takes; without them all share.
    key_ranges: Sequence[tuple[int, int]] = ()
    by_entry_bucket: bool = False  # whether those are ranges of entry buckets
    metadata: Mapping[str, str] = field(default_factory=dict)  # of the consumer
    creates_topic: bool = True  # where a classic topic is missing
    start: Start | None = None  # for a reader, whose subscription is gone when it is closed

    @property
    def is_durable(self) -> bool:
        return self.start is None

    @property
    def keeps_order(self) -> bool:
        """Whether one consumer gets all messages in order, so that it can acknowledge up to one of them."""
        return self.kind in (EXCLUSIVE, FAILOVER)

    def starting(self, start: Start) -> Subscription:
        return replace(self, start=start)

    def command(self, request_id: int, topic: str, consumer_id: int, consumer_epoch: int) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic = topic
        request.subscription = self.name
        request.subType = self.kind
        request.consumer_id = consumer_id
        request.request_id = request_id
        if self.consumer_name is not None:
            request.consumer_name = self.consumer_name
        request.priority_level = self.priority
        request.durable = self.is_durable
        if self.start is not None:
            request.start_message_id.CopyFrom(self.start.to_wire())
        request.initialPosition = (
            api.CommandSubscribe.Earliest if self.initial_position == "earliest" else api.CommandSubscribe.Latest
        )
        request.force_topic_creation = self.creates_topic
        request.consumer_epoch = consumer_epoch
        for key, value in self.metadata.items():
            request.metadata.add(key=key, value=value)
        for key, value in self.properties.items():
            request.subscription_properties.add(key=key, value=value)
        if self.kind == KEY_SHARED:
            meta = request.keySharedMeta
            meta.keySharedMode = api.STICKY if self.key_ranges else api.AUTO_SPLIT
            meta.entryBucketDispatch = self.by_entry_bucket
            for start, end in self.key_ranges:
                meta.hashRanges.add(start=start, end=end)
        return command
