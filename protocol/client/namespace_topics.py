"""What consumers of whole namespaces share: topics that join and leave, one place to take messages, acknowledging."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Set
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeAlias

import trio

from protocol.client.acks import AckGroup
from protocol.client.entries import ReceivedMessage
from protocol.client.errors import AlreadyClosed, RequestTimedOut, TooManyTopics, UnreadableMessage
from protocol.client.inbox import Inbox, InnerInbox, Intake
from protocol.client.matching_topics import (
    AnyConsumer,
    MatchingTopic,
    TopicEvent,
    TopicFailed,
    TopicJoined,
    TopicLeft,
    is_missing,
)
from protocol.client.message_ids import Edge, MessageId, scalable_topic_of
from protocol.client.namespaces import NamespaceWatch
from protocol.client.pool import ConnectionPool
from protocol.client.receive_buffer import ReceiveBudget
from protocol.client.segment_consumer import QUEUE_SIZE
from protocol.client.topic_sets import Change, NamespaceEvent, Snapshot
from protocol.errors import ProtocolError

OnTopic: TypeAlias = Callable[[TopicEvent], None]

# How long closing waits for all topics together, whose own waiting is shorter.
_CLOSE_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """What a namespace consumer takes upon itself, however many topics match."""

    topics: int = 10_000  # consumed at the same time; further ones wait until others leave
    openings: int = 32  # at the same time, and half as many once more for those that failed before
    queue_size: int = QUEUE_SIZE  # messages of a segment that wait to be taken
    total_queue_size: int = 10_000  # of all of them; beyond that each segment gets its share of it, at least one
    leave_timeout: float = 10.0  # for acknowledging what was taken from a topic that does not match any more


DEFAULT_LIMITS = NamespaceLimits()


@dataclass(frozen=True, slots=True)
class TopicWish:
    """What every topic is subscribed with."""

    subscription: str
    name: str | None
    initial_position: Edge
    joining_position: Edge
    confirm_acks: bool
    limits: NamespaceLimits
    on_topic: OnTopic = field(default=lambda _: None)


class NamespaceTopics(AsyncIterator[ReceivedMessage], ABC, Generic[AnyConsumer]):
    """What namespace consumers of both kinds share. Topics that have messages take turns, one message each.

    `ReceivedMessage.scalable_topic` tells which one a message came from. When a topic stops matching, messages of it
    that nobody has taken are left to others, and for those that were taken there is some time for acknowledging them.
    """

    def __init__(self, pool: ConnectionPool, tasks: trio.Nursery, namespace: str, wish: TopicWish) -> None:
        self.namespace = namespace
        self.failure: ProtocolError | None = None
        self._pool = pool
        self._tasks = tasks
        self._wish = wish
        self._leave_timeout = wish.limits.leave_timeout
        self._inbox = Inbox()
        self._budget = ReceiveBudget(wish.limits.total_queue_size, wish.limits.queue_size)
        self._topics: dict[str, MatchingTopic[AnyConsumer]] = {}
        self._waiting: dict[str, None] = {}  # those that match beyond the limit, oldest first
        self._openings = trio.CapacityLimiter(wish.limits.openings)
        # Apart, so that topics that hang hold nobody up who comes new.
        self._retries = trio.CapacityLimiter(max(1, wish.limits.openings // 2))
        self._all_left = trio.Event()

    # Taking

    async def receive(self) -> ReceivedMessage:
        """The next message. Raises UnreadableMessage for one that is damaged or not supported, and goes on after it."""
        try:
            message = await self._inbox.take()
        except UnreadableMessage as error:
            self._note_taken(error.message_id)
            raise
        self._note_taken(message.message_id)
        return message

    async def __anext__(self) -> ReceivedMessage:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    @property
    def topics(self) -> Set[str]:
        """Those that are consumed now."""
        return {topic.name for topic in self._topics.values() if topic.consumer is not None and topic.is_wanted}

    @property
    def failures(self) -> Mapping[str, ProtocolError]:
        """Those that match and are not consumed, with the reason; see TopicFailed for whether they are tried again."""
        failed = {
            topic.name: topic.failure
            for topic in self._topics.values()
            if topic.failure is not None and topic.consumer is None and topic.is_wanted
        }
        return failed | {name: self._too_many(name) for name in self._waiting}

    # Acknowledging

    async def ack(self, message: ReceivedMessage | MessageId) -> None:
        """Acknowledge one message, and wait until that is confirmed, or its topic is gone."""
        if (group := self.ack_soon(message)) is not None:
            await confirmed(group)

    def ack_soon(self, message: ReceivedMessage | MessageId) -> AckGroup | None:
        """The same without waiting; None if its topic, or the segment of it, is no longer consumed here."""
        consumer = self._consumer_of(message if isinstance(message, MessageId) else message.message_id)
        return None if consumer is None else consumer.ack_soon(message)

    async def flush_acks(self) -> None:
        """Until everything that was acknowledged is confirmed."""
        for consumer in self._consumers():
            try:
                await consumer.flush_acks()
            except ProtocolError as error:
                if not is_gone(error):
                    raise

    def redeliver(self, messages: Iterable[ReceivedMessage | MessageId] | None = None) -> None:
        """Ask for messages again: some, or all that were not acknowledged."""
        if messages is None:
            for consumer in self._consumers():
                consumer.redeliver()
            return
        wanted: dict[str, list[MessageId]] = {}
        for message in messages:
            message_id = message if isinstance(message, MessageId) else message.message_id
            wanted.setdefault(scalable_topic_of(message_id.topic), []).append(message_id)
        for message_ids in wanted.values():
            if (owner := self._consumer_of(message_ids[0])) is not None:
                owner.redeliver(message_ids)

    def _consumer_of(self, message_id: MessageId) -> AnyConsumer | None:
        topic = self._topics.get(scalable_topic_of(message_id.topic))
        return None if topic is None else topic.consumer

    def _consumers(self) -> list[AnyConsumer]:
        return [topic.consumer for topic in self._topics.values() if topic.consumer is not None]

    def _note_taken(self, message_id: MessageId) -> None:
        """Somebody has this message now."""

    # Topics that join and leave

    def _begin(self, first: NamespaceEvent) -> None:
        assert isinstance(first, Snapshot), "a watch begins with one"
        if len(first.topics) > self._wish.limits.topics:
            raise TooManyTopics(
                f"{len(first.topics)} topics of {self.namespace} match, and at most {self._wish.limits.topics} are"
                " consumed at the same time: narrow the filter, or raise the limit."
            )
        for name in sorted(first.topics):
            self._join(name, self._wish.initial_position)

    async def _follow(self, watch: NamespaceWatch) -> None:
        try:
            async for event in watch:
                self._apply(event)
        except ProtocolError as error:
            self._end(error)

    def _apply(self, event: NamespaceEvent) -> None:
        match event:
            case Snapshot(topics):
                removed = [
                    name
                    for name in (*self._topics, *self._waiting)
                    if name not in topics and (name in self._waiting or self._topics[name].is_wanted)
                ]
                added = [
                    name
                    for name in sorted(topics)
                    if name not in self._waiting and (name not in self._topics or not self._topics[name].is_wanted)
                ]
            case Change(came, went):
                removed, added = list(went), list(came)
        for name in removed:
            self._leave(name)
        for name in added:
            self._join(name, self._wish.joining_position)

    def _join(self, name: str, position: Edge) -> None:
        if self.failure is not None:
            return
        if (known := self._topics.get(name)) is not None:
            known.renew()
        elif len(self._topics) >= self._wish.limits.topics:
            self._waiting[name] = None
            self._wish.on_topic(TopicFailed(name, self._too_many(name)))
        else:
            topic = self._topics[name] = MatchingTopic[AnyConsumer](name, position)
            self._tasks.start_soon(self._hold, topic)

    def _leave(self, name: str) -> None:
        if name in self._waiting:
            del self._waiting[name]
        elif (topic := self._topics.get(name)) is not None:
            topic.leave()

    async def _hold(self, topic: MatchingTopic[AnyConsumer]) -> None:
        """The task of one topic."""
        while topic.is_wanted:
            try:
                with topic.begin() as stay:
                    await self._stay(topic)
                if stay.cancelled_caught and not topic.is_changed:
                    raise RequestTimedOut(f"{topic.name} could not be subscribed to in time.")
            except ProtocolError as error:
                if not topic.is_wanted:
                    break
                if topic.failed(error):
                    self._wish.on_topic(TopicFailed(topic.name, error))
                await topic.pause()
        topic.attempted.set()
        del self._topics[topic.name]
        if not self._topics:
            self._all_left.set()
        if self._waiting and self.failure is None:
            name = next(iter(self._waiting))
            del self._waiting[name]
            self._join(name, self._wish.joining_position)

    async def _stay(self, topic: MatchingTopic[AnyConsumer]) -> None:
        """Consume a topic once; raises why that is not possible, or no longer."""
        inbox = InnerInbox(self._inbox)
        async with AsyncExitStack() as stack:
            async with self._retries if topic.attempted.is_set() else self._openings:
                # The server has to tell the layout first, which no request of it waits for.
                topic.limit_opening(2 * self._pool.timeout)
                opening = self._open(topic, Intake(inbox, self._budget, tracks_unacked=True))
                consumer = await stack.enter_async_context(opening)
            topic.joined(consumer)
            topic.position = self._wish.joining_position  # where another topic of this name would begin
            self._wish.on_topic(TopicJoined(topic.name))
            try:
                await topic.wait_over(inbox)
                inbox.pause()
                if not topic.is_wanted:
                    with trio.move_on_after(self._leave_timeout):
                        await topic.wait_acked(inbox, consumer)
                if consumer.failure is not None:
                    raise consumer.failure.with_traceback(None)
            finally:
                topic.parted()
                if self.failure is None:
                    self._wish.on_topic(TopicLeft(topic.name))

    @abstractmethod
    def _open(self, topic: MatchingTopic[AnyConsumer], intake: Intake) -> AbstractAsyncContextManager[AnyConsumer]:
        """A consumer of this topic, which must be there: one that was deleted does not come back by being consumed."""

    def _too_many(self, name: str) -> TooManyTopics:
        return TooManyTopics(
            f"{name} is not consumed: {self._wish.limits.topics} other topics of {self.namespace} are."
            " Narrow the filter, or raise the limit."
        )

    # Beginning and ending

    async def _wait_attempted(self) -> None:
        """Until each topic of now is consumed or has failed; what takes too long is not waited for."""
        with trio.move_on_after(self._pool.timeout):
            for topic in list(self._topics.values()):
                await topic.attempted.wait()

    def _end(self, reason: ProtocolError) -> None:
        """Nothing more will come; the first reason counts."""
        if self.failure is None:
            self.failure = reason
            self._inbox.end(reason)

    async def _close(self) -> None:
        self._end(AlreadyClosed(f"The consumer of {self.namespace} was closed."))
        self._waiting.clear()
        self._leave_timeout = 0
        if self._topics:
            self._all_left = trio.Event()
            for topic in self._topics.values():
                topic.leave()
            with trio.move_on_after(_CLOSE_TIMEOUT):
                await self._all_left.wait()


async def confirmed(group: AckGroup) -> None:
    """Until an acknowledgement is confirmed. There is nothing to confirm any more where its topic is gone."""
    try:
        await group.wait()
    except ProtocolError as error:
        if not is_gone(error):
            raise


def is_gone(error: ProtocolError) -> bool:
    return isinstance(error, AlreadyClosed) or is_missing(error)
