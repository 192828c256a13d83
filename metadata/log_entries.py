"""Entries of a log, as values and as they stand in its stream: a packed header, and the client's bytes beside it."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from metadata.errors import RecordDamaged

# A reply of the store, as `metadata.link` has it; imported it would make this module, and all that use it, need a loop.
Reply = Any

_VERSION: Final = 1
# Version, flags, time in milliseconds, number of messages. `find_time.lua` reads the time where it stands here.
_HEAD: Final = struct.Struct(">BBQI")
_PAIR_OF_LONGS: Final = struct.Struct(">QQ")
_PAIR_OF_INTS: Final = struct.Struct(">II")
_HAS_TXN: Final = 1
_HAS_HASH_RANGE: Final = 2
_KNOWN_FLAGS: Final = _HAS_TXN | _HAS_HASH_RANGE


class Entry(NamedTuple):
    """What is appended: one message, or a batch of them, with all bytes that followed the SEND command."""

    time_ms: int
    messages: int
    body: bytes
    txn: tuple[int, int] | None = None  # most and least significant half
    hash_range: tuple[int, int] | None = None  # lowest and highest hash of the keys in it


class StoredEntry(NamedTuple):
    index: int  # type: ignore[assignment]  # hides a method that nobody calls on an entry
    time_ms: int
    messages: int
    body: bytes
    txn: tuple[int, int] | None = None
    hash_range: tuple[int, int] | None = None


def pack_header(entry: Entry | StoredEntry) -> bytes:
    if entry.txn is None and entry.hash_range is None:
        return _HEAD.pack(_VERSION, 0, entry.time_ms, entry.messages)
    flags, rest = 0, b""
    if entry.txn is not None:
        flags |= _HAS_TXN
        rest += _PAIR_OF_LONGS.pack(*entry.txn)
    if entry.hash_range is not None:
        flags |= _HAS_HASH_RANGE
        rest += _PAIR_OF_INTS.pack(*entry.hash_range)
    return _HEAD.pack(_VERSION, flags, entry.time_ms, entry.messages) + rest


def stream_id(index: int) -> str:
    """Ids begin with 1, because a stream has no entry 0-0."""
    return f"{index + 1}-0"


def stored_entries(replies: Iterable[Reply]) -> list[StoredEntry]:
    """The entries of an XRANGE reply."""
    try:
        return [_stored(number, header, body) for number, (_, header, _, body) in replies]
    except (TypeError, ValueError, struct.error):
        raise RecordDamaged("What stands in a segment's log is no entry of ours: restore it.") from None


def _stored(number: bytes, header: bytes, body: bytes) -> StoredEntry:
    version, flags, time_ms, messages = _HEAD.unpack_from(header)
    if version != _VERSION or flags & ~_KNOWN_FLAGS:
        raise ValueError("an entry of another version")
    index = int(number[:-2]) - 1
    if not flags:
        return StoredEntry(index, time_ms, messages, body)
    txn = hash_range = None
    at = _HEAD.size
    if flags & _HAS_TXN:
        txn = _PAIR_OF_LONGS.unpack_from(header, at)
        at += _PAIR_OF_LONGS.size
    if flags & _HAS_HASH_RANGE:
        hash_range = _PAIR_OF_INTS.unpack_from(header, at)
    return StoredEntry(index, time_ms, messages, body, txn, hash_range)
