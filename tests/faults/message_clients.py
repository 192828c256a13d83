"""Producers and consumers that go on whatever happens to the servers, and note down what they send, get and hear."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import trio

from protocol import client
from protocol.client.acks import AckGroup
from protocol.client.entries import ReceivedMessage
from protocol.client.errors import RequestTimedOut
from protocol.client.message_ids import MessageId
from protocol.client.topic_consumer import TopicConsumer
from protocol.errors import ProtocolError
from tests.faults.message_history import (
    AckConfirmed,
    AckSent,
    AnyEvent,
    Delivered,
    Due,
    Failed,
    Fault,
    History,
    Message,
    Place,
    Receipt,
    Sent,
    Sought,
    Subscription,
)

if TYPE_CHECKING:
    from protocol.client.subscriptions import SubscriptionType

# Requests and connections: longer than a busy machine needs, shorter than a run.
REQUEST_TIMEOUT: Final = 20.0
KEEP_ALIVE: Final = 2.0
# A message that takes longer is given up, which no fault should bring about.
SEND_TIMEOUT: Final = 90.0
# Between two attempts to open a consumer.
AGAIN: Final = 0.2
# Small, so that consumers run out of permits now and then.
QUEUE_SIZE: Final = 20
# How often a producer sends several messages of a key at once: as one entry, or one by one without a pause.
BATCHES, BATCH_SIZE = 0.1, 3
BURSTS, BURST_SIZE = 0.1, 20

OpenConsumer = Callable[[client.ConnectionPool], AbstractAsyncContextManager[TopicConsumer]]


class Recorder:
    """The history while it happens."""

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self._subscriptions = tuple(subscriptions)
        self._begun = trio.current_time()
        self._events: list[AnyEvent] = []
        self._due = {it.name: Due(it.name) for it in subscriptions}
        self.stored = 0  # messages that have a receipt
        self.unconfirmed = 0  # acknowledgements for whose confirmation somebody waits

    def note(self, event: AnyEvent) -> None:
        self._events.append(event)
        for due in self._due.values():
            due.note(event)
        if isinstance(event, Receipt):
            self.stored += 1

    def fault(self, what: str) -> None:
        self.note(Fault(self.now(), what))

    def now(self) -> float:
        return self.time_of(trio.current_time())

    def time_of(self, moment: float) -> float:
        """A moment of the loop's clock as the history has it."""
        return round(moment - self._begun, 6)

    @property
    def settled(self) -> int:
        """How much has come for the first time, which says whether anything goes on."""
        return sum(due.came for due in self._due.values())

    def missing(self) -> str:
        """What is still to come, in words; nothing if all of it has come and nobody waits for a confirmation."""
        left = [
            f"{name} lacks {len(lacking)} messages such as {min(lacking, key=str)}"
            for name, due in self._due.items()
            if (lacking := due.missing)
        ]
        if self.unconfirmed:
            left.append(f"{self.unconfirmed} acknowledgements are not confirmed")
        return "; ".join(left)

    def history(self) -> History:
        return History(self._subscriptions, tuple(self._events))


def pool_of(urls: Sequence[str], chance: random.Random) -> AbstractAsyncContextManager[client.ConnectionPool]:
    """Connections to all nodes, beginning with any of them."""
    return client.open_pool(
        chance.sample(urls, len(urls)), timeout=REQUEST_TIMEOUT, keep_alive=KEEP_ALIVE, client_version="tests"
    )


class Producer:
    """Sends messages under random keys until it is told to stop, and then waits for what became of them."""

    def __init__(self, recorder: Recorder, name: str, keys: Sequence[str], rate: float, chance: random.Random) -> None:
        self.name = name
        self._recorder = recorder
        self._keys = keys
        self._rate = rate
        self._chance = chance
        self._sent = 0
        self._stopping = trio.Event()
        self._pool: client.ConnectionPool | None = None

    def stop(self) -> None:
        self._stopping.set()

    def cut(self) -> None:
        """Lose all connections, with whatever is on its way."""
        _cut(self._pool)

    async def run(
        self, urls: Sequence[str], topic: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with (
            pool_of(urls, self._chance) as pool,
            client.open_producer(pool, topic, name=self.name, send_timeout=SEND_TIMEOUT) as producer,
            trio.open_nursery() as nursery,
        ):
            self._pool = pool
            task_status.started()
            while not self._stopping.is_set():
                await self._send_some(producer, nursery)
                with trio.move_on_after(self._chance.expovariate(self._rate)):
                    await self._stopping.wait()

    async def _send_some(self, producer: client.TopicProducer, nursery: trio.Nursery) -> None:
        key = self._chance.choice(self._keys)
        match self._chance.random():
            case x if x < BATCHES:
                batch = [self._next(key) for _ in range(BATCH_SIZE)]
                said = [client.Message(message.encode(), message.key) for message in batch]
                nursery.start_soon(self._await_outcome, batch, await producer.post_batch(said))
            case x:
                for _ in range(BURST_SIZE if x < BATCHES + BURSTS else 1):
                    message = self._next(key)
                    sending = await producer.post(client.Message(message.encode(), message.key))
                    nursery.start_soon(self._await_outcome, [message], sending)

    def _next(self, key: str) -> Message:
        message = Message(self.name, key, self._sent)
        self._sent += 1
        self._recorder.note(Sent(self._recorder.now(), message))
        return message

    async def _await_outcome(self, messages: Sequence[Message], sending: client.Sending) -> None:
        try:
            stored = await sending.wait()
        except ProtocolError as error:
            for message in messages:
                self._recorder.note(Failed(self._recorder.now(), message, str(error)))
            return
        for index, message in enumerate(messages):
            place = Place(stored.ledger, stored.index, index if sending.is_batch else -1)
            self._recorder.note(Receipt(self._recorder.now(), message, place if stored.is_known else None))


class Consumer:
    """Takes messages and acknowledges each in the same step; leaves and comes back when it is told to."""

    def __init__(
        self, recorder: Recorder, subscription: str, name: str, consuming: OpenConsumer, *, holds: float = 0.0
    ) -> None:
        """`holds`: for how long it keeps some messages before it acknowledges them, at most."""
        self.name = name
        self._recorder = recorder
        self._subscription = subscription
        self._consuming = consuming
        self._life = trio.CancelScope()
        self._leaving = trio.Event()
        self._pool: client.ConnectionPool | None = None
        self._consumer: TopicConsumer | None = None
        self._opened = _nothing
        self._stopping = False
        self._holds = holds
        self._wants_to_move = trio.Event()
        self._moves = 0
        self._is_moving = False
        self._taken: deque[MessageId] = deque(maxlen=200)

    def move(self) -> None:
        """Move the subscription to its beginning, or to a message that was taken; for one that has it to itself."""
        self._wants_to_move.set()

    def leave(self) -> None:
        """Close in order, and come back."""
        self._leaving.set()

    def drop(self) -> None:
        """Hang up without a word, and come back; not while it moves, or nobody knew whether it has."""
        if not self._is_moving:
            self._life.cancel()

    def cut(self) -> None:
        """Lose all connections, and go on with others."""
        _cut(self._pool)

    def stop(self) -> None:
        self._stopping = True
        self.leave()

    def standing(self) -> str:
        """Where it stands with each segment, for whoever looks for the reason why nothing comes."""
        if self._consumer is None:
            return f"{self.name} is not there"
        segments = (
            f"{segment.topic.rpartition('/')[2]} "
            f"{'attached' if segment.is_attached else f'not attached: {segment.last_error}'}"
            for segment in self._consumer._segments.values()
        )
        return f"{self.name} has {', '.join(segments) or 'nothing'}"

    async def run(self, urls: Sequence[str], chance: random.Random, *, task_status: trio.TaskStatus[None]) -> None:
        self._opened = task_status.started
        while not self._stopping:
            self._leaving = trio.Event()
            self._pool = self._consumer = None
            try:
                with trio.CancelScope() as self._life:
                    await self._live(urls, chance)
            except* ProtocolError as errors:
                if self._consumer is not None:
                    raise  # nothing that happens to servers ends a consumer
                self._recorder.fault(f"{self.name} cannot begin: {errors.exceptions[0]}")
                await trio.sleep(AGAIN)

    async def _live(self, urls: Sequence[str], chance: random.Random) -> None:
        async with (
            pool_of(urls, chance) as pool,
            # Around the consumer, whose end decides what became of its last acknowledgements.
            trio.open_nursery() as waiting,
            self._consuming(pool) as consumer,
        ):
            self._pool, self._consumer = pool, consumer
            self._opened()
            self._opened = _nothing
            while not self._leaving.is_set():
                async with trio.open_nursery() as taking:
                    taking.start_soon(self._take_all, consumer, waiting, chance)
                    taking.start_soon(_cancel_after, self._wants_to_move, taking.cancel_scope)
                    await self._leaving.wait()
                    taking.cancel_scope.cancel()
                if self._wants_to_move.is_set() and not self._leaving.is_set():
                    await self._move(consumer, chance)

    async def _move(self, consumer: TopicConsumer, chance: random.Random) -> None:
        self._wants_to_move = trio.Event()
        target = chance.choice(self._taken) if self._taken and chance.random() < 0.5 else None
        self._moves += 1  # what is confirmed from now on may be void
        self._is_moving = True
        try:
            while not await _sought(consumer, "earliest" if target is None else target):
                pass  # however long the servers take for it here
        finally:
            self._is_moving = False
        place = None if target is None else Place(target.ledger, target.index)
        self._recorder.note(Sought(self._recorder.now(), self._subscription, self.name, place))

    async def _take_all(self, consumer: TopicConsumer, waiting: trio.Nursery, chance: random.Random) -> None:
        async for message in consumer:
            where = message.message_id
            place = Place(where.ledger, where.index, where.batch_index)
            said = Message.decode(message.value)
            segment = consumer._segment_of(where)
            asked_at = None if segment is None else self._recorder.time_of(segment.asked_at)
            self._recorder.note(Delivered(self._recorder.now(), self._subscription, self.name, said, place, asked_at))
            self._taken.append(where)
            if self._holds and segment is not None and chance.random() < 0.5:
                waiting.start_soon(self._acknowledge_later, consumer, message, place, segment.asked_at, waiting, chance)
                continue
            # In the same step: what is taken and not acknowledged when the segment moves comes again, and an
            # acknowledgement of the first copy could then be confirmed while the second one waits to be taken.
            self._acknowledge_now(consumer, message, place, asked_at, waiting)

    async def _acknowledge_later(
        self,
        consumer: TopicConsumer,
        message: ReceivedMessage,
        place: Place,
        asked_at: float,
        waiting: trio.Nursery,
        chance: random.Random,
    ) -> None:
        """Unless it has another stay by then, in which the message comes again."""
        await trio.sleep(chance.uniform(0, self._holds))
        segment = consumer._segment_of(message.message_id)
        if segment is not None and segment.is_attached and segment.asked_at == asked_at:
            self._acknowledge_now(consumer, message, place, self._recorder.time_of(asked_at), waiting)

    def _acknowledge_now(
        self,
        consumer: TopicConsumer,
        message: ReceivedMessage,
        place: Place,
        asked_at: float | None,
        waiting: trio.Nursery,
    ) -> None:
        for group in self._acknowledge(consumer, message):
            self._recorder.note(AckSent(self._recorder.now(), self._subscription, self.name, place, asked_at))
            waiting.start_soon(self._await_confirmation, group, place, self._moves)

    def _acknowledge(self, consumer: TopicConsumer, message: ReceivedMessage) -> list[AckGroup]:
        """What confirms it; nothing if its segment is another consumer's by now."""
        if isinstance(consumer, client.StreamConsumer) and message.message_id.index % 2:
            return consumer.ack_cumulative_soon(message)
        group = consumer.ack_soon(message)
        return [] if group is None else [group]

    async def _await_confirmation(self, group: AckGroup, place: Place, moves: int) -> None:
        self._recorder.unconfirmed += 1
        try:
            await group.wait()
            if moves == self._moves:
                self._recorder.note(AckConfirmed(self._recorder.now(), self._subscription, self.name, place))
        except ProtocolError:
            pass  # the message comes again, here or elsewhere
        finally:
            self._recorder.unconfirmed -= 1


async def _sought(consumer: TopicConsumer, to: MessageId | Literal["earliest"]) -> bool:
    try:
        await consumer.seek(to)
    except RequestTimedOut:
        return False
    return True


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _nothing() -> None:
    pass


def _cut(pool: client.ConnectionPool | None) -> None:
    if pool is not None:
        for connection in pool.connections:
            connection.close()


def stream_consumer(recorder: Recorder, topic: str, subscription: Subscription, name: str) -> Consumer:
    @asynccontextmanager
    async def consuming(pool: client.ConnectionPool) -> AsyncIterator[TopicConsumer]:
        async with client.open_stream_consumer(
            pool, topic, subscription.name, name=name, initial_position="earliest", queue_size=QUEUE_SIZE
        ) as consumer:
            yield consumer

    return Consumer(recorder, subscription.name, name, consuming)


def queue_consumer(
    recorder: Recorder,
    topic: str,
    subscription: Subscription,
    name: str,
    kind: SubscriptionType = client.SHARED,
    *,
    holds: float = 0.0,
) -> Consumer:
    consuming = partial(
        client.open_consumer,
        topic=topic,
        subscription=subscription.name,
        kind=kind,
        name=name,
        initial_position="earliest",
        queue_size=QUEUE_SIZE,
    )
    return Consumer(recorder, subscription.name, name, consuming, holds=holds)
