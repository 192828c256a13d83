"""Classic topics as the store has them: a log that is a topic or a partition, and the record of a partitioned topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from metadata import keys
from metadata.errors import RecordDamaged
from metadata.link import Reply
from metadata.records import Version
from metadata.stored_values import UNREADABLE, number
from protocol.names import TopicName

# What is read of a log here; who appends to it and how far it reaches is the data plane's.
LOG_FIELDS: Final = ("incarnation", "state", "ctime", "properties", "migrated")
PARTITIONED_FIELDS: Final = ("incarnation", "version", "state", "partitions", "ctime", "properties")

# More than any setting allows.
_MOST_PARTITIONS: Final = 1_000_000

_properties: Final = msgspec.json.Decoder(dict[str, str])


class PartitionedState(StrEnum):
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"  # its partitions go first; whoever deletes it again goes on
    MIGRATING = "MIGRATING"  # its partitions are sealed one by one; whoever migrates it again goes on
    MIGRATED = "MIGRATED"


@dataclass(frozen=True, slots=True)
class ClassicLog:
    """One log under a `persistent://` name. A partition has the incarnation of the topic that it belongs to."""

    name: TopicName
    incarnation: str
    sealed: bool  # nothing is appended any more
    ctime_ms: int
    properties: Mapping[str, str]
    migrated: bool = False  # it is a segment of the scalable topic with this incarnation now

    @property
    def version(self) -> Version:
        return Version(self.incarnation, 0)

    @property
    def partitions(self) -> int:
        """As clients count them: none, if a topic is not partitioned."""
        return 0

    @property
    def is_going(self) -> bool:
        """Whether it is being deleted; a single log is there or not."""
        return False

    @property
    def logs(self) -> tuple[TopicName, ...]:
        return (self.name,)


@dataclass(frozen=True, slots=True)
class PartitionedTopic:
    name: TopicName
    version: Version
    state: PartitionedState
    partitions: int
    ctime_ms: int
    properties: Mapping[str, str]

    @property
    def migrated(self) -> bool:
        """Whether a scalable topic with this incarnation has taken its place."""
        return self.state is PartitionedState.MIGRATED

    @property
    def is_going(self) -> bool:
        return self.state is PartitionedState.DELETING

    @property
    def logs(self) -> tuple[TopicName, ...]:
        """The names of its partitions, in order."""
        return tuple(self.name.partition_at(index) for index in range(self.partitions))


ClassicTopic = ClassicLog | PartitionedTopic


def log_of(name: TopicName, reply: Reply) -> ClassicLog | RecordDamaged | None:
    try:
        incarnation, state, ctime, properties, migrated = reply
        if incarnation is None:
            return None
        return ClassicLog(
            name,
            incarnation.decode(),
            state != b"ACTIVE",
            number(ctime or 0),
            _properties.decode(properties or b"{}"),
            migrated is not None,
        )
    except (TypeError, AttributeError, *UNREADABLE):
        return _damaged(name)


def partitioned_of(name: TopicName, reply: Reply) -> PartitionedTopic | RecordDamaged | None:
    try:
        incarnation, version, state, partitions, ctime, properties = reply
        if incarnation is None:
            return None
        return PartitionedTopic(
            name,
            Version(incarnation.decode(), number(version)),
            PartitionedState(state.decode()),
            _partitions(partitions),
            number(ctime or 0),
            _properties.decode(properties or b"{}"),
        )
    except (TypeError, AttributeError, *UNREADABLE):
        return _damaged(name)


def _partitions(stored: bytes) -> int:
    """What nobody could have asked for, nobody has to list."""
    if not 0 < (count := number(stored)) <= _MOST_PARTITIONS:
        raise ValueError(f"a topic has no {count} partitions")
    return count


def _damaged(name: TopicName) -> RecordDamaged:
    path = keys.path_of(name)
    places = f"{keys.classic_key(path).decode()} or {keys.partitioned_key(path).decode()}"
    return RecordDamaged(
        f"What is stored for {name}, under {places}, is not that of a classic topic: restore or remove it."
    )
