"""Who may have a segment, by the assignments that are stored, and who has it, by what the owner of its log tells.

A consumer opens a segment under its registered name, or under that name with `-seg-` and the segment's id behind it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from metadata import keys, scripts
from metadata.errors import StoreLost
from metadata.lanes import Lane, Request
from metadata.link import Reply
from metadata.log_places import LogPlace
from metadata.log_states import Claim
from metadata.store import TopicStore
from metadata.subscriptions import ASSIGNED, ATTACHED, AssignedSegment, Assignment, SubscriptionType, assignment_of

_SUFFIX: Final = re.compile(r"(?P<name>.+)-seg-(?P<id>\d{1,18})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Question:
    """Consumers of a subscription, under the names by which they open the log of a segment."""

    place: LogPlace
    subscription: str
    consumers: Sequence[str]


@dataclass(frozen=True, slots=True)
class Standing:
    """What a topic knows of a consumer at one of its segments."""

    registered: str | None = None  # its name there; None for a stranger, or one that nothing was decided about yet
    is_assigned: bool = False  # this very segment, to be consumed by it alone


STRANGER: Final = Standing()


class Holder(NamedTuple):
    session: str  # of the node that owns the log
    consumer: str


class SegmentHolders:
    def __init__(self, store: TopicStore) -> None:
        self._store = store

    async def standings(self, path: str, questions: Sequence[Question]) -> list[list[Standing]]:
        """How the consumers of each question stand with the topic at this path, from one look at the store.

        Raises StoreLost where their absence would say nothing.
        """
        names: dict[str, dict[str, None]] = {}
        for question in questions:
            wanted = names.setdefault(question.subscription, {})
            for consumer in question.consumers:
                wanted |= dict.fromkeys(name for name, _ in _registered_names(consumer))
        bucket = keys.bucket_of(path)
        slot = keys.BUCKET_SLOTS[bucket]
        fields: dict[str, list[bytes]] = {
            subscription: [prefix + name.encode() for name in wanted for prefix in (ATTACHED, ASSIGNED)]
            for subscription, wanted in names.items()
        }
        requests: list[Request] = [(slot, ("GET", keys.marker_key(bucket)))]
        requests += [(slot, ("HGET", keys.subscriptions_key(path), subscription)) for subscription in names]
        requests += [(slot, ("HMGET", keys.members_key(path, name), *some)) for name, some in fields.items()]
        mark, *found = await self._store.commands.gather(requests)
        if mark != self._store.identity.mark:
            raise StoreLost("The store has lost its identity: consumers keep the segments that they have.")
        entries, members = found[: len(names)], found[len(names) :]
        assignments = {
            subscription: _assignments(entry, list(names[subscription]), some)
            for subscription, entry, some in zip(names, entries, members, strict=True)
        }
        return [
            [_standing(it.place, consumer, assignments[it.subscription]) for consumer in it.consumers]
            for it in questions
        ]

    async def tell(self, claim: Claim, subscription: str, consumer: str | None) -> bool:
        """Say which consumer has a log, for those who ask elsewhere; whether the claim still stands.

        A call that was given up and comes through late does little harm: who waits for a consumer that does not have
        the log any more does not wait longer than for one that does.
        """
        outcome = await self._store.commands.script(
            claim.place.slot,
            scripts.TELL_HOLDER,
            [claim.place.key],
            [claim.incarnation, claim.token, claim.session, subscription, consumer or ""],
            repeatable=True,
        )
        return bool(outcome == b"done")

    async def holders(self, lane: Lane, places: Sequence[LogPlace], subscription: str) -> list[Holder | None]:
        """Who has these logs, as their owners tell; None where nobody has one."""
        found = await lane.gather(
            [(place.slot, ("HMGET", place.key, "owner", f"holder:{subscription}")) for place in places]
        )
        return [_holder(owner, told) for owner, told in found]


def opens_as(consumer: str, segment_id: int, opened: str) -> bool:
    """Whether a registered consumer is the one that opened a segment under this name."""
    return opened in (consumer, f"{consumer}-seg-{segment_id}")


def _registered_names(opened: str) -> list[tuple[str, int | None]]:
    """The consumers that may have opened something under this name, each with the segment that it would have to be."""
    suffixed = _SUFFIX.fullmatch(opened)
    return [(opened, None), *([(suffixed["name"], int(suffixed["id"]))] if suffixed is not None else [])]


def _assignments(entry: bytes | None, names: Sequence[str], fields: Sequence[Reply]) -> Mapping[str, Assignment]:
    """What those of these consumers are assigned who are registered at an ordered subscription."""
    if entry is None or entry.partition(b" ")[0] != SubscriptionType.STREAM.encode():
        return {}
    found = {}
    for name, attached, assigned in zip(names, fields[::2], fields[1::2], strict=True):
        assignment = assignment_of(assigned) if attached is not None and assigned else None
        if assignment is not None:
            found[name] = assignment
    return found


def _standing(place: LogPlace, opened: str, assignments: Mapping[str, Assignment]) -> Standing:
    known = [(name, segment_id) for name, segment_id in _registered_names(opened) if name in assignments]
    for name, segment_id in known:
        if any(_is_of(segment, place, segment_id) for segment in assignments[name].segments):
            return Standing(name, is_assigned=True)
    # With the segment behind it, it is the name of a consumer only where there is one.
    return Standing(known[0][0]) if known else STRANGER


def _is_of(segment: AssignedSegment, place: LogPlace, segment_id: int | None) -> bool:
    if segment_id is not None and segment_id != segment.segment_id:
        return False
    if place.segment_id is None:
        return segment.legacy == place.name
    return not segment.legacy and segment.segment_id == place.segment_id


def _holder(owner: bytes | None, told: bytes | None) -> Holder | None:
    if not owner or not told:
        return None
    session = owner.partition(b":")[0].decode(errors="replace")
    teller, _, consumer = told.decode(errors="replace").partition(" ")
    return Holder(session, consumer) if teller == session else None
