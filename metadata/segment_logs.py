"""The logs of segments: claimed by one node at a time, appended to and read by it, and fenced against all others.

A claim is a compare-and-set on the owner that was seen. Every write carries the token of its claim, so that whatever a
former owner has still under way is refused from the moment somebody claims anew.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from itertools import count as counting
from typing import Final

from metadata import keys, scripts
from metadata.errors import LogFenced, LogMissing, LogSealed, StoreLost, TooFewReplicas
from metadata.lanes import Lane
from metadata.link import Reply
from metadata.log_entries import Entry, StoredEntry, pack_header, stored_entries, stream_id
from metadata.log_places import LogPlace
from metadata.log_states import (
    Claim,
    LogStanding,
    LogState,
    Opened,
    ProducerMark,
    mark_entry,
    opened,
    pairs,
    state_of,
)
from metadata.replication import Replication
from metadata.store import TopicStore, operation_id

__all__ = [
    "Claim",
    "Entry",
    "LogPlace",
    "LogStanding",
    "LogState",
    "Opened",
    "ProducerMark",
    "SegmentLogs",
    "StoredEntry",
]

# Entries and bytes of one read: neither the store nor a node shall have much more than this in hand for one caller.
MAX_READ_ENTRIES: Final = 1_000
MAX_READ_BYTES: Final = 4 * 1024 * 1024
# Entries that one call removes: others wait meanwhile, and 10,000 take a few milliseconds.
_TRIM_SLICE: Final = 10_000


class SegmentLogs:
    """What an owner does with its logs. Of appends, and of saves, one may be under way per claim."""

    def __init__(self, store: TopicStore) -> None:
        self._store = store
        self._replication = Replication(longest=store.timeouts.silence / 2)
        self._last_term = 0
        self._numbers = counting(1)

    async def state(self, place: LogPlace) -> LogState | None:
        """How a log stands, None where there is none; StoreLost where its absence would say nothing."""
        found, mark = await self._store.commands.gather(
            [
                (
                    place.slot,
                    scripts.READ_SEGMENT.command([place.key, keys.garbage_key(place.bucket)], [place.leftover]),
                ),
                (place.slot, ("GET", keys.marker_key(place.bucket))),
            ]
        )
        state = state_of(place, pairs(found))
        if state is None and mark != self._store.identity.mark:
            raise _lost()
        return state

    async def claim(self, place: LogPlace, expected: LogState, session: str) -> Opened | None:
        """Own a log in the place of the owner that was seen; None if somebody was faster or it is gone.

        An owner that does not know what became of an append claims anew in its own place.
        """
        # Chosen here, so that a claim whose reply was lost knows itself again; never twice by one node, so that not
        # even a store that forgot the last one takes an old call for a new one.
        term = self._last_term = max(expected.term + 1, self._last_term + 1, time.time_ns() // 1_000_000)
        outcome, state, cursors, producers = await self._store.commands.script(
            place.slot,
            scripts.CLAIM_SEGMENT,
            [
                place.key,
                place.cursors(expected.incarnation),
                place.producers(expected.incarnation),
                keys.ledgers_key(place.bucket),
                keys.garbage_key(place.bucket),
                *_told(place),
            ],
            [
                expected.incarnation,
                expected.owner,
                session,
                term,
                place.bucket,
                f"{expected.incarnation}/{place.leftover}",
                "" if place.segment_id is None else place.segment_id,
                place.path,
                self._store.change_log_length,
                operation_id(),
            ],
            repeatable=True,
        )
        return opened(place, session, term, state, cursors, producers) if outcome == b"done" else None

    async def append(
        self,
        claim: Claim,
        first: int,
        entries: Sequence[Entry],
        marks: Mapping[str, ProducerMark],
        size: int,
        *,
        replicas: int = 0,
        replica_timeout: float = 1.0,
    ) -> None:
        """Store entries from index `first` on, all of them or none; `size` is that of the log after it, in bytes.

        OutcomeUnknown where the reply was lost: claim anew, and what was stored is seen. With `replicas`,
        TooFewReplicas where not that many have them in time: they are stored all the same.
        """
        if not entries:
            return
        times = [entry.time_ms for entry in entries]
        if times != sorted(times):
            raise ValueError("the times of entries go back")
        place = claim.place
        script_keys = [place.key, place.log(claim.incarnation)]
        if marks:
            script_keys.append(place.producers(claim.incarnation))
        args: list[bytes | str | int] = [
            claim.incarnation,
            claim.token,
            first,
            size,
            times[0],
            times[-1],
            len(entries),
        ]
        for entry in entries:
            args += (pack_header(entry), entry.body)
        for name, mark in marks.items():
            args += (name, mark_entry(mark))
        outcome, link = await self._store.appends.script_and_link(place.slot, scripts.APPEND_ENTRIES, script_keys, args)
        await self._check(claim, outcome)
        if not replicas:
            return
        if (have := await self._replication.confirmed(link, replicas, replica_timeout)) < replicas:
            raise TooFewReplicas(
                f"Entries of {place.name} are stored, but only {have} of {replicas} replicas have them: send again."
            )

    async def read(self, claim: Claim, first: int, count: int, *, max_bytes: int = MAX_READ_BYTES) -> list[StoredEntry]:
        """Entries from index `first` on: at least one if there is any, and no more than fit."""
        return await self._read(claim, [(first, None, min(count, MAX_READ_ENTRIES))], max_bytes)

    async def read_some(
        self, claim: Claim, indexes: Sequence[int], *, max_bytes: int = MAX_READ_BYTES
    ) -> list[StoredEntry]:
        """Those of these entries that are still there, in ascending order: at least one, and no more than fit.

        Logs lose entries at their beginning only. So what lacks behind the last one that came did not fit: ask again.
        """
        return await self._read(claim, _runs(indexes), max_bytes)

    async def index_at(self, claim: Claim, timestamp_ms: int) -> int:
        """The first entry of that time or later; the next one to come if there is none."""
        place = claim.place
        outcome, index = await self._store.bulk.script(
            place.slot,
            scripts.FIND_TIME,
            [place.key, place.log(claim.incarnation)],
            [claim.incarnation, max(timestamp_ms, 0)],
            repeatable=True,
        )
        await self._check(claim, outcome)
        return int(index)

    async def save(self, claim: Claim, cursors: Mapping[str, bytes | None], *, drained: bool = False) -> None:
        """Write where subscriptions stand; None forgets one. `drained` tells the topic's leader of it."""
        place = claim.place
        gone = [name for name, cursor in cursors.items() if cursor is None]
        args: list[bytes | str | int] = [
            claim.incarnation,
            claim.token,
            next(self._numbers),
            place.path,
            self._store.change_log_length,
            operation_id(),
            len(gone),
            *gone,
        ]
        for name, cursor in cursors.items():
            if cursor is not None:
                args += (name, cursor)
        script_keys = [place.key, place.cursors(claim.incarnation)]
        if drained and place.segment_id is not None:
            script_keys.append(keys.changes_key(place.bucket))
        await self._write(claim, scripts.SAVE_CURSORS, script_keys, args)

    async def forget_producers(self, claim: Claim, names: Collection[str]) -> None:
        """Drop the marks of producers: a message that one of them sends again would be stored again."""
        if not names:
            return
        await self._write(
            claim,
            scripts.FORGET_PRODUCERS,
            [claim.place.key, claim.place.producers(claim.incarnation)],
            [claim.incarnation, claim.token, next(self._numbers), *names],
        )

    async def set_topic_epoch(self, claim: Claim, epoch: int) -> None:
        """Note the epoch of an exclusive producer; a lower one than the last is passed over."""
        await self._write(claim, scripts.SET_TOPIC_EPOCH, [claim.place.key], [claim.incarnation, claim.token, epoch])

    async def trim(self, claim: Claim, below: int, size: int) -> None:
        """Remove the entries below an index, in slices; `size` is that of the log after it, in bytes."""
        place = claim.place
        finished = 0
        while not finished:
            outcome, _, finished = await self._store.commands.script(
                place.slot,
                scripts.TRIM_SEGMENT,
                [place.key, place.log(claim.incarnation)],
                [claim.incarnation, claim.token, below, size, _TRIM_SLICE],
                repeatable=True,
            )
            await self._check(claim, outcome)

    async def release(self, claim: Claim) -> None:
        """Leave a log to whoever wants it. Nothing happens where somebody else has it already."""
        place = claim.place
        await self._store.commands.script(
            place.slot,
            scripts.RELEASE_SEGMENT,
            [place.key, *_told(place)],
            [
                claim.incarnation,
                claim.token,
                claim.session,
                "" if place.segment_id is None else place.segment_id,
                place.path,
                self._store.change_log_length,
                operation_id(),
            ],
            repeatable=True,
        )

    async def standings(
        self, lane: Lane, incarnation: str, places: Sequence[LogPlace], subscriptions: Sequence[str]
    ) -> list[LogStanding]:
        """How far logs of one topic reach and where these subscriptions stand in each, in one round trip.

        For who does not own them. The cursor of a subscription that never was at a log is not among its cursors.
        """
        states = [(place.slot, ("HGETALL", place.key)) for place in places]
        cursors = [(place.slot, ("HMGET", place.cursors(incarnation), *subscriptions)) for place in places]
        replies = await lane.gather([*states, *(cursors if subscriptions else ())])
        nothing: Reply = [None] * len(subscriptions)
        standings = []
        for number, place in enumerate(places):
            state = state_of(place, replies[number])
            found = replies[len(places) + number] if subscriptions else nothing
            standings.append(
                LogStanding(
                    state if state is not None and state.incarnation == incarnation else None,
                    {name: cursor for name, cursor in zip(subscriptions, found, strict=True) if cursor is not None},
                )
            )
        return standings

    async def _read(
        self, claim: Claim, ranges: Sequence[tuple[int, int | None, int]], max_bytes: int
    ) -> list[StoredEntry]:
        args: list[bytes | str | int] = [max_bytes]
        for first, last, most in ranges:
            args += (stream_id(max(first, 0)), "+" if last is None else stream_id(last), most)
        place = claim.place
        found = await self._store.bulk.script(
            place.slot, scripts.READ_ENTRIES, [place.log(claim.incarnation)], args, repeatable=True
        )
        return stored_entries(found)

    async def _write(
        self,
        claim: Claim,
        script: scripts.Script,
        script_keys: Sequence[bytes],
        args: Sequence[bytes | str | int],
    ) -> None:
        outcome = await self._store.commands.script(claim.place.slot, script, script_keys, args, repeatable=True)
        await self._check(claim, outcome)

    async def _check(self, claim: Claim, outcome: bytes) -> None:
        name = claim.place.name
        match outcome:
            case b"done":
                return
            case b"missing":
                bucket = claim.place.bucket
                if await self._store.commands.call(claim.place.slot, "GET", keys.marker_key(bucket)) != (
                    self._store.identity.mark
                ):
                    raise _lost()
                raise LogMissing(f"{name} is gone: look the topic up again.")
            case b"sealed":
                raise LogSealed(f"{name} is sealed: send to the segments that took its place.")
            case b"backwards":
                raise ValueError(f"the times of entries of {name} go back")
            case b"skipped":
                raise LogFenced(f"{name} does not end where its owner thought: it has to be claimed again.")
            case _:
                raise LogFenced(f"This node does not own {name} any more: look it up again.")


def _told(place: LogPlace) -> list[bytes]:
    """Keys of those that want to know who owns a log."""
    return [] if place.segment_id is None else [keys.record_key(place.path), keys.changes_key(place.bucket)]


def _runs(indexes: Sequence[int]) -> list[tuple[int, int | None, int]]:
    """As few ranges as cover exactly these indexes."""
    runs: list[tuple[int, int | None, int]] = []
    start = last = -1
    for index in sorted(set(indexes))[:MAX_READ_ENTRIES]:
        if index != last + 1 or start < 0:
            if start >= 0:
                runs.append((start, last, last - start + 1))
            start = index
        last = index
    if start >= 0:
        runs.append((start, last, last - start + 1))
    return runs


def _lost() -> StoreLost:
    return StoreLost("The store has lost its identity (flushed, or another data set): restore it or restart Vela.")
