"""Producers on whole topics: every message finds its segment, also while segments split, merge and move.

Messages with the same key are stored in the order in which they were accepted. A segment that was sealed returns what
it did not take, and no newer message of its keys passes by until that is settled.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from protocol.backoff import Backoff
from protocol.client.background import background
from protocol.client.errors import AlreadyClosed, MixedBatch, RequestTimedOut, ServerRefused
from protocol.client.message_ids import MessageId
from protocol.client.outgoing import Message
from protocol.client.plain_routes import plain_routes
from protocol.client.pool import ConnectionPool
from protocol.client.routes import MANAGED, Route, Routes, active_routes
from protocol.client.segment_producer import SegmentProducer
from protocol.client.sending import MAX_PENDING, MAX_PENDING_BYTES, SEND_TIMEOUT, Sending, Window
from protocol.client.watches import TopicWatch, start_following
from protocol.errors import ProtocolError
from protocol.names import TOPIC, TopicName
from protocol.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from protocol.client.requests import AccessMode

# What a server says of a segment that takes no more messages, because others have its keys.
_SEGMENT_GONE = frozenset({api.TopicTerminatedError, api.TopicNotFound})
# The layout that says which others is pushed; asking the old segment again is for when that was missed.
_LONGEST_RETRY = 2.0


@asynccontextmanager
async def open_producer(
    pool: ConnectionPool,
    topic: str,
    *,
    name: str | None = None,
    access_mode: AccessMode = api.Shared,
    create_if_missing: bool = True,
    max_pending: int = MAX_PENDING,
    max_pending_bytes: int = MAX_PENDING_BYTES,
    send_timeout: float = SEND_TIMEOUT,
) -> AsyncIterator[TopicProducer]:
    """Produce to a `topic://` with its segments, a `persistent://` topic with its partitions, or one `segment://`.

    At the end of the body the outcome of everything that was accepted is waited for, unless the body failed. A message
    that is not confirmed within `send_timeout` fails with SendTimedOut, and may be stored all the same.
    """
    parsed = TopicName.parse(topic)
    window = Window(max_pending, max_pending_bytes, send_timeout)
    async with background() as tasks:
        producer = TopicProducer(pool, tasks, window, str(parsed), name, access_mode)
        tasks.start_soon(window.watch_deadlines, producer._expired, producer._excuse)
        if parsed.domain == TOPIC:
            watch = await start_following(tasks, pool, str(parsed), create_if_missing=create_if_missing)
            producer._set_routes(active_routes(await anext(watch)))
            tasks.start_soon(producer._follow, watch)
        else:
            producer._set_routes(await plain_routes(pool, parsed, create_if_missing), are_final=True)
        if access_mode != api.Shared:
            await producer._attach_everywhere()
        try:
            yield producer
            await producer.flush()
        finally:
            await producer._close()


class TopicProducer:
    """Made by `open_producer`. Any number of tasks may send; each sees its own messages accepted in order."""

    def __init__(
        self,
        pool: ConnectionPool,
        tasks: trio.Nursery,
        window: Window,
        topic: str,
        name: str | None,
        access_mode: AccessMode,
    ) -> None:
        self.topic = topic
        self.failure: ProtocolError | None = None
        self.rerouted = 0  # messages that went to another segment than at first
        self._possible_duplicates = 0  # of segments that are no longer used
        self._resent = 0  # the same
        self._pool = pool
        self._tasks = tasks
        self._window = window
        self._name = name
        self._access_mode = access_mode
        self._routes = Routes.to_segments(())
        self._routes_are_final = False
        self._turn = 0  # of messages without a key
        self._segments: dict[str, SegmentProducer] = {}
        self._ways: dict[str, Route] = {}  # to those segments
        self._leaving: dict[str, Route] = {}  # to those of them that are not in the layout, and have yet to settle
        self._refused: set[str] = set()  # segments that take nothing, as far as is known until the next layout
        self._held: list[Sending] = []  # messages that wait for others of their key, or for a layout
        self._retry = Backoff(longest=_LONGEST_RETRY)
        self._is_retrying = False

    async def send(self, message: Message | bytes) -> MessageId:
        """Send a message and wait until it is stored."""
        return await (await self.post(message)).wait()

    async def post(self, message: Message | bytes) -> Sending:
        """Accept a message as soon as there is room; `wait()` of what is returned says where it was stored."""
        return await self._admit((Message(message) if isinstance(message, bytes) else message,), is_batch=False)

    async def post_batch(self, messages: Sequence[Message]) -> Sending:
        """The same for several messages that are stored as one entry. They all have the same key, or none."""
        if not messages or len({message.key for message in messages}) > 1:
            raise MixedBatch("The messages of a batch have different keys, or there are none: send them one by one.")
        return await self._admit(tuple(messages), is_batch=True)

    async def flush(self) -> None:
        """Until the outcome of every message that was accepted is known; who sent it is told which it is."""
        await self._window.wait_empty()

    @property
    def pending(self) -> int:
        return len(self._window)

    @property
    def resent(self) -> int:
        """How many messages were written again because their connection was lost; the server tells them apart."""
        return self._resent + sum(segment.resent for segment in self._segments.values())

    @property
    def possible_duplicates(self) -> int:
        """How many messages went to another segment although the one before may have stored them.

        That happens if a connection is lost and the segment sealed before the receipt is there.
        """
        return self._possible_duplicates + sum(segment.unsure for segment in self._segments.values())

    async def _admit(self, messages: Sequence[Message], *, is_batch: bool) -> Sending:
        self._check()
        return await self._window.admit(messages, is_batch, self._accept, self._excuse)

    def _accept(self, sending: Sending) -> None:
        if self.failure is not None:  # since it began to wait for room
            sending.fail(self.failure)
        else:
            self._dispatch(sending)

    def _dispatch(self, sending: Sending) -> None:
        route = self._choose(sending)
        if route is None:
            self._held.append(sending)
        else:
            self._segment(route).submit(sending)

    def _choose(self, sending: Sending) -> Route | None:
        """Where a message can go now; None if it has to wait.

        For one with a key the answer is the same as for all others at its position, so those that wait stay in order.
        """
        if sending.key_hash is None:
            return self._next_in_turn()
        position = self._routes.position(sending.key_hash)
        route = self._routes.at(position)
        if route is None or route.topic in self._refused:
            return None
        if any(way.covers(position) for way in self._leaving.values()):
            return None
        return route

    def _next_in_turn(self) -> Route | None:
        routes = self._routes.in_order
        for _ in routes:
            self._turn += 1
            route = routes[self._turn % len(routes)]
            if route.topic not in self._refused:
                return route
        return None

    def _segment(self, route: Route) -> SegmentProducer:
        segment = self._segments.get(route.topic)
        if segment is None:
            name = self._name
            if name is not None and route.segment_id is not None:
                name = f"{name}-seg-{route.segment_id}"
            segment = self._segments[route.topic] = SegmentProducer(
                self._pool,
                route.topic,
                self,
                name=name,
                access_mode=self._access_mode,
                properties=MANAGED if route.is_legacy else None,
            )
            self._ways[route.topic] = route
            self._tasks.start_soon(segment.run)
        return segment

    def returned(self, producer: SegmentProducer, sendings: list[Sending], reason: ProtocolError) -> None:
        """For the producer of a segment: it is over."""
        self._forget(producer)
        is_gone = isinstance(reason, ServerRefused) and reason.server_error in _SEGMENT_GONE
        if is_gone and not self._routes_are_final and self.failure is None:
            self.rerouted += len(sendings)
            for sending in sendings:
                sending.return_from_topic()
            self._held = sorted([*self._held, *sendings], key=lambda sending: sending.order)
            self._refused.add(producer.topic)
            self._release()
            if not self._is_retrying:
                self._is_retrying = True
                self._tasks.start_soon(self._retry_refused)
        else:
            for sending in sendings:
                sending.fail(reason)
            if not isinstance(reason, AlreadyClosed):
                self._fail(reason)

    def idle(self, producer: SegmentProducer) -> None:
        """For the producer of a segment: everything that it was given is settled."""
        if producer.topic not in self._routes:
            self._retire(producer)
            self._release()

    async def _follow(self, watch: TopicWatch) -> None:
        try:
            async for update in watch:
                if update.HasField("error"):
                    raise ServerRefused(update.error, update.message)
                self._retry.reset()
                self._set_routes(active_routes(update))
                if self._access_mode != api.Shared:
                    for route in self._routes.in_order:
                        self._segment(route)
        except ProtocolError as error:
            self._fail(error)

    def _set_routes(self, routes: Routes, *, are_final: bool = False) -> None:
        self._routes, self._routes_are_final = routes, are_final
        self._refused.clear()
        self._leaving.clear()
        for segment in list(self._segments.values()):
            if segment.topic in routes:
                continue
            if segment.pending:
                self._leaving[segment.topic] = self._ways[segment.topic]
            else:
                self._retire(segment)
        self._release()

    async def _retry_refused(self) -> None:
        while self._refused:
            await trio.sleep(self._retry.next())
            self._refused.clear()
            self._release()
        self._is_retrying = False

    def _release(self) -> None:
        """Send on what need not wait any more."""
        held, self._held = self._held, []
        for sending in held:
            if not sending.is_settled:
                self._dispatch(sending)

    def _retire(self, segment: SegmentProducer) -> None:
        self._forget(segment)
        self._tasks.start_soon(segment.close)

    def _forget(self, segment: SegmentProducer) -> None:
        if self._segments.get(segment.topic) is segment:
            del self._segments[segment.topic], self._ways[segment.topic]
            self._leaving.pop(segment.topic, None)
            self._possible_duplicates += segment.unsure
            self._resent += segment.resent

    def _expired(self, sending: Sending) -> None:
        """For the window: a message took too long."""
        self._held = [held for held in self._held if held is not sending]
        for segment in list(self._segments.values()):
            segment.drop_settled()

    def _excuse(self) -> str:
        """What may be the reason that messages take too long, to end a sentence with."""
        for segment in self._segments.values():
            if segment.last_error is not None:
                return f": {segment.last_error}"
        return ", a new layout was waited for." if self._held else "."

    async def _attach_everywhere(self) -> None:
        with trio.move_on_after(self._pool.timeout):
            for route in self._routes.in_order:
                await self._segment(route).wait_attached()
            return
        raise RequestTimedOut(f"{self.topic} could not be attached to within {self._pool.timeout:g} s{self._excuse()}")

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def _fail(self, reason: ProtocolError) -> None:
        for segment in self._end(reason):
            self._tasks.start_soon(segment.close)

    async def _close(self) -> None:
        async with trio.open_nursery() as nursery:
            for segment in self._end(AlreadyClosed(f"The producer of {self.topic} was closed.")):
                nursery.start_soon(segment.close)

    def _end(self, reason: ProtocolError) -> list[SegmentProducer]:
        """It is over, the first reason counts; the segments are left to be closed."""
        if self.failure is None:
            self.failure = reason
        self._held.clear()
        self._window.fail_all(self.failure)
        segments = list(self._segments.values())
        for segment in segments:
            self._forget(segment)
        return segments
