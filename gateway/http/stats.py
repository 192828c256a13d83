"""What there is to know about a topic now: its layout, its leader, its subscriptions and their consumers.

Built from one look at the store, so that any node gives the same answer and none an old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime

from litestar import Controller, get

from gateway.http.documentation import refusals
from gateway.http.path_names import OF_TOPIC, TOPIC, TopicInPath
from gateway.http.ports import Ports
from gateway.http.schemas import (
    ConsumerStats,
    LayoutStats,
    LeaderStats,
    ScalableTopicStats,
    SegmentStats,
    SubscriptionSegmentStats,
    SubscriptionStats,
)
from gateway.http.topics import connected, topic_state
from layout import records
from layout.layouts import Layout
from layout.segments import Segment
from metadata.records import Leader
from metadata.subscriptions import Consumer, Subscription, TopicState
from protocol.names import SegmentName, TopicName


class StatsRoutes(Controller):
    path = "/admin/v2/scalable"
    tags = ("scalable topics",)
    dependencies = OF_TOPIC

    @get(f"{TOPIC}/stats", summary="Read a topic's statistics", responses=refusals(404, 412))
    async def read_stats(self, ports: Ports, name: TopicInPath) -> ScalableTopicStats:
        """From the store, by whichever node is asked.

        There is no data plane yet: rates, sizes, backlogs and unacknowledged messages are 0, and there are no
        producers. `leader` is the living node that leads the topic, null while none does.
        """
        state = await topic_state(ports, name)
        leader = state.topic.leader
        if leader is not None and not await ports.peers.is_alive(leader.session):
            leader = None
        return stats_of(state, leader, await connected(ports, state))


def stats_of(state: TopicState, leader: Leader | None, alive: Collection[str]) -> ScalableTopicStats:
    """`leader` is one that is alive, `alive` the sessions of all nodes that are, as far as they hold consumers."""
    return ScalableTopicStats(
        layout=_layout(state.topic.name, records.decode_layout(state.topic.value)),
        leader=None if leader is None else LeaderStats(leader.session, leader.pulsar_url, leader.http_url, leader.term),
        subscriptions={name: _subscription(found, alive) for name, found in sorted(state.subscriptions.items())},
    )


def _layout(topic: TopicName, layout: Layout) -> LayoutStats:
    return LayoutStats(
        layout.epoch,
        {
            str(segment.segment_id): SegmentStats(
                name=_segment_name(topic, segment),
                state=segment.state.value,
                parent_ids=list(segment.parent_ids),
                child_ids=list(segment.child_ids),
                entry_buckets=len(segment.entry_bucket_splits) + 1,
                owner_broker=None,
            )
            for segment in layout.segments.values()
        },
    )


def _segment_name(topic: TopicName, segment: Segment) -> str:
    if segment.legacy_topic_name:
        return segment.legacy_topic_name
    return str(SegmentName(topic, segment.range.start, segment.range.end, segment.segment_id))


def _subscription(subscription: Subscription, alive: Collection[str]) -> SubscriptionStats:
    consumers = [_consumer(consumer, alive) for _, consumer in sorted(subscription.consumers.items())]
    counts = Counter(segment_id for consumer in consumers for segment_id in consumer.segment_ids)
    return SubscriptionStats(
        type=subscription.type.value,
        segments={
            str(segment_id): SubscriptionSegmentStats(consumer_count=count)
            for segment_id, count in sorted(counts.items())
        },
        consumers=consumers,
        drained_segment_ids=sorted(subscription.drained),
    )


def _consumer(consumer: Consumer, alive: Collection[str]) -> ConsumerStats:
    attachment = consumer.attachment
    is_connected = attachment.node in alive
    return ConsumerStats(
        consumer_name=consumer.name,
        connected=is_connected,
        segment_ids=[] if consumer.assignment is None else list(consumer.assignment.segment_ids),
        address=attachment.address,
        connected_since=_shown_time(attachment.since_ms) if is_connected else None,
    )


def _shown_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
