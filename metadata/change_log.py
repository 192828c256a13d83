"""What the change log of a bucket says: positions in it, and what stands behind one. Pure functions over replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from metadata import keys
from metadata.link import Reply

# Entries of one bucket taken in one read; a fuller log is read on at once.
READ_COUNT: Final = 1_000


@dataclass(frozen=True, slots=True)
class Position:
    """The last log entry that was taken in. The operation id tells it from another entry with the same id."""

    entry: bytes
    op: bytes


def log_read(bucket: int, position: Position | None) -> tuple[int, tuple[bytes | str | int, ...]]:
    # From the known entry on, that one included: its absence is how a trimmed or replaced log shows.
    start = position.entry if position is not None else b"-"
    return keys.BUCKET_SLOTS[bucket], ("XRANGE", keys.changes_key(bucket), start, "+", "COUNT", READ_COUNT)


def entries_after(position: Position | None, entries: list[Reply]) -> list[Reply] | None:
    """The entries behind the position; None where the log does not continue from it."""
    if position is None:
        # The log was empty, so all of it is new; `is_whole_log` says whether that is all there was.
        return entries
    if not entries or position_of(entries[0]) != position:
        return None
    return entries[1:]


def is_whole_log(entries: Reply, info: Reply) -> bool:
    """Whether these are all the entries that were ever added, by what XINFO STREAM says of the log."""
    return isinstance(entries, list) and isinstance(info, dict) and info.get(b"entries-added") == len(entries)


def position_of(entry: Reply) -> Position:
    return Position(entry[0], _field(entry, b"op"))


def end_of(info: Reply) -> Position:
    """Where a log stands that holds nothing any more. No entry is there to go on from, so the next one is a gap."""
    return Position(info[b"last-generated-id"], b"")


def lost_entry(position: Position, until: list[Reply], last: list[Reply]) -> bool:
    """Whether a log has lost the entry at a position, given the last entry up to there and the last of all.

    A log that was trimmed past that entry has lost nothing but its beginning, and does not count.
    """
    if until:
        return position_of(until[0]) != position
    return not last or _number(last[0][0]) < _number(position.entry)


def is_resignation(entry: Reply) -> bool:
    """Whether the topic was left without a leader that it needs."""
    return _field(entry, b"kind") == b"resigned"


def is_about_consumers(entry: Reply) -> bool:
    """Whether only registrations changed, or how far consumers have come: then the record is what it was."""
    return _field(entry, b"kind") in (b"consumers", b"drained")


def is_about_classic(entry: Reply) -> bool:
    """Whether it is the classic topic of that name that changed, and not the record of a scalable one."""
    return _field(entry, b"kind") == b"classic"


def is_about_record(entry: Reply) -> bool:
    return not is_about_consumers(entry) and not is_about_classic(entry)


def topic_of(entry: Reply) -> str:
    return _field(entry, b"topic").decode()


def _number(entry_id: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split(b"-")))


def _field(entry: Reply, name: bytes) -> bytes:
    fields = entry[1]
    for index in range(0, len(fields), 2):
        if fields[index] == name:
            return bytes(fields[index + 1])
    return b""
