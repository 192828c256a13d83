"""Classic topics as the store has them: a log that is a topic or a partition, and the record of a partitioned topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from metadata.errors import RecordDamaged
from metadata.link import Reply
from metadata.records import Version
from protocol.names import TopicName

# What is read of a log here; who appends to it and how far it reaches is the data plane's.
LOG_FIELDS: Final = ("incarnation", "state", "ctime", "properties", "parent", "migrated")
PARTITIONED_FIELDS: Final = ("incarnation", "version", "state", "partitions", "ctime", "properties", "migrated")

_properties: Final = msgspec.json.Decoder(dict[str, str])


class PartitionedState(StrEnum):
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"  # its partitions go first; whoever deletes it again goes on
    MIGRATING = "MIGRATING"  # its partitions are sealed one by one; whoever migrates it again goes on
    MIGRATED = "MIGRATED"


@dataclass(frozen=True, slots=True)
class ClassicLog:
    """One log under a `persistent://` name. `parent`: the incarnation of the partitioned topic that it belongs to."""

    name: TopicName
    incarnation: str
    sealed: bool  # nothing is appended any more
    ctime_ms: int
    properties: Mapping[str, str]
    parent: str = ""
    migrated: str = ""  # the incarnation of the scalable topic that it became a part of

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
    migrated: str = ""

    @property
    def is_going(self) -> bool:
        return self.state is PartitionedState.DELETING

    @property
    def logs(self) -> tuple[TopicName, ...]:
        """The names of its partitions, in order."""
        return tuple(self.name.partition_at(index) for index in range(self.partitions))


ClassicTopic = ClassicLog | PartitionedTopic


def is_migrated(topic: ClassicTopic) -> bool:
    """Whether a scalable topic has taken its place, with the logs as its first segments."""
    if isinstance(topic, ClassicLog):
        return bool(topic.migrated)
    return topic.state is PartitionedState.MIGRATED


def log_of(name: TopicName, reply: Reply) -> ClassicLog | RecordDamaged | None:
    try:
        incarnation, state, ctime, properties, parent, migrated = reply
        if incarnation is None:
            return None
        return ClassicLog(
            name,
            incarnation.decode(),
            state != b"ACTIVE",
            int(ctime or 0),
            _properties.decode(properties or b"{}"),
            (parent or b"").decode(),
            (migrated or b"").decode(),
        )
    except (TypeError, ValueError, AttributeError, msgspec.DecodeError):
        return _damaged(name)


def partitioned_of(name: TopicName, reply: Reply) -> PartitionedTopic | RecordDamaged | None:
    try:
        incarnation, version, state, partitions, ctime, properties, migrated = reply
        if incarnation is None:
            return None
        return PartitionedTopic(
            name,
            Version(incarnation.decode(), int(version)),
            PartitionedState(state.decode()),
            int(partitions),
            int(ctime or 0),
            _properties.decode(properties or b"{}"),
            (migrated or b"").decode(),
        )
    except (TypeError, ValueError, AttributeError, msgspec.DecodeError):
        return _damaged(name)


def _damaged(name: TopicName) -> RecordDamaged:
    return RecordDamaged(f"What is stored for {name} is not that of a classic topic: restore or remove it.")
