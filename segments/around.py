"""What all logs of a node share: its limits, its counters, and the memory that they use together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from metadata.log_places import LogPlace
from metadata.segment_logs import SegmentLogs
from metadata.tasks import Tasks
from segments.keeping import Quota
from segments.tail import Budget


@dataclass(frozen=True, slots=True)
class LogLimits:
    tail_bytes: int = 1024 * 1024  # of one log, kept in memory for those who read along
    queued_bytes: int = 8 * 1024 * 1024  # sent by producers of one log and not stored yet
    producers: int = 10_000
    subscriptions: int = 1_000
    consumers: int = 10_000  # of a subscription
    max_unacked: int = 50_000
    replicas: int = 0
    quota: Quota = field(default_factory=Quota)


@dataclass(slots=True)
class DataCounters:
    """Totals over all logs of a node."""

    messages_in: int = 0
    bytes_in: int = 0
    duplicates: int = 0
    send_errors: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    opened: int = 0
    lost: int = 0


class SendQueue:
    """What producers of all logs have sent and the store has not taken yet, in bytes."""

    def __init__(self, limit: int = 128 * 1024 * 1024) -> None:
        self.used = 0
        self._limit = limit
        self._room = trio.Event()

    @property
    def is_full(self) -> bool:
        return self.used > self._limit

    def add(self, size: int) -> None:
        self.used += size

    def remove(self, size: int) -> None:
        self.used -= size
        if 2 * self.used <= self._limit and self._room.statistics().tasks_waiting:
            self._room.set()
            self._room = trio.Event()

    async def wait_room(self) -> None:
        """Return when it is not full, for which half of it has to be taken once it was."""
        if self.is_full:
            await self._room.wait()


@dataclass(frozen=True, slots=True)
class Around:
    logs: SegmentLogs
    nursery: Tasks
    limits: LogLimits
    counters: DataCounters
    tails: Budget
    layout_told: Callable[[LogPlace], Awaitable[None]]  # returns when those who watch here know the layout as it is
    queue: SendQueue = field(default_factory=SendQueue)
