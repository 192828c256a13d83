"""Consumers that share messages with others, and readers: of every segment there is, or of plain topics."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from protocol.client.background import background
from protocol.client.errors import ServerRefused
from protocol.client.inbox import Inbox, Intake
from protocol.client.message_ids import Edge, MessageId
from protocol.client.plain_routes import plain_routes
from protocol.client.pool import ConnectionPool
from protocol.client.routes import MANAGED, Route, all_routes
from protocol.client.segment_consumer import QUEUE_SIZE
from protocol.client.subscriptions import EXCLUSIVE, SHARED, Start, Subscription
from protocol.client.topic_consumer import TopicConsumer
from protocol.client.watches import TopicWatch, start_following
from protocol.errors import ProtocolError
from protocol.names import TOPIC, TopicName
from protocol.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from protocol.client.subscriptions import SubscriptionType


# What to subscribe to for a segment, and for one that was not there when the consumer was opened.
SubscriptionOf: TypeAlias = Callable[[Route, bool], Subscription]


class QueueConsumer(TopicConsumer):
    """Consumes all segments of a topic, sealed ones too, and follows its layout. Made by `open_consumer`."""

    def _apply(
        self, update: api.CommandScalableTopicUpdate, subscription_of: SubscriptionOf, *, is_first: bool = False
    ) -> None:
        known = self._wanted
        routes = {(route.topic, ()): route for route, _ in all_routes(update)}
        self._wanted = {key: known.get(key) or subscription_of(route, not is_first) for key, route in routes.items()}
        self._add_missing()
        for key in self._segments:
            if key not in self._wanted:
                self._tasks.start_soon(self._drop, key)

    async def _follow(self, watch: TopicWatch, subscription_of: SubscriptionOf) -> None:
        try:
            async for update in watch:
                if update.HasField("error"):
                    raise ServerRefused(update.error, update.message)
                self._retry.reset()
                self._apply(update, subscription_of)
        except ProtocolError as error:
            self._end(error)


@asynccontextmanager
async def open_consumer(
    pool: ConnectionPool,
    topic: str,
    subscription: str,
    *,
    kind: SubscriptionType = SHARED,
    name: str | None = None,
    initial_position: Edge = "latest",
    queue_size: int = QUEUE_SIZE,
    confirm_acks: bool = True,
    create_if_missing: bool = True,
) -> AsyncIterator[TopicConsumer]:
    """Consume a `topic://` with all its segments, a `persistent://` topic with its partitions, or one `segment://`.

    With any type of subscription: who wants the segments of a scalable topic in order and divided among consumers takes
    `open_stream_consumer` instead. Returns when all segments are subscribed to.
    """
    async with queue_consumer(
        pool,
        topic,
        subscription,
        Intake(Inbox(), queue_size),
        kind=kind,
        name=name,
        initial_position=initial_position,
        confirm_acks=confirm_acks,
        create_if_missing=create_if_missing,
    ) as consumer:
        yield consumer


@asynccontextmanager
async def queue_consumer(
    pool: ConnectionPool,
    topic: str,
    subscription: str,
    intake: Intake,
    *,
    kind: SubscriptionType = SHARED,
    name: str | None,
    initial_position: Edge,
    confirm_acks: bool,
    create_if_missing: bool,
) -> AsyncIterator[TopicConsumer]:
    """The same as `open_consumer`, for messages that may be taken together with those of others."""

    def subscription_of(route: Route, _: bool) -> Subscription:
        # Segments that come later begin at their start whatever is asked for: the server sees to that.
        consumer_name = name
        if name is not None and route.segment_id is not None:
            consumer_name = f"{name}-seg-{route.segment_id}"
        return Subscription(
            subscription,
            kind,
            consumer_name,
            initial_position,
            metadata=_metadata(route),
            creates_topic=create_if_missing,
        )

    async with _consuming(pool, topic, subscription_of, intake, confirm_acks, create_if_missing) as consumer:
        yield consumer


@asynccontextmanager
async def open_reader(
    pool: ConnectionPool,
    topic: str,
    *,
    start: Edge | MessageId = "earliest",
    is_inclusive: bool = False,
    queue_size: int = QUEUE_SIZE,
    create_if_missing: bool = True,
) -> AsyncIterator[TopicConsumer]:
    """Read a topic of any kind without a subscription that would remain. Nothing is acknowledged.

    From a message on, `is_inclusive` or after it, in the segment that it is in; the other segments from their start.
    """
    reader_name = f"reader-{secrets.token_hex(5)}"

    def subscription_of(route: Route, is_new: bool) -> Subscription:
        at: Edge | MessageId = start
        if is_new or (isinstance(start, MessageId) and start.topic != route.topic):
            at = "earliest"
        return Subscription(reader_name, EXCLUSIVE, start=Start(at, is_inclusive), metadata=_metadata(route))

    intake = Intake(Inbox(), queue_size)
    async with _consuming(pool, topic, subscription_of, intake, False, create_if_missing) as consumer:
        yield consumer


@asynccontextmanager
async def _consuming(
    pool: ConnectionPool,
    topic: str,
    subscription_of: SubscriptionOf,
    intake: Intake,
    confirm_acks: bool,
    create_if_missing: bool,
) -> AsyncIterator[TopicConsumer]:
    parsed = TopicName.parse(topic)
    name = str(parsed)
    async with background() as tasks:
        if parsed.domain == TOPIC:
            consumer: TopicConsumer
            consumer = queue = QueueConsumer(pool, tasks, name, intake, confirm_acks=confirm_acks)
            consumer._segments_may_go = True
            watch = await start_following(tasks, pool, name, create_if_missing=create_if_missing)
            queue._apply(await anext(watch), subscription_of, is_first=True)
            tasks.start_soon(queue._follow, watch, subscription_of)
        else:
            consumer = TopicConsumer(pool, tasks, name, intake, confirm_acks=confirm_acks)
            routes = await plain_routes(pool, parsed, create_if_missing)
            consumer._wanted = {(route.topic, ()): subscription_of(route, False) for route in routes.in_order}
            consumer._add_missing()
        try:
            await consumer._wait_attached()
            yield consumer
        finally:
            await consumer._close()


def _metadata(route: Route) -> Mapping[str, str]:
    return MANAGED if route.is_legacy else {}
