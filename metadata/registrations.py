"""Subscriptions of a topic and their registered consumers: the scripts that write them, and how they are read.

Who holds a consumer's connection writes where it is attached; the leader alone writes what it is assigned. So neither
waits for the other, and a registration is durable before anybody has decided about it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import trio

from metadata import keys, scripts
from metadata.errors import (
    Fenced,
    OutcomeUnknown,
    RecordDamaged,
    RegistrationsFull,
    StoreError,
    StoreLost,
    SubscriptionMismatch,
    SubscriptionMissing,
    TopicMissing,
    VersionConflict,
)
from metadata.lanes import Lane
from metadata.link import Reply
from metadata.records import Leader, StoredTopic, layout_of
from metadata.store import TopicStore, operation_id
from metadata.stored_values import number
from metadata.subscriptions import (
    ASSIGNED,
    ATTACHED,
    END,
    POSITION,
    Assignment,
    Attached,
    Attachment,
    Consumer,
    InitialPosition,
    Registration,
    Settings,
    Subscription,
    SubscriptionType,
    TopicState,
    assignment_of,
    consumer_of,
    identity_of,
    is_checkpoint,
    position_of,
    settings_of,
    subscription_of,
)
from protocol.names import TopicName

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegistrationLimits:
    subscriptions: int = 1_000  # of a topic
    consumers: int = 10_000  # of a subscription


_DEFAULT_LIMITS: Final = RegistrationLimits()
# Readings of a layout, for a new subscription, that others change at the same time.
_ATTEMPTS: Final = 20
# Deleted subscriptions of a topic that are remembered, for owners of its logs that hear of them late.
_DELETED_KEPT: Final = 100


@dataclass(frozen=True, slots=True)
class _ActiveSegments:
    """The segments whose ends are recorded with a new subscription, and the version of the record that has them."""

    version: str = ""
    keys: Sequence[bytes] = ()
    ids: Sequence[int] = ()


_NOT_NAMED: Final = _ActiveSegments()


class Registrations:
    def __init__(self, store: TopicStore, limits: RegistrationLimits = _DEFAULT_LIMITS) -> None:
        self._store = store
        self._limits = limits

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
        active = _NOT_NAMED
        attempts = 0
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
                        *active.keys,
                    ],
                    [
                        incarnation,
                        subscription,
                        kind,
                        # Another id each time: what an earlier try has made may have been deleted since.
                        msgspec.json.encode(Settings(attachment.since_ms, id=operation_id())),
                        consumer,
                        attachment.entry,
                        attachment.nonce if again else "",
                        path,
                        self._store.change_log_length,
                        op,
                        self._store.identity.mark,
                        self._limits.subscriptions,
                        self._limits.consumers,
                        active.version,
                        *active.ids,
                    ],
                )
            except OutcomeUnknown:
                doubtful = True
                continue
            if reply[0] not in _UNPLACED:
                return self._attached(topic, subscription, reply)
            attempts += 1
            if attempts == _ATTEMPTS:
                raise _changing(topic)
            active = await self._active_segments(topic)

    async def _active_segments(self, topic: TopicName) -> _ActiveSegments:
        stored = await self._store.get(topic)
        if stored is None:
            raise TopicMissing(f"Scalable topic not found: {topic}. Check its name, or create it.")
        path = keys.path_of(topic)
        active = layout_of(stored).active
        return _ActiveSegments(
            str(stored.version.number),
            [keys.segment_key(path, segment.descriptor) for segment in active],
            [segment.segment_id for segment in active],
        )

    def _attached(self, topic: TopicName, subscription: str, reply: Reply) -> Attached | None:
        outcome, found, leader, assigned, entry = reply
        match outcome:
            case b"done":
                return Attached(
                    found.decode(errors="replace"),
                    identity_of(entry),
                    Leader.parse(leader) if leader else None,
                    assignment_of(assigned) if assigned else None,
                )
            case b"stale":
                return None
            case b"lost":
                raise StoreLost("The store has lost its identity (flushed, or another data set): registrations wait.")
            case b"mismatch":
                raise _mismatch(subscription, found.decode(errors="replace"))
            case b"crowded":
                raise self._crowded(topic)
            case b"full":
                raise RegistrationsFull(
                    f"Subscription {subscription} of {topic} has {self._limits.consumers} consumers, which is the"
                    " limit: let some leave, or raise max_consumers."
                )
            case _:
                raise TopicMissing(f"Scalable topic not found: {topic}. Check its name, or create it.")

    def _crowded(self, topic: TopicName) -> RegistrationsFull:
        return RegistrationsFull(
            f"{topic} has {self._limits.subscriptions} subscriptions, which is the limit: delete some, or raise"
            " max_subscriptions."
        )

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
    ) -> tuple[str | None, str | None, list[Consumer | None]]:
        """The topic's incarnation, the subscription's id and these consumers, None where one is not registered.

        No incarnation where the topic or the subscription is gone, no id where it cannot be read. Raises
        StoreLost where absence would say nothing.
        """
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        slot = keys.BUCKET_SLOTS[bucket]
        fields = [f"{prefix.decode()}{name}" for name in names for prefix in (ATTACHED, ASSIGNED)]
        incarnation, entry, found, mark = await lane.gather(
            [
                (slot, ("HGET", keys.record_key(path), "incarnation")),
                (slot, ("HGET", keys.subscriptions_key(path), subscription)),
                (slot, ("HMGET", keys.members_key(path, subscription), *fields)),
                (slot, ("GET", keys.marker_key(bucket))),
            ]
        )
        if mark != self._store.identity.mark:
            raise StoreLost("The store has lost its identity: registrations are held as they are.")
        consumers = [
            None if attached is None else consumer_of(name, attached, assigned)
            for name, attached, assigned in zip(names, found[::2], found[1::2], strict=True)
        ]
        if incarnation is None or entry is None:
            return None, None, consumers
        return incarnation.decode(errors="replace"), identity_of(entry), consumers

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
        members = await lane.gather(
            [(slot, ("HGETALL", keys.members_key(path, name))) for name in names], refusals=True
        )
        # What stands in the place of one subscription's members costs that one.
        found = (
            subscription_of(name, entry, fields)
            for name, entry, fields in zip(names, entries.values(), members, strict=True)
            if not isinstance(fields, StoreError)
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
            _keys_of(path, subscription.name),
            [
                topic.version.incarnation,
                leader.fence,
                subscription.name,
                subscription.settings.id,
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

    async def end_group(self, topic: StoredTopic, leader: Leader, name: str) -> None:
        """Forget a CHECKPOINT group that has no readers left."""
        path = keys.path_of(topic.name)
        bucket = keys.bucket_of(path)
        outcome = await self._store.commands.script(
            keys.BUCKET_SLOTS[bucket],
            scripts.END_GROUP,
            _keys_of(path, name),
            [
                topic.version.incarnation,
                leader.fence,
                name,
                path,
                self._store.change_log_length,
                operation_id(),
            ],
            repeatable=True,
        )
        if outcome == b"fenced":
            raise Fenced(f"This node does not lead {topic.name} any more.")
        if outcome == b"conflict":
            raise VersionConflict(f"{name} of {topic.name} has readers again, or is another subscription by now.")

    # What the owner of a log does.

    async def register(
        self,
        topic: TopicName,
        name: str,
        kind: SubscriptionType | None,
        now_ms: int,
        *,
        position: InitialPosition,
        segment_id: int,
    ) -> Registration:
        """The registration of a subscription of this type, None for any, with where it begins in one segment.

        Made if there is none. The initial position is that of whoever was first.
        """
        path = keys.path_of(topic)
        slot = keys.BUCKET_SLOTS[keys.bucket_of(path)]
        # Most are there, and then nothing has to be written: consumers come back to a store that is full, too.
        entry, (stored, end) = await self._store.commands.gather(
            [
                (slot, ("HGET", keys.subscriptions_key(path), name)),
                (slot, ("HMGET", keys.members_key(path, name), POSITION, END + str(segment_id).encode())),
            ]
        )
        if entry is not None:
            if identity_of(entry) is None:
                raise _damaged(topic, name)
            settings = settings_of(entry)
            suits = kind is None or (entry.startswith(kind.encode() + b" ") and not settings.migrated)
            if suits and (stored or not settings.id):
                return _registration(topic, name, settings, stored, segment_id, end)
        return await self._create_subscription(
            topic,
            name,
            kind or SubscriptionType.QUEUE,
            Settings(now_ms, migrated=kind is None),
            any_type=kind is None,
            position=position,
            segment_id=segment_id,
        )

    async def find(self, topic: TopicName, name: str) -> Registration | None:
        """The registration of a subscription, with where it begins in all segments."""
        path = keys.path_of(topic)
        slot = keys.BUCKET_SLOTS[keys.bucket_of(path)]
        entry, members = await self._store.commands.gather(
            [
                (slot, ("HGET", keys.subscriptions_key(path), name)),
                (slot, ("HGETALL", keys.members_key(path, name))),
            ]
        )
        if entry is None:
            return None
        found = subscription_of(name, entry, members)
        if found is None:
            raise _damaged(topic, name)
        return found.registration

    async def identities(self, topic: TopicName) -> dict[str, str | None]:
        """The subscriptions of a topic that have cursors, each with the id that its cursors carry.

        What cannot be read is taken for one with cursors, of which nobody knows whose they are.
        """
        path = keys.path_of(topic)
        slot = keys.BUCKET_SLOTS[keys.bucket_of(path)]
        entries = await self._store.commands.call(slot, "HGETALL", keys.subscriptions_key(path))
        return {
            name.decode(errors="replace"): identity_of(entry)
            for name, entry in entries.items()
            if not is_checkpoint(entry)
        }

    # What the admin API does.

    def check_room(self, state: TopicState, more: int) -> None:
        """Raise RegistrationsFull where a topic cannot have so many more subscriptions."""
        found = len(state.subscriptions) + len(state.damaged)
        if more and found + more > self._limits.subscriptions:
            raise RegistrationsFull(
                f"{state.topic.name} has {found} subscriptions, and {more} more are beyond the limit of"
                f" {self._limits.subscriptions}: delete some, or raise max_subscriptions."
            )

    async def create_subscription(
        self, topic: TopicName, name: str, kind: SubscriptionType, now_ms: int, *, from_start: bool = False
    ) -> Registration:
        """Record a subscription, or find it where it exists with this type."""
        position = InitialPosition.EARLIEST if from_start else None
        settings = Settings(now_ms, from_start=from_start)
        return await self._create_subscription(topic, name, kind, settings, position=position)

    async def provide_subscription(self, topic: TopicName, name: str, now_ms: int) -> Registration:
        """See that there is a subscription with cursors, of whichever type; a new one has everything unread, and its
        type stays open until somebody uses it."""
        settings = Settings(now_ms, from_start=True, migrated=True)
        return await self._create_subscription(
            topic, name, SubscriptionType.QUEUE, settings, any_type=True, position=InitialPosition.EARLIEST
        )

    async def _create_subscription(
        self,
        topic: TopicName,
        name: str,
        kind: SubscriptionType,
        settings: Settings,
        *,
        position: InitialPosition | None,
        any_type: bool = False,
        segment_id: int | None = None,
    ) -> Registration:
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        active = _NOT_NAMED
        attempts = 0
        give_up_at = trio.current_time() + self._store.timeouts.patience
        while True:
            # Another id each time: what an earlier try has made, without telling, may have been deleted since.
            op = operation_id()
            try:
                outcome, found, entry, stored, end = await self._store.commands.script(
                    keys.BUCKET_SLOTS[bucket],
                    scripts.CREATE_SUBSCRIPTION,
                    [
                        keys.record_key(path),
                        keys.subscriptions_key(path),
                        keys.changes_key(bucket),
                        keys.members_key(path, name),
                        *active.keys,
                    ],
                    [
                        name,
                        kind,
                        msgspec.json.encode(msgspec.structs.replace(settings, id=op)),
                        path,
                        self._store.change_log_length,
                        op,
                        self._limits.subscriptions,
                        "1" if any_type else "0",
                        position or "",
                        "" if segment_id is None else segment_id,
                        active.version,
                        *active.ids,
                    ],
                )
            except OutcomeUnknown:
                if trio.current_time() > give_up_at:
                    raise
                continue
            if outcome not in _UNPLACED:
                break
            attempts += 1
            if attempts == _ATTEMPTS:
                raise _changing(topic)
            active = await self._active_segments(topic)
        if outcome == b"crowded":
            raise self._crowded(topic)
        if outcome == b"missing":
            raise TopicMissing(f"Scalable topic not found: {topic}. Check its name, or create it.")
        if outcome == b"mismatch":
            raise _mismatch(name, found.decode(errors="replace"))
        if any_type and is_checkpoint(entry):
            raise _mismatch(name, SubscriptionType.CHECKPOINT)
        return _registration(topic, name, settings_of(entry), stored, segment_id, end)

    async def delete_subscription(self, topic: TopicName, name: str, *, gone: Collection[str] = ()) -> None:
        """Forget a subscription, whoever is connected: from then on its cursors count for nobody.

        Only a group of CHECKPOINT readers has to have none; `gone` are node sessions that have ended, and with them the
        connections that they held.
        """
        path = keys.path_of(topic)
        match await self._delete(path, [*_keys_of(path, name), keys.deleted_key(path)], name, gone):
            case b"missing":
                raise TopicMissing(f"Scalable topic not found: {topic}. Check its name, or create it.")
            case b"unknown":
                raise SubscriptionMissing(f"{topic} has no subscription {name}: list those that it has.")
            case b"group":
                raise SubscriptionMismatch(
                    f"{name} of {topic} is a {SubscriptionType.CHECKPOINT} group, which ends with its last"
                    " reader: close its readers instead."
                )

    async def _delete(self, path: str, script_keys: Sequence[bytes], name: str, gone: Collection[str]) -> bytes:
        """Delete it once, also where a reply is lost: what a name stands for a moment later may be another one."""
        bucket = keys.bucket_of(path)
        op = operation_id()
        give_up_at = trio.current_time() + self._store.timeouts.patience
        interrupted = False
        while True:
            try:
                outcome: bytes = await self._store.commands.script(
                    keys.BUCKET_SLOTS[bucket],
                    scripts.DELETE_SUBSCRIPTION,
                    script_keys,
                    [name, path, self._store.change_log_length, op, _DELETED_KEPT, *gone],
                )
            except OutcomeUnknown:
                interrupted = True
                if await self._store.is_logged(bucket, op):
                    return b"done"
                if trio.current_time() > give_up_at:
                    raise
                continue
            if outcome == b"unknown" and interrupted and await self._store.is_logged(bucket, op):
                return b"done"
            return outcome

    async def deleted(self, topic: TopicName) -> frozenset[tuple[str, str]]:
        """The last subscriptions of a topic that were deleted, each by its id and name."""
        path = keys.path_of(topic)
        slot = keys.BUCKET_SLOTS[keys.bucket_of(path)]
        entries = await self._store.commands.call(slot, "LRANGE", keys.deleted_key(path), 0, _DELETED_KEPT - 1)
        parts = (entry.decode(errors="replace").partition(" ") for entry in entries)
        return frozenset((identity, name) for identity, _, name in parts)

    async def names(self, topic: TopicName) -> list[str]:
        """The subscriptions of a topic, none of a topic that is not there."""
        path = keys.path_of(topic)
        slot = keys.BUCKET_SLOTS[keys.bucket_of(path)]
        names: list[bytes] = await self._store.commands.call(slot, "HKEYS", keys.subscriptions_key(path))
        try:
            return sorted(name.decode() for name in names)
        except UnicodeDecodeError:
            raise RecordDamaged(
                f"{keys.subscriptions_key(path).decode()} has a field that is no name of a subscription: remove it."
            ) from None


# What says that the active segments have to be named, or named again.
_UNPLACED: Final = (b"unplaced", b"moved")


def _changing(topic: TopicName) -> VersionConflict:
    return VersionConflict(f"{topic} was changed by others {_ATTEMPTS} times meanwhile: try again.")


def _registration(
    topic: TopicName, name: str, settings: Settings, stored: bytes | None, segment_id: int | None, end: bytes | None
) -> Registration:
    try:
        ends = {segment_id: number(end)} if segment_id is not None and end else {}
        return Registration(settings, position_of(stored), ends)
    except ValueError:
        raise _damaged(topic, name) from None


def _damaged(topic: TopicName, name: str) -> RecordDamaged:
    return RecordDamaged(
        f"The entry of subscription {name} of {topic}, in {keys.subscriptions_key(keys.path_of(topic)).decode()} or"
        " below it, cannot be read: restore it, or delete the subscription."
    )


def _mismatch(name: str, kind: str) -> SubscriptionMismatch:
    return SubscriptionMismatch(f"Subscription {name} exists with the type {kind}: use that, or another name.")


def _keys_of(path: str, subscription: str) -> list[bytes]:
    """Of a topic, one of its subscriptions and the log that tells of them."""
    return [
        keys.record_key(path),
        keys.subscriptions_key(path),
        keys.members_key(path, subscription),
        keys.changes_key(keys.bucket_of(path)),
    ]
