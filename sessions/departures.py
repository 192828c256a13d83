"""Consumers whose connections are gone, or who left: told to the store until it is done, and once more after a gap."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from metadata import keys
from metadata.errors import StoreError
from metadata.node_sessions import NodeSession
from metadata.registrations import Registrations
from metadata.subscriptions import Attachment
from metadata.tasks import Tasks
from protocol.backoff import Backoff
from protocol.names import TopicName

log = logging.getLogger(__name__)

# Longer than any change is on its way through the feed. What was written longer ago and is lost shows as a rollback.
LONGEST_FEED_LAG: Final = 60.0
# How many are remembered for that long.
_MOST_REMEMBERED: Final = 50_000
# Told at the same time when many leave together: enough to fill a pipeline, few enough that others get their turn.
_TOLD_TOGETHER: Final = 64
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Departure:
    """A consumer's connection that is gone, or a consumer that left for good, as the store is told of it."""

    topic: TopicName
    subscription: str
    name: str
    attachment: Attachment
    for_good: bool


class Departures:
    def __init__(self, nursery: Tasks, registrations: Registrations, session: NodeSession) -> None:
        self._nursery = nursery
        self._registrations = registrations
        self._session = session
        self._told: deque[tuple[float, Departure]] = deque(maxlen=_MOST_REMEMBERED)

    async def tell(self, departure: Departure) -> None:
        """Return when the store knows, or needs no telling."""
        write = self._registrations.leave if departure.for_good else self._registrations.detach
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                await write(departure.topic, departure.subscription, departure.name, departure.attachment)
            except StoreError as error:
                log.debug("signing off %s of %s waits: %s", departure.name, departure.topic, error)
            else:
                self._told.append((trio.current_time(), departure))
                return
            if not departure.for_good and departure.attachment.node != self._session.record.session:
                return  # the end of the node's session has told it as well
            await trio.sleep(backoff.next())

    async def tell_all(self, departures: Sequence[Departure]) -> None:
        todo = iter(departures)

        async def tell_some() -> None:
            for departure in todo:
                await self.tell(departure)

        async with trio.open_nursery() as nursery:
            for _ in range(min(_TOLD_TOGETHER, len(departures))):
                nursery.start_soon(tell_some)

    def tell_again(self, buckets: set[int]) -> None:
        """The store may have lost the last writes in these buckets, and nobody else knows that these are gone."""
        told = list(self._told)
        self._told.clear()
        earliest = trio.current_time() - LONGEST_FEED_LAG
        again = []
        for told_at, departure in told:
            if told_at < earliest:
                continue
            if keys.bucket_of(keys.path_of(departure.topic)) in buckets:
                again.append(departure)
            else:
                self._told.append((told_at, departure))
        if again:
            self._nursery.start_soon(self.tell_all, again)
