"""Durations, byte sizes and addresses the way people write them: `50ms`, `64KB`, `127.0.0.1:6650`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

# Descending, so that the first unit that divides a value evenly is the shortest way to write it.
_DURATION_UNITS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
# Binary, like Pulsar's own limits: its 5 MB default message size is 5 * 1024 * 1024.
_SIZE_UNITS = {"GB": 1 << 30, "MB": 1 << 20, "KB": 1 << 10, "B": 1}

_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)(ms|s|m|h)", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15})\s?(B|KB|MB|GB|KiB|MiB|GiB)?", re.ASCII | re.IGNORECASE)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds; a bare number is refused, because nobody remembers which unit it would be in."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return float(Fraction(match[1]) * _DURATION_UNITS[match[2]] / 1_000)


def show_duration(seconds: float) -> str:
    # Through the shortest decimal form: 0.05 is a float a little above 50 ms, and must still read as 50ms.
    milliseconds = Fraction(repr(float(seconds))) * 1_000
    for unit, factor in _DURATION_UNITS.items():
        if milliseconds and milliseconds % factor == 0:
            return f"{milliseconds // factor}{unit}"
    return f"{float(milliseconds):g}ms"


def parse_size(text: str) -> int:
    """Bytes; `KB` is 1024 of them, and a bare number counts bytes."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    unit = (match[2] or "B").upper().replace("IB", "B")
    return int(match[1]) * _SIZE_UNITS[unit]


def show_size(size: int) -> str:
    for unit, factor in _SIZE_UNITS.items():
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


@dataclass(frozen=True, slots=True)
class HostPort:
    """Where a listener binds; port 0 lets the kernel pick a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> HostPort:
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        host = host[1:-1] if bracketed else host
        # An IPv6 address without brackets would leave it open where the address ends and the port begins.
        if not colon or not host or (":" in host) != bracketed or re.search(r"[\s/@\[\]]", host):
            raise ValueError(text)
        if not _PORT.fullmatch(port) or int(port) > 65_535:
            raise ValueError(text)
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
