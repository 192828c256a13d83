"""What creates, grows and deletes classic topics; partitions lie in many buckets, so this takes several steps.

Every step can be repeated. The record of a partitioned topic is the first that comes and the last that goes, and a
partition that is missing is created when somebody uses it. Whoever creates a partition gives it, in the same step, the
subscriptions that the others have: what is sent to it is kept for consumers that do not know of it yet.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from controller.transitions import ATTEMPTS, TopicLimits, TransitionError, provide_namespace
from metadata.classic_records import ClassicLog, ClassicTopic, PartitionedState, PartitionedTopic
from metadata.classic_topics import ClassicTopics
from metadata.errors import (
    BadPartitions,
    NameTaken,
    StoreError,
    TopicChanging,
    TopicExists,
    TopicMissing,
    VersionConflict,
)
from metadata.store import TopicStore
from protocol.names import NamespaceName, TopicName

# Partitions that are worked on together; each is a script in a bucket of its own.
_TOGETHER: Final = 16


@dataclass(frozen=True, slots=True)
class Clients:
    """How many clients of classic logs are connected, at any node."""

    count: int = 0
    managed: int = 0  # those of them that know scalable topics, and use a log as the segment of one

    @property
    def unaware(self) -> int:
        return self.count - self.managed

    def __add__(self, other: Clients) -> Clients:
        return Clients(self.count + other.count, self.managed + other.managed)


Attached = Callable[[TopicName], Awaitable[Clients]]


class StillUsed(TransitionError):
    """Clients are connected to what would be deleted."""


async def nobody_attached(topic: TopicName) -> Clients:
    return Clients()


class ClassicTransitions:
    """The writers of classic topics, safe to call from many tasks and many nodes at once."""

    def __init__(
        self,
        store: TopicStore,
        limits: TopicLimits,
        *,
        auto_create: bool = True,
        attached: Attached = nobody_attached,
    ) -> None:
        self.topics = ClassicTopics(store)
        self.auto_create = auto_create
        self._store = store
        self._limits = limits
        self._attached = attached

    async def create(self, topic: TopicName, properties: Mapping[str, str] | None = None) -> None:
        """Make a topic without partitions; its namespace too, unless auto-creation is off."""
        topic.check_creatable()
        chosen = self._limits.checked(properties or {})
        await provide_namespace(self._store, topic, auto_create=self.auto_create)
        await self.topics.create_log(topic, chosen)

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Make a topic with so many partitions, all of them at once: listings and patterns see partitions only."""
        topic.check_creatable()
        self._check_partitions(topic, partitions)
        chosen = self._limits.checked(properties or {})
        await provide_namespace(self._store, topic, auto_create=self.auto_create)
        await self.topics.create_partitioned(topic, partitions, chosen)
        await self._provide_all([topic.partition_at(index) for index in range(partitions)], ())

    async def grow(self, topic: TopicName, partitions: int) -> None:
        """Give a topic more partitions. The same number again only creates those that are missing."""
        self._check_partitions(topic, partitions)
        for _ in range(ATTEMPTS):
            seen = await self._partitioned(topic)
            if seen.state is not PartitionedState.ACTIVE:
                raise _changing(seen)
            if partitions < seen.partitions:
                raise BadPartitions(
                    f"{topic} has {seen.partitions} partitions and cannot have {partitions}: they only become more."
                )
            try:
                if partitions > seen.partitions:
                    seen = await self.topics.replace_partitioned(seen, partitions=partitions)
            except VersionConflict:
                continue
            # Not before the number has changed: whoever subscribes after that asks for all of them.
            await self._provide_all(seen.logs, await self.topics.subscriptions(seen))
            return
        raise VersionConflict(f"{topic} was changed by others {ATTEMPTS} times meanwhile: try again.")

    async def provide(self, topic: TopicName) -> None:
        """See that the log of this name is there, for somebody who wants to use it.

        A topic is created unless auto-creation is off, a partition only if its topic has that many.
        """
        if topic.partition is not None:
            await self._provide_partition(topic)
            return
        if isinstance(await self.topics.get(topic), ClassicLog):
            return
        if not self.auto_create:
            raise _not_created(topic)
        try:
            await self.create(topic)
        except NameTaken:
            raise
        except TopicExists:
            pass  # somebody else was faster

    async def check(self, topic: TopicName) -> None:
        """Raise what `provide` would for a log that is not there, without creating anything."""
        found = await self.topics.get(topic.base)
        if topic.partition is not None:
            _topic_of_partition(found, topic)
        elif isinstance(found, PartitionedTopic):
            raise _partitioned(topic)
        elif found is None:
            if not self.auto_create:
                raise _not_created(topic)
            topic.check_creatable()
            if await self._store.get(topic.canonical) is not None:
                raise NameTaken(f"{topic} is a scalable topic: use it under topic://, or choose another name.")

    async def delete(self, topic: TopicName, *, force: bool = False) -> None:
        """Delete a topic without partitions, or a partition that has outlived its topic."""
        if topic.partition is not None and await self.topics.get(topic.base) is not None:
            raise NameTaken(f"{topic} belongs to {topic.base}: delete that one with all of its partitions.")
        found = await self.topics.get(topic)
        if isinstance(found, PartitionedTopic):
            raise NameTaken(f"{topic} is partitioned: delete it with its partitions, at …/partitions.")
        if not force:
            await self.check_unused([topic])
        await self.topics.delete_log(topic)

    async def delete_partitioned(self, topic: TopicName, *, force: bool = False) -> None:
        """Delete a topic with all of its partitions; one whose deletion was interrupted is deleted further."""
        for _ in range(ATTEMPTS):
            seen = await self._partitioned(topic)
            if seen.state in (PartitionedState.MIGRATING, PartitionedState.MIGRATED):
                raise _changing(seen)
            if not force:
                await self.check_unused(seen.logs)
            try:
                if seen.state is not PartitionedState.DELETING:
                    # From now on nobody gets a partition created by using it.
                    seen = await self.topics.replace_partitioned(seen, state=PartitionedState.DELETING)
            except VersionConflict:
                continue
            await for_all(self._delete_partition, seen.logs)
            try:
                await self.topics.delete_partitioned(topic, incarnation=seen.version.incarnation)
            except (TopicMissing, VersionConflict):
                pass  # somebody else deleted it as well, and was faster
            return
        raise VersionConflict(f"{topic} was changed by others {ATTEMPTS} times meanwhile: try again.")

    async def clear(self, namespace: NamespaceName) -> None:
        """Delete all classic topics of a namespace, whatever state they are in.

        Only for one in which no topic is created any more, and whose scalable topics are gone.
        """
        for listed in (await self.topics.list_logs(namespace), await self.topics.list_partitioned(namespace)):
            await for_all(
                self._discard, [TopicName.classic(namespace.tenant, namespace.namespace, it) for it in listed]
            )

    async def _discard(self, topic: TopicName) -> None:
        found = await self.topics.get(topic)
        try:
            match found:
                case ClassicLog():
                    await self.topics.delete_log(topic, migrated=found.migrated)
                case PartitionedTopic():
                    await self.topics.delete_partitioned(topic, migrated=found.migrated)
        except TopicMissing:
            pass  # somebody else was faster

    async def attached_to(self, logs: Sequence[TopicName]) -> Clients:
        return sum([await self._attached(log) for log in logs], Clients())

    async def check_unused(self, logs: Sequence[TopicName]) -> None:
        count = (await self.attached_to(logs)).count
        if count:
            raise StillUsed(f"{count} clients are connected to {logs[0].base}: let them leave first, or use force.")

    async def _partitioned(self, topic: TopicName) -> PartitionedTopic:
        found = await self.topics.get(topic)
        if found is None:
            raise TopicMissing(f"Topic not found: {topic}. Check its name, or create it.")
        if isinstance(found, ClassicLog):
            raise NameTaken(f"{topic} is not partitioned.")
        return found

    async def _provide_all(self, logs: Sequence[TopicName], subscriptions: Collection[bytes]) -> None:
        await for_all(lambda log: self._provide_partition(log, subscriptions), logs)

    async def _provide_partition(self, topic: TopicName, subscriptions: Collection[bytes] | None = None) -> None:
        """`subscriptions` are those that the topic has, None if nobody has asked for them yet."""
        base = _topic_of_partition(await self.topics.get(topic.base), topic)
        incarnation = base.version.incarnation
        if subscriptions is None:
            subscriptions = await self.topics.subscriptions(base)
        while True:
            try:
                await self.topics.create_log(topic, {}, incarnation, subscriptions)
                break
            except TopicExists:
                if not await self.remove_foreign(topic, incarnation):
                    return
        # The topic lies in another bucket, and may have been deleted after it was looked at.
        there = await self.topics.get(topic.base)
        if there is None or there.version.incarnation != incarnation or there.is_going:
            await self._delete_partition(topic, incarnation)
            raise TopicMissing(f"Topic not found: {topic.base} was deleted meanwhile.")

    async def remove_foreign(self, topic: TopicName, incarnation: str) -> bool:
        """Delete a partition that has outlived its topic, for one that has this incarnation; False if it is its own."""
        found = await self.topics.get(topic)
        if found is not None and found.version.incarnation == incarnation:
            return False
        if found is not None:
            await self._delete_partition(topic, found.version.incarnation)
        return True

    async def _delete_partition(self, topic: TopicName, incarnation: str = "") -> None:
        try:
            await self.topics.delete_log(topic, incarnation=incarnation)
        except (TopicMissing, VersionConflict):
            pass  # it is gone, and that is what was asked for

    def _check_partitions(self, topic: TopicName, partitions: int) -> None:
        limit = self._limits.max_partitions
        if not 1 <= partitions <= limit:
            raise BadPartitions(
                f"{topic} cannot have {partitions} partitions: give a number from 1 to {limit}, or raise the server's"
                " max_partitions."
            )


def _topic_of_partition(found: ClassicTopic | None, topic: TopicName) -> PartitionedTopic:
    index = topic.partition
    assert index is not None
    if not isinstance(found, PartitionedTopic) or index >= found.partitions:
        raise TopicMissing(f"Topic not found: {topic}. {topic.base} has no such partition.")
    if found.state is not PartitionedState.ACTIVE:
        raise TopicMissing(f"Topic not found: {topic}. {topic.base} is being deleted or migrated.")
    return found


def _not_created(topic: TopicName) -> TopicMissing:
    return TopicMissing(f"Topic not found: {topic}. Create it first, or let topics be created by their use.")


def _partitioned(topic: TopicName) -> NameTaken:
    return NameTaken(f"{topic} is partitioned: use its partitions, or choose another name.")


def _changing(seen: PartitionedTopic) -> TopicChanging:
    if seen.state is PartitionedState.DELETING:
        return TopicChanging(f"{seen.name} is being deleted: delete it again if that was interrupted.")
    return TopicChanging(f"{seen.name} is a part of the scalable topic {seen.name.canonical} now, or about to be.")


async def for_all(work: Callable[[TopicName], Awaitable[None]], topics: Sequence[TopicName]) -> None:
    """Work on all of them, some together; after a failure no more are begun."""
    failures: list[StoreError] = []

    async def try_one(topic: TopicName) -> None:
        try:
            await work(topic)
        except StoreError as error:
            failures.append(error)

    for start in range(0, len(topics), _TOGETHER):
        async with trio.open_nursery() as nursery:
            for topic in topics[start : start + _TOGETHER]:
                nursery.start_soon(try_one, topic)
        if failures:
            raise failures[0]
