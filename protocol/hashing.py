"""The two hashes that clients and servers must agree on: of a set of topic names, and of a message key."""

from __future__ import annotations

import re
from collections.abc import Iterable

import mmh3
from crc32c import crc32c

# Without these the two orders are the same, and sorting strings as they are is much faster.
_ABOVE_16_BITS = re.compile("[\U00010000-\U0010ffff]")


def topic_set_hash(names: Iterable[str]) -> str:
    """CRC-32C of the sorted names joined by commas; a name that occurs twice counts twice.

    Clients compute it in Java, which shapes two details: strings sort by UTF-16 code units (not by code
    points: they differ above U+FFFF), and the hash is printed with its lowest byte first.
    """
    ordered = sorted(names)
    joined = ",".join(ordered)
    if _ABOVE_16_BITS.search(joined):
        joined = ",".join(sorted(ordered, key=_utf16_units))
    # A lone surrogate becomes "?", as it does there.
    checksum: int = crc32c(joined.encode("utf-8", "replace"))
    return checksum.to_bytes(4, "little").hex()


def _utf16_units(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def segment_hash(key: bytes) -> int:
    """Where a message key falls on the ring of a topic's segments, 0x0000 to 0xFFFF."""
    return murmur3_32(key) >> 16


def bucket_hash(key: bytes) -> int:
    """Where a message key falls among the entry buckets of its segment, independent of `segment_hash`."""
    return murmur3_32(key) & 0xFFFF


def murmur3_32(key: bytes) -> int:
    """MurmurHash3 in its x86 32-bit form with seed 0, as an unsigned number."""
    return mmh3.hash(key, 0, signed=False)
