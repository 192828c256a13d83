"""How logs stand, for those who do not own them: how far they reach, who has read what, and what their owners tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metadata import keys, log_figures
from metadata.errors import StoreLost
from metadata.lanes import Lane, Request
from metadata.link import Reply
from metadata.log_places import LogPlace
from metadata.log_states import LogStanding, named, state_of


async def read_standings(
    mark: bytes, lane: Lane, incarnation: str, places: Sequence[LogPlace], subscriptions: Sequence[str] | None
) -> list[LogStanding]:
    """The logs of one topic, with the cursors of these subscriptions or of all; StoreLost where `mark` is not there."""
    if not places:
        return []
    buckets = {place.bucket: place.slot for place in places}
    marks, times, states, cursors = await _in_parts(
        lane,
        [(slot, ("GET", keys.marker_key(bucket))) for bucket, slot in buckets.items()],
        [(slot, ("TIME",)) for slot in buckets.values()],
        [(place.slot, ("HGETALL", place.key)) for place in places],
        [(place.slot, _cursors(place.cursors(incarnation), subscriptions)) for place in places],
    )
    if any(found != mark for found in marks):
        raise store_lost()
    now_ms = {bucket: int(time[0]) * 1000 + int(time[1]) // 1000 for bucket, time in zip(buckets, times, strict=True)}
    return [
        _standing(place, incarnation, fields, _named(place, subscriptions, found), now_ms[place.bucket])
        for place, fields, found in zip(places, states, cursors, strict=True)
    ]


def store_lost() -> StoreLost:
    return StoreLost("The store has lost its identity (flushed, or another data set): restore it or restart Vela.")


def _standing(
    place: LogPlace, incarnation: str, fields: Mapping[bytes, bytes], cursors: Mapping[str, bytes], now_ms: int
) -> LogStanding:
    state = state_of(place, fields)
    if state is None or state.incarnation != incarnation:
        return LogStanding(None, cursors)
    return LogStanding(state, cursors, log_figures.decode(fields.get(b"figures"), now_ms))


def _cursors(key: bytes, subscriptions: Sequence[str] | None) -> tuple[str | bytes, ...]:
    if subscriptions is None:
        return ("HGETALL", key)
    # One field is asked for at least, which is the only one that can be no subscription.
    return ("HMGET", key, *(subscriptions or ("",)))


def _named(place: LogPlace, subscriptions: Sequence[str] | None, found: Reply) -> dict[str, bytes]:
    if subscriptions is None:
        return named(place, found)
    return {name: cursor for name, cursor in zip(subscriptions, found, strict=False) if cursor is not None}


async def _in_parts(lane: Lane, *parts: Sequence[Request]) -> list[list[Reply]]:
    """Several lists of commands in one round trip, each with the list of its replies."""
    replies = iter(await lane.gather([request for part in parts for request in part]))
    return [[next(replies) for _ in part] for part in parts]
