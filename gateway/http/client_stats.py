"""The clients of a topic, put together from what each of its segments knows of them: there they have one part each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

from gateway.http.schemas import ConsumerStats, ProducerStats
from metadata.log_figures import ConsumerFigures, LogFigures, ProducerFigures
from metadata.subscriptions import Consumer, Subscription


def producers_of(figures: Mapping[int, LogFigures]) -> list[ProducerStats]:
    """By name, each once."""
    parts: dict[str, list[tuple[int, ProducerFigures]]] = {}
    for segment_id, found in figures.items():
        for producer in found.traffic.producers:
            parts.setdefault(_whole_name(producer.name, segment_id), []).append((segment_id, producer))
    return [_producer(name, some) for name, some in sorted(parts.items())]


def _producer(name: str, parts: list[tuple[int, ProducerFigures]]) -> ProducerStats:
    messages, size = sum(it.messages for _, it in parts), sum(it.bytes for _, it in parts)
    first = parts[0][1]
    return ProducerStats(
        producer_name=name,
        msg_rate_in=total(it.message_rate for _, it in parts),
        byte_rate_in=total(it.byte_rate for _, it in parts),
        average_msg_size=round(size / messages, 3) if messages else 0.0,
        access_mode=first.mode,
        address=first.address,
        connected_since=shown_time(min(it.since_ms for _, it in parts)),
        client_version=first.client_version or None,
        segment_ids=sorted({segment_id for segment_id, _ in parts}),
        msg_in_counter=messages,
        bytes_in_counter=size,
    )


def consumers_of(
    subscription: Subscription, alive: Collection[str], figures: Mapping[int, LogFigures]
) -> list[ConsumerStats]:
    """Those that are registered, and those that have segments open without being so, as a queue's have."""
    parts: dict[str, list[tuple[int, ConsumerFigures]]] = {}
    for segment_id, found in figures.items():
        told = found.traffic.subscriptions.get(subscription.name)
        for consumer in told.consumers if told is not None else ():
            parts.setdefault(_whole_name(consumer.name, segment_id), []).append((segment_id, consumer))
    there = [_registered(it, alive, parts.pop(name, [])) for name, it in sorted(subscription.consumers.items())]
    return there + [_unregistered(name, some) for name, some in sorted(parts.items())]


def _registered(consumer: Consumer, alive: Collection[str], parts: list[tuple[int, ConsumerFigures]]) -> ConsumerStats:
    attachment = consumer.attachment
    is_connected = attachment.node in alive
    return _consumer(
        consumer.name,
        parts,
        connected=is_connected,
        segment_ids=[] if consumer.assignment is None else list(consumer.assignment.segment_ids),
        address=attachment.address,
        connected_since=shown_time(attachment.since_ms) if is_connected else None,
    )


def _unregistered(name: str, parts: list[tuple[int, ConsumerFigures]]) -> ConsumerStats:
    return _consumer(
        name,
        parts,
        connected=True,
        segment_ids=sorted({segment_id for segment_id, _ in parts}),
        address=parts[0][1].address,
        connected_since=shown_time(min(it.since_ms for _, it in parts)),
    )


def _consumer(
    name: str,
    parts: list[tuple[int, ConsumerFigures]],
    *,
    connected: bool,
    segment_ids: list[int],
    address: str,
    connected_since: str | None,
) -> ConsumerStats:
    return ConsumerStats(
        consumer_name=name,
        connected=connected,
        segment_ids=segment_ids,
        address=address,
        connected_since=connected_since,
        msg_rate_out=total(it.message_rate for _, it in parts),
        byte_rate_out=total(it.byte_rate for _, it in parts),
        unacked_messages=sum(it.unacked for _, it in parts),
        available_permits=sum(it.permits for _, it in parts),
        client_version=next((it.client_version for _, it in parts if it.client_version), None),
    )


def total(rates: Iterable[float]) -> float:
    """Without the last digits that adding makes up."""
    return round(sum(rates), 3)


def shown_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _whole_name(name: str, segment_id: int) -> str:
    """Clients name what they have open at a segment after the whole, some with the segment behind it."""
    return name.removesuffix(f"-seg-{segment_id}")
