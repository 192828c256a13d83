"""Moves the cursors of a subscription: to a moment, or past everything; on all segments of a topic or on one.

Only the leader does it, because it alone writes which segments a subscription has drained. What is asked for is stored
first, and the facts follow; the owners of the logs move the cursors. Whoever is stopped in between has not answered,
and doing it again ends in the same place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from controller.leader import TopicLeader
from controller.segment_port import SegmentPort
from layout import records
from layout.errors import SegmentNotFound
from layout.layouts import Layout
from layout.segments import Segment
from metadata.errors import Fenced, SubscriptionMismatch, SubscriptionMissing, TopicMissing, VersionConflict
from metadata.lanes import Lane
from metadata.registrations import Registrations
from metadata.subscriptions import Subscription, SubscriptionType, TopicState
from protocol.names import TopicName

EARLIEST: Final = 0
# Lost to the leader's own writes about the subscription, of which there is at most one per round.
_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class Access:
    """Where the facts and the cursors are."""

    registrations: Registrations
    segments: SegmentPort
    lane: Lane


@dataclass(frozen=True, slots=True)
class Move:
    """Where the cursor on a segment goes: to the first message of a time or later, or to its end."""

    segment: Segment
    to_ms: int | None  # None: the end


def move_to(segment: Segment, timestamp_ms: int) -> Move:
    """The move that leaves a segment's messages of this time and later to be consumed."""
    # A segment of which nobody knows when it was sealed may hold anything.
    if not segment.is_active and 0 < segment.sealed_at_ms <= timestamp_ms:
        return Move(segment, None)
    return Move(segment, EARLIEST if segment.created_at_ms >= timestamp_ms else timestamp_ms)


async def seek(access: Access, leader: TopicLeader, subscription: str, timestamp_ms: int) -> None:
    """Consume on from this moment, forwards or backwards."""
    layout = await _layout(access, leader, subscription)
    await _carry_out(access, leader, subscription, [move_to(s, timestamp_ms) for s in layout.segments.values()])


async def skip_all(access: Access, leader: TopicLeader, subscription: str) -> None:
    """Consume nothing that is there now."""
    layout = await _layout(access, leader, subscription)
    await _carry_out(access, leader, subscription, [Move(s, None) for s in layout.segments.values()])


async def seek_segment(
    access: Access, leader: TopicLeader, subscription: str, descriptor: str, timestamp_ms: int
) -> None:
    """Consume one segment on from this moment, whenever it was sealed."""
    segment = segment_at(leader.topic, await _layout(access, leader, subscription), descriptor)
    await _carry_out(access, leader, subscription, [Move(segment, timestamp_ms)])


async def skip_segment(access: Access, leader: TopicLeader, subscription: str, descriptor: str) -> None:
    """Consume nothing of what one segment holds now."""
    segment = segment_at(leader.topic, await _layout(access, leader, subscription), descriptor)
    await _carry_out(access, leader, subscription, [Move(segment, None)])


def segment_at(topic: TopicName, layout: Layout, descriptor: str) -> Segment:
    """The segment of a layout that has this descriptor, its hash range included."""
    _, _, segment_id = descriptor.rpartition("-")
    segment = layout.segments.get(int(segment_id))
    if segment is None or segment.descriptor != descriptor:
        raise SegmentNotFound(f"{topic} has no segment {descriptor}: look at the topic for those it has now.")
    return segment


def with_cursors(state: TopicState, name: str) -> Subscription:
    """The subscription of this name, which must be one that has cursors."""
    subscription = state.subscriptions.get(name)
    if subscription is None:
        raise SubscriptionMissing(f"{state.topic.name} has no subscription {name}: list those that it has.")
    if not subscription.type.is_durable:
        raise SubscriptionMismatch(
            f"{name} is a {SubscriptionType.CHECKPOINT} group, whose readers keep their own positions:"
            " there is nothing to move."
        )
    return subscription


async def _layout(access: Access, leader: TopicLeader, name: str) -> Layout:
    """The layout whose segments a subscription has cursors on."""
    state = await _state(access, leader)
    with_cursors(state, name)
    return records.decode_layout(state.topic.value)


async def _state(access: Access, leader: TopicLeader) -> TopicState:
    state = await access.registrations.state(access.lane, leader.topic)
    if state is None:
        raise TopicMissing(f"Scalable topic not found: {leader.topic}. Check its name, or create it.")
    if state.topic.leader_entry != leader.leader.fence:
        raise Fenced(f"This node does not lead {leader.topic} any more: try again.")
    return state


async def _carry_out(access: Access, leader: TopicLeader, name: str, moves: Collection[Move]) -> None:
    asked = [
        await access.segments.request_move(leader.topic, leader.incarnation, name, move.segment, move.to_ms)
        for move in moves
    ]
    reopened = {m.segment.segment_id for m in moves if m.to_ms is not None and not m.segment.is_active}
    if reopened:
        # Not when they have moved: a node that dies before would leave segments that nobody is given.
        await _forget_drained(access, leader, name, reopened)
    await access.segments.moved([pending for pending in asked if pending is not None])


async def _forget_drained(access: Access, leader: TopicLeader, name: str, reopened: Collection[int]) -> None:
    """Sealed segments whose cursor may have gone back are drained once they say so again, not before.

    Written even where nothing is to be removed: a round of the leader that asked the segments before the request stood
    finds another generation then, and asks again.
    """
    for _ in range(_ATTEMPTS):
        state = await _state(access, leader)
        subscription = with_cursors(state, name)
        left = subscription.drained.difference(reopened)
        try:
            await access.registrations.assign(state.topic, leader.leader, subscription, {}, drained=left)
            return
        except VersionConflict:
            continue  # the leader's own round was faster
    raise VersionConflict(f"Subscription {name} of {leader.topic} was changed {_ATTEMPTS} times meanwhile: try again.")
