"""How much goes through a log per second, over the last half minute or so."""

from __future__ import annotations

from collections import deque
from typing import Final

# Long enough to be steady, short enough to show what is going on.
_SPAN: Final = 30.0
_SLICE: Final = 1.0


class Meter:
    """Counts messages and bytes; time is told by the caller."""

    __slots__ = ("_begun", "_bytes", "_messages", "_slices")

    def __init__(self, now: float) -> None:
        self._begun = now
        self._slices: deque[tuple[float, int, int]] = deque()  # when each began, its messages and bytes
        self._messages = self._bytes = 0

    def count(self, now: float, messages: int, size: int) -> None:
        if self._slices and now < self._slices[-1][0] + _SLICE:
            start, before, weight = self._slices.pop()
            self._slices.append((start, before + messages, weight + size))
        else:
            self._slices.append((now, messages, size))
        self._messages += messages
        self._bytes += size
        self._forget(now)

    def rates(self, now: float) -> tuple[float, float]:
        """Messages and bytes per second."""
        self._forget(now)
        span = max(_SLICE, min(_SPAN, now - self._begun))
        return self._messages / span, self._bytes / span

    def _forget(self, now: float) -> None:
        while self._slices and self._slices[0][0] <= now - _SPAN:
            _, messages, size = self._slices.popleft()
            self._messages -= messages
            self._bytes -= size
