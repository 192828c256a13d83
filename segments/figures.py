"""What an owner knows of the traffic of a log: the figures of its producers, its subscriptions and their consumers."""

from __future__ import annotations

from collections.abc import Iterable

from metadata.log_figures import MOST_CLIENTS, ConsumerFigures, ProducerFigures, SubscriptionFigures, Traffic
from segments.consumers import Consumer
from segments.open_log import OpenLog
from segments.producers import Producer
from segments.subscription import LogSubscription


def traffic_of(log: OpenLog, now: float) -> Traffic:
    """As it is now, rates to the thousandth; of many clients the first are named, and all are counted."""
    producers = log.sending.producers.all
    clients: list[Producer | Consumer] = [*producers, *log.consumers]
    return Traffic(
        len(producers),
        tuple(_producer(producer, now) for producer in producers[:MOST_CLIENTS]),
        _subscriptions(log.subscriptions.values(), now),
        *_rounded(log.meter_in.rates(now)),
        *_rounded(log.meter_out.rates(now)),
        len(clients),
        sum(client.is_managed for client in clients),
    )


def _producer(producer: Producer, now: float) -> ProducerFigures:
    return ProducerFigures(
        producer.name,
        producer.producer_id,
        producer.mode.shown,
        producer.address,
        producer.since_ms,
        producer.messages,
        producer.bytes,
        *_rounded(producer.pulse.rates(now, producer.messages, producer.bytes)),
        producer.client_version,
    )


def _subscriptions(subscriptions: Iterable[LogSubscription], now: float) -> dict[str, SubscriptionFigures]:
    found, named = {}, 0
    for subscription in subscriptions:
        figures = _subscription(subscription, now, MOST_CLIENTS - named)
        named += len(figures.consumers)
        if figures != _QUIET:
            found[subscription.name] = figures
    return found


_QUIET = SubscriptionFigures()


def _subscription(subscription: LogSubscription, now: float, most: int) -> SubscriptionFigures:
    consumers = subscription.consumers
    messages_out, bytes_out, redelivered, acked = subscription.rates(now)
    dispatcher = subscription.dispatcher
    unacked = [dispatcher.unacked(consumer) for consumer in consumers]
    return SubscriptionFigures(
        subscription.kind.value if consumers else "",
        sum(unacked),
        len(consumers),
        tuple(
            ConsumerFigures(
                consumer.name,
                consumer.consumer_id,
                consumer.address,
                consumer.since_ms,
                consumer.messages,
                consumer.bytes,
                held,
                max(0, dispatcher.permits(consumer)),
                *_rounded(consumer.pulse.rates(now, consumer.messages, consumer.bytes)),
                consumer.client_version,
            )
            for consumer, held in zip(consumers[:most], unacked, strict=False)
        ),
        *_rounded((messages_out, bytes_out)),
        *_rounded((redelivered, acked)),
        subscription.delayed,
    )


def _rounded(rates: tuple[float, float]) -> tuple[float, float]:
    return round(rates[0], 3), round(rates[1], 3)
