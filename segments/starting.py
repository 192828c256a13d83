"""Where a subscription begins that was never at a log: as its first consumer asks, unless the log is the younger."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from protocol.names import SegmentName
from protocol.wire import pulsar_api_pb2 as api
from segments.errors import NoLog
from segments.open_log import OpenLog
from segments.ports import Topics


@dataclass(frozen=True, slots=True)
class Starting:
    topics: Topics

    async def of(self, log: OpenLog, request: api.CommandSubscribe) -> Callable[[], int]:
        """What to ask for the index once the log is looked at: its end is where it is then."""
        if not request.durable:
            return await self._of_reader(log, request)
        if request.subscription in log.subscriptions:
            return lambda: log.first  # never asked
        if log.place.segment_id is not None and await self._is_younger(request):
            # Made by a split or merge while the subscription was there: nothing of it has been consumed, whatever a
            # client says that meant the topic as a whole.
            return lambda: log.first
        if request.initialPosition == api.CommandSubscribe.Earliest:
            return lambda: log.first
        return lambda: log.next

    async def provide(self, log: OpenLog, subscription: str) -> None:
        """A subscription from the beginning on, for a producer whose messages must not be lost before one comes."""
        if log.place.segment_id is not None:
            # First in the topic: what it does not know of is taken for deleted, and removed from its segments.
            await self.topics.provide_subscription(log.topic, subscription)
        await log.ensure_subscription(subscription)

    async def _of_reader(self, log: OpenLog, request: api.CommandSubscribe) -> Callable[[], int]:
        if request.start_message_rollback_duration_sec:
            since = time.time_ns() // 1_000_000 - 1_000 * request.start_message_rollback_duration_sec
            index = await log.index_at(max(0, since))
            return lambda: index
        if request.HasField("start_message_id"):
            return lambda: log.index_of(request.start_message_id.ledgerId, request.start_message_id.entryId)
        if request.initialPosition == api.CommandSubscribe.Earliest:
            return lambda: log.first
        return lambda: log.next

    async def _is_younger(self, request: api.CommandSubscribe) -> bool:
        name = SegmentName.parse(request.topic)
        segment = await self.topics.segment(name.parent, name.descriptor)
        if segment is None:
            raise NoLog(f"{name} does not exist: look its topic up again.")
        ordered = request.subType in (api.CommandSubscribe.Exclusive, api.CommandSubscribe.Failover) or (
            request.HasField("keySharedMeta") and request.keySharedMeta.entryBucketDispatch
        )
        made_at = await self.topics.created_epoch(name.parent, request.subscription, ordered=ordered)
        return made_at is None or segment.created_at_epoch > made_at
