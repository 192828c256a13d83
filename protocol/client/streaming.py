"""Consumers that divide the segments of a topic among them, and get every key in order."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from protocol.client.acks import AckGroup
from protocol.client.background import background
from protocol.client.entries import ReceivedMessage
from protocol.client.errors import AlreadyClosed, RequestTimedOut
from protocol.client.inbox import Inbox, Intake
from protocol.client.message_ids import Edge, MessageId
from protocol.client.plain_routes import plain_routes
from protocol.client.pool import ConnectionPool
from protocol.client.registration import Registration
from protocol.client.routes import Routes
from protocol.client.segment_consumer import QUEUE_SIZE, SegmentConsumer
from protocol.client.subscriptions import EXCLUSIVE, FAILOVER, KEY_SHARED, Subscription
from protocol.client.topic_consumer import SegmentKey, TopicConsumer
from protocol.errors import ProtocolError
from protocol.names import TOPIC, TopicName
from protocol.wire import pulsar_api_pb2 as api


@asynccontextmanager
async def open_stream_consumer(
    pool: ConnectionPool,
    topic: str,
    subscription: str,
    *,
    name: str | None = None,
    initial_position: Edge = "latest",
    queue_size: int = QUEUE_SIZE,
    confirm_acks: bool = True,
    create_if_missing: bool = True,
) -> AsyncIterator[StreamConsumer]:
    """Consume those segments of a `topic://` that its controller assigns, or the partitions of a `persistent://` topic.

    `name` is who the consumer is: one that comes back under its name soon enough gets the same segments. Segments that
    are assigned to another are left once everything that was taken from them is acknowledged.
    """
    async with stream_consumer(
        pool,
        topic,
        subscription,
        Intake(Inbox(), queue_size, tracks_unacked=True),
        name=name,
        initial_position=initial_position,
        confirm_acks=confirm_acks,
        create_if_missing=create_if_missing,
    ) as consumer:
        yield consumer


@asynccontextmanager
async def stream_consumer(
    pool: ConnectionPool,
    topic: str,
    subscription: str,
    intake: Intake,
    *,
    name: str | None,
    initial_position: Edge,
    confirm_acks: bool,
    create_if_missing: bool,
) -> AsyncIterator[StreamConsumer]:
    """The same as `open_stream_consumer`, for messages that may be taken together with those of others."""
    parsed = TopicName.parse(topic)
    name = name or f"stream-{secrets.token_hex(4)}"
    async with background() as tasks:
        consumer = StreamConsumer(
            pool,
            tasks,
            str(parsed),
            intake,
            Subscription(subscription, EXCLUSIVE, name, initial_position, creates_topic=create_if_missing),
            confirm_acks=confirm_acks,
        )
        try:
            if parsed.domain == TOPIC:
                await consumer._register(name, create_if_missing)
            else:
                await consumer._take_over(await plain_routes(pool, parsed, create_if_missing))
            yield consumer
        finally:
            await consumer._close()


class StreamConsumer(TopicConsumer):
    """Made by `open_stream_consumer`. Order holds for each key as long as messages are acknowledged as they come."""

    def __init__(
        self,
        pool: ConnectionPool,
        tasks: trio.Nursery,
        topic: str,
        intake: Intake,
        subscription: Subscription,
        *,
        confirm_acks: bool = True,
    ) -> None:
        super().__init__(pool, tasks, topic, intake, confirm_acks=confirm_acks)
        self.assignments = 0  # how often segments were assigned
        self._subscription = subscription
        self._registration: Registration | None = None
        self._releasing: dict[SegmentKey, trio.CancelScope] = {}
        self._segments_may_go = True

    @property
    def name(self) -> str:
        assert self._subscription.consumer_name is not None, "a name is made up where none is given"
        return self._subscription.consumer_name

    @property
    def assigned(self) -> set[str]:
        """The segments that the controller has assigned last."""
        return {topic for topic, _ in self._wanted}

    async def ack_cumulative(self, message: ReceivedMessage) -> None:
        """Acknowledge everything that was taken up to and with a message, in whichever segments; wait for it."""
        for group in self.ack_cumulative_soon(message):
            await group.wait()

    def ack_cumulative_soon(self, message: ReceivedMessage) -> list[AckGroup]:
        """The same without waiting."""
        groups = []
        for segment in list(self._segments.values()):
            last = segment.taken_through(message.taken)
            if last is not None and (group := segment.ack_through(last)) is not None:
                groups.append(group)
        return groups

    @property
    def position(self) -> Mapping[str, MessageId]:
        """For each segment the last message that was taken from it: everything so far, for `ack_position`."""
        return {
            segment.topic: segment.last_taken for segment in self._segments.values() if segment.last_taken is not None
        }

    async def ack_position(self, position: Mapping[str, MessageId]) -> None:
        """Acknowledge everything up to a position that was noted earlier; segments that are gone are left out."""
        groups = []
        for message_id in position.values():
            segment = self._segment_of(message_id)
            if segment is not None and (group := segment.ack_through(message_id)) is not None:
                groups.append(group)
        for group in groups:
            await group.wait()

    async def _register(self, name: str, create_if_missing: bool) -> None:
        self._registration = Registration(
            self._pool,
            self.topic,
            self._subscription.name,
            name,
            self._assign,
            self._registration_ended,
            create_if_missing=create_if_missing,
        )
        self._tasks.start_soon(self._registration.run)
        with trio.move_on_after(self._pool.timeout):
            await self._registration.wait_attached()
            return
        raise self._registration.last_error or RequestTimedOut(
            f"The controller of {self.topic} did not answer within {self._pool.timeout:g} s."
        )

    async def _take_over(self, routes: Routes) -> None:
        """Plain topics have no controller: of the consumers of a partition the server chooses one."""
        failover = replace(self._subscription, kind=FAILOVER)
        self._segments_may_go = False
        self._wanted = {(route.topic, ()): failover for route in routes.in_order}
        self._add_missing()
        await self._wait_attached()

    def _assign(self, assignment: api.ScalableConsumerAssignment) -> None:
        """For the registration: these segments are ours now, and no others."""
        self.assignments += 1
        self._retry.reset()
        self._wanted = dict(map(self._wish, assignment.segments))
        for key in [key for key in self._releasing if key in self._wanted]:
            self._releasing.pop(key).cancel()
            if (kept := self._segments.get(key)) is not None:
                kept.resume()
        self._add_missing()
        for key, segment in self._segments.items():
            if key not in self._wanted and key not in self._releasing and key not in self._leaving:
                segment.pause()
                scope = self._releasing[key] = trio.CancelScope()
                self._tasks.start_soon(self._release, key, segment, scope)

    def _wish(self, segment: api.ScalableAssignedSegment) -> tuple[SegmentKey, Subscription]:
        ranges = tuple((part.start, part.end) for part in segment.bucket_ranges)
        if not ranges:
            return (segment.segment_topic, ()), self._subscription
        shared = replace(self._subscription, kind=KEY_SHARED, key_ranges=ranges, by_entry_bucket=True)
        return (segment.segment_topic, ranges), shared

    async def _release(self, key: SegmentKey, segment: SegmentConsumer, scope: trio.CancelScope) -> None:
        """Leave a segment to its next owner, who can have it once everything that was taken is acknowledged."""
        with scope:
            await segment.wait_all_acked()
        if not scope.cancel_called:  # which means that it was assigned again
            self._releasing.pop(key, None)
            await self._drop(key)

    def _registration_ended(self, reason: ProtocolError) -> None:
        if not isinstance(reason, AlreadyClosed):
            self._end(reason)

    def _abandon(self, reason: ProtocolError) -> None:
        super()._abandon(reason)
        if self._registration is not None:
            self._registration.abandon(reason)

    async def _close(self) -> None:
        if self._registration is not None:
            await self._registration.close()
        await super()._close()
