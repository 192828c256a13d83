"""One topic of a namespace consumer: wanted from when it matches until it does not, and what there is to tell of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Generic, TypeAlias, TypeVar

import trio

from protocol.backoff import Backoff
from protocol.client.errors import ServerRefused, SubscriptionDeleted
from protocol.client.inbox import InnerInbox
from protocol.client.message_ids import Edge
from protocol.client.topic_consumer import TopicConsumer
from protocol.errors import ProtocolError
from protocol.wire import pulsar_api_pb2 as api

AnyConsumer = TypeVar("AnyConsumer", bound=TopicConsumer)

# One that was consumed for so long and then failed is tried again soon; before, the pauses go on growing.
_SETTLED = 5.0
# A deleted topic is missing before the watch says so. One that stays so is worth a word.
_MISSING_FOR = 3


@dataclass(frozen=True, slots=True)
class TopicJoined:
    """Its messages come from now on."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicLeft:
    """It was deleted, or has other properties: none of its messages come any more."""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicFailed:
    """It matches, and cannot be consumed. It is tried again, with growing pauses; the others go on.

    With SubscriptionDeleted as the reason it is left alone, so that the subscription stays deleted, until it matches
    anew: a topic of that name is created, or one that did not match any more does again.
    """

    topic: str
    reason: ProtocolError


TopicEvent: TypeAlias = TopicJoined | TopicLeft | TopicFailed


class MatchingTopic(Generic[AnyConsumer]):
    """Whether a topic is wanted, for the task that consumes it, and how that goes."""

    def __init__(self, name: str, position: Edge) -> None:
        self.name = name
        self.position = position  # where a new subscription begins
        self.consumer: AnyConsumer | None = None  # while it is consumed
        self.failure: ProtocolError | None = None  # why it is not
        self.is_wanted = True
        self.attempted = trio.Event()  # consumed, or failed, for the first time
        self._opening: trio.CancelScope | None = None
        self._changed = trio.Event()
        self._backoff = Backoff()
        self._failures = 0  # since it was consumed
        self._joined_at = 0.0

    def begin(self) -> trio.CancelScope:
        """For its task: a new attempt, within what is returned."""
        self._changed = trio.Event()
        self._opening = trio.CancelScope()
        return self._opening

    def limit_opening(self, seconds: float) -> None:
        """Give the attempt up if the topic is not consumed by then."""
        if self._opening is not None:
            self._opening.deadline = trio.current_time() + seconds

    @property
    def is_changed(self) -> bool:
        """Whether it has left or was renewed since the attempt began."""
        return self._changed.is_set()

    def leave(self) -> None:
        """It does not match any more."""
        self.is_wanted = False
        self._change()

    def renew(self) -> None:
        """It matches again, and may be another topic of the same name: what there is of it is closed first."""
        self.is_wanted = True
        self._change()

    def _change(self) -> None:
        self._changed.set()
        if self._opening is not None:
            self._opening.cancel()  # nothing was taken that could be acknowledged

    def joined(self, consumer: AnyConsumer) -> None:
        self.consumer = consumer
        if self._opening is not None:
            self._opening.deadline = inf
            self._opening = None
        self.failure = None
        self._joined_at = trio.current_time()
        self.attempted.set()

    def parted(self) -> None:
        self.consumer = None

    def failed(self, reason: ProtocolError) -> bool:
        """Note why it is not consumed. Whether that is news worth telling."""
        self._opening = None
        if self._joined_at and trio.current_time() - self._joined_at > _SETTLED:
            self._backoff.reset()
        if self._joined_at:
            self._failures = 0
        self._joined_at = 0.0
        self._failures += 1
        is_news = self.failure is None or str(self.failure) != str(reason)
        self.failure = reason
        self.attempted.set()
        if is_missing(reason) and not self._is_deleted:
            return self._failures == _MISSING_FOR
        return is_news

    @property
    def _is_deleted(self) -> bool:
        """Whether its subscription is what is gone: trying again would make that anew."""
        return isinstance(self.failure, SubscriptionDeleted)

    async def wait_over(self, inbox: InnerInbox) -> None:
        """Until it does not match any more, was renewed, or cannot be consumed further."""
        await _first(self._changed, inbox.ended)

    async def wait_acked(self, inbox: InnerInbox, consumer: AnyConsumer) -> None:
        """After it has left: until what was taken is acknowledged, or it is wanted again, or gone."""
        self._changed = trio.Event()
        async with trio.open_nursery() as nursery:

            async def acked() -> None:
                await consumer.wait_all_acked()
                nursery.cancel_scope.cancel()

            nursery.start_soon(acked)
            await _first(self._changed, inbox.ended)
            nursery.cancel_scope.cancel()

    async def pause(self) -> None:
        """Between two attempts."""
        with trio.move_on_after(inf if self._is_deleted else self._backoff.next()):
            await self._changed.wait()


def is_missing(error: ProtocolError) -> bool:
    return isinstance(error, ServerRefused) and error.server_error == api.TopicNotFound


async def _first(*events: trio.Event) -> None:
    """Until one of them is set."""
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait, event)
