"""What all consumers of topics share: segments that come and go, one place to take messages, and acknowledging."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import TypeAlias

import trio

from protocol.backoff import Backoff
from protocol.client.acks import AckGroup
from protocol.client.entries import ReceivedMessage
from protocol.client.errors import AlreadyClosed, RequestTimedOut, ServerRefused, SubscriptionDeleted
from protocol.client.inbox import Intake
from protocol.client.message_ids import Edge, MessageId
from protocol.client.pool import ConnectionPool
from protocol.client.segment_consumer import SegmentConsumer
from protocol.client.subscriptions import Subscription
from protocol.errors import ProtocolError
from protocol.wire import pulsar_api_pb2 as api

# A topic on the wire, and the ranges of it that are taken where that is not all.
SegmentKey: TypeAlias = tuple[str, tuple[tuple[int, int], ...]]
# How long closing waits for acknowledgements to be confirmed; what is not will be delivered again.
_FLUSH_TIMEOUT = 5.0


class TopicConsumer(AsyncIterator[ReceivedMessage]):
    """Iterates over the messages of all its segments. Any number of tasks may use it.

    Messages come at least once: those that are not acknowledged come again after a lost connection.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        tasks: trio.Nursery,
        topic: str,
        intake: Intake,
        *,
        confirm_acks: bool = True,
    ) -> None:
        self.topic = topic
        self.failure: ProtocolError | None = None
        self._pool = pool
        self._tasks = tasks
        self._intake = intake
        self._inbox = intake.inbox
        self._wanted: dict[SegmentKey, Subscription] = {}  # what should be consumed
        self._segments: dict[SegmentKey, SegmentConsumer] = {}
        self._leaving: set[SegmentKey] = set()  # those of them that are about to go
        self._confirm_acks = confirm_acks
        # Whether segments may be gone before that is told: they are given up then, and not the consumer.
        self._segments_may_go = False
        self._retry = Backoff()

    # Taking

    async def receive(self) -> ReceivedMessage:
        """The next message. Raises UnreadableMessage for one that is damaged or not supported, and goes on after it."""
        return await self._inbox.take()

    def receive_nowait(self) -> ReceivedMessage | None:
        """The next message if one is there already."""
        return self._inbox.take_nowait()

    async def __anext__(self) -> ReceivedMessage:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    @property
    def segments(self) -> Sequence[str]:
        """The topics on the wire that are consumed now, attached or about to be."""
        return [segment.topic for segment in self._segments.values()]

    @property
    def attaches(self) -> int:
        """How often the segments of now were attached to their owners."""
        return sum(segment.attaches for segment in self._segments.values())

    # Acknowledging

    async def ack(self, message: ReceivedMessage | MessageId) -> None:
        """Acknowledge one message, and wait until that is confirmed."""
        if (group := self.ack_soon(message)) is not None:
            await group.wait()

    def ack_soon(self, message: ReceivedMessage | MessageId) -> AckGroup | None:
        """Acknowledge one message without waiting; None if its segment is no longer consumed here."""
        message_id = _id_of(message)
        segment = self._segment_of(message_id)
        return None if segment is None else segment.ack(message_id)

    @property
    def unacked(self) -> int:
        """How many messages were taken and not acknowledged, where the intake notes them."""
        return sum(segment.unacked for segment in self._segments.values())

    async def wait_all_acked(self) -> None:
        """Until all that were taken are acknowledged, or belong to segments that are gone."""
        while waiting := [segment for segment in self._segments.values() if segment.unacked]:
            await waiting[0].wait_all_acked()

    async def flush_acks(self) -> None:
        """Until everything that was acknowledged is confirmed."""
        for segment in list(self._segments.values()):
            await segment.flush_acks()

    def redeliver(self, messages: Iterable[ReceivedMessage | MessageId] | None = None) -> None:
        """Ask for messages again: some, or all that were not acknowledged."""
        if messages is None:
            for segment in self._segments.values():
                segment.redeliver()
            return
        wanted: dict[str, list[MessageId]] = {}
        for message_id in map(_id_of, messages):
            wanted.setdefault(message_id.topic, []).append(message_id)
        for message_ids in wanted.values():
            if (owner := self._segment_of(message_ids[0])) is not None:
                owner.redeliver(message_ids)

    # Moving, and asking

    async def seek(self, to: Edge | MessageId | int) -> None:
        """Move to an edge or a time (in milliseconds) in all segments, or to a message in the one that it is in."""
        for segment in list(self._segments.values()):
            if not isinstance(to, MessageId) or to.topic == segment.topic:
                await segment.seek(to)

    async def last_message_ids(self) -> dict[str, MessageId]:
        """The last message of each segment; its index is -1 where there is none."""
        return {segment.topic: await segment.last_message_id() for segment in list(self._segments.values())}

    async def unsubscribe(self) -> None:
        """Remove the subscription itself."""
        for segment in list(self._segments.values()):
            await segment.unsubscribe()
        self._end(AlreadyClosed(f"The consumer of {self.topic} was unsubscribed."))

    # Segments that come and go

    def _add_missing(self) -> None:
        for key, subscription in self._wanted.items():
            if key in self._segments or self.failure is not None:
                continue
            segment = self._segments[key] = SegmentConsumer(
                self._pool,
                key[0],
                subscription,
                self._intake,
                self._segment_ended,
                confirm_acks=self._confirm_acks,
            )
            self._tasks.start_soon(segment.run)

    async def _wait_attached(self) -> None:
        """Until all segments of now are attached; raises what keeps one of them from it."""
        with trio.move_on_after(self._pool.timeout):
            for segment in list(self._segments.values()):
                try:
                    await segment.wait_attached()
                except ProtocolError:
                    self._check()  # or it is a segment that is not needed
            return
        for segment in self._segments.values():
            if not segment.is_attached:
                raise segment.last_error or RequestTimedOut(
                    f"{segment.topic} could not be subscribed to within {self._pool.timeout:g} s."
                )

    async def _drop(self, key: SegmentKey) -> None:
        """Leave a segment, after what was acknowledged is confirmed."""
        segment = self._segments.get(key)
        if segment is None or key in self._leaving:
            return
        self._leaving.add(key)
        segment.pause()
        try:
            with trio.move_on_after(_FLUSH_TIMEOUT):
                await segment.flush_acks()
        except ProtocolError:
            pass  # it was told to who acknowledged
        finally:
            self._leaving.discard(key)
            self._segments.pop(key, None)
            await segment.close()
            self._add_missing()  # if it is wanted again meanwhile

    def _segment_ended(self, segment: SegmentConsumer, reason: ProtocolError) -> None:
        """For a segment: it is over."""
        wanted = False
        for key in [key for key, known in self._segments.items() if known is segment]:
            del self._segments[key]
            wanted = wanted or key in self._wanted
        is_missing = isinstance(reason, ServerRefused) and reason.server_error == api.TopicNotFound
        if isinstance(reason, SubscriptionDeleted) and not wanted:
            return  # or its segment was, of which nothing more is wanted
        if is_missing and self._segments_may_go and not isinstance(reason, SubscriptionDeleted):
            # It was pruned, which will be told; or it is about to be created again.
            self._tasks.start_soon(self._look_again)
        elif not isinstance(reason, AlreadyClosed):
            self._end(reason)

    async def _look_again(self) -> None:
        await trio.sleep(self._retry.next())
        self._add_missing()

    def _segment_of(self, message_id: MessageId) -> SegmentConsumer | None:
        segment = self._segments.get((message_id.topic, ()))
        if segment is None:
            segment = next((known for known in self._segments.values() if known.topic == message_id.topic), None)
        return segment

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def _end(self, reason: ProtocolError) -> None:
        """Nothing more will come; the first reason counts."""
        if self.failure is None:
            self.failure = reason
            self._inbox.end(reason)
            if isinstance(reason, SubscriptionDeleted):
                self._abandon(reason)

    def _abandon(self, reason: ProtocolError) -> None:
        """Leave everything at once: whoever asked for another place would make the deleted subscription anew."""
        for segment in list(self._segments.values()):
            segment.abandon(reason)

    async def _close(self) -> None:
        self._end(AlreadyClosed(f"The consumer of {self.topic} was closed."))
        async with trio.open_nursery() as nursery:
            for key in list(self._segments):
                nursery.start_soon(self._drop, key)


def _id_of(message: ReceivedMessage | MessageId) -> MessageId:
    return message if isinstance(message, MessageId) else message.message_id
