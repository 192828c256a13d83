"""A node whose leader has segments that say what the test lets them say, and that keeps all its leader wrote."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from controller import seeking
from controller.leader import LeaderCounters
from controller.segment_port import Claim
from gateway.node import Node
from layout import records
from layout.layouts import Layout
from layout.segments import Segment
from metadata import keys
from metadata.records import StoredTopic
from metadata.registrations import Registrations
from metadata.subscriptions import Assignment, Attachment, Subscription, SubscriptionType, TopicState
from protocol.names import TopicName
from tests.support.consumers import LIMIT
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.unwritten_segments import UnwrittenSegments
from tests.support.waiting import eventually

TOPIC = TopicName.parse("topic://public/default/orders")
PATH = keys.path_of(TOPIC)
STREAM, QUEUE = SubscriptionType.STREAM, SubscriptionType.QUEUE
LONG = 600.0
SETTINGS: dict[str, Any] = {
    "consumer_grace": LONG,
    "prune_interval": LONG,
    "message_age": 0.0,
    "handover": LONG,
    "session_lease": 10.0,
}

Owners = Mapping[str, Assignment]


class ScriptedSegments(UnwrittenSegments):
    """Segments that are drained and open as the test says: first nothing is drained, and nothing open."""

    def __init__(self) -> None:
        self.done: dict[str, set[int]] = {}  # by subscription
        self.open: set[Claim] = set()
        self.asked: list[tuple[str, tuple[int, ...]]] = []
        self.failures: list[Exception] = []
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        self.announce: Callable[[], None] = lambda: None  # as the owner of a segment does, through the change log

    def drain(self, *segment_ids: int, subscription: str = "s") -> None:
        self.done.setdefault(subscription, set()).update(segment_ids)
        self.announce()

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

    async def request_move(
        self, topic: TopicName, incarnation: str, subscription: str, segment: Segment, to_ms: int | None
    ) -> None:
        if to_ms is None:
            self.drain(segment.segment_id, subscription=subscription)
        else:
            self.done.get(subscription, set()).discard(segment.segment_id)


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
        segments.announce = lambda: node.leaders.registered(keys.bucket_of(PATH), PATH)
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


async def until_steady(number: Callable[[], int]) -> int:
    """Wait until a number has not changed for a second; what it is then."""
    with trio.fail_after(LIMIT):
        while True:
            before = number()
            await trio.sleep(1.0)
            if number() == before:
                return before
