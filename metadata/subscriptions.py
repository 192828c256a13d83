"""Subscriptions of a topic, their consumers and what those are assigned, as values and as they stand in the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, Self

import msgspec

from layout.ranges import LAST_HASH
from metadata.complaints import complain
from metadata.link import Reply
from metadata.records import Leader, StoredTopic
from metadata.stored_values import UNREADABLE, Long, number

log = logging.getLogger(__name__)

# What begins the fields of the members of a subscription: where one is attached, and what it is assigned.
ATTACHED: Final = b"c:"
ASSIGNED: Final = b"a:"
# And of where it begins: the initial position, and the end of each segment that was active when it was registered.
POSITION: Final = b"position"
END: Final = b"e:"

_Hash = Annotated[int, msgspec.Meta(ge=0, le=LAST_HASH)]


class SubscriptionType(StrEnum):
    STREAM = "STREAM"
    QUEUE = "QUEUE"
    # A group of readers with positions of their own: no cursor, and gone with its last member.
    CHECKPOINT = "CHECKPOINT"

    @property
    def is_durable(self) -> bool:
        return self is not SubscriptionType.CHECKPOINT


class InitialPosition(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept with a subscription beside its type.

    `id` is never given twice. A cursor carries the id of the registration that it belongs to, and counts for no other;
    the first registrations had none, and neither have the cursors of classic topics.
    """

    created_at_ms: Long = msgspec.field(default=0, name="createdAtMs")
    created_at_epoch: Long | None = msgspec.field(default=None, name="createdAtEpoch")  # of the layout; by the store
    from_start: bool = msgspec.field(default=False, name="fromStart")  # segments it was never at begin unread
    id: str = ""
    # Its type is open: from a classic topic, asked for by a producer or created without one, and not used since.
    migrated: bool = False


class Attachment(msgspec.Struct, frozen=True, omit_defaults=True):
    """By which connection a consumer is attached. The nonce is the connection's: two never share one."""

    node: str  # session of the node that holds it; empty once it is gone
    nonce: str
    since_ms: Long = 0
    address: str = ""

    @property
    def entry(self) -> bytes:
        return msgspec.json.encode(self)

    def detached(self) -> Self:
        return msgspec.structs.replace(self, node="")


class AssignedSegment(msgspec.Struct, frozen=True, array_like=True):
    """`legacy`: the classic topic whose log the segment is, where it is one."""

    segment_id: Long
    start: _Hash
    end: _Hash
    legacy: str = ""


class Assignment(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a consumer may consume, in the layout of this epoch; `releasing` it had, and still has to let go of."""

    epoch: Long
    segments: tuple[AssignedSegment, ...] = ()
    releasing: tuple[Long, ...] = ()

    @property
    def entry(self) -> bytes:
        return msgspec.json.encode(self)

    @property
    def segment_ids(self) -> tuple[int, ...]:
        return tuple(segment.segment_id for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Registration:
    """A subscription as a topic knows it: which one it is, and where it begins in segments that it was never at."""

    settings: Settings
    position: InitialPosition | None = None  # None until somebody subscribes at a segment, who decides it for all
    ends: Mapping[int, int] = field(default_factory=dict)  # by segment, when it was registered; 0 where there is none

    @property
    def id(self) -> str:
        return self.settings.id


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
    position: InitialPosition | None = None
    ends: Mapping[int, int] = field(default_factory=dict)

    @property
    def registration(self) -> Registration:
        return Registration(self.settings, self.position, self.ends)

    @property
    def is_open(self) -> bool:
        """Whether its type does not count yet: whoever uses it first decides."""
        return self.settings.migrated


@dataclass(frozen=True, slots=True)
class TopicState:
    topic: StoredTopic
    subscriptions: Mapping[str, Subscription]
    damaged: frozenset[str] = frozenset()  # subscriptions whose entries cannot be read


@dataclass(frozen=True, slots=True)
class Attached:
    """What registering gave: which topic and which registration, the leader, and what a known consumer had."""

    incarnation: str
    subscription_id: str | None  # None if it cannot be read
    leader: Leader | None
    assignment: Assignment | None


_UNREADABLE_ENTRY: Final = "the settings of a subscription, %r, cannot be read: %s; restore them, or delete it"


def settings_of(entry: bytes) -> Settings:
    """What an entry of the subscriptions says beside the type."""
    try:
        return msgspec.json.decode(entry.partition(b" ")[2], type=Settings)
    except UNREADABLE as error:
        complain(log, _UNREADABLE_ENTRY, entry[:64], error)
        return Settings()


def identity_of(entry: bytes) -> str | None:
    """Which registration an entry is; None if it cannot be read, and then nobody knows which cursors are its own."""
    try:
        return msgspec.json.decode(entry.partition(b" ")[2], type=Settings).id
    except UNREADABLE as error:
        complain(log, _UNREADABLE_ENTRY, entry[:64], error)
        return None


def position_of(stored: bytes | None) -> InitialPosition | None:
    """Raises ValueError."""
    return None if not stored else InitialPosition(stored.decode())


def is_checkpoint(entry: bytes) -> bool:
    """Whether an entry of the subscriptions is that of a group without cursors."""
    return entry.partition(b" ")[0] == SubscriptionType.CHECKPOINT.encode()


def subscription_of(name: str, entry: bytes, fields: Mapping[bytes, bytes]) -> Subscription | None:
    kind, _, settings = entry.partition(b" ")
    try:
        return Subscription(
            name,
            SubscriptionType(kind.decode()),
            msgspec.json.decode(settings, type=Settings),
            number(fields.get(b"generation", b"0")),
            frozenset(msgspec.json.decode(fields.get(b"drained", b"[]"), type=list[Long])),
            {
                consumer.name: consumer
                for key, attached in fields.items()
                if key.startswith(ATTACHED)
                and (consumer := consumer_of(key[2:].decode(), attached, fields.get(ASSIGNED + key[2:])))
            },
            position_of(fields.get(POSITION)),
            {number(key[2:]): number(end) for key, end in fields.items() if key.startswith(END)},
        )
    except UNREADABLE as error:
        complain(log, "subscription %s has an entry that cannot be read: %s; restore it, or delete it", name, error)
        return None


def consumer_of(name: str, attached: bytes, assigned: Reply) -> Consumer:
    try:
        attachment = msgspec.json.decode(attached, type=Attachment)
    except UNREADABLE:
        # Nobody's, so that its grace ends one day.
        attachment = Attachment("", "")
    return Consumer(name, attachment, attached, assignment_of(assigned) if assigned else None)


def assignment_of(entry: bytes) -> Assignment | None:
    try:
        return msgspec.json.decode(entry, type=Assignment)
    except UNREADABLE as error:
        complain(log, "an assignment, %r, cannot be read and is made anew: %s", entry[:64], error)
        return None
