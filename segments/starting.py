"""Where a subscription begins in a log that it was never at, and which registration it belongs to.

The moment at which it begins is that of its registration, for all segments: what was stored after it is for the
subscription, whenever a consumer comes to a segment first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from layout.segments import Segment
from metadata import keys
from metadata.subscriptions import InitialPosition, Registration
from protocol.wire import pulsar_api_pb2 as api
from segments.errors import NoLog, NotHere
from segments.open_log import OpenLog
from segments.ports import Topics

# Registrations that are replaced by others of the same name while somebody subscribes.
_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Start:
    """The id of the registration, and what to ask for the index once the log is looked at."""

    index: Callable[[], int]
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Starting:
    topics: Topics

    async def of(self, log: OpenLog, request: api.CommandSubscribe) -> Start:
        """Registers the subscription at the topic if it has none of this name.

        What the log has of an earlier one ends here. The log of a classic topic belongs to none, until it is migrated.
        """
        if not request.durable:
            return Start(await self._of_reader(log, request))
        asked = _edge(log, request)
        if log.place.segment_id is None and not log.sealed:
            return Start(asked)
        for _ in range(_ATTEMPTS):
            seen = log.subscriptions.get(request.subscription)
            segment, registration = await self._registered(log, request)
            # Another one that was let in meanwhile may have asked later, and know a later registration.
            if log.subscriptions.get(request.subscription) is seen:
                log.end_others(request.subscription, registration.id)
                begins = begins_at(segment, registration)
                return Start(asked if begins is None else _within(log, begins), registration.id)
        raise NotHere(f"Subscription {request.subscription} is deleted and made again and again: try again later.")

    async def provide(self, log: OpenLog, subscription: str) -> None:
        """A subscription from the beginning on, for a producer whose messages must not be lost before one comes."""
        identity = ""
        if log.place.segment_id is not None:
            # First in the topic: what it does not know of is taken for deleted, and removed from its segments.
            seen = log.subscriptions.get(subscription)
            identity = await self.topics.provide_subscription(log.topic, subscription)
            if log.subscriptions.get(subscription) is seen:
                log.end_others(subscription, identity)
        await log.ensure_subscription(subscription, identity)

    async def _registered(self, log: OpenLog, request: api.CommandSubscribe) -> tuple[Segment, Registration]:
        topic = keys.topic_at(log.place.topic_path)
        segment = await self.topics.segment(topic, log.place)
        if segment is None:
            if log.place.segment_id is None:
                # Its topic is not scalable yet, or not any more.
                raise NotHere(f"{log.name} is being migrated or deleted: look it up again.")
            raise NoLog(f"{log.name} does not exist: look its topic up again.")
        # Whoever uses the log of a classic topic may not know of the types that scalable topics have.
        ordered = None if log.place.segment_id is None else _is_ordered(request)
        is_earliest = request.initialPosition == api.CommandSubscribe.Earliest
        position = InitialPosition.EARLIEST if is_earliest else InitialPosition.LATEST
        return segment, await self.topics.register(
            topic, request.subscription, ordered=ordered, position=position, segment_id=segment.segment_id
        )

    async def _of_reader(self, log: OpenLog, request: api.CommandSubscribe) -> Callable[[], int]:
        if request.start_message_rollback_duration_sec:
            since = time.time_ns() // 1_000_000 - 1_000 * request.start_message_rollback_duration_sec
            index = await log.index_at(max(0, since))
            return lambda: index
        if request.HasField("start_message_id"):
            return lambda: log.index_of(request.start_message_id.ledgerId, request.start_message_id.entryId)
        return _edge(log, request)


def begins_at(segment: Segment, registration: Registration) -> int | None:
    """The first entry of a segment that a registration has still to consume, if no cursor says otherwise.

    None where nobody knows yet, because no consumer has said where it begins, or the registration is from before that
    was recorded. May lie beyond the end: then there is nothing for it.
    """
    settings = registration.settings
    made_at = settings.created_at_epoch
    if settings.from_start or registration.position is InitialPosition.EARLIEST:
        return 0
    if made_at is None or segment.created_at_epoch > made_at:
        # Made by a split or merge while the subscription was there: nothing of it has been consumed.
        return 0
    if not settings.id or registration.position is None:
        return None
    if not segment.is_active and segment.sealed_at_epoch <= made_at:
        return NOTHING_LEFT
    return registration.ends.get(segment.segment_id, 0)


# Beyond the end of any log.
NOTHING_LEFT: Final = 1 << 62


def _within(log: OpenLog, index: int) -> Callable[[], int]:
    return lambda: min(max(index, log.first), log.next)


def _edge(log: OpenLog, request: api.CommandSubscribe) -> Callable[[], int]:
    """The end that a client asks for: as it is when it is asked for."""
    if request.initialPosition == api.CommandSubscribe.Earliest:
        return lambda: log.first
    return lambda: log.next


def _is_ordered(request: api.CommandSubscribe) -> bool:
    return request.subType in (api.CommandSubscribe.Exclusive, api.CommandSubscribe.Failover) or (
        request.HasField("keySharedMeta") and request.keySharedMeta.entryBucketDispatch
    )
