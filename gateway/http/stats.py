"""What there is to know about a topic now: its layout, its leader, its subscriptions and their consumers.

Built from one look at the store, so that any node gives the same answer and none an old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
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
    SegmentState,
    SegmentStats,
    SubscriptionSegmentStats,
    SubscriptionStats,
)
from gateway.http.topics import connected, topic_state
from layout import records
from layout.layouts import Layout
from layout.segments import Segment
from metadata.log_states import LogFigures
from metadata.records import Leader
from metadata.subscriptions import Consumer, Subscription, TopicState
from protocol.names import SegmentName, TopicName


class StatsRoutes(Controller):
    path = "/admin/v2/scalable"
    tags = ("scalable topics",)
    dependencies = OF_TOPIC

    @get(f"{TOPIC}/stats", summary="Read a topic's statistics", responses=refusals(404, 412))
    async def read_stats(self, ports: Ports, name: TopicInPath) -> ScalableTopicStats:
        """From the store, by whichever node is asked; rates are of the segments that this node owns.

        `leader` is the living node that leads the topic, null while none does.
        """
        state = await topic_state(ports, name)
        leader = state.topic.leader
        if leader is not None and not await ports.peers.is_alive(leader.session):
            leader = None
        layout = records.decode_layout(state.topic.value)
        figures = await ports.segments.figures(
            name,
            state.topic.version.incarnation,
            tuple(layout.segments.values()),
            {found.name: found.settings for found in state.subscriptions.values() if found.type.is_durable},
        )
        urls = {node.session: node.pulsar_url for node in ports.peers.nodes}
        return stats_of(state, leader, await connected(ports, state), figures, urls)


def stats_of(
    state: TopicState,
    leader: Leader | None,
    alive: Collection[str],
    figures: Mapping[int, LogFigures],
    urls: Mapping[str, str],
) -> ScalableTopicStats:
    """`leader` is one that is alive, `alive` the sessions of all nodes that are, as far as they hold consumers.

    `figures` are those of segments, `urls` those of living nodes by their sessions.
    """
    layout = records.decode_layout(state.topic.value)
    told = _layout(state.topic.name, layout, figures, {i: urls.get(s) for i, s in state.topic.owners.items()})
    total = _sum(figures.values())
    return ScalableTopicStats(
        layout=told,
        leader=None if leader is None else LeaderStats(leader.session, leader.pulsar_url, leader.http_url, leader.term),
        subscriptions={
            name: _subscription(found, alive, figures) for name, found in sorted(state.subscriptions.items())
        },
        msg_rate_in=total.messages_in,
        byte_rate_in=total.bytes_in,
        msg_rate_out=total.messages_out,
        byte_rate_out=total.bytes_out,
        average_msg_size=total.bytes_in / total.messages_in if total.messages_in else 0.0,
        storage_size=total.size,
        epoch=layout.epoch,
        total_segments=len(layout.segments),
        active_segments=len(layout.active),
        sealed_segments=len(layout.segments) - len(layout.active),
        segments={key: SegmentState(segment.name, segment.state) for key, segment in told.segments.items()},
    )


def _sum(figures: Collection[LogFigures]) -> LogFigures:
    return LogFigures(
        size=sum(found.size for found in figures),
        messages_in=sum(found.messages_in for found in figures),
        bytes_in=sum(found.bytes_in for found in figures),
        messages_out=sum(found.messages_out for found in figures),
        bytes_out=sum(found.bytes_out for found in figures),
    )


def _layout(
    topic: TopicName, layout: Layout, figures: Mapping[int, LogFigures], owners: Mapping[int, str | None]
) -> LayoutStats:
    nothing = LogFigures()
    return LayoutStats(
        layout.epoch,
        {
            str(segment.segment_id): SegmentStats(
                name=_segment_name(topic, segment),
                state=segment.state.value,
                parent_ids=list(segment.parent_ids),
                child_ids=list(segment.child_ids),
                entry_buckets=len(segment.entry_bucket_splits) + 1,
                owner_broker=owners.get(segment.segment_id),
                storage_size=(found := figures.get(segment.segment_id, nothing)).size,
                msg_rate_in=found.messages_in,
                byte_rate_in=found.bytes_in,
                msg_rate_out=found.messages_out,
                byte_rate_out=found.bytes_out,
            )
            for segment in layout.segments.values()
        },
    )


def _segment_name(topic: TopicName, segment: Segment) -> str:
    if segment.legacy_topic_name:
        return segment.legacy_topic_name
    return str(SegmentName(topic, segment.range.start, segment.range.end, segment.segment_id))


def _subscription(
    subscription: Subscription, alive: Collection[str], figures: Mapping[int, LogFigures]
) -> SubscriptionStats:
    consumers = [_consumer(consumer, alive) for _, consumer in sorted(subscription.consumers.items())]
    counts = Counter(segment_id for consumer in consumers for segment_id in consumer.segment_ids)
    backlogs = {segment_id: found.backlogs.get(subscription.name, 0) for segment_id, found in figures.items()}
    return SubscriptionStats(
        type=subscription.type.value,
        segments={
            str(segment_id): SubscriptionSegmentStats(
                msg_backlog=backlogs.get(segment_id, 0), consumer_count=counts.get(segment_id, 0)
            )
            for segment_id in sorted({*counts, *(key for key, backlog in backlogs.items() if backlog)})
        },
        consumers=consumers,
        msg_backlog=sum(backlogs.values()),
        consumer_count=len(consumers),
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
