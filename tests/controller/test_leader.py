"""The leader of one topic in a real node, over segments that say what the test lets them say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

import controller.leader
from controller import seeking
from controller.leader import Deadlines, LeaderCounters
from controller.retention import FOR_EVER, Retention
from controller.segment_port import Claim
from gateway.node import Node
from layout import records
from layout.layouts import Layout
from layout.segments import Segment
from metadata import keys
from metadata.errors import StoreUnavailable, SubscriptionMissing
from metadata.leadership import Leaderships
from metadata.node_sessions import NodeRecord
from metadata.records import StoredTopic
from metadata.registrations import Assignment, Attachment, Registrations, Subscription, SubscriptionType, TopicState
from protocol.names import TopicName
from tests.support.consumers import CHECKPOINT, LIMIT, registering, stays, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

TOPIC = TopicName.parse("topic://public/default/orders")
PATH = keys.path_of(TOPIC)
STREAM, QUEUE = SubscriptionType.STREAM, SubscriptionType.QUEUE
LONG = 600.0
SETTINGS: dict[str, Any] = {"consumer_grace": LONG, "prune_interval": LONG, "handover": LONG, "session_lease": 10.0}

Owners = Mapping[str, Assignment]


@pytest.fixture(autouse=True)
def _ask_segments_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller.leader, "_POLL_INTERVAL", 0.05)


class ScriptedSegments:
    """Segments that are drained and open as the test says: first nothing is drained, and nothing open."""

    def __init__(self) -> None:
        self.done: dict[str, set[int]] = {}  # by subscription
        self.open: set[Claim] = set()
        self.asked: list[tuple[str, tuple[int, ...]]] = []
        self.failures: list[Exception] = []
        self.before_answer: Callable[[], Awaitable[None]] | None = None

    def drain(self, *segment_ids: int, subscription: str = "s") -> None:
        self.done.setdefault(subscription, set()).update(segment_ids)

    async def drained(self, topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
        asked = tuple(segment.segment_id for segment in segments)
        assert not any(segment.is_active for segment in segments), "an active segment is never drained"
        self.asked.append((subscription, asked))
        if self.failures:
            raise self.failures.pop()
        return frozenset(asked) & frozenset(self.done.get(subscription, ()))

    async def still_open(self, topic: TopicName, subscription: str, claims: Collection[Claim]) -> frozenset[Claim]:
        if self.before_answer is not None:
            await self.before_answer()
        return frozenset(claims) & frozenset(self.open)

    async def seek(self, topic: TopicName, subscription: str, segment: Segment, timestamp_ms: int) -> None:
        self.done.get(subscription, set()).discard(segment.segment_id)

    async def skip_all(self, topic: TopicName, subscription: str, segment: Segment) -> None:
        self.drain(segment.segment_id, subscription=subscription)


class RecordingRegistrations(Registrations):
    """Keeps every state of a subscription that a leader wrote, with what was open then."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.node.store)
        self._stage = stage
        self.after_reading: Callable[[], Awaitable[None]] | None = None

    async def state(self, *args: Any) -> TopicState | None:
        found = await super().state(*args)
        if self.after_reading is not None:
            await self.after_reading()
        return found

    async def assign(self, topic: StoredTopic, leader: Any, subscription: Subscription, *args: Any, **more: Any) -> int:
        generation = await super().assign(topic, leader, subscription, *args, **more)
        self._stage.note(subscription.name)
        return generation


class Stage:
    """A node with the topic on it, whose leader has scripted segments."""

    def __init__(self, node: Node, valkey: ValkeyProcess, segments: ScriptedSegments) -> None:
        self.node = node
        self.valkey = valkey
        self.segments = segments
        self.written: list[tuple[str, Owners, frozenset[Claim]]] = []
        self.registrations = Registrations(node.store)
        self.recording = RecordingRegistrations(self)
        self._attachments: dict[tuple[str, str], Attachment] = {}
        around = node.leaders._around
        object.__setattr__(around, "segments", segments)
        object.__setattr__(around, "registrations", self.recording)

    @property
    def counters(self) -> LeaderCounters:
        return self.node.leaders._around.counters

    def note(self, subscription: str) -> None:
        fields: Any = self.valkey.client().hgetall(keys.members_key(PATH, subscription))
        owners = {key[2:].decode(): _assignment(value) for key, value in fields.items() if key.startswith(b"a:")}
        self.written.append((subscription, owners, frozenset(self.segments.open)))

    async def join(self, name: str, subscription: str = "s", kind: SubscriptionType = STREAM) -> None:
        attachment = Attachment(self.node.session.record.session, random.randbytes(8).hex(), 1)
        self._attachments[subscription, name] = attachment
        attached = await self.registrations.attach(TOPIC, subscription, kind, name, attachment)
        assert attached is not None
        await self.node.leaders.ensure_led(TOPIC, attached.leader)

    async def leave(self, name: str, subscription: str = "s") -> None:
        await self.registrations.leave(TOPIC, subscription, name, self._attachments.pop((subscription, name)))

    async def detach(self, name: str, subscription: str = "s") -> None:
        await self.registrations.detach(TOPIC, subscription, name, self._attachments[subscription, name])

    async def subscription(self, name: str = "s") -> Subscription:
        state = await self.registrations.state(self.node.store.commands, TOPIC)
        assert state is not None
        return state.subscriptions[name]

    async def owners(self, subscription: str = "s") -> dict[str, set[int]]:
        found = (await self.subscription(subscription)).consumers
        return {n: set(c.assignment.segment_ids) if c.assignment is not None else set() for n, c in found.items()}

    async def releasing(self, subscription: str = "s") -> dict[str, set[int]]:
        found = (await self.subscription(subscription)).consumers
        return {n: set(c.assignment.releasing) if c.assignment is not None else set() for n, c in found.items()}

    async def until_owned(self, *segment_ids: int, subscription: str = "s", within: float = LIMIT) -> None:
        """Wait until these segments, and only these, have an owner."""

        async def owned() -> bool:
            held = Counter(i for ids in (await self.owners(subscription)).values() for i in ids)
            assert held == Counter(segment_ids), (await self.owners(subscription), await self.releasing(subscription))
            return True

        await eventually(owned, within)

    async def stays_owned(self, *segment_ids: int, seconds: float = 0.5) -> None:
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            held = Counter(i for ids in (await self.owners()).values() for i in ids)
            assert held == Counter(segment_ids)
            await trio.sleep(0.02)

    async def layout(self) -> Layout:
        stored = await self.node.store.get(TOPIC)
        assert stored is not None
        return records.decode(stored.value).layout

    async def until_segments(self, *segment_ids: int, within: float = LIMIT) -> None:
        async def there() -> bool:
            assert set((await self.layout()).segments) == set(segment_ids)
            return True

        await eventually(there, within)

    async def stays_segments(self, *segment_ids: int, seconds: float = 0.8) -> None:
        """These are the segments, and stay so for several times the interval in which they could be pruned."""
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            assert set((await self.layout()).segments) == set(segment_ids)
            await trio.sleep(0.02)

    async def split(self, segment_id: int) -> None:
        await self.node.leaders.as_leader(
            TOPIC, lambda leader: transitions_of(self.node).split(TOPIC, segment_id, fence=leader.leader.fence)
        )

    async def merge(self, first: int, second: int) -> None:
        await self.node.leaders.as_leader(
            TOPIC, lambda leader: transitions_of(self.node).merge(TOPIC, first, second, fence=leader.leader.fence)
        )

    async def seek(self, timestamp_ms: int, subscription: str = "s") -> None:
        access = seeking.Access(self.registrations, self.segments, self.node.store.commands)
        await self.node.leaders.as_leader(
            TOPIC, lambda leader: seeking.seek(access, leader, subscription, timestamp_ms)
        )

    def check_owners(self) -> None:
        """In every state that was written, no segment had two owners, nor an owner while another had to release it."""
        assert self.written
        for _, owners, _ in self.written:
            claimed = Counter(i for a in owners.values() for i in (*a.segment_ids, *a.releasing))
            assert not [i for i, count in claimed.items() if count > 1], owners


@asynccontextmanager
async def stage(valkey: ValkeyProcess, segments: int = 4, **settings: Any) -> AsyncIterator[Stage]:
    async with running_node(valkey.url, **(SETTINGS | settings)) as node:
        await transitions_of(node).create(TOPIC, segments)
        found = Stage(node, valkey, ScriptedSegments())
        yield found
        if found.written:
            found.check_owners()


def _assignment(value: bytes) -> Assignment:
    return msgspec.json.decode(value, type=Assignment)


def all_open(name: str, segment_ids: Iterable[int]) -> set[Claim]:
    return {(name, segment_id) for segment_id in segment_ids}


# Hand-over.


async def test_the_next_owner_gets_a_segment_when_the_old_one_has_closed_it(valkey: ValkeyProcess) -> None:
    async with stage(valkey) as s:
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)
        s.segments.open = all_open("a", range(4))
        await s.join("b")
        await eventually(lambda: s.written[-1][1].get("b") is not None)
        moving = (await s.releasing())["a"]
        assert len(moving) == 2
        await s.stays_owned(*({0, 1, 2, 3} - moving))
        # One after the other, in whatever order they are closed.
        for segment_id in sorted(moving, reverse=True):
            s.segments.open.discard(("a", segment_id))

            async def moved(segment_id: int = segment_id) -> bool:
                return segment_id in (await s.owners())["b"]

            await eventually(moved, within=LIMIT)
        assert await s.owners() == {"a": {0, 1, 2, 3} - moving, "b": moving}
        assert (await s.releasing())["a"] == set()


async def test_the_next_owner_gets_a_segment_when_the_old_one_has_left(valkey: ValkeyProcess) -> None:
    async with stage(valkey) as s:
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)
        s.segments.open = all_open("a", range(4))
        await s.join("b")
        await eventually(lambda: "b" in s.written[-1][1])
        await s.leave("a")
        await s.until_owned(0, 1, 2, 3)
        assert await s.owners() == {"b": {0, 1, 2, 3}}


async def test_the_next_owner_gets_a_segment_when_the_old_one_is_evicted(valkey: ValkeyProcess) -> None:
    async with stage(valkey, consumer_grace=0.3) as s:
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)
        s.segments.open = all_open("a", range(4))
        await s.join("b")
        await eventually(lambda: "b" in s.written[-1][1])
        await s.detach("a")
        await s.until_owned(0, 1, 2, 3)
        assert await s.owners() == {"b": {0, 1, 2, 3}}
        assert s.counters.evictions == 1


async def test_the_next_owner_gets_a_segment_when_the_time_to_hand_it_over_has_run_out(valkey: ValkeyProcess) -> None:
    async with stage(valkey, handover=0.5) as s:
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)
        s.segments.open = all_open("a", range(4))
        begun = trio.current_time()
        await s.join("b")
        await eventually(lambda: "b" in s.written[-1][1])
        assert (await s.owners())["b"] == set()
        await s.until_owned(0, 1, 2, 3)
        assert trio.current_time() - begun >= 0.5
        assert {len(ids) for ids in (await s.owners()).values()} == {2}


async def test_a_segment_goes_back_to_who_had_not_closed_it_yet(valkey: ValkeyProcess) -> None:
    async with stage(valkey) as s:
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)
        s.segments.open = all_open("a", range(4))
        await s.join("b")
        await eventually(lambda: "b" in s.written[-1][1])
        await s.leave("b")
        await s.until_owned(0, 1, 2, 3)
        assert await s.releasing() == {"a": set()}


@pytest.mark.slow
async def test_a_new_leader_goes_on_with_a_hand_over_where_the_old_one_left_it(valkey: ValkeyProcess) -> None:
    """And lets nobody have the segment meanwhile; the time for it begins anew."""
    async with stage(valkey, handover=2.0) as s, running_node(valkey.url, **(SETTINGS | {"handover": 2.0})) as other:
        heir = Stage(other, valkey, s.segments)
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)
        s.segments.open = all_open("a", range(4))
        await s.join("b")
        await eventually(lambda: "b" in s.written[-1][1])
        moving = (await s.releasing())["a"]
        await trio.sleep(1.0)
        await s.node.leaders.resign()
        begun = trio.current_time()
        await other.leaders.lead(TOPIC)
        await eventually(lambda: heir.counters.rounds)
        assert (await s.releasing())["a"] == moving
        await s.until_owned(0, 1, 2, 3)
        assert trio.current_time() - begun >= 2.0
        heir.check_owners()


async def test_consumers_are_told_of_a_hand_over_in_the_order_of_its_steps(valkey: ValkeyProcess) -> None:
    async with (
        stage(valkey, segments=2) as s,
        registering(s.node.pulsar_url) as client,
    ):
        first = await client.subscribed(TOPIC, "s", "a")
        s.segments.open = all_open("a", range(2))
        second = await client.subscribed(TOPIC, "s", "b")
        assert second.ids == set()
        await eventually(lambda: len(first.ids) == 1, within=LIMIT)
        [moving] = {0, 1} - first.ids
        await stays(lambda: second.history == [set()], 0.3)
        s.segments.open.discard(("a", moving))
        await until_shared([first, second], [0, 1])
        assert first.history == [{0, 1}, {0, 1} - {moving}], "that it is released is nothing to tell"
        assert second.history == [set(), {moving}]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_over_any_history_no_segment_ever_has_two_owners(valkey: ValkeyProcess, seed: int) -> None:
    """Joins, leaves, evictions, splits, merges, drained parents and pruning, with consumers that close late.

    Every state that is written is looked at, and so is what consumers have open: they open what they are given, and
    nobody finds it open at another.
    """
    chance = random.Random(seed)
    async with stage(valkey, segments=3, consumer_grace=0.2, prune_interval=0.5) as s:
        opened: set[Claim] = s.segments.open
        complaints: list[str] = []

        def follow(owners: Owners) -> None:
            opened.difference_update({claim for claim in opened if claim[0] not in owners})
            for name, assignment in owners.items():
                for segment_id in assignment.segment_ids:
                    others = {holder for holder, held in opened if held == segment_id and holder != name}
                    if others:
                        complaints.append(f"{name} is given {segment_id}, which {others} has open")
                    opened.add((name, segment_id))

        async def consumers_close() -> None:
            while True:
                await trio.sleep(chance.uniform(0, 0.05))
                held = await s.owners() if s.written else {}
                late = sorted(c for c in opened if c[1] not in held.get(c[0], ()))
                if late and chance.random() < 0.7:
                    opened.discard(chance.choice(late))

        original = s.note

        def note(subscription: str) -> None:
            original(subscription)
            follow(s.written[-1][1])

        s.note = note  # type: ignore[method-assign]
        names = [f"c{number}" for number in range(6)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumers_close)
            await s.join("c0")
            for _ in range(80):
                there = {name for _, name in s._attachments}
                layout = await s.layout()
                match chance.randrange(8):
                    case 0 | 1:
                        await s.join(chance.choice(names))
                    case 2 if len(there) > 1:
                        await s.leave(chance.choice(sorted(there)))
                    case 3 if len(there) > 1:
                        await s.detach(chance.choice(sorted(there)))
                    case 4 if len(layout.segments) < 30:
                        await s.split(chance.choice(layout.active).segment_id)
                    case 5 if len(layout.active) > 3:
                        left = chance.randrange(len(layout.active) - 1)
                        await s.merge(layout.active[left].segment_id, layout.active[left + 1].segment_id)
                    case 6:
                        s.segments.drain(*(i for i in layout.segments if chance.random() < 0.5))
                await trio.sleep(chance.uniform(0, 0.1))
                assert not complaints
            s.segments.drain(*(await s.layout()).segments)
            await s.join("c0")

            async def at_rest() -> bool:
                active = {segment.segment_id for segment in (await s.layout()).active}
                assert Counter(i for ids in (await s.owners()).values() for i in ids) == Counter(active)
                return True

            await eventually(at_rest, within=30)
            nursery.cancel_scope.cancel()
        assert not complaints


async def test_who_comes_back_while_its_eviction_is_decided_never_shares_a_segment(valkey: ValkeyProcess) -> None:
    async with stage(valkey, consumer_grace=0.3) as s:
        await s.join("a")
        await s.join("b")
        await s.until_owned(0, 1, 2, 3)
        before = await s.owners()
        evictions = 0

        async def come_back() -> None:
            """Between the read and the write of every round in which it would be evicted."""
            nonlocal evictions
            attachment = (await s.subscription()).consumers["a"].attachment
            if not attachment.node and trio.current_time() >= overdue_at:
                evictions += 1
                await s.join("a")

        await s.detach("a")
        overdue_at = trio.current_time() + 0.3
        s.recording.after_reading = come_back
        await eventually(lambda: evictions, within=LIMIT)
        s.recording.after_reading = None
        await stays(lambda: True, 0.5)
        assert await s.owners() == before
        assert s.counters.evictions == 0


# Children wait.


async def test_children_are_held_back_until_all_their_ancestors_are_drained(valkey: ValkeyProcess) -> None:
    """W14: sealed ones in the middle, too."""
    async with stage(valkey, segments=1) as s:
        await s.join("a")
        await s.join("b")
        await s.until_owned(0)
        await s.split(0)  # 1, 2
        await s.split(1)  # 3, 4
        s.segments.drain(1)
        await s.stays_owned(0)
        s.segments.drain(0)
        await s.until_owned(2, 3, 4)


async def test_the_child_of_a_merge_waits_for_both_its_parents(valkey: ValkeyProcess) -> None:
    async with stage(valkey, segments=2) as s:
        await s.join("a")
        await s.merge(0, 1)
        await s.until_owned(0, 1)
        s.segments.drain(1)
        await s.until_owned(0)
        s.segments.drain(0)
        await s.until_owned(2)


async def test_subscriptions_drain_at_their_own_pace_and_groups_of_readers_wait_for_nothing(
    valkey: ValkeyProcess,
) -> None:
    async with stage(valkey, segments=1) as s:
        for subscription in ("fast", "slow"):
            await s.join("a", subscription)
        await s.join("a", "readers", SubscriptionType.CHECKPOINT)
        await s.split(0)
        s.segments.drain(0, subscription="fast")
        await s.until_owned(1, 2, subscription="fast")
        await s.until_owned(0, subscription="slow")
        await s.until_owned(0, 1, 2, subscription="readers")
        assert not any(subscription == "readers" for subscription, _ in s.segments.asked)


async def test_what_was_drained_stays_drained_for_the_next_leader(valkey: ValkeyProcess) -> None:
    """W18: whose segments do not know it, or are not loaded, and consumers are not disturbed."""
    async with (
        stage(valkey, segments=1) as s,
        running_node(valkey.url, **SETTINGS) as other,
        registering(s.node.pulsar_url) as client,
    ):
        consumer = await client.subscribed(TOPIC, "s", "c")
        await s.split(0)
        s.segments.drain(0)
        await until_shared([consumer], [1, 2])
        heir = Stage(other, valkey, ScriptedSegments())
        before = consumer.history
        await s.node.leaders.resign()
        await other.leaders.lead(TOPIC)
        await eventually(lambda: heir.counters.rounds, within=LIMIT)
        await stays(lambda: consumer.history == before, 0.3)
        assert heir.segments.asked == [], "there is nothing to ask about"
        # And it is still drained when something else is decided.
        second = await client.subscribed(TOPIC, "s", "d")
        await until_shared([consumer, second], [1, 2])


async def test_a_seek_back_withdraws_the_children_until_the_parent_is_drained_again(valkey: ValkeyProcess) -> None:
    """W15"""
    async with stage(valkey, segments=1) as s, registering(s.node.pulsar_url) as client:
        consumer = await client.subscribed(TOPIC, "s", "c")
        await s.split(0)
        s.segments.drain(0)
        await until_shared([consumer], [1, 2])
        await s.seek(0)
        await until_shared([consumer], [0])
        assert (await s.subscription()).drained == set()
        await s.stays_owned(0, seconds=0.3)
        s.segments.drain(0)
        await until_shared([consumer], [1, 2])
        assert consumer.history == [{0}, {1, 2}, {0}, {1, 2}]


async def test_a_seek_back_takes_effect_in_spite_of_a_round_that_is_under_way(valkey: ValkeyProcess) -> None:
    """The leader has asked the segments before they were moved, and writes after."""
    async with stage(valkey, segments=1) as s:
        await s.join("a")
        await s.split(0)
        await s.until_owned(0)
        sought = False

        async def seek() -> None:
            nonlocal sought
            if not sought and 0 in s.segments.done.get("s", ()):
                sought = True
                await s.seek(0)

        # Drained, says the segment; then the subscription is moved back, before that is written down.
        s.recording.after_reading = None
        original = s.segments.drained

        async def drained(topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
            found = await original(topic, subscription, segments)
            await seek()
            return found

        s.segments.drained = drained  # type: ignore[method-assign]
        s.segments.drain(0)
        await eventually(lambda: sought, within=LIMIT)
        await s.stays_owned(0)
        assert (await s.subscription()).drained == set()


async def test_a_segment_that_is_withdrawn_and_given_out_again_is_handed_over_like_any_other(
    valkey: ValkeyProcess,
) -> None:
    async with stage(valkey, segments=1) as s:
        await s.join("a")
        await s.split(0)
        s.segments.drain(0)
        await s.until_owned(1, 2)
        s.segments.open = all_open("a", [1, 2])
        await s.seek(0)
        await s.until_owned(0)
        await s.join("b")
        s.segments.drain(0)
        await eventually(lambda: {1, 2} & set(s.written[-1][1]["a"].segment_ids), within=LIMIT)
        assert not (await s.owners())["b"] & {1, 2}, "they are open at a"
        s.segments.open.clear()
        await s.until_owned(1, 2)
        assert {len(ids) for ids in (await s.owners()).values()} == {1}


@pytest.mark.slow
async def test_segments_are_asked_only_while_somebody_waits_for_the_answer(valkey: ValkeyProcess) -> None:
    """W19: every now and then while there are consumers, and not at all without."""
    async with stage(valkey, segments=1) as s:
        await s.join("a")
        await s.split(0)
        await eventually(lambda: len(s.segments.asked) > 5, within=LIMIT)
        await s.leave("a")
        await until_steady(lambda: len(s.segments.asked))
        rounds = s.counters.rounds
        await stays(lambda: s.counters.rounds == rounds, 1.0)


async def test_a_pruned_ancestor_counts_as_drained_and_is_forgotten(valkey: ValkeyProcess) -> None:
    """W15, W19: nothing waits for what is gone, and no id of it is kept."""
    async with stage(valkey, segments=1, prune_interval=0.2) as s:
        await s.join("a")
        await s.split(0)
        s.segments.drain(0)
        await s.until_owned(1, 2)
        await s.until_segments(1, 2)

        async def forgotten() -> bool:
            return (await s.subscription()).drained == set()

        await eventually(forgotten, within=LIMIT)
        await s.split(1)
        await s.until_owned(1, 2)
        s.segments.drain(1)
        await s.until_owned(2, 3, 4)


# Pruning.


async def test_a_segment_is_pruned_when_every_durable_subscription_has_drained_it(valkey: ValkeyProcess) -> None:
    """W8: also those without a consumer, and those that only the admin API made."""
    async with stage(valkey, segments=1, prune_interval=0.2) as s:
        await s.join("a", "stream")
        await s.registrations.create_subscription(TOPIC, "queue", QUEUE, 0)
        await s.registrations.create_subscription(TOPIC, "idle", STREAM, 0)
        await s.split(0)
        for subscription in ("stream", "queue", "idle"):
            await s.stays_segments(0, 1, 2, seconds=0.5)
            s.segments.drain(0, subscription=subscription)
        await s.until_segments(1, 2)
        assert s.counters.pruned == 1


async def test_groups_of_readers_hold_nothing_back_and_go_with_their_last_member(valkey: ValkeyProcess) -> None:
    """W9"""
    async with (
        stage(valkey, segments=1, prune_interval=0.2) as s,
        registering(s.node.pulsar_url) as client,
    ):
        reader = await client.subscribed(TOPIC, "readers", "r", kind=CHECKPOINT)
        await s.split(0)
        await s.until_segments(1, 2)
        await until_shared([reader], [1, 2])
        await client.leave(reader)

        async def gone() -> bool:
            return await s.registrations.names(TOPIC) == []

        await eventually(gone, within=LIMIT)


async def test_a_topic_without_subscriptions_is_pruned_as_soon_as_it_may(valkey: ValkeyProcess) -> None:
    """And nobody needs to have asked for its leader: a sealed segment does."""
    async with stage(valkey, segments=1, prune_interval=0.2) as s:
        await transitions_of(s.node).split(TOPIC, 0)
        await s.until_segments(1, 2)

        async def retired() -> bool:
            return await Leaderships(s.node.store).listed() == {} and not len(s.node.leaders)

        await eventually(retired, within=LIMIT)


async def test_segments_are_pruned_oldest_first(valkey: ValkeyProcess) -> None:
    """What is drained waits for its ancestors, so that the order of messages can be told to the end."""
    async with stage(valkey, segments=1, prune_interval=0.2) as s:
        await s.registrations.create_subscription(TOPIC, "s", STREAM, 0)
        await s.split(0)  # 1, 2
        await s.split(1)  # 3, 4
        await s.split(3)  # 5, 6
        s.segments.drain(1, 3)
        await s.stays_segments(0, 1, 2, 3, 4, 5, 6)
        s.segments.drain(0)
        await s.until_segments(2, 4, 5, 6)
        layout = await s.layout()
        layout.validate()
        assert all(segment.parent_ids == () for segment in layout.segments.values())


async def test_segments_are_kept_for_the_retention(valkey: ValkeyProcess) -> None:
    async with stage(valkey, segments=1, prune_interval=0.1, retention=1.5) as s:
        begun = trio.current_time()
        await s.split(0)
        await s.until_segments(1, 2)
        assert trio.current_time() - begun >= 1.4


async def test_segments_of_a_topic_that_keeps_them_for_ever_are_not_pruned(valkey: ValkeyProcess) -> None:
    async with stage(valkey, segments=1, prune_interval=0.1) as s:
        await transitions_of(s.node).update_retention(TOPIC, -1)
        await s.split(0)
        await s.stays_segments(0, 1, 2)
        assert s.counters.pruned == 0


async def test_merge_depths_survive_pruning(valkey: ValkeyProcess) -> None:
    """W12"""
    async with stage(valkey, segments=2, prune_interval=0.1) as s:
        for depth in range(1, 5):
            first, second = (segment.segment_id for segment in (await s.layout()).active)
            await s.merge(first, second)
            [merged] = (await s.layout()).active
            assert merged.merge_depth == depth
            await s.until_segments(merged.segment_id)
            await s.split(merged.segment_id)
            active = (await s.layout()).active
            assert [segment.merge_depth for segment in active] == [depth, depth]
            await s.until_segments(*(segment.segment_id for segment in active))


async def test_what_a_pruned_segment_stored_is_collected(valkey: ValkeyProcess) -> None:
    """W11: from a list, so that a failure is not a leak."""
    async with stage(valkey, segments=1, prune_interval=0.1) as s:
        await s.split(0)
        await s.until_segments(1, 2)
        await s.node.garbage.collect()
        assert valkey.client().hlen(keys.garbage_key(keys.bucket_of(PATH))) == 0
        left: Any = valkey.client().keys("/segments/*")
        assert {key.rpartition(b"/")[2] for key in left} == {b"0000-7fff-1", b"8000-ffff-2"}


async def test_a_segment_that_a_seek_went_back_to_is_not_pruned(valkey: ValkeyProcess) -> None:
    """The leader has found it drained, and the seek is answered before the leader writes."""
    async with stage(valkey, segments=1, prune_interval=0.3) as s:
        await s.join("a")
        pruning, sought = await _before_pruning(s)
        await s.split(0)
        s.segments.drain(0)
        with trio.fail_after(LIMIT):
            await pruning.wait()
        await s.seek(0)
        sought.set()
        await s.stays_segments(0, 1, 2)


async def test_a_segment_that_a_new_subscription_has_not_read_is_not_pruned(valkey: ValkeyProcess) -> None:
    """The subscription is confirmed before the leader writes what it decided without it."""
    async with stage(valkey, segments=1, prune_interval=0.3) as s:
        await s.join("a")
        pruning, created = await _before_pruning(s)
        await s.split(0)
        s.segments.drain(0)
        with trio.fail_after(LIMIT):
            await pruning.wait()
        await s.registrations.create_subscription(TOPIC, "late", QUEUE, 0)
        created.set()
        await s.stays_segments(0, 1, 2)


async def _before_pruning(s: Stage) -> tuple[trio.Event, trio.Event]:
    """Holds the leader up once when it has begun to look for what can go; the other event lets it go on."""
    begun, go_on = trio.Event(), trio.Event()
    around = s.node.leaders._around
    original = around.retention_ms

    async def retention_ms(topic: StoredTopic) -> int:
        kept = await original(topic)
        begun.set()
        await go_on.wait()
        return kept

    object.__setattr__(around, "retention_ms", retention_ms)
    return begun, go_on


async def test_a_subscription_that_cannot_be_read_holds_segments_back(valkey: ValkeyProcess) -> None:
    """Nobody can tell what it has drained, and what is kept can still be pruned later."""
    async with stage(valkey, segments=1, prune_interval=0.2) as s:
        await s.registrations.create_subscription(TOPIC, "odd", STREAM, 0)
        valkey.client().hset(keys.subscriptions_key(PATH), "odd", "STREAM of something")
        await s.split(0)
        await s.stays_segments(0, 1, 2)


# Fencing.


@pytest.mark.parametrize("write", ["assign", "evict", "prune"])
async def test_a_leader_that_is_deposed_between_its_read_and_its_write_writes_nothing(
    valkey: ValkeyProcess, write: str
) -> None:
    """W2: it learns of it by the refusal, and steps down."""
    async with stage(valkey, segments=1, prune_interval=0.2, consumer_grace=0.2, retention=0.0) as s:
        await s.join("a")
        await s.until_owned(0)
        successor = NodeRecord("d" * 16, "pulsar://d:1", "http://d:2")
        value = msgspec.json.encode(successor)
        valkey.client().set(keys.node_key(successor.session), value, px=60_000)
        valkey.client().hset(keys.NODES, successor.session, "")
        before: list[Any] = []

        async def depose() -> None:
            if before:
                return
            layout = await s.layout()
            due = {
                "assign": len((await s.subscription()).consumers) == 2,
                "evict": not (await s.subscription()).consumers["a"].attachment.node,
                "prune": len(layout.segments) == 3,
            }
            if not due[write]:
                return
            # Long enough that whatever the leader waits for is due when it goes on.
            await trio.sleep(0.5)
            stored = await s.node.store.get(TOPIC)
            assert stored is not None
            assert await Leaderships(s.node.store).take(stored, successor) is not None
            before.append((await s.layout(), await s.subscription()))

        s.recording.after_reading = depose
        if write == "assign":
            await s.join("b")
        elif write == "evict":
            await s.detach("a")
        else:
            s.segments.drain(0)
            await transitions_of(s.node).split(TOPIC, 0)
        await eventually(lambda: before, within=LIMIT)
        await eventually(lambda: not s.node.leaders.leads(TOPIC), within=LIMIT)
        assert s.counters.fenced == 1
        assert (await s.layout(), await s.subscription()) == before[0]
        s.recording.after_reading = None
        assert (s.counters.evictions, s.counters.pruned) == (0, 0)


# Retention.


async def test_the_word_of_the_topic_counts_before_that_of_its_namespace_and_the_servers(
    valkey: ValkeyProcess,
) -> None:
    async with running_node(valkey.url) as node:
        retention = Retention(node.store, default=7.5)
        changes = transitions_of(node)
        topic = TopicName.scalable("acme", "eu", "orders")
        namespace = topic.namespace_name

        async def kept() -> int:
            stored = await node.store.get(topic)
            assert stored is not None
            return await retention.of(stored)

        await node.store.create_namespace(namespace, b'{"other": 1}')
        await changes.create(topic, 1)
        assert await kept() == 7_500
        for policies, expected in (
            (b'{"retention_policies": {"retentionTimeInMinutes": 3, "retentionSizeInMB": 10}}', 180_000),
            (b'{"retention_policies": {"retentionTimeInMinutes": 0}}', 0),
            (b'{"retention_policies": {"retentionTimeInMinutes": -1}}', FOR_EVER),
            (b'{"retention_policies": {"retentionTimeInMinutes": "soon"}}', FOR_EVER),
            (b"no JSON", FOR_EVER),
        ):
            valkey.client().hset(keys.NAMESPACES, str(namespace), b"0" * 16 + b" " + policies)
            assert await kept() == expected
        await changes.update_retention(topic, 1)
        assert await kept() == 60_000
        await changes.update_retention(topic, -1)
        assert await kept() == FOR_EVER
        await changes.update_retention(topic, None)
        assert await kept() == FOR_EVER, "as the namespace says"


# Trouble.


async def test_a_leader_waits_for_a_store_that_is_away_and_goes_on(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, **SETTINGS) as node,
        running_node(valkey.url, **SETTINGS) as other,
    ):
        await transitions_of(node).create(TOPIC, 4)
        s = Stage(node, valkey, ScriptedSegments())
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)
        proxy.refuse()
        proxy.cut()
        attachment = Attachment(other.session.record.session, "1" * 16, 1)
        await Registrations(other.store).attach(TOPIC, "s", STREAM, "b", attachment)
        await trio.sleep(1.5)
        proxy.accept()

        async def shared() -> bool:
            state = await Registrations(other.store).state(other.store.commands, TOPIC)
            assert state is not None
            found = state.subscriptions["s"].consumers["b"].assignment
            return found is not None and len(found.segments) == 2

        await eventually(shared, within=LIMIT)
        s.check_owners()


async def test_segments_that_cannot_be_asked_delay_the_leader_and_nothing_else(valkey: ValkeyProcess) -> None:
    async with stage(valkey, segments=1) as s:
        await s.join("a")
        await s.until_owned(0)
        s.segments.failures = [StoreUnavailable("not now"), RuntimeError("never expected"), StoreUnavailable("not now")]
        await s.split(0)
        s.segments.drain(0)
        await s.until_owned(1, 2)
        assert not s.segments.failures


async def test_a_topic_whose_record_is_damaged_is_let_go_and_led_again_once_it_is_mended(
    valkey: ValkeyProcess,
) -> None:
    async with stage(valkey, prune_interval=0.5) as s:
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)
        record = keys.record_key(PATH)
        value: Any = valkey.client().hget(record, "value")
        valkey.client().hset(record, "value", "no JSON")
        await s.registrations.create_subscription(TOPIC, "other", QUEUE, 0)  # wakes it
        await eventually(lambda: not s.node.leaders.leads(TOPIC), within=LIMIT)
        valkey.client().hset(record, "value", value)
        await s.join("b")
        await s.until_owned(0, 1, 2, 3)
        assert {len(ids) for ids in (await s.owners()).values()} == {2}


async def test_a_damaged_entry_of_one_subscription_is_nothing_to_the_others(valkey: ValkeyProcess) -> None:
    async with stage(valkey) as s:
        await s.join("a", "odd")
        valkey.client().hset(keys.members_key(PATH, "odd"), "drained", "no JSON")
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)


async def test_seeking_in_what_does_not_exist_is_refused_and_changes_nothing(valkey: ValkeyProcess) -> None:
    async with stage(valkey) as s:
        with pytest.raises(SubscriptionMissing):
            await s.seek(0, "missing")
        assert await s.registrations.names(TOPIC) == []


# Many at once.


async def test_what_comes_within_a_window_is_decided_together(valkey: ValkeyProcess) -> None:
    async with stage(valkey, segments=64) as s:
        await s.join("first")
        await s.until_owned(*range(64))
        begun = s.counters.rebalances
        async with trio.open_nursery() as nursery:
            for number in range(63):
                nursery.start_soon(s.join, f"c{number}")
        await s.until_owned(*range(64))
        await eventually(lambda: all(len(a.segments) == 1 for a in s.written[-1][1].values()), within=LIMIT)
        assert s.counters.rebalances - begun <= 10


# Deadlines, on a clock of their own.


async def test_a_deadline_is_counted_from_when_it_was_first_asked_about(mock_clock: trio.testing.MockClock) -> None:
    deadlines = Deadlines(10.0, lambda: 0.0)
    assert deadlines.next() == float("inf")
    assert not deadlines.passed("a")
    due = trio.current_time() + 10
    assert deadlines.next() == due
    mock_clock.jump(4)
    assert not deadlines.passed("b")
    assert deadlines.next() == due
    mock_clock.jump(5.9)
    assert not deadlines.passed("a")
    mock_clock.jump(0.2)
    assert deadlines.passed("a")
    assert not deadlines.passed("b")


async def test_a_deadline_that_is_not_asked_about_any_more_begins_anew(mock_clock: trio.testing.MockClock) -> None:
    deadlines = Deadlines(10.0, lambda: 0.0)
    deadlines.passed("a")
    mock_clock.jump(9)
    deadlines.keep_only({"b"})
    assert not deadlines.passed("a")
    mock_clock.jump(9)
    assert not deadlines.passed("a")


async def test_a_deadline_does_not_pass_while_the_store_is_away_and_begins_anew_after(
    mock_clock: trio.testing.MockClock,
) -> None:
    in_touch_since = 0.0
    deadlines = Deadlines(10.0, lambda: in_touch_since)
    deadlines.passed("a")
    mock_clock.jump(9)
    in_touch_since = float("inf")
    mock_clock.jump(100)
    assert not deadlines.passed("a")
    assert trio.current_time() < deadlines.next() < trio.current_time() + 5, "asked again soon"
    in_touch_since = trio.current_time()
    assert not deadlines.passed("a")
    mock_clock.jump(9)
    assert not deadlines.passed("a")
    mock_clock.jump(1.1)
    assert deadlines.passed("a")


async def test_a_deadline_of_no_time_has_passed_at_once(mock_clock: trio.testing.MockClock) -> None:
    deadlines = Deadlines(0.0, lambda: trio.current_time())
    assert deadlines.passed("a")


async def until_steady(number: Callable[[], int]) -> None:
    """Wait until a number has not changed for a second."""
    with trio.fail_after(LIMIT):
        while True:
            before = number()
            await trio.sleep(1.0)
            if number() == before:
                return
