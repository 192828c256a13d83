"""Looks after logs that no client uses: a node that went, or gave one up, may have left some of which a part is done
with. Whoever should have such a log opens it, and trims it with the others from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import randrange
from typing import Final

import trio

from metadata import keys
from metadata.errors import StoreError
from metadata.log_places import LogPlace
from metadata.log_states import LogState
from metadata.segment_logs import SegmentLogs
from protocol.names import TopicName
from segments.cursors import Cursor
from segments.hosting import Hosting
from segments.keeping import needed_from

log = logging.getLogger(__name__)

# Logs that are looked at together.
_AT_A_TIME: Final = 64


class Caretaker:
    """Goes from bucket to bucket, slowly: nothing that it is there for is urgent."""

    def __init__(
        self,
        hosting: Hosting,
        logs: SegmentLogs,
        logs_in: Callable[[int], Awaitable[Sequence[LogPlace]]],
        subscriptions: Callable[[TopicName], Awaitable[Collection[str]]],
        *,
        interval: float,
    ) -> None:
        """`logs_in` lists the logs of a bucket, `subscriptions` what all segments of a topic are kept for."""
        self._hosting = hosting
        self._logs = logs
        self._logs_in = logs_in
        self._subscriptions = subscriptions
        self._interval = interval
        self._bucket = randrange(keys.BUCKETS)  # so that nodes which start together do not go together

    async def run(self) -> None:
        while True:
            await trio.sleep(self._interval)
            await self.visit(self._bucket)
            self._bucket = (self._bucket + 1) % keys.BUCKETS

    async def visit(self, bucket: int) -> None:
        """Open those logs of a bucket that nobody has, that belong here, and of which something is done with."""
        try:
            there = await self._logs_in(bucket)
        except StoreError as error:
            log.info("the logs of bucket %d cannot be looked at now: %s", bucket, error)
            return
        mine = [place for place in there if self._hosting.should_have(place.name)]
        for start in range(0, len(mine), _AT_A_TIME):
            async with trio.open_nursery() as nursery:
                for place in mine[start : start + _AT_A_TIME]:
                    nursery.start_soon(self._visit, place)

    async def _visit(self, place: LogPlace) -> None:
        try:
            state = await self._logs.state(place)
            if state is not None and await self._is_neglected(place, state):
                await self._hosting.adopt(place, state)
        except StoreError as error:
            log.info("%s cannot be looked at now: %s", place.name, error)

    async def _is_neglected(self, place: LogPlace, state: LogState) -> bool:
        if state.next == state.first or await self._hosting.is_alive(state.session):
            return False
        cursors = await self._logs.cursors(place, state)
        if place.segment_id is not None:
            # One that is still to come has everything before it.
            expected = await self._subscriptions(keys.topic_at(place.path))
            if any(name not in cursors for name in expected):
                return False
        marks = [Cursor.decode(stored).mark for stored in cursors.values()]
        return needed_from(marks, state.next) > state.first
