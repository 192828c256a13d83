"""What there is to know about classic topics now, with the names that Pulsar's clients know."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from litestar import Controller, get

from gateway.http.classic import classic_topic
from gateway.http.client_stats import shown_time, total
from gateway.http.documentation import refusals
from gateway.http.path_names import OF_CLASSIC_TOPIC, TOPIC, TopicInPath
from gateway.http.ports import Ports
from gateway.http.schemas import (
    ClassicConsumerStats,
    ClassicSubscriptionStats,
    ClassicTopicStats,
    PartitionedStats,
    PartitionedTopicMetadata,
    PublisherStats,
)
from metadata.classic_records import ClassicLog, PartitionedTopic
from metadata.errors import TopicMissing
from metadata.log_figures import ConsumerFigures, LogFigures, ProducerFigures, SubscriptionFigures


class ClassicStatsRoutes(Controller):
    path = "/admin/v2/persistent"
    tags = ("classic topics",)
    dependencies = OF_CLASSIC_TOPIC

    @get(f"{TOPIC}/stats", summary="Read the statistics of a classic topic", responses=refusals(404, 412))
    async def read_stats(self, ports: Ports, name: TopicInPath) -> ClassicTopicStats:
        """Of one without partitions, or of one partition.

        What goes through it while another node has it is as that told it last: every `rebalance_interval`.
        """
        found = await classic_topic(ports, name)
        if not isinstance(found, ClassicLog):
            raise TopicMissing(f"{name} has partitions: ask for its partitioned-stats, or for those of a partition.")
        [figures] = await ports.segments.classic_figures([name], found.incarnation)
        return stats_of(figures)

    @get(
        f"{TOPIC}/partitioned-stats",
        summary="Read the statistics of a partitioned topic",
        responses=refusals(404, 412),
    )
    async def read_partitioned_stats(self, ports: Ports, name: TopicInPath) -> PartitionedStats:
        """Of all its partitions together, and of each."""
        found = await classic_topic(ports, name)
        if not isinstance(found, PartitionedTopic):
            raise TopicMissing(f"{name} has no partitions: ask for its stats.")
        figures = await ports.segments.classic_figures(found.logs, found.version.incarnation)
        parts = {str(log): stats_of(told) for log, told in zip(found.logs, figures, strict=True)}
        return PartitionedStats(
            **msgspec.structs.asdict(together(tuple(parts.values()))),
            metadata=PartitionedTopicMetadata(found.partitions, properties=dict(found.properties)),
            partitions=parts,
        )


def stats_of(figures: LogFigures) -> ClassicTopicStats:
    traffic = figures.traffic
    return ClassicTopicStats(
        msg_rate_in=traffic.messages_in,
        msg_throughput_in=traffic.bytes_in,
        msg_rate_out=traffic.messages_out,
        msg_throughput_out=traffic.bytes_out,
        average_msg_size=_average(traffic.bytes_in, traffic.messages_in),
        storage_size=figures.size,
        backlog_size=figures.largest_backlog_size,
        publishers=[_publisher(producer) for producer in traffic.producers],
        subscriptions={
            name: _subscription(name, figures, traffic.subscriptions.get(name, SubscriptionFigures()))
            for name in sorted(figures.backlogs)
        },
    )


def together(parts: Sequence[ClassicTopicStats]) -> ClassicTopicStats:
    """Producers and consumers have a part at each partition, of which all are told."""
    names = sorted({name for part in parts for name in part.subscriptions})
    rate, size = total(part.msg_rate_in for part in parts), total(part.msg_throughput_in for part in parts)
    return ClassicTopicStats(
        msg_rate_in=rate,
        msg_throughput_in=size,
        msg_rate_out=total(part.msg_rate_out for part in parts),
        msg_throughput_out=total(part.msg_throughput_out for part in parts),
        average_msg_size=_average(size, rate),
        storage_size=sum(part.storage_size for part in parts),
        backlog_size=sum(part.backlog_size for part in parts),
        publishers=[publisher for part in parts for publisher in part.publishers],
        subscriptions={
            name: _added([part.subscriptions[name] for part in parts if name in part.subscriptions]) for name in names
        },
    )


def _added(parts: Sequence[ClassicSubscriptionStats]) -> ClassicSubscriptionStats:
    return ClassicSubscriptionStats(
        type=next((part.type for part in parts if part.type is not None), None),
        msg_backlog=sum(part.msg_backlog for part in parts),
        backlog_size=sum(part.backlog_size for part in parts),
        msg_backlog_no_delayed=sum(part.msg_backlog_no_delayed for part in parts),
        msg_delayed=sum(part.msg_delayed for part in parts),
        delayed_message_count=sum(part.delayed_message_count for part in parts),
        unacked_messages=sum(part.unacked_messages for part in parts),
        msg_rate_out=total(part.msg_rate_out for part in parts),
        msg_throughput_out=total(part.msg_throughput_out for part in parts),
        msg_rate_redeliver=total(part.msg_rate_redeliver for part in parts),
        message_ack_rate=total(part.message_ack_rate for part in parts),
        consumers=[consumer for part in parts for consumer in part.consumers],
    )


def _subscription(name: str, figures: LogFigures, told: SubscriptionFigures) -> ClassicSubscriptionStats:
    return ClassicSubscriptionStats(
        type=told.kind or None,
        msg_backlog=figures.backlogs[name],
        backlog_size=figures.backlog_size(name),
        msg_backlog_no_delayed=max(0, figures.backlogs[name] - told.delayed),
        msg_delayed=told.delayed,
        delayed_message_count=told.delayed,
        unacked_messages=told.unacked,
        msg_rate_out=told.messages_out,
        msg_throughput_out=told.bytes_out,
        msg_rate_redeliver=told.redelivered,
        message_ack_rate=told.acked,
        consumers=[_consumer(consumer) for consumer in told.consumers],
    )


def _publisher(producer: ProducerFigures) -> PublisherStats:
    return PublisherStats(
        producer_name=producer.name,
        producer_id=producer.producer_id,
        access_mode=producer.mode,
        address=producer.address,
        connected_since=shown_time(producer.since_ms),
        msg_rate_in=producer.message_rate,
        msg_throughput_in=producer.byte_rate,
        average_msg_size=_average(producer.bytes, producer.messages),
        client_version=producer.client_version or None,
    )


def _consumer(consumer: ConsumerFigures) -> ClassicConsumerStats:
    return ClassicConsumerStats(
        consumer_name=consumer.name,
        address=consumer.address,
        connected_since=shown_time(consumer.since_ms),
        msg_rate_out=consumer.message_rate,
        msg_throughput_out=consumer.byte_rate,
        msg_out_counter=consumer.messages,
        bytes_out_counter=consumer.bytes,
        unacked_messages=consumer.unacked,
        available_permits=consumer.permits,
        client_version=consumer.client_version or None,
    )


def _average(size: float, messages: float) -> float:
    return round(size / messages, 3) if messages else 0.0
