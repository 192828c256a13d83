"""What a leader decides for one subscription: pure functions from what is stored to what shall be stored.

A segment that moves is first taken from its old owner, who keeps it as `releasing`; the next owner gets it once it is
released. So two consumers never have the same segment, and a new leader finds the hand-over where the old one left it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from controller.segment_port import Claim
from layout.assignment import assign
from layout.segments import Segment
from metadata.subscriptions import AssignedSegment, Assignment, Consumer


def targets(segments: Sequence[Segment], members: Mapping[str, Consumer]) -> dict[str, tuple[int, ...]]:
    """Who shall have what in the end, with the fewest moves from what they have."""
    return assign(segments, {name: _held(consumer) for name, consumer in members.items()})


def claims_to_release(
    wanted: Mapping[str, tuple[int, ...]], members: Mapping[str, Consumer], existing: Collection[int]
) -> set[Claim]:
    """What consumers have, or are still releasing, and shall not keep: to be let go of before another one gets it.

    Also what nobody gets now: it may be given out again before it is closed, for instance after a seek back.
    """
    claims: set[Claim] = set()
    for name, consumer in members.items():
        if consumer.assignment is None:
            continue
        keeps = set(wanted.get(name, ()))
        had = (*consumer.assignment.segment_ids, *consumer.assignment.releasing)
        claims |= {(name, segment_id) for segment_id in had if segment_id not in keeps and segment_id in existing}
    return claims


def assignments(
    epoch: int,
    segments: Iterable[Segment],
    wanted: Mapping[str, tuple[int, ...]],
    members: Mapping[str, Consumer],
    unreleased: Collection[Claim],
) -> dict[str, Assignment]:
    """The assignments that have to be written: those that differ from the stored ones in more than their epoch."""
    by_id = {segment.segment_id: segment for segment in segments}
    taken = {segment_id for _, segment_id in unreleased}
    releasing: dict[str, list[int]] = {}
    for name, segment_id in sorted(unreleased):
        releasing.setdefault(name, []).append(segment_id)
    changed: dict[str, Assignment] = {}
    for name, consumer in members.items():
        given = tuple(_assigned(by_id[segment_id]) for segment_id in wanted.get(name, ()) if segment_id not in taken)
        fresh = Assignment(epoch, given, tuple(releasing.get(name, ())))
        stored = consumer.assignment
        if stored is None or (stored.segments, stored.releasing) != (fresh.segments, fresh.releasing):
            changed[name] = fresh
    return changed


def _assigned(segment: Segment) -> AssignedSegment:
    return AssignedSegment(segment.segment_id, segment.range.start, segment.range.end, segment.legacy_topic_name or "")


def _held(consumer: Consumer) -> tuple[int, ...]:
    if consumer.assignment is None:
        return ()
    # What it still has to release is rather given back to it than to anybody else.
    return consumer.assignment.segment_ids + consumer.assignment.releasing
