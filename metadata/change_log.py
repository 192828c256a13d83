"""What the change log of a bucket says: positions in it, and what stands behind one. Pure functions over replies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from metadata import keys
from metadata.link import Reply

# Entries of one bucket taken in one read; a fuller log is read on at once.
READ_COUNT: Final = 1_000
_ABOUT_CONSUMERS: Final = frozenset({b"consumers", b"drained"})


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


class Heard(NamedTuple):
    """The topics that entries are about, by what happened to them; each in the order of its first entry."""

    changed: dict[str, None]  # the record, or who leads the topic or owns a segment
    classic: dict[str, None]  # the classic topic of that name
    resigned: dict[str, None]  # was left without a leader that it needs
    registered: dict[str, None]  # only registrations changed, or how far consumers have come


def heard_of(entries: Iterable[Reply]) -> Heard:
    """ValueError where an entry does not say which topic it is about: then nobody knows what has changed."""
    heard = Heard({}, {}, {}, {})
    changed, classic, resigned, registered = heard
    for entry in entries:
        fields = entry[1]
        # As the scripts write them. What others write may come in any order.
        if len(fields) >= 4 and fields[0] == b"topic" and fields[2] == b"kind":
            path, kind = fields[1].decode(), fields[3]
        else:
            path, kind = _field(entry, b"topic").decode(), _field(entry, b"kind")
        if path.count("/") != 2:
            raise ValueError(f"an entry of a change log is about {path[:64]!r}, which is no topic")
        if kind == b"classic":
            classic[path] = None
        elif kind in _ABOUT_CONSUMERS:
            registered[path] = None
        else:
            changed[path] = None
            if kind == b"resigned":
                resigned[path] = None
    return heard


def _number(entry_id: bytes) -> tuple[int, ...]:
    return tuple(map(int, entry_id.split(b"-")))


def _field(entry: Reply, name: bytes) -> bytes:
    fields = entry[1]
    for index in range(0, len(fields), 2):
        if fields[index] == name:
            return bytes(fields[index + 1])
    return b""
