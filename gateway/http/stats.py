"""What there is to know about a topic now: its layout, its leader, its subscriptions and their consumers.

Built from one look at the store, so that any node gives the same answer and none an old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from litestar import Controller, get

from gateway.http.client_stats import consumers_of, producers_of, total
from gateway.http.documentation import refusals
from gateway.http.path_names import OF_TOPIC, TOPIC, TopicInPath
from gateway.http.ports import Ports
from gateway.http.schemas import (
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
from metadata.log_figures import LogFigures, SubscriptionFigures
from metadata.records import Leader
from metadata.subscriptions import Subscription, TopicState
from protocol.names import SegmentName, TopicName


class StatsRoutes(Controller):
    path = "/admin/v2/scalable"
    tags = ("scalable topics",)
    dependencies = OF_TOPIC

    @get(f"{TOPIC}/stats", summary="Read a topic's statistics", responses=refusals(404, 412))
    async def read_stats(self, ports: Ports, name: TopicInPath) -> ScalableTopicStats:
        """From the store, by whichever node is asked.

        What goes through segments of other nodes, and who is at them, is as their owners told it last: every
        `rebalance_interval`, or when they gave a segment up.

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
            {found.name: found.registration for found in state.subscriptions.values() if found.type.is_durable},
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
    traffic = [found.traffic for found in figures.values()]
    messages_in, bytes_in = total(it.messages_in for it in traffic), total(it.bytes_in for it in traffic)
    return ScalableTopicStats(
        layout=told,
        leader=None if leader is None else LeaderStats(leader.session, leader.pulsar_url, leader.http_url, leader.term),
        subscriptions={
            name: _subscription(found, alive, figures) for name, found in sorted(state.subscriptions.items())
        },
        producers=producers_of(figures),
        msg_rate_in=messages_in,
        byte_rate_in=bytes_in,
        msg_rate_out=total(it.messages_out for it in traffic),
        byte_rate_out=total(it.bytes_out for it in traffic),
        average_msg_size=round(bytes_in / messages_in, 3) if messages_in else 0.0,
        storage_size=sum(found.size for found in figures.values()),
        backlog_size=sum(found.largest_backlog_size for found in figures.values()),
        epoch=layout.epoch,
        total_segments=len(layout.segments),
        active_segments=len(layout.active),
        sealed_segments=len(layout.segments) - len(layout.active),
        segments={key: SegmentState(segment.name, segment.state) for key, segment in told.segments.items()},
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
                backlog_size=found.largest_backlog_size,
                msg_rate_in=found.traffic.messages_in,
                byte_rate_in=found.traffic.bytes_in,
                msg_rate_out=found.traffic.messages_out,
                byte_rate_out=found.traffic.bytes_out,
                producer_count=found.traffic.producer_count,
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
    name = subscription.name
    consumers = consumers_of(subscription, alive, figures)
    assigned = Counter(segment_id for consumer in consumers for segment_id in consumer.segment_ids)
    segments = {
        segment_id: _of_segment(name, found, assigned.get(segment_id, 0)) for segment_id, found in figures.items()
    }
    nothing = SubscriptionSegmentStats()
    # Assigned to somebody, but pruned meanwhile.
    segments |= {gone: SubscriptionSegmentStats(consumer_count=assigned[gone]) for gone in assigned.keys() - figures}
    return SubscriptionStats(
        type=None if subscription.is_open else subscription.type.value,
        segments={str(segment_id): it for segment_id, it in sorted(segments.items()) if it != nothing},
        consumers=consumers,
        drained_segment_ids=sorted(subscription.drained),
        msg_backlog=sum(it.msg_backlog for it in segments.values()),
        backlog_size=sum(it.backlog_size for it in segments.values()),
        delayed_message_count=sum(it.delayed_message_count for it in segments.values()),
        unacked_messages=sum(it.unacked_messages for it in segments.values()),
        msg_rate_out=total(it.msg_rate_out for it in segments.values()),
        byte_rate_out=total(it.byte_rate_out for it in segments.values()),
        msg_rate_redeliver=total(it.msg_rate_redeliver for it in segments.values()),
        message_ack_rate=total(it.message_ack_rate for it in segments.values()),
        consumer_count=len(consumers),
    )


def _of_segment(subscription: str, found: LogFigures, assigned: int) -> SubscriptionSegmentStats:
    told = found.traffic.subscriptions.get(subscription, SubscriptionFigures())
    return SubscriptionSegmentStats(
        msg_backlog=found.backlogs.get(subscription, 0),
        backlog_size=found.backlog_size(subscription),
        delayed_message_count=told.delayed,
        unacked_messages=told.unacked,
        msg_rate_out=told.messages_out,
        byte_rate_out=told.bytes_out,
        msg_rate_redeliver=told.redelivered,
        message_ack_rate=told.acked,
        # Of very many not all are known by name.
        consumer_count=max(assigned, told.consumer_count),
    )
