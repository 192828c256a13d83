"""The store's clock as a task sees it: what every time of a replay is told in, whichever machine a task runs on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from metadata import keys
from metadata.store import TopicStore

# The quickest of a few is hardly disturbed by whatever else happens; more would not find a quicker one.
_PINGS: Final = 16


def wall_clock() -> Callable[[], int]:
    """Microseconds of this machine's clock as it stands now; from here on it only grows, evenly."""
    ahead = time.time_ns() - time.monotonic_ns()
    return lambda: (time.monotonic_ns() + ahead) // 1_000


@dataclass(frozen=True, slots=True)
class Ping:
    """One question to the store for its time, in microseconds: two times of the task, and the answer between them."""

    sent_us: int
    store_us: int
    received_us: int

    @property
    def round_trip_us(self) -> int:
        return self.received_us - self.sent_us


@dataclass(frozen=True, slots=True)
class Offset:
    """The store's clock minus the task's, and how far that may be off."""

    us: int
    error_us: int

    @classmethod
    def of(cls, pings: Sequence[Ping]) -> Offset:
        """From the quickest answer: the store read its clock somewhere within it, so the middle is off by a half."""
        quickest = min(pings, key=lambda ping: ping.round_trip_us)
        middle = (quickest.sent_us + quickest.received_us) // 2
        return cls(quickest.store_us - middle, (quickest.round_trip_us + 1) // 2)

    def until(self, later: Offset) -> Offset:
        """This one, with an error that covers what the clocks have drifted until a later measurement."""
        return Offset(self.us, max(self.error_us, abs(later.us - self.us) + later.error_us))


class StoreClock:
    """The store's time, in microseconds, without asking it."""

    __slots__ = ("offset", "task_us")

    def __init__(self, offset: Offset, task_us: Callable[[], int]) -> None:
        self.offset = offset
        self.task_us = task_us

    def now_us(self) -> int:
        return self.task_us() + self.offset.us


async def measure_offset(store: TopicStore, task_us: Callable[[], int]) -> Offset:
    """Ask one server of the store, the same for every task, on a lane on which nothing else waits."""
    pings = []
    for _ in range(_PINGS):
        sent = task_us()
        seconds, microseconds = await store.leases.call(keys.STORE_SLOT, "TIME")
        pings.append(Ping(sent, int(seconds) * 1_000_000 + int(microseconds), task_us()))
    return Offset.of(pings)
