"""Looks after logs that no client uses: a node that went, or gave one up, may have left some of which a part can go by
now. Whoever should have such a log opens it, and trims it with the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

import trio

from metadata import keys
from metadata.complaints import note_waiting
from metadata.errors import StoreError
from metadata.log_places import LogPlace
from metadata.log_states import LogState
from metadata.segment_logs import SegmentLogs
from protocol.names import TopicName
from segments.cursor_entries import belongs, identity_of, unpack
from segments.hosting import Hosting
from segments.keeping import Keeping, Quota, kept_from, needed_from, trim_below

log = logging.getLogger(__name__)

# Logs that are looked at together.
_AT_A_TIME: Final = 16
# Logs that are opened in one round: of each, those who watch its topic hear.
_MOST_OPENED: Final = 100


class Caretaker:
    """Goes from bucket to bucket, slowly: nothing that it is there for is urgent."""

    def __init__(
        self,
        hosting: Hosting,
        logs: SegmentLogs,
        logs_in: Callable[[int], AsyncIterator[Sequence[LogPlace]]],
        subscriptions: Callable[[TopicName], Awaitable[Mapping[str, str | None]]],
        keeping: Callable[[LogPlace], Awaitable[Keeping]],
        *,
        quota: Quota,
        interval: float,
        start: int = 0,
    ) -> None:
        """`start` is the bucket to begin with: nodes that start together should not go together."""
        self._hosting = hosting
        self._logs = logs
        self._logs_in = logs_in
        self._subscriptions = subscriptions
        self._keeping = keeping
        self._quota = quota
        self._interval = interval
        self._bucket = start % keys.BUCKETS

    async def run(self) -> None:
        while True:
            await trio.sleep(self._interval)
            bucket, self._bucket = self._bucket, (self._bucket + 1) % keys.BUCKETS
            await self.visit(bucket)

    async def visit(self, bucket: int) -> None:
        """Open those logs of a bucket that nobody has, that belong here, and of which something can go."""
        left = _MOST_OPENED
        try:
            async for places in self._logs_in(bucket):
                mine = [place for place in places if self._hosting.should_have(place.name)]
                for start in range(0, len(mine), _AT_A_TIME):
                    found = await self._neglected(mine[start : start + _AT_A_TIME])
                    for place, state in found[:left]:
                        await self._adopt(place, state)
                    left = max(0, left - len(found))
                if not left:
                    return
        except StoreError as error:
            note_waiting(log, error, "the logs of bucket %d cannot be looked at now", bucket)
        except Exception:
            # Whatever is wrong in one bucket, the others come next.
            log.exception("the logs of bucket %d cannot be looked after", bucket)

    async def _adopt(self, place: LogPlace, state: LogState) -> None:
        try:
            await self._hosting.adopt(place, state)
        except StoreError as error:
            note_waiting(log, error, "%s cannot be looked after now", place.name)

    async def _neglected(self, places: Sequence[LogPlace]) -> list[tuple[LogPlace, LogState]]:
        """Those of them of which something can go, as they are now."""
        found: list[tuple[LogPlace, LogState]] = []

        async def look(place: LogPlace) -> None:
            try:
                state = await self._logs.state(place)
                if state is not None and await self._is_neglected(place, state):
                    found.append((place, state))
            except StoreError as error:
                note_waiting(log, error, "%s cannot be looked at now", place.name)
            except Exception:
                log.exception("%s cannot be looked at", place.name)  # the others can

        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(look, place)
        return found

    async def _is_neglected(self, place: LogPlace, state: LogState) -> bool:
        first, end, size = state.first, state.next, state.size
        if first == end or await self._hosting.is_elsewhere(state.session):
            return False
        needed = await self._needed(place, state)
        if needed == first and not self._quota.is_exceeded(size):
            return False
        young = await kept_from(
            await self._keeping(place),
            first=first,
            end=end,
            size=size,
            now_ms=time.time_ns() // 1_000_000,
            index_at=lambda time_ms: self._logs.index_seen(place, state, time_ms),
        )
        return trim_below(first=first, end=end, needed=needed, young=young, size=size, quota=self._quota) > first

    async def _needed(self, place: LogPlace, state: LogState) -> int:
        """The first entry that somebody has not consumed."""
        cursors = await self._logs.cursors(place, state)
        expected = await self._subscriptions(keys.topic_at(place.topic_path))
        if place.segment_id is not None or expected:
            # Others are of subscriptions that were deleted while nobody had the log.
            cursors = {name: it for name, it in cursors.items() if belongs(identity_of(it), expected, name)}
        if any(name not in cursors for name in expected):
            return state.first  # one that is still to come has everything before it
        marks = [unpack(stored)[1].mark for stored in cursors.values()]
        return max(state.first, needed_from(marks, state.next))
