"""The leadership of one topic: compares what is stored with what should be, writes the difference, and looks again when
something changes or falls due.

All that a leader knows stands in the store, timers excepted: whoever leads next goes on from there with fresh ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from controller import deciding
from controller.retention import Retention
from controller.segment_port import Claim, SegmentPort
from controller.transitions import Transitions, wall_clock_ms
from layout import records
from layout.assignment import assignable
from layout.errors import LayoutError
from layout.layouts import Layout
from layout.segments import Segment
from metadata import keys
from metadata.complaints import complain, note_waiting
from metadata.errors import Fenced, RecordDamaged, StoreError, SubscriptionMissing, TopicMissing, VersionConflict
from metadata.lanes import Lane
from metadata.leadership import Leaderships
from metadata.peers import Peers
from metadata.records import Leader, StoredTopic, Version
from metadata.registrations import Registrations
from metadata.subscriptions import Consumer, Subscription, SubscriptionType, TopicState
from protocol.backoff import Backoff
from protocol.names import TopicName

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_LONGEST_PAUSE_AFTER_FAILURE: Final = 60.0
# In units of the prune interval: how often at least a topic is looked at whose sealed segments are kept for long.
_SELDOM: Final = 60
# How often it is asked whether a segment was let go of by its last owner, while somebody waits for that.
_POLL_INTERVAL: Final = 1.0
# Between two looks at what is damaged: nobody tells that it was restored.
_DAMAGED_INTERVAL: Final = 5.0


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    consumer_grace: float = 60.0  # how long a consumer without a connection keeps its segments
    handover: float = 20.0  # how long the old owner of a segment may hold up the next one
    rebalance_window: float = 0.1  # between two rounds; what comes meanwhile is decided together
    prune_interval: float = 60.0
    message_age: float = 600.0  # how long messages stay at least, and so the segments that hold them


@dataclass(slots=True)
class LeaderCounters:
    rounds: int = 0
    rebalances: int = 0  # assignments written, however many consumers one concerns
    assigned: int = 0  # consumers that were given another assignment
    evictions: int = 0
    pruned: int = 0
    fenced: int = 0


@dataclass(frozen=True, slots=True)
class Around:
    """What a leader needs of the node."""

    registrations: Registrations
    leaderships: Leaderships
    transitions: Transitions
    segments: SegmentPort
    peers: Peers
    lane: Callable[[], Lane]
    followed_since: Callable[[int], float]  # since when changes of a bucket have been heard without a break
    retention: Retention
    settings: LeaderSettings
    counters: LeaderCounters


class Deadlines:
    """Moments by which something must have happened, each counted from when it was first asked about.

    They do not pass while the store is away, and begin anew when it is back: who could not be heard is not late.
    """

    def __init__(self, span: float, in_touch_since: Callable[[], float]) -> None:
        self._span = span
        self._in_touch_since = in_touch_since
        self._begun: dict[Hashable, float] = {}

    def passed(self, key: Hashable) -> bool:
        begun = self._begun.setdefault(key, trio.current_time())
        return trio.current_time() >= max(begun, self._in_touch_since()) + self._span

    def keep_only(self, keys: Collection[Hashable]) -> None:
        for key in [key for key in self._begun if key not in keys]:
            del self._begun[key]

    def next(self) -> float:
        """When the first of them passes, or when to ask again while nobody can say."""
        if not self._begun:
            return float("inf")
        due = max(min(self._begun.values()), self._in_touch_since()) + self._span
        return due if due < float("inf") else trio.current_time() + _POLL_INTERVAL


class TopicLeader:
    """Runs until the topic is gone, another node leads it, or it needs no leader."""

    def __init__(self, topic: TopicName, incarnation: str, leader: Leader, around: Around) -> None:
        self.topic = topic
        self.incarnation = incarnation
        self.leader = leader
        self.scope = trio.CancelScope()
        self.operations = trio.Lock()  # one layout operation at a time
        self._around = around
        self._woken = trio.Event()
        self._bucket = keys.bucket_of(keys.path_of(topic))
        self._graces = Deadlines(around.settings.consumer_grace, self._in_touch_since)
        self._handovers = Deadlines(around.settings.handover, self._in_touch_since)
        self._prune_at = float("inf")  # no sealed segment can go before
        self._prune_seen = Version(incarnation, 0)
        self._retire_at = float("inf")  # not needed any more from then on, if nothing comes meanwhile
        self._poll_at = float("inf")
        self._holders: set[str] = set()  # sessions of the nodes that hold its consumers

    def nodes_died(self, sessions: Collection[str]) -> None:
        """Consumers that these nodes held have no connection any more."""
        if not self._holders.isdisjoint(sessions):
            self.wake()

    def wake(self) -> None:
        """Something about the topic changed, or may have."""
        self._woken.set()

    def look_at_sealed(self) -> None:
        """Sealed segments may be kept for another time than was thought."""
        if self._prune_at < float("inf"):
            self._prune_at = trio.current_time()
            self.wake()

    def _in_touch_since(self) -> float:
        """Of the nodes and of the topic: a part of the store can be away by itself."""
        return max(self._around.peers.in_touch_since, self._around.followed_since(self._bucket))

    async def run(self) -> None:
        outage = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        failures = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE_AFTER_FAILURE)
        with self.scope:
            while True:
                self._woken = trio.Event()
                try:
                    if not await self._round():
                        return
                    outage.reset()
                    failures.reset()
                except (VersionConflict, SubscriptionMissing):
                    # Somebody was faster; what they wrote is seen in the next round.
                    self.wake()
                except StoreError as error:
                    note_waiting(log, error, "leading %s waits for the store", self.topic)
                    await trio.sleep(outage.next())
                    continue
                except Exception:
                    # Whoever led it instead would fail as well.
                    log.exception("leading %s failed and is tried again", self.topic)
                    await trio.sleep(failures.next())
                    continue
                await trio.sleep(self._around.settings.rebalance_window)
                with trio.move_on_at(self._next_due()):
                    await self._woken.wait()

    def _next_due(self) -> float:
        return min(self._graces.next(), self._handovers.next(), self._prune_at, self._retire_at, self._poll_at)

    async def _round(self) -> bool:
        """Bring the stored state in line; False when there is nothing more to lead."""
        around = self._around
        around.counters.rounds += 1
        try:
            state = await around.registrations.state(around.lane(), self.topic)
            if state is None or state.topic.version.incarnation != self.incarnation:
                return False
            if state.topic.leader_entry != self.leader.fence:
                around.counters.fenced += 1
                return False
            layout = records.decode_layout(state.topic.value)
            self._poll_at = float("inf")
            await self._lead_subscriptions(state, layout)
            layout = await self._prune(state, layout)
        except Fenced:
            around.counters.fenced += 1
            return False
        except TopicMissing:
            return False
        except (LayoutError, RecordDamaged) as error:
            # Nobody can do better. Its next change is heard of, its deletion too; that it was restored is not.
            complain(log, "%s cannot be led: %s", self.topic, error)
            self._prune_at = self._retire_at = float("inf")
            self._poll_at = trio.current_time() + _DAMAGED_INTERVAL
            return True
        return not await self._retire(state, layout)

    # Consumers.

    async def _lead_subscriptions(self, state: TopicState, layout: Layout) -> None:
        graces: set[Hashable] = set()
        handovers: set[Hashable] = set()
        self._holders = {c.attachment.node for s in state.subscriptions.values() for c in s.consumers.values()}
        alive = {session for session in self._holders if await self._around.peers.is_alive(session)}
        for subscription in state.subscriptions.values():
            try:
                await self._lead_subscription(state.topic, subscription, layout, alive, graces, handovers)
            except RecordDamaged as error:
                # Its consumers keep what they have, and the other subscriptions go on.
                complain(log, "subscription %s of %s stays as it is: %s", subscription.name, self.topic, error)
                self._poll_at = trio.current_time() + _DAMAGED_INTERVAL
        self._graces.keep_only(graces)
        self._handovers.keep_only(handovers)

    async def _lead_subscription(
        self,
        topic: StoredTopic,
        subscription: Subscription,
        layout: Layout,
        alive: Collection[str],
        graces: set[Hashable],
        handovers: set[Hashable],
    ) -> None:
        around = self._around
        members: dict[str, Consumer] = {}
        evicted: list[Consumer] = []
        for name, consumer in subscription.consumers.items():
            if consumer.attachment.node in alive or not self._overdue(subscription, consumer, graces):
                members[name] = consumer
            else:
                evicted.append(consumer)
        if subscription.type is SubscriptionType.CHECKPOINT and not members and not evicted:
            await around.registrations.end_group(topic, self.leader, subscription.name)
            return
        drained = await self._drained(subscription, layout)
        segments = assignable(layout, drained, ordered=subscription.type is SubscriptionType.STREAM)
        wanted = deciding.targets(segments, members)
        unreleased = await self._unreleased(subscription, wanted, members, layout, handovers)
        changed = deciding.assignments(layout.epoch, segments, wanted, members, unreleased)
        if not changed and not evicted and drained == subscription.drained:
            return
        await around.registrations.assign(
            topic,
            self.leader,
            subscription,
            changed,
            evicted=evicted,
            drained=drained if drained != subscription.drained else None,
        )
        around.counters.evictions += len(evicted)
        if changed:
            around.counters.rebalances += 1
            around.counters.assigned += len(changed)

    def _overdue(self, subscription: Subscription, consumer: Consumer, graces: set[Hashable]) -> bool:
        """Whether a consumer has been without a connection for the whole grace period."""
        # The entry, not the name: whoever came back and left again begins anew.
        key = (subscription.name, consumer.name, consumer.attachment_entry)
        graces.add(key)
        return self._graces.passed(key)

    async def _drained(self, subscription: Subscription, layout: Layout) -> frozenset[int]:
        """The segments in the layout that hold nothing more for a subscription; noted for good, until a seek back.

        When another one is drained, its owner says so in the change log.
        """
        if not subscription.type.is_durable:
            return frozenset()
        known = subscription.drained & layout.segments.keys()
        open_ones = [s for s in layout.segments.values() if not s.is_active and s.segment_id not in known]
        if not open_ones:
            return known
        return known | await self._around.segments.drained(self.topic, subscription.name, open_ones)

    async def _unreleased(
        self,
        subscription: Subscription,
        wanted: Mapping[str, tuple[int, ...]],
        members: Mapping[str, Consumer],
        layout: Layout,
        handovers: set[Hashable],
    ) -> frozenset[Claim]:
        """The segments that shall move and are not let go of yet, with who has them."""
        claims = deciding.claims_to_release(wanted, members, layout.segments.keys())
        if not claims:
            return frozenset()
        still_open = await self._around.segments.still_open(self.topic, subscription.name, claims)
        left = set()
        for claim in still_open:
            key = (subscription.name, *claim)
            handovers.add(key)
            if not self._handovers.passed(key):
                left.add(claim)
        if left:
            self._poll_at = trio.current_time() + _POLL_INTERVAL
        return frozenset(left)

    # Sealed segments.

    async def _prune(self, state: TopicState, layout: Layout) -> Layout:
        """Forget sealed segments that nobody needs any more, oldest first."""
        now = trio.current_time()
        interval = self._around.settings.prune_interval
        sealed = [segment for segment in layout.segments.values() if not segment.is_active]
        if not sealed:
            self._prune_at = float("inf")
            return layout
        if self._prune_at == float("inf") or state.topic.version != self._prune_seen:
            # Another layout, or another retention.
            self._prune_at = min(self._prune_at, now + interval)
            self._prune_seen = state.topic.version
        if now < self._prune_at:
            return layout
        if self.operations.locked():
            # It may take its time, and consumers must not wait for it.
            self._prune_at = now + _POLL_INTERVAL
            return layout
        at_least_ms = round(self._around.settings.message_age * 1000)
        retention_ms = (await self._around.retention.of(state.topic)).segments_ms(at_least_ms)
        if retention_ms < 0:
            self._prune_at = now + interval * _SELDOM
            return layout
        now_ms = wall_clock_ms()
        past = [segment for segment in sealed if now_ms - segment.sealed_at_ms >= retention_ms]
        oldest = min(segment.sealed_at_ms for segment in sealed)
        # Something past its time may be drained any moment; otherwise nothing can happen before the oldest is due.
        due = interval if past else (oldest + retention_ms - now_ms) / 1000
        self._prune_at = now + min(max(interval, due), interval * _SELDOM)
        # Nobody splits or seeks meanwhile, and whoever registers makes the write fail: so the facts hold until then.
        async with self.operations:
            fresh = await self._around.registrations.state(self._around.lane(), self.topic)
            if fresh is None or fresh.topic.version != state.topic.version or not past:
                return layout
            prunable = _oldest_first(layout, await self._drained_by_all(fresh, past))
            if not prunable:
                return layout
            stored = await self._around.transitions.prune(fresh.topic, prunable, fence=self.leader.fence)
        self._around.counters.pruned += len(prunable)
        self.wake()
        return records.decode_layout(stored.value)

    async def _drained_by_all(self, state: TopicState, segments: Sequence[Segment]) -> set[int]:
        """Those of these sealed segments that hold nothing more for any subscription with positions of its own."""
        if state.damaged:
            # Nobody can tell what they have drained, and what is kept can be pruned later.
            return set()
        done = {segment.segment_id for segment in segments}
        for subscription in state.subscriptions.values():
            if subscription.type.is_durable and done:
                asked = [s for s in segments if s.segment_id in done and s.segment_id not in subscription.drained]
                try:
                    found = await self._around.segments.drained(self.topic, subscription.name, asked) if asked else ()
                except RecordDamaged:
                    return set()  # as above
                done &= subscription.drained.union(found)
        return done

    # The end.

    async def _retire(self, state: TopicState, layout: Layout) -> bool:
        """Stop leading a topic that has needed no leader for a while."""
        busy = state.damaged or any(subscription.consumers for subscription in state.subscriptions.values())
        if busy or len(layout.active) < len(layout.segments):
            self._retire_at = float("inf")
            return False
        now = trio.current_time()
        if now < self._retire_at:
            self._retire_at = min(self._retire_at, now + self._around.settings.prune_interval)
            return False
        return await self._around.leaderships.drop(state.topic, self.leader, idle=True)

    async def resign(self) -> None:
        """Leave the topic to another node, at once and without waiting for the lease to end."""
        stored = StoredTopic(self.topic, b"", Version(self.incarnation, 0), 0, 0)
        await self._around.leaderships.drop(stored, self.leader, idle=False)


def _oldest_first(layout: Layout, done: Collection[int]) -> list[int]:
    """Of these segments, those whose ancestors can all go with them."""
    prunable: list[int] = []
    gone: set[int] = set()
    # A child's id is always higher than its parents'.
    for segment_id in sorted(done):
        if all(parent.segment_id in gone for parent in layout.parents(segment_id)):
            gone.add(segment_id)
            prunable.append(segment_id)
    return prunable
