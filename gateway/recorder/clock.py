"""The one clock of a run of the recorder: the wall clock at its start, and from there on one that never goes back."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Self

import trio


@dataclass(frozen=True, slots=True)
class Clock:
    """Turns the loop's times into microseconds since 1970, and tells the loop's time to a thread."""

    offset_us: float  # added to a time of the loop in microseconds; a double holds the sum exactly enough until 2255
    offset: float  # added to the performance counter

    @classmethod
    def start(cls) -> Self:
        """To be called on the loop."""
        now = trio.current_time()
        return cls(time.time_ns() / 1e3 - now * 1e6, now - time.perf_counter())

    def us(self, at: float) -> int:
        return int(at * 1e6 + self.offset_us)

    def now(self) -> float:
        return time.perf_counter() + self.offset
