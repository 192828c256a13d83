"""The logs of segments: claimed by one node at a time, appended to and read by it, and fenced against all others.

A claim is a compare-and-set on the owner that was seen. Every write carries the token of its claim, so that whatever a
former owner has still under way is refused from the moment somebody claims anew.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, count, groupby
from typing import Final

from metadata import keys, scripts
from metadata.errors import LogFenced, LogMissing, LogSealed, RecordDamaged, TooFewReplicas
from metadata.lanes import Lane
from metadata.link import Link
from metadata.log_entries import Entry, StoredEntry, pack_header, stored_entries, stream_id
from metadata.log_places import LogPlace
from metadata.log_standings import read_standings, store_lost
from metadata.log_states import (
    Claim,
    LogStanding,
    LogState,
    Opened,
    ProducerMark,
    mark_entry,
    named,
    opened,
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
# How many entries, and bytes, before the one of a time may be of that time as well, because clocks differ.
_PUBLISHED: Final = (scripts.FIND_PUBLISHED, 64, 1024 * 1024)

# The stream ids of the first and the last entry, and how many it has at most.
_Run = tuple[str, str, int]


class SegmentLogs:
    """What an owner does with its logs. Of appends, and of saves, one may be under way per claim."""

    def __init__(self, store: TopicStore) -> None:
        self._store = store
        self._replication = Replication(longest=store.timeouts.silence / 2)
        self._last_term = 0
        self._numbers = count(1)
        # By the term of a claim, while it stands: the size of the largest entry that its log can have.
        self._largest: dict[int, int] = {}

    async def state(self, place: LogPlace) -> LogState | None:
        """How a log stands, None where there is none; StoreLost where its absence would say nothing."""
        state = await self._look(place)
        if state is None:
            # A topic may have been deleted and created again between the look at the one key and at the other.
            state = await self._look(place)
        return state

    async def _look(self, place: LogPlace) -> LogState | None:
        slot = place.slot
        fields, mark, *record = await self._store.commands.gather(
            [
                (slot, ("HGETALL", place.key)),
                (slot, ("GET", keys.marker_key(place.bucket))),
                *([] if place.segment_id is None else [(slot, ("HGET", keys.record_key(place.path), "incarnation"))]),
            ]
        )
        if mark != self._store.identity.mark:
            raise store_lost()
        state = state_of(place, fields)
        # What is left of a deleted topic waits for the garbage collector.
        if state is None or (record and record[0] != state.incarnation.encode()):
            return None
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
                *_told(place),
            ],
            [
                expected.incarnation,
                expected.owner,
                session,
                term,
                place.bucket,
                "" if place.segment_id is None else place.segment_id,
                place.path,
                self._store.change_log_length,
                operation_id(),
            ],
            repeatable=True,
        )
        if outcome != b"done":
            return None
        try:
            handed_over = opened(place, session, term, state, cursors, producers)
        except RecordDamaged:
            # It is so for all, and nobody shall take it for served here.
            await self.release(Claim(place, expected.incarnation, session, term, ledger=0))
            raise
        self._largest[term] = handed_over.largest
        return handed_over

    async def cursors(self, place: LogPlace, seen: LogState) -> dict[str, bytes]:
        """Where subscriptions stand in a log, for who does not own it."""
        found = await self._store.bulk.call(place.slot, "HGETALL", place.cursors(seen.incarnation))
        return named(place, found)

    async def cursor(self, claim: Claim, subscription: str) -> bytes | None:
        """Where a subscription stands in a log, as the store has it."""
        key = claim.place.cursors(claim.incarnation)
        found: bytes | None = await self._store.commands.call(claim.place.slot, "HGET", key, subscription)
        return found

    async def append(
        self,
        claim: Claim,
        first: int,
        entries: Sequence[Entry] | Sequence[StoredEntry],
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
        largest = max([len(entry.body) for entry in entries])
        # Before it is sent: a read at the same time may meet these entries already.
        if claim.term in self._largest:
            self._largest[claim.term] = max(self._largest[claim.term], largest)
        script_keys = [place.key, place.log(claim.incarnation)]
        if marks:
            script_keys.append(place.producers(claim.incarnation))
        args: list[bytes | str | int] = [
            claim.incarnation,
            claim.token,
            first,
            size,
            largest,
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
        if replicas:
            await self._replicated(place, link, replicas, replica_timeout)

    async def confirm(self, claim: Claim, replicas: int, *, replica_timeout: float = 1.0) -> None:
        """Return when so many replicas have all that the log holds; TooFewReplicas where not in time."""
        place = claim.place
        # A connection is only told about its own writes.
        outcome, link = await self._store.appends.script_and_link(
            place.slot, scripts.CONFIRM_CLAIM, [place.key], [claim.incarnation, claim.token]
        )
        await self._check(claim, outcome)
        await self._replicated(place, link, replicas, replica_timeout)

    async def _replicated(self, place: LogPlace, link: Link, replicas: int, timeout: float) -> None:
        if (have := await self._replication.confirmed(link, replicas, timeout)) < replicas:
            raise TooFewReplicas(
                f"Entries of {place.name} are stored, but only {have} of {replicas} replicas have them: send again."
            )

    async def read(self, claim: Claim, first: int, count: int, *, max_bytes: int = MAX_READ_BYTES) -> list[StoredEntry]:
        """Entries from index `first` on: at least one if there is any, and no more than fit."""
        most = min(count, MAX_READ_ENTRIES)
        return await self._read(claim, [(stream_id(max(first, 0)), "+", most)], most, max_bytes)

    async def read_some(
        self, claim: Claim, indexes: Sequence[int], *, max_bytes: int = MAX_READ_BYTES
    ) -> list[StoredEntry]:
        """Those of these entries that are still there, in ascending order: at least one, and no more than fit.

        Logs lose entries at their beginning only. So what lacks behind the last one that came did not fit: ask again.
        """
        wanted = sorted(set(indexes))[:MAX_READ_ENTRIES]
        return await self._read(claim, _runs(wanted), len(wanted), max_bytes)

    async def index_at(self, claim: Claim, timestamp_ms: int) -> int:
        """The first entry that arrived at that time or later; the next one to come if there is none."""
        outcome, index = await self._index_at(claim.place, claim.incarnation, timestamp_ms)
        await self._check(claim, outcome)
        return index

    async def index_published(self, claim: Claim, timestamp_ms: int) -> int:
        """The same by the times at which producers say that they published; those may go back and forth a little."""
        outcome, index = await self._index_at(claim.place, claim.incarnation, timestamp_ms, *_PUBLISHED)
        await self._check(claim, outcome)
        return index

    async def index_seen(self, place: LogPlace, seen: LogState, timestamp_ms: int) -> int:
        """The same for who does not own the log; the first entry where it is gone."""
        outcome, index = await self._index_at(place, seen.incarnation, timestamp_ms)
        return index if outcome == b"done" else seen.first

    async def _index_at(
        self,
        place: LogPlace,
        incarnation: str,
        timestamp_ms: int,
        script: scripts.Script = scripts.FIND_TIME,
        *bounds: int,
    ) -> tuple[bytes, int]:
        outcome, index = await self._store.bulk.script(
            place.slot,
            script,
            [place.key, place.log(incarnation)],
            [incarnation, max(timestamp_ms, 0), *bounds],
            repeatable=True,
        )
        return outcome, int(index)

    async def save(
        self,
        claim: Claim,
        cursors: Mapping[str, bytes | None],
        *,
        carried_out: Mapping[str, bytes] | None = None,
        drained: bool = False,
    ) -> None:
        """Write where subscriptions stand; None forgets one. `drained` tells the topic's leader of it.

        `carried_out` has the requests that have moved these cursors, and go with this write.
        """
        place = claim.place
        topic_path = place.topic_path
        topic_bucket = keys.bucket_of(topic_path)
        gone = [name for name, cursor in cursors.items() if cursor is None]
        args: list[bytes | str | int] = [
            claim.incarnation,
            claim.token,
            next(self._numbers),
            topic_path,
            self._store.change_log_length,
            operation_id(),
            len(gone),
            len(carried_out or ()),
            *gone,
        ]
        for name, request in (carried_out or {}).items():
            args += (name, request)
        for name, cursor in cursors.items():
            if cursor is not None:
                args += (name, cursor)
        script_keys = [place.key, place.cursors(claim.incarnation)]
        if drained and topic_bucket == place.bucket:
            script_keys.append(keys.changes_key(topic_bucket))
        await self._write(claim, scripts.SAVE_CURSORS, script_keys, args)
        if drained and topic_bucket != place.bucket:
            # A partition that became a segment lies elsewhere than its topic. What is written here twice, because a
            # reply was lost, does no harm.
            await self._store.commands.script(
                keys.BUCKET_SLOTS[topic_bucket],
                scripts.TELL_DRAINED,
                [keys.record_key(topic_path), keys.changes_key(topic_bucket)],
                [claim.incarnation, topic_path, self._store.change_log_length, operation_id()],
                repeatable=True,
            )

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

    async def tell(self, claim: Claim, traffic: bytes, holds: float) -> None:
        """Say what goes through a log, for who asks elsewhere; rates are believed for so many seconds.

        A call that was given up and comes through late does little harm: it is soon told anew, or not believed.
        """
        await self._write(
            claim,
            scripts.TELL_FIGURES,
            [claim.place.key],
            [claim.incarnation, claim.token, round(holds * 1000), traffic],
        )

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
        self._largest.pop(claim.term, None)

    async def standings(
        self, lane: Lane, incarnation: str, places: Sequence[LogPlace], subscriptions: Sequence[str] | None
    ) -> list[LogStanding]:
        """How far logs of one topic reach and where these subscriptions stand in each, in one round trip.

        For who does not own them. The cursor of a subscription that never was at a log is not among its cursors; None
        asks for those of all that were.
        """
        return await read_standings(self._store.identity.mark, lane, incarnation, places, subscriptions)

    async def _read(self, claim: Claim, runs: Sequence[_Run], most: int, max_bytes: int) -> list[StoredEntry]:
        """The entries of these runs, `most` of them at most."""
        if most <= 0:
            return []
        slot, log = claim.place.slot, claim.place.log(claim.incarnation)
        largest = self._largest.get(claim.term)
        if largest is not None and most * largest <= max_bytes:
            replies = await self._store.bulk.gather(
                [(slot, ("XRANGE", log, first, last, "COUNT", count)) for first, last, count in runs]
            )
            return stored_entries(chain.from_iterable(replies))
        # It may be too much. A script looks at the sizes, which takes the store twice the time.
        args: list[bytes | str | int] = [max_bytes]
        for run in runs:
            args += run
        return stored_entries(await self._store.bulk.script(slot, scripts.READ_ENTRIES, [log], args, repeatable=True))

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
                self._largest.pop(claim.term, None)
                bucket = claim.place.bucket
                if await self._store.commands.call(claim.place.slot, "GET", keys.marker_key(bucket)) != (
                    self._store.identity.mark
                ):
                    raise store_lost()
                raise LogMissing(f"{name} is gone: look the topic up again.")
            case b"sealed":
                raise LogSealed(f"{name} is sealed: send to the segments that took its place.")
            case b"backwards":
                raise ValueError(f"the times of entries of {name} go back")
            case b"skipped":
                raise LogFenced(f"{name} does not end where its owner thought: it has to be claimed again.")
            case _:
                self._largest.pop(claim.term, None)
                raise LogFenced(f"This node does not own {name} any more: look it up again.")


def _told(place: LogPlace) -> list[bytes]:
    """Keys of those that want to know who owns a log."""
    return [] if place.segment_id is None else [keys.record_key(place.path), keys.changes_key(place.bucket)]


def _runs(indexes: Sequence[int]) -> list[_Run]:
    """As few runs as cover exactly these ascending indexes."""
    runs = []
    for _, numbered in groupby(enumerate(indexes), key=lambda pair: pair[1] - pair[0]):
        run = [index for _, index in numbered]
        runs.append((stream_id(run[0]), stream_id(run[-1]), len(run)))
    return runs
