"""Consumers of all topics of a namespace that match: sharing messages with others, or each key in order."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import trio

from protocol.client.acks import AckGroup
from protocol.client.background import background
from protocol.client.consuming import queue_consumer
from protocol.client.entries import ReceivedMessage
from protocol.client.errors import RequestTimedOut
from protocol.client.inbox import Intake
from protocol.client.matching_topics import MatchingTopic
from protocol.client.message_ids import Edge, MessageId, scalable_topic_of
from protocol.client.namespace_topics import (
    DEFAULT_LIMITS,
    NamespaceLimits,
    NamespaceTopics,
    OnTopic,
    TopicWish,
    confirmed,
    is_gone,
)
from protocol.client.namespaces import follow_namespace
from protocol.client.pool import ConnectionPool
from protocol.client.streaming import StreamConsumer, stream_consumer
from protocol.client.topic_consumer import TopicConsumer
from protocol.errors import ProtocolError


class NamespaceConsumer(NamespaceTopics[TopicConsumer]):
    """Shares the messages of all topics with others. Made by `open_namespace_consumer`."""

    def _open(self, topic: MatchingTopic[TopicConsumer], intake: Intake) -> AbstractAsyncContextManager[TopicConsumer]:
        return queue_consumer(
            self._pool,
            topic.name,
            self._wish.subscription,
            intake,
            name=self._wish.name,
            initial_position=topic.position,
            confirm_acks=self._wish.confirm_acks,
            create_if_missing=False,
        )


class NamespaceStreamConsumer(NamespaceTopics[StreamConsumer]):
    """Gets each key of each topic in order. Made by `open_namespace_stream_consumer`."""

    def __init__(self, pool: ConnectionPool, tasks: trio.Nursery, namespace: str, wish: TopicWish) -> None:
        super().__init__(pool, tasks, namespace, wish)
        self._unacked: dict[str, None] = {}  # topics of which messages were taken that may not be acknowledged

    async def ack_cumulative(self, message: ReceivedMessage) -> None:
        """Acknowledge everything that was taken up to and with a message, of whichever topics; wait for it."""
        for group in self.ack_cumulative_soon(message):
            await confirmed(group)

    def ack_cumulative_soon(self, message: ReceivedMessage) -> list[AckGroup]:
        """The same without waiting."""
        groups = []
        for name in list(self._unacked):
            topic = self._topics.get(name)
            consumer = None if topic is None else topic.consumer
            if consumer is not None:
                groups += consumer.ack_cumulative_soon(message)
            if consumer is None or not consumer.unacked:
                del self._unacked[name]
        return groups

    @property
    def position(self) -> Mapping[str, MessageId]:
        """For each segment of each topic the last message that was taken from it, for `ack_position`."""
        return {segment: last for consumer in self._consumers() for segment, last in consumer.position.items()}

    async def ack_position(self, position: Mapping[str, MessageId]) -> None:
        """Acknowledge everything up to a position that was noted earlier; what is gone is left out."""
        parts: dict[str, dict[str, MessageId]] = {}
        for segment, message_id in position.items():
            parts.setdefault(scalable_topic_of(segment), {})[segment] = message_id
        for part in parts.values():
            if (consumer := self._consumer_of(next(iter(part.values())))) is not None:
                try:
                    await consumer.ack_position(part)
                except ProtocolError as error:
                    if not is_gone(error):
                        raise

    def _note_taken(self, message_id: MessageId) -> None:
        self._unacked[scalable_topic_of(message_id.topic)] = None

    def _open(
        self, topic: MatchingTopic[StreamConsumer], intake: Intake
    ) -> AbstractAsyncContextManager[StreamConsumer]:
        return stream_consumer(
            self._pool,
            topic.name,
            self._wish.subscription,
            intake,
            name=self._wish.name,
            initial_position=topic.position,
            confirm_acks=self._wish.confirm_acks,
            create_if_missing=False,
        )


AnyNamespaceConsumer = TypeVar("AnyNamespaceConsumer", NamespaceConsumer, NamespaceStreamConsumer)


@asynccontextmanager
async def open_namespace_consumer(
    pool: ConnectionPool,
    namespace: str,
    subscription: str,
    *,
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    initial_position: Edge = "latest",
    joining_position: Edge = "earliest",
    confirm_acks: bool = True,
    limits: NamespaceLimits = DEFAULT_LIMITS,
    on_topic: OnTopic = lambda _: None,
) -> AsyncIterator[NamespaceConsumer]:
    """Consume all topics of `tenant/namespace` that have all of these properties, together with other consumers.

    Returns when the topics of now are subscribed to. Those that match later begin at `joining_position` where they lack
    the subscription: by default with all their messages, since most of them are new. A topic that cannot be consumed is
    tried again and keeps nobody from the others; `on_topic` is told, as it is when topics join and leave.
    """
    wish = TopicWish(subscription, name, initial_position, joining_position, confirm_acks, limits, on_topic)
    async with _consuming(NamespaceConsumer, pool, namespace, properties, wish) as consumer:
        yield consumer


@asynccontextmanager
async def open_namespace_stream_consumer(
    pool: ConnectionPool,
    namespace: str,
    subscription: str,
    *,
    properties: Mapping[str, str] | None = None,
    name: str | None = None,
    initial_position: Edge = "latest",
    joining_position: Edge = "earliest",
    confirm_acks: bool = True,
    limits: NamespaceLimits = DEFAULT_LIMITS,
    on_topic: OnTopic = lambda _: None,
) -> AsyncIterator[NamespaceStreamConsumer]:
    """The same for those segments of each topic that its controller assigns to this consumer, each key in order.

    `name` is who the consumer is, at all topics: one that comes back under its name soon enough gets the same segments.
    """
    name = name or f"stream-{secrets.token_hex(4)}"
    wish = TopicWish(subscription, name, initial_position, joining_position, confirm_acks, limits, on_topic)
    async with _consuming(NamespaceStreamConsumer, pool, namespace, properties, wish) as consumer:
        yield consumer


@asynccontextmanager
async def _consuming(
    kind: type[AnyNamespaceConsumer],
    pool: ConnectionPool,
    namespace: str,
    properties: Mapping[str, str] | None,
    wish: TopicWish,
) -> AsyncIterator[AnyNamespaceConsumer]:
    async with background() as tasks, follow_namespace(pool, namespace, properties=properties) as watch:
        consumer = kind(pool, tasks, namespace, wish)
        try:
            with trio.move_on_after(pool.timeout) as waiting:
                first = await anext(watch)
            if waiting.cancelled_caught:
                raise RequestTimedOut(f"The topics of {namespace} were not told within {pool.timeout:g} s.")
            consumer._begin(first)
            tasks.start_soon(consumer._follow, watch)
            await consumer._wait_attempted()
            yield consumer
        finally:
            await consumer._close()
