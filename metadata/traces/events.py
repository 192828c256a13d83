"""One event of a trace, and what the kinds of events mean."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

FORMAT_VERSION: Final = 1


class Kind(StrEnum):
    """What an event tells. The first ten are those of the change log, the others are the recorder's own."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CONTROLLER = "controller"  # the topic has another leader
    RESIGNED = "resigned"  # the topic was left without a leader that it needs
    CONSUMERS = "consumers"  # only registrations changed
    CLASSIC = "classic"  # a classic topic was created, changed or deleted
    OWNER = "owner"  # a segment has another owner, or none
    DRAINED = "drained"  # a subscription has consumed all of a sealed segment
    CURSOR = "cursor"  # the owner of a segment is asked to move a cursor
    GAP = "gap"  # changes may be missing from here on; `detail` is the cause
    BASE = "base"  # a topic as it was found after a gap
    BASE_END = "base_end"  # all topics were found: one without a BASE event since the gap was not there


# What the recorder adds about itself; all others are entries of the change log.
RECORDERS_OWN: Final = frozenset({Kind.GAP, Kind.BASE, Kind.BASE_END})


class TraceEvent(msgspec.Struct, frozen=True, array_like=True):
    """One row. What does not apply to a kind of event, or is not known, is None.

    `run` counts the starts of the recorder. Within one, `taken_us` never goes back: it is the wall clock at the start
    plus what the monotonic clock has advanced since. Between two runs nothing is known about time.
    """

    seq: int  # position in the whole trace
    run: int
    kind: str
    taken_us: int  # when the recorder took it in
    arrival_us: int | None = None  # when the notification came, on the same clock; None: it was lost, or there is none
    store_ms: int | None = None  # the store's time of the change, and its number within that millisecond
    store_seq: int | None = None
    bucket: int | None = None  # None for a gap or the end of a base of all buckets
    namespace: str | None = None  # tenant/namespace
    topic: str | None = None  # the local name
    incarnation: str | None = None
    version: int | None = None
    epoch: int | None = None  # of the layout
    size: int | None = None  # of the record's value, in bytes; of a gap, how many changes were dropped
    value: bytes | None = None  # the record; None also where a later one was read, or none is recorded
    detail: str | None = None
