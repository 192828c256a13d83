"""Numbers as people read them: three digits that count, and a unit."""

from __future__ import annotations

from typing import Final

_THOUSANDS: Final = ("", " k", " M", " G", " T")
_BYTES: Final = (" B", " KB", " MB", " GB", " TB")
_US_PER: Final = (("d", 86_400e6), ("h", 3_600e6), ("min", 60e6), ("s", 1e6), ("ms", 1e3))


def plain(value: float) -> str:
    """Three digits, no unit: 0.042, 4.2, 420, 42,000."""
    if value == 0:
        return "0"
    if abs(value) >= 1_000 or float(value).is_integer():
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.6f}".rstrip("0")


def short(value: float) -> str:
    """With k, M, G: 42 k."""
    return _scaled(value, 1_000, _THOUSANDS)


def size(value: float) -> str:
    """Bytes, in thousands as networks and disks count: 4.2 MB."""
    return _scaled(value, 1_000, _BYTES)


def micros(value: float) -> str:
    """A duration in microseconds, in the unit that suits it: 420 µs, 4.2 ms, 4.2 s, 1.5 h."""
    for unit, length in _US_PER:
        if abs(value) >= length:
            return f"{_three(value / length)} {unit}"
    return "0" if value == 0 else f"{_three(value)} µs"


def millis(value: float) -> str:
    """A duration in milliseconds, likewise."""
    return micros(value * 1_000)


def seconds(value: float) -> str:
    """A duration in seconds, likewise."""
    return micros(value * 1e6)


def percent(share: float) -> str:
    """A share of 1: 42 %; never 100 % or 0 % unless it is exactly that."""
    value = share * 100
    if 99.9 < value < 100 or 0 < value < 0.1:
        return "> 99.9 %" if value > 50 else "< 0.1 %"
    return f"{value:.1f}".removesuffix(".0") + " %"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    step = 0
    while abs(value) >= base * 0.9995 and step < len(units) - 1:
        value /= base
        step += 1
    return _three(value) + units[step]


def _three(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 or value == 0 else f"{value:.1g}"
