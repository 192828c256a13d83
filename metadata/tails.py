"""Where change logs end, whether they are those of our store, and whether they still hold what was read of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metadata import keys
from metadata.change_log import Position, end_of, lost_entry, position_of
from metadata.errors import StoreError
from metadata.lanes import Lane, Request


@dataclass(frozen=True, slots=True)
class Tail:
    position: Position | None  # None: there is no log
    foreign: bool  # the bucket does not carry the mark of our store


async def read_tails(lane: Lane, buckets: Sequence[int], *, mark: bytes) -> list[Tail]:
    slots = keys.BUCKET_SLOTS
    replies = await lane.gather(
        [
            request
            for b in buckets
            for request in (
                (slots[b], ("XREVRANGE", keys.changes_key(b), "+", "-", "COUNT", 1)),
                (slots[b], ("GET", keys.marker_key(b))),
            )
        ],
        refusals=True,
    )
    emptied = await _emptied(lane, [b for b, tail in zip(buckets, replies[::2], strict=True) if tail == []])
    found = []
    for bucket, tail, marker in zip(buckets, replies[::2], replies[1::2], strict=True):
        # A key of another kind in the place of a log is none of ours: the bucket is not to be trusted.
        damaged = isinstance(tail, StoreError)
        position = position_of(tail[0]) if tail and not damaged else emptied.get(bucket)
        found.append(Tail(position, damaged or marker != mark))
    return found


async def rolled_back(lane: Lane, known: Mapping[int, Position | None]) -> list[int]:
    """The buckets whose logs have lost the entry that was read of them last: the store went back to an earlier state.

    A log that was empty, or trimmed to nothing, had no entry to lose.
    """
    asked = [(bucket, position) for bucket, position in known.items() if position is not None and position.op]
    requests: list[Request] = []
    for bucket, position in asked:
        slot, log = keys.BUCKET_SLOTS[bucket], keys.changes_key(bucket)
        requests.append((slot, ("XREVRANGE", log, position.entry, "-", "COUNT", 1)))
        requests.append((slot, ("XREVRANGE", log, "+", "-", "COUNT", 1)))
    replies = await lane.gather(requests, refusals=True)
    return [
        bucket
        for (bucket, position), until, last in zip(asked, replies[::2], replies[1::2], strict=True)
        # A damaged log says nothing about it.
        if isinstance(until, list) and isinstance(last, list) and lost_entry(position, until, last)
    ]


async def _emptied(lane: Lane, buckets: Sequence[int]) -> dict[int, Position]:
    """Where logs stand that are there and hold nothing, because somebody has trimmed them."""
    if not buckets:
        return {}
    slots = keys.BUCKET_SLOTS
    exist = await lane.gather([(slots[b], ("EXISTS", keys.changes_key(b))) for b in buckets])
    there = [bucket for bucket, exists in zip(buckets, exist, strict=True) if exists]
    infos = await lane.gather([(slots[b], ("XINFO", "STREAM", keys.changes_key(b))) for b in there], refusals=True)
    return {b: end_of(info) for b, info in zip(there, infos, strict=True) if not isinstance(info, StoreError)}
