"""Classic topics in the store: logs under `persistent://` names and the records of partitioned topics.

All keys of one name share a slot with what a scalable topic of that name has, so a script can see that a name is used
once. Partitions have names of their own and with them buckets of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from metadata import keys, scripts
from metadata.classic_records import (
    LOG_FIELDS,
    PARTITIONED_FIELDS,
    ClassicTopic,
    PartitionedState,
    PartitionedTopic,
    log_of,
    partitioned_of,
)
from metadata.errors import (
    NameTaken,
    RecordDamaged,
    StoreLost,
    TopicChanging,
    TopicExists,
    TopicMissing,
    VersionConflict,
)
from metadata.lanes import Lane
from metadata.log_places import LogPlace
from metadata.log_states import UNREAD
from metadata.records import StoredTopic, Version
from metadata.store import TopicStore, operation_id
from protocol.names import NamespaceName, TopicName

_FIRST: Final = 0
# Partitions whose subscriptions are read in one round trip.
_LOOKED_AT_TOGETHER: Final = 256

Found = ClassicTopic | RecordDamaged | StoreLost | None


class ClassicTopics:
    """Reads and compare-and-set writes. Topics are named by `persistent://` names."""

    def __init__(self, store: TopicStore) -> None:
        self._store = store

    # Logs.

    async def create_log(
        self,
        topic: TopicName,
        properties: Mapping[str, str],
        incarnation: str = "",
        subscriptions: Collection[bytes] = (),
    ) -> str:
        """Create a log that must not exist: a topic, or a partition of the topic with that incarnation.

        Partitions share it, because a topic that is migrated has one for all of its logs. The log has these
        subscriptions from the beginning on.
        """
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        incarnation = incarnation or operation_id()
        outcome, _ = await self._store.write(
            path,
            scripts.CREATE_CLASSIC,
            [
                keys.classic_key(path),
                keys.classic_index_key(bucket, topic.namespace_name),
                keys.changes_key(bucket),
                keys.marker_key(bucket),
                keys.closed_key(bucket, topic.namespace_name),
                keys.record_key(path),
                keys.partitioned_key(path),
                LogPlace.of_classic(topic).cursors(incarnation),
            ],
            [
                incarnation,
                topic.local,
                path,
                self._store.change_log_length,
                self._store.identity.mark,
                msgspec.json.encode(properties),
                UNREAD,
                *sorted(subscriptions),
            ],
            written=Version(incarnation, _FIRST),
        )
        self._check_creation(topic, outcome)
        return incarnation

    async def delete_log(self, topic: TopicName, *, incarnation: str = "", migrated: bool = False) -> None:
        """Delete a log, of this incarnation if one is named; one that was migrated only if that is known."""
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        outcome, _ = await self._store.write(
            path,
            scripts.DELETE_CLASSIC,
            [
                keys.classic_key(path),
                keys.classic_index_key(bucket, topic.namespace_name),
                keys.changes_key(bucket),
                keys.garbage_key(bucket),
            ],
            [incarnation, topic.local, path, self._store.change_log_length, "1" if migrated else ""],
            written=Version(incarnation, _FIRST),
        )
        _check_expected(topic, outcome)

    # Partitioned topics.

    async def create_partitioned(self, topic: TopicName, partitions: int, properties: Mapping[str, str]) -> Version:
        """Write the record of a partitioned topic that must not exist. Its partitions are not created by that."""
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        incarnation = operation_id()
        outcome, version = await self._store.write(
            path,
            scripts.CREATE_PARTITIONED,
            [
                keys.partitioned_key(path),
                keys.partitioned_index_key(bucket, topic.namespace_name),
                keys.changes_key(bucket),
                keys.marker_key(bucket),
                keys.closed_key(bucket, topic.namespace_name),
                keys.record_key(path),
                keys.classic_key(path),
            ],
            [
                incarnation,
                topic.local,
                path,
                self._store.change_log_length,
                self._store.identity.mark,
                msgspec.json.encode(properties),
                partitions,
            ],
            written=Version(incarnation, _FIRST),
        )
        self._check_creation(topic, outcome)
        return version

    async def replace_partitioned(
        self,
        seen: PartitionedTopic,
        *,
        partitions: int | None = None,
        state: PartitionedState | None = None,
    ) -> PartitionedTopic:
        """Change the record of a partitioned topic if it is still the one that was seen."""
        path = keys.path_of(seen.name)
        bucket = keys.bucket_of(path)
        after = replace(
            seen,
            version=Version(seen.version.incarnation, seen.version.number + 1),
            partitions=seen.partitions if partitions is None else partitions,
            state=seen.state if state is None else state,
        )
        outcome, _ = await self._store.write(
            path,
            scripts.REPLACE_PARTITIONED,
            [keys.partitioned_key(path), keys.changes_key(bucket)],
            [
                seen.version.incarnation,
                seen.version.number,
                path,
                self._store.change_log_length,
                *("partitions", after.partitions),
                *("state", after.state),
            ],
            written=after.version,
        )
        _check_expected(seen.name, outcome)
        return after

    async def delete_partitioned(self, topic: TopicName, *, incarnation: str = "", migrated: bool = False) -> None:
        """Delete the record of a partitioned topic; its partitions should be gone by then."""
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        outcome, _ = await self._store.write(
            path,
            scripts.DELETE_PARTITIONED,
            [
                keys.partitioned_key(path),
                keys.partitioned_index_key(bucket, topic.namespace_name),
                keys.changes_key(bucket),
                keys.garbage_key(bucket),
            ],
            [incarnation, topic.local, path, self._store.change_log_length, "1" if migrated else ""],
            written=Version(incarnation, _FIRST),
        )
        _check_expected(topic, outcome)

    # Reading.

    async def get(self, topic: TopicName) -> ClassicTopic | None:
        [found] = await self.read(self._store.commands, [topic])
        if isinstance(found, RecordDamaged | StoreLost):
            raise found
        return found

    async def read(self, lane: Lane, topics: Sequence[TopicName]) -> list[Found]:
        """What is there under each of these names; StoreLost where absence in a bucket says nothing."""
        requests = []
        for topic in topics:
            path = keys.path_of(topic)
            bucket = keys.bucket_of(path)
            slot = keys.BUCKET_SLOTS[bucket]
            requests += [
                (slot, ("HMGET", keys.partitioned_key(path), *PARTITIONED_FIELDS)),
                (slot, ("HMGET", keys.classic_key(path), *LOG_FIELDS)),
                # Behind the others: a flush between them is then noticed, too.
                (slot, ("GET", keys.marker_key(bucket))),
            ]
        replies = await lane.gather(requests, refusals=True)
        found: list[Found] = []
        for index, topic in enumerate(topics):
            partitioned, log, mark = replies[3 * index : 3 * index + 3]
            there = partitioned_of(topic, partitioned) or log_of(topic, log)
            lost = there is None and mark != self._store.identity.mark
            found.append(StoreLost("The store has lost its identity: nothing can be said.") if lost else there)
        return found

    async def subscriptions(self, topic: PartitionedTopic) -> set[bytes]:
        """The names of the durable subscriptions that any partition of a topic has."""
        names: set[bytes] = set()
        for start in range(0, topic.partitions, _LOOKED_AT_TOGETHER):
            requests = []
            for log in topic.logs[start : start + _LOOKED_AT_TOGETHER]:
                place = LogPlace.of_classic(log)
                requests += [
                    (place.slot, ("HKEYS", place.cursors(topic.version.incarnation))),
                    (place.slot, ("GET", keys.marker_key(place.bucket))),
                ]
            replies = await self._store.commands.gather(requests)
            if any(mark != self._store.identity.mark for mark in replies[1::2]):
                raise StoreLost("The store has lost its identity: nothing can be said.")
            names.update(*replies[::2])
        return names

    async def read_either(
        self, lane: Lane, topics: Sequence[TopicName]
    ) -> list[StoredTopic | ClassicTopic | RecordDamaged | StoreLost | None]:
        """The records of these scalable topics, or what there is in place of one: a classic topic of the same name."""
        found: list[StoredTopic | ClassicTopic | RecordDamaged | StoreLost | None] = list(
            await self._store.read(lane, topics)
        )
        # A name with a slash is no classic one.
        absent = [index for index, it in enumerate(found) if it is None and "/" not in topics[index].local]
        if not absent:
            return found
        named = [topics[index] for index in absent]
        classic = await self.read(lane, [TopicName.classic(it.tenant, it.namespace, it.local) for it in named])
        migrated = []
        for index, there in zip(absent, classic, strict=True):
            if isinstance(there, ClassicTopic) and there.migrated:
                migrated.append(index)
            elif not (isinstance(there, ClassicTopic) and there.is_going):
                found[index] = there
        if migrated:
            # Either that happened between the two reads, or it is what a deleted topic has left behind.
            again = await self._store.read(lane, [topics[index] for index in migrated])
            for index, record in zip(migrated, again, strict=True):
                found[index] = record
        return found

    async def list_logs(self, namespace: NamespaceName) -> list[str]:
        """The local names of a namespace's logs, partitions among them, sorted."""
        return await self._store.list_topics(namespace, keys.classic_index_key)

    async def list_partitioned(self, namespace: NamespaceName) -> list[str]:
        return await self._store.list_topics(namespace, keys.partitioned_index_key)

    async def list_log_buckets(
        self, lane: Lane, buckets: Sequence[int], namespace: NamespaceName
    ) -> dict[int, dict[str, str]]:
        """The logs of a namespace with their incarnations, by bucket; without buckets that are not our store's now."""
        return await self._store.list_buckets(lane, buckets, namespace, keys.classic_index_key)

    def _check_creation(self, topic: TopicName, outcome: bytes) -> None:
        match outcome:
            case b"exists":
                raise TopicExists(f"This topic already exists: {topic}. Delete it first or choose another name.")
            case b"scalable":
                raise NameTaken(f"{topic} is a scalable topic already: use it under topic://, or choose another name.")
            case b"partitioned":
                raise NameTaken(f"{topic} is partitioned: use its partitions, or choose another name.")
            case b"classic":
                raise NameTaken(f"{topic} exists without partitions: delete it first or choose another name.")
        self._store.check_creation(topic, outcome)


def _check_expected(topic: TopicName, outcome: bytes) -> None:
    match outcome:
        case b"missing":
            raise TopicMissing(f"Topic not found: {topic}. Check its name, or create it.")
        case b"conflict":
            raise VersionConflict(f"{topic} was changed by somebody else meanwhile: read it again.")
        case b"migrated":
            raise TopicChanging(f"{topic} is a part of the scalable topic {topic.canonical} now: delete that one.")
