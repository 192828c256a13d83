"""Subscriptions of a topic and their registered consumers: records, and the scripts that write them.

Who holds a consumer's connection writes where it is attached; the leader alone writes what it is assigned. So neither
waits for the other, and a registration is durable before anybody has decided about it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

import msgspec

from metadata import keys, scripts
from metadata.errors import (
    Fenced,
    OutcomeUnknown,
    RecordDamaged,
    StoreLost,
    SubscriptionBusy,
    SubscriptionMismatch,
    SubscriptionMissing,
    TopicMissing,
    VersionConflict,
)
from metadata.lanes import Lane
from metadata.link import Reply
from metadata.records import Leader, StoredTopic
from metadata.store import TopicStore, operation_id
from protocol.names import TopicName

log = logging.getLogger(__name__)

_ATTACHED: Final = b"c:"
_ASSIGNED: Final = b"a:"


class SubscriptionType(StrEnum):
    STREAM = "STREAM"
    QUEUE = "QUEUE"
    # A group of readers with positions of their own: no cursor, and gone with its last member.
    CHECKPOINT = "CHECKPOINT"

    @property
    def is_durable(self) -> bool:
        return self is not SubscriptionType.CHECKPOINT


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept with a subscription beside its type."""

    created_at_ms: int = msgspec.field(default=0, name="createdAtMs")


class Attachment(msgspec.Struct, frozen=True, omit_defaults=True):
    """By which connection a consumer is attached. The nonce is the connection's: two never share one."""

    node: str  # session of the node that holds it; empty once it is gone
    nonce: str
    since_ms: int = 0
    address: str = ""

    @property
    def entry(self) -> bytes:
        return msgspec.json.encode(self)

    def detached(self) -> Self:
        return msgspec.structs.replace(self, node="")


class AssignedSegment(msgspec.Struct, frozen=True, array_like=True):
    segment_id: int
    start: int
    end: int


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a consumer may consume, in the layout of this epoch; `releasing` it had, and still has to let go of."""

    epoch: int
    segments: tuple[AssignedSegment, ...] = ()
    releasing: tuple[int, ...] = ()

    @property
    def entry(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def segment_ids(self) -> tuple[int, ...]:
        return tuple(segment.segment_id for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Consumer:
    name: str
    attachment: Attachment
    attachment_entry: bytes
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    name: str
    type: SubscriptionType
    settings: Settings = field(default_factory=Settings)
    generation: int = 0
    drained: frozenset[int] = frozenset()
    consumers: Mapping[str, Consumer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicState:
    topic: StoredTopic
    subscriptions: Mapping[str, Subscription]
    damaged: frozenset[str] = frozenset()  # subscriptions whose entries cannot be read


@dataclass(frozen=True, slots=True)
class Attached:
    """What registering gave: the topic's incarnation, its leader, and what the consumer had if it was known."""

    incarnation: str
    leader: Leader | None
    assignment: Assignment | None


class Registrations:
    def __init__(self, store: TopicStore) -> None:
        self._store = store

    # What the node does that holds the connection.

    async def attach(
        self,
        topic: TopicName,
        subscription: str,
        kind: SubscriptionType,
        consumer: str,
        attachment: Attachment,
        *,
        incarnation: str = "",
        again: bool = False,
        op: str = "",
        doubtful: bool = False,
    ) -> Attached | None:
        """Register a consumer, or its new connection.

        With an `incarnation` only at that very topic; `again` only where no other connection has taken the consumer
        over since, otherwise None. `doubtful`: an earlier attempt under the same `op` may have happened.
        """
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        op = op or operation_id()
        while True:
            if doubtful and await self._store.is_logged(bucket, op):
                # It did happen, and whoever has come since has the consumer.
                again = True
            try:
                reply = await self._store.commands.script(
                    keys.BUCKET_SLOTS[bucket],
                    scripts.ATTACH_CONSUMER,
                    [
                        keys.record_key(path),
                        keys.subscriptions_key(path),
                        keys.members_key(path, subscription),
                        keys.leaders_key(bucket),
                        keys.changes_key(bucket),
                        keys.marker_key(bucket),
                    ],
                    [
                        incarnation,
                        subscription,
                        kind,
                        msgspec.json.encode(Settings(attachment.since_ms)),
                        consumer,
                        attachment.entry,
                        attachment.nonce if again else "",
                        path,
                        self._store.change_log_length,
                        op,
                        self._store.identity.mark,
                    ],
                )
            except OutcomeUnknown:
                doubtful = True
            else:
                return _attached(topic, subscription, reply)

    async def detach(self, topic: TopicName, subscription: str, consumer: str, attachment: Attachment) -> bool:
        """The connection is gone; False if the consumer was attached by another one already."""
        return await self._detach(topic, subscription, consumer, attachment, attachment.detached().entry)

    async def leave(self, topic: TopicName, subscription: str, consumer: str, attachment: Attachment) -> bool:
        """The consumer has said that it will not come back."""
        return await self._detach(topic, subscription, consumer, attachment, b"")

    async def _detach(
        self, topic: TopicName, subscription: str, consumer: str, attachment: Attachment, entry: bytes
    ) -> bool:
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        changed = await self._store.commands.script(
            keys.BUCKET_SLOTS[bucket],
            scripts.DETACH_CONSUMER,
            [keys.record_key(path), keys.members_key(path, subscription), keys.changes_key(bucket)],
            [consumer, attachment.nonce, entry, path, self._store.change_log_length, operation_id()],
            repeatable=True,
        )
        return bool(changed)

    async def consumers(
        self, lane: Lane, topic: TopicName, subscription: str, names: Sequence[str]
    ) -> tuple[str | None, list[Consumer | None]]:
        """The topic's incarnation and these consumers, None where one is not registered.

        No incarnation where the topic or the subscription is gone. Raises StoreLost where absence would say nothing.
        """
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        slot = keys.BUCKET_SLOTS[bucket]
        fields = [f"{prefix.decode()}{name}" for name in names for prefix in (_ATTACHED, _ASSIGNED)]
        incarnation, known, found, mark = await lane.gather(
            [
                (slot, ("HGET", keys.record_key(path), "incarnation")),
                (slot, ("HEXISTS", keys.subscriptions_key(path), subscription)),
                (slot, ("HMGET", keys.members_key(path, subscription), *fields)),
                (slot, ("GET", keys.marker_key(bucket))),
            ]
        )
        if mark != self._store.identity.mark:
            raise StoreLost("The store has lost its identity: registrations are held as they are.")
        consumers = [
            None if attached is None else _consumer(name, attached, assigned)
            for name, attached, assigned in zip(names, found[::2], found[1::2], strict=True)
        ]
        return incarnation.decode() if incarnation is not None and known else None, consumers

    # What the leader does.

    async def state(self, lane: Lane, topic: TopicName) -> TopicState | None:
        """Everything a leader decides by. The parts are read one after the other: a change in between is heard of."""
        [stored] = await self._store.read(lane, [topic])
        if isinstance(stored, RecordDamaged | StoreLost):
            raise stored
        if stored is None:
            return None
        path = keys.path_of(topic)
        slot = keys.BUCKET_SLOTS[keys.bucket_of(path)]
        entries = await lane.call(slot, "HGETALL", keys.subscriptions_key(path))
        names = [name.decode(errors="replace") for name in entries]
        members = await lane.gather([(slot, ("HGETALL", keys.members_key(path, name))) for name in names])
        found = (
            _subscription(name, entry, fields)
            for name, entry, fields in zip(names, entries.values(), members, strict=True)
        )
        subscriptions = {subscription.name: subscription for subscription in found if subscription is not None}
        return TopicState(stored, subscriptions, frozenset(names) - subscriptions.keys())

    async def assign(
        self,
        topic: StoredTopic,
        leader: Leader,
        subscription: Subscription,
        assignments: Mapping[str, Assignment],
        *,
        evicted: Collection[Consumer] = (),
        drained: Collection[int] | None = None,
    ) -> int:
        """Write what the leader decided, and the new generation with it, unless the leader is none any more."""
        path = keys.path_of(topic.name)
        bucket = keys.bucket_of(path)
        outcome, generation = await self._store.commands.script(
            keys.BUCKET_SLOTS[bucket],
            scripts.ASSIGN,
            [
                keys.record_key(path),
                keys.subscriptions_key(path),
                keys.members_key(path, subscription.name),
                keys.changes_key(bucket),
            ],
            [
                topic.version.incarnation,
                leader.fence,
                subscription.name,
                subscription.generation,
                b"" if drained is None else msgspec.json.encode(sorted(drained)),
                path,
                self._store.change_log_length,
                operation_id(),
                len(assignments),
                *(part for name, given in assignments.items() for part in (name, given.entry)),
                *(part for consumer in evicted for part in (consumer.name, consumer.attachment_entry)),
            ],
            repeatable=True,
        )
        if outcome == b"fenced":
            raise Fenced(f"This node does not lead {topic.name} any more.")
        if outcome == b"missing":
            raise SubscriptionMissing(f"Subscription {subscription.name} of {topic.name} is gone.")
        if outcome == b"conflict":
            raise VersionConflict(f"Subscription {subscription.name} of {topic.name} has moved on.")
        return int(generation)

    # What the admin API does.

    async def create_subscription(self, topic: TopicName, name: str, kind: SubscriptionType, now_ms: int) -> None:
        """Record a subscription; nothing happens where it exists with this type."""
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        outcome, found = await self._store.commands.script(
            keys.BUCKET_SLOTS[bucket],
            scripts.CREATE_SUBSCRIPTION,
            [keys.record_key(path), keys.subscriptions_key(path), keys.changes_key(bucket)],
            [name, kind, msgspec.json.encode(Settings(now_ms)), path, self._store.change_log_length, operation_id()],
            repeatable=True,
        )
        if outcome == b"missing":
            raise TopicMissing(f"Scalable topic not found: {topic}.")
        if outcome == b"mismatch":
            raise _mismatch(name, found.decode())

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool = False) -> None:
        """Forget a subscription; one with consumers only with `force`, and they lose their segments."""
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        outcome = await self._store.commands.script(
            keys.BUCKET_SLOTS[bucket],
            scripts.DELETE_SUBSCRIPTION,
            [
                keys.record_key(path),
                keys.subscriptions_key(path),
                keys.members_key(path, name),
                keys.changes_key(bucket),
            ],
            [name, "1" if force else "0", path, self._store.change_log_length, operation_id()],
        )
        if outcome == b"missing":
            raise TopicMissing(f"Scalable topic not found: {topic}.")
        if outcome == b"unknown":
            raise SubscriptionMissing(f"{topic} has no subscription {name}: list those that it has.")
        if outcome == b"group":
            raise SubscriptionMismatch(
                f"{name} of {topic} is a {SubscriptionType.CHECKPOINT} group, which ends with its last"
                " reader: close its readers instead."
            )
        if outcome == b"busy":
            raise SubscriptionBusy(f"Subscription {name} of {topic} has consumers: let them leave first, or use force.")

    async def names(self, topic: TopicName) -> list[str]:
        """The subscriptions of a topic, none of a topic that is not there."""
        path = keys.path_of(topic)
        slot = keys.BUCKET_SLOTS[keys.bucket_of(path)]
        names: list[bytes] = await self._store.commands.call(slot, "HKEYS", keys.subscriptions_key(path))
        return sorted(name.decode() for name in names)


def _attached(topic: TopicName, subscription: str, reply: Reply) -> Attached | None:
    outcome, found, leader, assigned = reply
    if outcome == b"lost":
        raise StoreLost("The store has lost its identity (flushed, or another data set): registrations wait.")
    if outcome == b"stale":
        return None
    if outcome == b"missing":
        raise TopicMissing(f"Scalable topic not found: {topic}.")
    if outcome == b"mismatch":
        raise _mismatch(subscription, found.decode())
    return Attached(
        found.decode(), Leader.parse(leader) if leader else None, _assignment(assigned) if assigned else None
    )


def _mismatch(name: str, kind: str) -> SubscriptionMismatch:
    return SubscriptionMismatch(f"Subscription {name} exists with the type {kind}: use that, or another name.")


def _subscription(name: str, entry: bytes, fields: Mapping[bytes, bytes]) -> Subscription | None:
    kind, _, settings = entry.partition(b" ")
    try:
        return Subscription(
            name,
            SubscriptionType(kind.decode()),
            msgspec.json.decode(settings, type=Settings),
            int(fields.get(b"generation", b"0")),
            frozenset(msgspec.json.decode(fields.get(b"drained", b"[]"), type=list[int])),
            {
                consumer.name: consumer
                for key, attached in fields.items()
                if key.startswith(_ATTACHED)
                and (consumer := _consumer(key[2:].decode(), attached, fields.get(_ASSIGNED + key[2:])))
            },
        )
    except (ValueError, msgspec.DecodeError) as error:
        log.error("subscription %s has an entry that cannot be read: %s", name, error)
        return None


def _consumer(name: str, attached: bytes, assigned: Reply) -> Consumer:
    try:
        attachment = msgspec.json.decode(attached, type=Attachment)
    except msgspec.DecodeError:
        # Nobody's, so that its grace ends one day.
        attachment = Attachment("", "")
    return Consumer(name, attachment, attached, _assignment(assigned) if assigned else None)


def _assignment(entry: bytes) -> Assignment | None:
    try:
        return msgspec.json.decode(entry, type=Assignment)
    except msgspec.DecodeError as error:
        log.error("an assignment cannot be read and is made anew: %s", error)
        return None
