"""Where a value stands on an axis, and which values are worth a label there."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_NICE = (1, 2, 2.5, 5, 10)
# Seconds; more than a week apart needs no round number.
_TIMES = (1.0, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True, slots=True)
class Scale:
    """From `low` to `high`, as 0 to 1. A logarithmic one begins above zero, and shows what is less at its start."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        if self.log:
            value = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            value = (value - self.low) / (self.high - self.low)
        return min(max(value, 0.0), 1.0)


def linear(values: Iterable[float], ticks: int = 5, *, from_zero: bool = True) -> Scale:
    """Over all values, and zero; it ends at ticks."""
    low, high = _extent(values)
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high == low:
        high = low + (abs(low) or 1.0)
    step = _nice_step((high - low) / ticks)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    marks = tuple(index * step for index in range(first, last + 1))
    return Scale(marks[0], marks[-1], marks)


def tight(values: Iterable[float], ticks: int = 8, *, seconds: bool = False) -> Scale:
    """Over all values and no further, as time wants it; the ticks are inside, at round times for seconds."""
    low, high = _extent(values)
    if high == low:
        high = low + 1.0
    rough = (high - low) / ticks
    times = (each for each in _TIMES if seconds and each >= rough >= 1)
    step = next(times, None) or _nice_step(rough)
    marks = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return Scale(low, high, tuple(index * step for index in marks))


def logarithmic(values: Iterable[float]) -> Scale:
    """Over all values above zero, from one power of ten to another; also 2 and 5 times those if few powers fit."""
    low, high = _extent(value for value in values if value > 0)
    if low <= 0:
        low, high = 1.0, 10.0
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    between = (1,) if last - first > 3 else (1, 2, 5)
    every = max(1, (last - first) // 8)
    marks = [10.0**power * factor for power in range(first, last, every) for factor in between]
    return Scale(10.0**first, 10.0**last, (*marks, 10.0**last), log=True)


def _extent(values: Iterable[float]) -> tuple[float, float]:
    known = [value for value in values if math.isfinite(value)]
    return (min(known), max(known)) if known else (0.0, 0.0)


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor for factor in _NICE if factor * power >= rough * (1 - 1e-9)) * power
