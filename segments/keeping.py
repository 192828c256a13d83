"""How much of a log is kept: what somebody still needs, what is young enough, and no more than the quota allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum


class OverQuota(StrEnum):
    REFUSE = "refuse"  # producers, until consumers have caught up
    EVICT = "evict"  # the oldest messages, although somebody has not consumed them


@dataclass(frozen=True, slots=True)
class Quota:
    """What one log may hold for subscriptions that have not consumed it; 0: anything."""

    bytes: int = 0
    policy: OverQuota = OverQuota.REFUSE

    def is_exceeded(self, size: int) -> bool:
        return 0 < self.bytes < size


@dataclass(frozen=True, slots=True)
class Keeping:
    """What stays of what everybody has consumed: it goes once it is past either limit, of which negative is none."""

    ms: int = 0
    bytes: int = -1  # of the whole log
    at_least_ms: int = 0  # younger than that stays anyhow

    @property
    def longest_ms(self) -> int:
        """How long something stays that is within the size; negative: for ever."""
        return self.ms if self.ms < 0 else max(self.ms, self.at_least_ms)


def needed_from(marks: Iterable[int], end: int) -> int:
    """The first entry that a durable subscription has not acknowledged; the end where there is none."""
    return min((mark + 1 for mark in marks), default=end)


def waiting_bytes(*, first: int, end: int, needed: int, size: int) -> int:
    """How much of a log waits to be consumed, taking all entries for equally large."""
    return 0 if end <= first else round(size * (end - max(needed, first)) / (end - first))


def fits_from(*, first: int, end: int, size: int, limit: int) -> int:
    """The first entry from which on a log is not larger than the limit, taking all entries for equally large."""
    if limit < 0 or size <= limit:
        return first
    return end - (end - first) * limit // size


async def kept_from(
    keeping: Keeping, *, first: int, end: int, size: int, now_ms: int, index_at: Callable[[int], Awaitable[int]]
) -> int:
    """The first entry that stays although everybody has consumed it; `index_at` finds the first of a time or later."""

    async def younger_than(ms: int) -> int:
        return first if ms < 0 else await index_at(max(0, now_ms - ms))

    fits = fits_from(first=first, end=end, size=size, limit=keeping.bytes)
    if fits <= first:
        return await younger_than(keeping.longest_ms)
    return min(await younger_than(keeping.at_least_ms), max(fits, await younger_than(keeping.ms)))


def trim_below(*, first: int, end: int, needed: int, young: int, size: int, quota: Quota) -> int:
    """Up to where the beginning of a log can go, given the first entry that is young enough to be kept anyhow.

    Over an evicting quota as much of the backlog goes as brings it below.
    """
    below = min(needed, young)
    backlog = waiting_bytes(first=first, end=end, needed=needed, size=size)
    if quota.policy is OverQuota.EVICT and quota.is_exceeded(backlog):
        begin = max(needed, first)
        below = max(below, begin + round((end - begin) * (backlog - quota.bytes) / backlog))
    return min(max(below, first), end)
