"""How much goes by in a second, over the last half minute or so: of a log, and of each client that it has."""

from __future__ import annotations

from collections import deque
from typing import Final

# Long enough to be steady, short enough to show what is going on.
_SPAN: Final = 30.0
_SLICE: Final = 1.0
# Of clients there may be thousands, so each has two points in time instead of thirty.
_BETWEEN_POINTS: Final = _SPAN / 2

# When, and what had been counted by then.
_Point = tuple[float, int, int]


class Meter:
    """Counts two things that come together, as messages and their bytes; time is told by the caller.

    It costs next to nothing to have one that has counted nothing.
    """

    __slots__ = ("_begun", "_bytes", "_messages", "_slice_ends", "_slices")

    def __init__(self, begun: float) -> None:
        self._begun = begun
        self._messages = self._bytes = 0  # of all time
        self._slice_ends = begun
        self._slices: deque[_Point] | None = None  # when each began, and what had been counted before

    def count(self, now: float, messages: int, size: int) -> None:
        if self._slices is None or now >= self._slice_ends:
            self._begin_slice(now)
        self._messages += messages
        self._bytes += size

    def rates(self, now: float) -> tuple[float, float]:
        """Messages and bytes per second."""
        self._forget(now)
        if not self._slices:
            return 0.0, 0.0
        _, messages, size = self._slices[0]
        span = max(_SLICE, min(_SPAN, now - self._begun))
        return (self._messages - messages) / span, (self._bytes - size) / span

    def _begin_slice(self, now: float) -> None:
        if self._slices is None:
            self._slices = deque()
        self._forget(now)
        self._slices.append((now, self._messages, self._bytes))
        self._slice_ends = now + _SLICE

    def _forget(self, now: float) -> None:
        slices = self._slices
        while slices and slices[0][0] <= now - _SPAN:
            slices.popleft()
            if not slices:
                self._slice_ends = now  # what is counted next is not of that time


class Pulse:
    """The rates of what somebody else counts, made of what the counters said at two points in time.

    They are those of the last fifteen to thirty seconds if it is asked often, and since the last time but one if not.
    """

    __slots__ = ("_earlier", "_later")

    def __init__(self, begun: float) -> None:
        self._earlier: _Point = (begun, 0, 0)
        self._later = self._earlier

    def rates(self, now: float, messages: int, size: int) -> tuple[float, float]:
        """Per second, from what the counters say now."""
        since, messages_then, size_then = self._earlier
        span = max(_SLICE, now - since)
        if now - self._later[0] >= _BETWEEN_POINTS:
            self._earlier, self._later = self._later, (now, messages, size)
        return (messages - messages_then) / span, (size - size_then) / span
