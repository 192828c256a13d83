"""A store with a topic, and short ways to register consumers, lead the topic and assign its segments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from controller.transitions import TopicLimits, Transitions
from metadata import keys
from metadata.leadership import Leaderships
from metadata.node_sessions import NodeRecord
from metadata.records import Leader, StoredTopic
from metadata.registrations import Registrations
from metadata.store import TopicStore, open_store
from metadata.subscriptions import (
    AssignedSegment,
    Assignment,
    Attachment,
    Consumer,
    Subscription,
    SubscriptionType,
    TopicState,
)
from protocol.names import TopicName

TOPIC = TopicName.scalable("public", "default", "orders")
STREAM, QUEUE, CHECKPOINT = SubscriptionType.STREAM, SubscriptionType.QUEUE, SubscriptionType.CHECKPOINT
NODE = NodeRecord("a" * 16, "pulsar://a:1", "http://a:2")
EXOTIC = [
    "a",
    "a:",
    "c:",
    "c:a",
    "a:c:a",
    "a/b",
    "/",
    "//",
    "..",
    "%2F",
    "generation",
    "op",
    "drained",
    "{b001}",
    "käse",
    "日本語",
    "😀\u200d🔥",
    "a b\tc\n",
    "\x00",
    '"}',
    "%s%d",
    "x" * 1024,
    "ü" * 512,
]


@dataclass(frozen=True, slots=True)
class Bench:
    store: TopicStore
    registrations: Registrations
    leaderships: Leaderships
    transitions: Transitions

    async def topic(self) -> StoredTopic:
        stored = await self.store.get(TOPIC)
        assert stored is not None
        return stored

    async def state(self) -> TopicState:
        state = await self.registrations.state(self.store.commands, TOPIC)
        assert state is not None
        return state

    async def subscription(self, name: str = "s") -> Subscription:
        return (await self.state()).subscriptions[name]

    async def consumer(self, name: str, subscription: str = "s") -> Consumer:
        return (await self.subscription(subscription)).consumers[name]

    async def attach(self, name: str, nonce: str = "1", *, subscription: str = "s", **options: Any) -> Attachment:
        attachment = by(nonce)
        attached = await self.registrations.attach(TOPIC, subscription, STREAM, name, attachment, **options)
        assert attached is not None
        return attachment

    async def lead(self) -> Leader:
        leader = await self.leaderships.take(await self.topic(), NODE)
        assert leader is not None
        return leader

    async def assign(
        self,
        leader: Leader,
        assignments: dict[str, Assignment],
        *,
        evicted: Iterable[Consumer] = (),
        drained: Iterable[int] | None = None,
        seen: TopicState | None = None,
        subscription: str = "s",
    ) -> int:
        state = seen or await self.state()
        return await self.registrations.assign(
            state.topic,
            leader,
            state.subscriptions[subscription],
            assignments,
            evicted=list(evicted),
            drained=None if drained is None else list(drained),
        )


@asynccontextmanager
async def bench(url: str, *, segments: int = 4) -> AsyncIterator[Bench]:
    async with open_store(url) as store:
        found = Bench(store, Registrations(store), Leaderships(store), Transitions(store, TopicLimits()))
        await found.transitions.create(TOPIC, segments)
        yield found


def by(nonce: str, node: str = NODE.session) -> Attachment:
    """The connection of this number."""
    return Attachment(node, nonce.rjust(16, "0"), 1, "127.0.0.1:1")


def given(*segment_ids: int, epoch: int = 0, releasing: tuple[int, ...] = ()) -> Assignment:
    return Assignment(epoch, tuple(AssignedSegment(i, i * 16384, i * 16384 + 16383) for i in segment_ids), releasing)


def members() -> bytes:
    return keys.members_key(keys.path_of(TOPIC), "s")
