"""What is known of a log beside its entries: its owner, how far it reaches, its producers and subscriptions."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from metadata.complaints import complain
from metadata.cursor_requests import CursorRequest, requests_in
from metadata.errors import RecordDamaged
from metadata.link import Reply
from metadata.log_figures import NOTHING, Traffic
from metadata.log_places import LogPlace
from metadata.stored_values import number

log = logging.getLogger(__name__)

# The cursor of a subscription that has acknowledged nothing, as `segments.cursors` encodes it.
UNREAD: Final = b"\x01\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class LogState:
    incarnation: str
    sealed: bool
    session: str  # of the node that owns it, '' for nobody
    term: int  # of the last claim, which may have ended
    ledger: int | None  # None before the first claim
    first: int  # lowest index that is still there
    next: int  # index of the next entry
    size: int  # bytes that are stored
    topic_epoch: int | None
    requests: Mapping[str, CursorRequest] = field(default_factory=dict)  # by subscription, to move its cursor

    @property
    def owner(self) -> str:
        """The entry that a claim has to find unchanged."""
        return f"{self.session}:{self.term}" if self.session else ""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right of one node to write to a log. Every write carries the token, and is refused once another stands."""

    place: LogPlace
    incarnation: str
    session: str
    term: int
    ledger: int

    @property
    def token(self) -> bytes:
        return f"{self.session}:{self.term}".encode()


class ProducerMark(NamedTuple):
    """The last message of a producer that was stored: its sequence number, and where it stands."""

    sequence: int
    index: int  # type: ignore[assignment]  # hides a method that nobody calls on a mark


@dataclass(frozen=True, slots=True)
class Opened:
    """A log as it was handed over to its new owner."""

    claim: Claim
    state: LogState
    cursors: dict[str, bytes]
    producers: dict[str, ProducerMark]
    last_time_ms: int
    largest: int = 0  # bytes of the largest entry that it ever had


class LogStanding(NamedTuple):
    """How far a log reaches, None where it is gone, where subscriptions stand in it, and what its owner has told."""

    state: LogState | None
    cursors: Mapping[str, bytes]
    traffic: Traffic = NOTHING


def mark_entry(mark: ProducerMark) -> str:
    return f"{mark.sequence} {mark.index}"


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """The hash that a script returned as a flat list."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def state_of(place: LogPlace, fields: Mapping[bytes, bytes]) -> LogState | None:
    try:
        if b"incarnation" not in fields or fields[b"state"] == b"REMOVED":
            return None
        session, _, _ = fields.get(b"owner", b"").decode().partition(":")
        ledger, epoch = fields.get(b"ledger"), fields.get(b"epoch")
        first, end = number(fields.get(b"first", 0)), number(fields.get(b"next", 0))
        if first > end:
            raise ValueError("it begins behind its end")
        return LogState(
            fields[b"incarnation"].decode(),
            fields[b"state"] == b"SEALED",
            session,
            number(fields.get(b"term", 0)),
            None if ledger is None else number(ledger),
            first,
            end,
            number(fields.get(b"size", 0)),
            None if epoch is None else number(epoch),
            requests_in(fields),
        )
    except (KeyError, ValueError):
        raise _damaged(place) from None


def named(place: LogPlace, entries: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """Entries by the names of subscriptions or producers; what is no text is the name of none, and passed over."""
    try:
        return {name.decode(): entry for name, entry in entries.items()}
    except UnicodeDecodeError:
        complain(log, "what is stored for %s has a name that is no text: it is passed over; remove it", place.name)
        return {name.decode(): entry for name, entry in entries.items() if _is_text(name)}


def _is_text(name: bytes) -> bool:
    try:
        return bool(name.decode())
    except UnicodeDecodeError:
        return False


def opened(place: LogPlace, session: str, term: int, state: Reply, cursors: Reply, producers: Reply) -> Opened:
    """What a claim gave."""
    fields = pairs(state)
    found = state_of(place, fields)
    try:
        if found is None or found.ledger is None:
            raise _damaged(place)
        return Opened(
            Claim(place, found.incarnation, session, term, found.ledger),
            found,
            named(place, pairs(cursors)),
            {name: _mark_of(entry) for name, entry in named(place, pairs(producers)).items()},
            number(fields.get(b"time", 0)),
            number(fields.get(b"largest", 0)),
        )
    except ValueError:
        raise _damaged(place) from None


def _mark_of(entry: bytes) -> ProducerMark:
    sequence, index = entry.split(b" ")
    # A producer may begin with -1.
    return ProducerMark(number(int(sequence) + 1) - 1, number(index))


def _damaged(place: LogPlace) -> RecordDamaged:
    key = place.key.decode()
    return RecordDamaged(
        f"What is stored for {place.name}, under {key}, is not the state of a segment: restore or remove it."
    )
