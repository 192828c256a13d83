"""Durations the way people write them on a command line: `50ms`, `3s`, `24h`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

_MILLISECONDS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds; a number without a unit is refused, because nobody would know which one was meant."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is no duration: write it as in 50ms, 3s, 5m or 24h.")
    return float(Fraction(match[1]) * _MILLISECONDS[match[2]] / 1_000)


def show_duration(seconds: float) -> str:
    """Roughly, for reading: `340 ms`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600} h {whole % 3_600 // 60} min"
