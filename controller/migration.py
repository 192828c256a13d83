"""Makes classic topics scalable: their logs become the sealed first segments of a topic of the same name.

A topic that is one log is migrated by one write. Partitions lie in buckets of their own: the topic is marked first, so
that nobody else changes it, then they are sealed one by one, and the record comes last. Whoever finds it half done,
after a crash, does the same again and ends with the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import msgspec

from controller.classic import ClassicTransitions, for_all
from controller.transitions import ATTEMPTS, TooManySegments, TopicLimits, TransitionError, wall_clock_ms
from layout.legacy import migrated_layout
from layout.records import TopicRecord, encode
from metadata.classic_migration import make_scalable, seal_partition
from metadata.classic_records import ClassicTopic, PartitionedState, PartitionedTopic
from metadata.errors import TopicMissing, VersionConflict
from metadata.records import StoredTopic
from metadata.store import TopicStore
from metadata.subscriptions import Settings, SubscriptionType
from protocol.names import TopicName

log = logging.getLogger(__name__)


class AlreadyScalable(TransitionError):
    http_status = 409


class ClassicClients(TransitionError):
    """Clients are connected that do not know scalable topics: they would be left with sealed logs."""

    http_status = 409


class Migrations:
    def __init__(
        self,
        store: TopicStore,
        classic: ClassicTransitions,
        limits: TopicLimits,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._store = store
        self._classic = classic
        self._limits = limits
        self._now_ms = now_ms

    async def migrate(self, topic: TopicName, *, force: bool = False) -> StoredTopic:
        """Make the classic topic of this `persistent://` name scalable; with `force` although clients would suffer."""
        for _ in range(ATTEMPTS):
            seen = await self._seen(topic)
            self._check_segments(seen)
            # One that is half done is finished, whoever has come since.
            if not force and not _is_begun(seen):
                await self._check_unused(seen)
            try:
                if isinstance(seen, PartitionedTopic):
                    seen = await self._seal(seen)
                return await self._write(seen)
            except VersionConflict as error:
                log.info("migrating %s begins anew: %s", topic, error)
        raise VersionConflict(f"{topic} was changed by others {ATTEMPTS} times meanwhile: try again.")

    async def _seen(self, topic: TopicName) -> ClassicTopic:
        if await self._store.get(topic.canonical) is not None:
            raise AlreadyScalable(f"Topic is already scalable: {topic.canonical}.")
        found = await self._classic.topics.get(topic)
        if topic.partition is not None or found is None or found.is_going or found.migrated:
            raise TopicMissing(f"Topic does not exist: {topic}. Check its name, or create it.")
        return found

    def _check_segments(self, seen: ClassicTopic) -> None:
        count, limit = 2 * len(seen.logs), self._limits.max_segments
        if count > limit:
            raise TooManySegments(
                f"{seen.name} would have {count} segments, and the limit is {limit}: raise the server's max_segments."
            )

    async def _check_unused(self, seen: ClassicTopic) -> None:
        count = (await self._classic.attached_to(seen.logs)).unaware
        if count:
            raise ClassicClients(
                f"{count} clients that do not know scalable topics are connected to {seen.name}: let them leave first,"
                " or use force."
            )

    async def _seal(self, seen: PartitionedTopic) -> PartitionedTopic:
        if seen.state is PartitionedState.ACTIVE:
            seen = await self._classic.topics.replace_partitioned(seen, state=PartitionedState.MIGRATING)
        incarnation = seen.version.incarnation

        async def seal(partition: TopicName) -> None:
            try:
                await seal_partition(self._store, partition, incarnation)
            except VersionConflict:
                # It has outlived a topic of the same name.
                await self._classic.remove_foreign(partition, incarnation)
                await seal_partition(self._store, partition, incarnation)

        await for_all(seal, seen.logs)
        return seen

    async def _write(self, seen: ClassicTopic) -> StoredTopic:
        now_ms = self._now_ms()
        layout = migrated_layout([str(name) for name in seen.logs], now_ms)
        value = encode(TopicRecord(layout=layout, properties=dict(seen.properties)))
        # Their consumers come back with another client. Until one does, nobody knows how they consume; but what they
        # have not consumed must stay, and what comes from now on is for them.
        entry = (
            SubscriptionType.QUEUE.encode()
            + b" "
            + msgspec.json.encode(Settings(now_ms, from_start=True, migrated=True))
        )
        children = tuple(segment.descriptor for segment in layout.active)
        version = await make_scalable(self._store, seen, value, children, entry)
        stored = StoredTopic(seen.name.canonical, value, version, ctime_ms=now_ms, mtime_ms=now_ms)
        return replace(stored, activity=1)


def _is_begun(seen: ClassicTopic) -> bool:
    return isinstance(seen, PartitionedTopic) and seen.state is PartitionedState.MIGRATING
