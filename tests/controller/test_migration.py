"""Classic topics become scalable, over every topology: nothing is lost, and what was cut off is finished."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from controller.classic import Attached, ClassicTransitions, Clients, nobody_attached
from controller.garbage import GarbageCollector
from controller.migration import AlreadyScalable, ClassicClients, Migrations
from controller.transitions import TooManySegments, TopicLimits, Transitions
from layout.layouts import Layout
from layout.records import decode
from metadata import keys
from metadata.classic_migration import seal_partition
from metadata.classic_records import ClassicLog, PartitionedState, PartitionedTopic
from metadata.errors import (
    LogMissing,
    LogSealed,
    NamespaceClosing,
    SubscriptionMismatch,
    TopicChanging,
    TopicExists,
    TopicMissing,
)
from metadata.registrations import Registrations
from metadata.segment_logs import Entry, LogPlace, Opened, SegmentLogs
from metadata.store import TopicStore, open_store
from metadata.subscriptions import Attachment, SubscriptionType
from protocol.names import NamespaceName, TopicName
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology

ORDERS = TopicName.classic("public", "default", "orders")
NAMESPACE = NamespaceName("public", "default")
SESSION = "a" * 16
NOW = 1_800_000_000_000


@dataclass(frozen=True, slots=True)
class Bench:
    store: TopicStore
    classic: ClassicTransitions
    migrations: Migrations
    transitions: Transitions
    registrations: Registrations
    logs: SegmentLogs
    garbage: GarbageCollector

    async def open(self, name: TopicName) -> Opened:
        place = LogPlace.of_classic(name)
        state = await self.logs.state(place)
        assert state is not None
        opened = await self.logs.claim(place, state, SESSION)
        assert opened is not None
        return opened

    async def layout(self) -> Layout:
        stored = await self.store.get(ORDERS.canonical)
        assert stored is not None
        return decode(stored.value).layout

    async def collect_all(self) -> None:
        """Some of what is collected puts more on the lists."""
        for _ in range(3):
            await self.garbage.collect()

    async def keys(self) -> set[bytes]:
        """All keys of topics and logs that the store has, whatever is still on the garbage lists."""
        found: set[bytes] = set()
        for prefix in ("classic", "partitioned", "segments", "topics", "garbage", "index"):
            for endpoint in self.store.directory.primaries():
                link = await self.store.commands.link(endpoint)
                found |= set(await link.call("KEYS", f"/{prefix}*"))
        return found


@asynccontextmanager
async def opened(
    valkey: ValkeyProcess | Topology, limits: TopicLimits | None = None, *, attached: Attached = nobody_attached
) -> AsyncIterator[Bench]:
    async with open_store(valkey.url) as store:
        limits = limits or TopicLimits()
        classic = ClassicTransitions(store, limits, attached=attached)
        yield Bench(
            store,
            classic,
            Migrations(store, classic, limits, now_ms=lambda: NOW),
            Transitions(store, limits, now_ms=lambda: NOW),
            Registrations(store),
            SegmentLogs(store),
            GarbageCollector(store, interval=1),
        )


async def test_a_single_topic_becomes_a_sealed_parent_of_one_segment(topology: Topology) -> None:
    async with opened(topology) as b:
        await b.classic.create(ORDERS, {"owner": "shop"})
        before = await b.classic.topics.get(ORDERS)
        assert before is not None
        log = await b.open(ORDERS)
        await b.logs.append(log.claim, 0, [Entry(1_000, 1, b"one")], {}, 3)
        stored = await b.migrations.migrate(ORDERS)
        assert await b.store.get(ORDERS.canonical) is not None
        assert stored.version.incarnation == before.version.incarnation
        assert decode(stored.value).properties == {"owner": "shop"}
        layout = await b.layout()
        layout.validate()
        assert layout.segments[0].legacy_topic_name == str(ORDERS)
        assert (layout.segments[0].is_active, [segment.segment_id for segment in layout.active]) == (False, [1])
        assert await b.store.list_topics(NAMESPACE) == ["orders"]

        # What is in the log stays, and nothing is added to it.
        with pytest.raises(LogSealed):
            await b.logs.append(log.claim, 1, [Entry(1_001, 1, b"two")], {}, 6)
        assert [entry.body for entry in await b.logs.read(log.claim, 0, 10)] == [b"one"]
        after = await b.classic.topics.get(ORDERS)
        assert isinstance(after, ClassicLog)
        assert (after.sealed, after.migrated) == (True, True)
        child = LogPlace.of_segment(ORDERS.canonical, layout.segments[1].descriptor)
        state = await b.logs.state(child)
        assert state is not None
        assert (state.incarnation, state.sealed) == (stored.version.incarnation, False)


async def test_partitions_become_sealed_parents_of_as_many_segments(topology: Topology) -> None:
    async with opened(topology) as b:
        await b.classic.create_partitioned(ORDERS, 5)
        # One that was never used has no log yet.
        await b.classic.topics.delete_log(ORDERS.partition_at(3))
        logs = [await b.open(ORDERS.partition_at(index)) for index in (0, 4)]
        stored = await b.migrations.migrate(ORDERS)
        layout = await b.layout()
        layout.validate()
        assert [segment.legacy_topic_name for segment in layout.segments.values()][:5] == [
            str(ORDERS.partition_at(index)) for index in range(5)
        ]
        assert [segment.segment_id for segment in layout.active] == [5, 6, 7, 8, 9]
        for log in logs:
            with pytest.raises(LogSealed):
                await b.logs.append(log.claim, 0, [Entry(1_000, 1, b"one")], {}, 3)
        for index in range(5):
            state = await b.logs.state(LogPlace.of_classic(ORDERS.partition_at(index)))
            assert state is not None
            assert (state.sealed, state.incarnation) == (True, stored.version.incarnation)
        found = await b.classic.topics.get(ORDERS)
        assert isinstance(found, PartitionedTopic)
        assert (found.state, found.migrated) == (PartitionedState.MIGRATED, True)


@pytest.mark.parametrize("sealed", [0, 1, 3])
async def test_a_migration_that_was_cut_off_is_finished_by_another(topology: Topology, sealed: int) -> None:
    async with opened(topology) as b:
        await b.classic.create_partitioned(ORDERS, 3)
        seen = await b.classic.topics.get(ORDERS)
        assert isinstance(seen, PartitionedTopic)
        await b.classic.topics.replace_partitioned(seen, state=PartitionedState.MIGRATING)
        for name in seen.logs[:sealed]:
            await seal_partition(b.store, name, seen.version.incarnation)
        # Meanwhile nobody changes it, nor takes its name.
        with pytest.raises(TopicChanging):
            await b.classic.grow(ORDERS, 4)
        with pytest.raises(TopicChanging):
            await b.classic.delete_partitioned(ORDERS)
        with pytest.raises(TopicExists):
            await b.transitions.create(ORDERS.canonical, 1)
        stored = await b.migrations.migrate(ORDERS)
        assert stored.version.incarnation == seen.version.incarnation
        assert len((await b.layout()).active) == 3
        with pytest.raises(AlreadyScalable):
            await b.migrations.migrate(ORDERS)


async def test_it_ends_the_same_wherever_it_is_cut_off(valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(valkey) as b:
        await b.classic.create_partitioned(ORDERS, 3)
        write = b.store.write
        left = 0

        async def write_some(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise ConnectionError("the process has ended")
            left -= 1
            return await write(*arguments, **options)

        monkeypatch.setattr(b.store, "write", write_some)
        # The mark, then each of the partitions, then the record.
        for steps in range(4):
            left = steps
            with pytest.raises((ConnectionError, ExceptionGroup)):
                await b.migrations.migrate(ORDERS)
        left = 10
        await b.migrations.migrate(ORDERS)
        assert len((await b.layout()).active) == 3
        logs = [await b.classic.topics.get(name) for name in (ORDERS.partition_at(index) for index in range(3))]
        assert all(isinstance(log, ClassicLog) and log.sealed and log.migrated for log in logs)


async def test_of_many_who_migrate_at_once_one_does_it(topology: Topology) -> None:
    async with opened(topology) as b:
        await b.classic.create_partitioned(ORDERS, 4)
        outcomes: list[str] = []

        async def migrate() -> None:
            try:
                await b.migrations.migrate(ORDERS)
            except (AlreadyScalable, TopicExists):
                outcomes.append("late")
            else:
                outcomes.append("done")

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(migrate)
        assert sorted(outcomes) == ["done", *["late"] * 5]
        (await b.layout()).validate()


async def test_clients_that_cannot_follow_forbid_it_unless_it_is_forced(valkey: ValkeyProcess) -> None:
    async def one_at_partition_1(topic: TopicName) -> Clients:
        return Clients(int(topic.partition == 1))

    async with opened(valkey, attached=one_at_partition_1) as b:
        await b.classic.create_partitioned(ORDERS, 2)
        with pytest.raises(ClassicClients, match="1 clients"):
            await b.migrations.migrate(ORDERS)
        found = await b.classic.topics.get(ORDERS)
        assert isinstance(found, PartitionedTopic)
        assert found.state is PartitionedState.ACTIVE
        await b.migrations.migrate(ORDERS, force=True)


async def test_what_is_not_there_or_scalable_already_is_not_migrated(valkey: ValkeyProcess) -> None:
    async with opened(valkey, TopicLimits(max_segments=4)) as b:
        with pytest.raises(TopicMissing):
            await b.migrations.migrate(ORDERS)
        await b.transitions.create(ORDERS.canonical, 1)
        with pytest.raises(AlreadyScalable):
            await b.migrations.migrate(ORDERS)
        await b.transitions.delete(ORDERS.canonical)
        await b.classic.create_partitioned(ORDERS, 3)
        with pytest.raises(TooManySegments):
            await b.migrations.migrate(ORDERS)
        with pytest.raises(TopicMissing):
            await b.migrations.migrate(ORDERS.partition_at(0))
        await b.store.close_namespace(NAMESPACE)
        other = Migrations(b.store, b.classic, TopicLimits())
        with pytest.raises(NamespaceClosing):
            await other.migrate(ORDERS)


async def test_subscriptions_come_along_and_get_the_type_they_are_first_used_with(topology: Topology) -> None:
    async with opened(topology) as b:
        await b.classic.create_partitioned(ORDERS, 2)
        for index, names in enumerate((["streams", "queues"], ["streams", "admins"])):
            log = await b.open(ORDERS.partition_at(index))
            await b.logs.save(log.claim, dict.fromkeys(names, b"\x01"))
        await b.migrations.migrate(ORDERS)
        state = await b.registrations.state(b.store.commands, ORDERS.canonical)
        assert state is not None
        assert sorted(state.subscriptions) == ["admins", "queues", "streams"]
        assert all(it.settings.from_start and it.settings.migrated for it in state.subscriptions.values())

        with pytest.raises(SubscriptionMismatch):
            await b.registrations.attach(
                ORDERS.canonical, "streams", SubscriptionType.CHECKPOINT, "c", Attachment(SESSION, "n" * 16)
            )
        await b.registrations.attach(
            ORDERS.canonical, "streams", SubscriptionType.STREAM, "c", Attachment(SESSION, "n" * 16)
        )
        await b.registrations.create_subscription(ORDERS.canonical, "admins", SubscriptionType.STREAM, NOW)
        await b.registrations.create_subscription(ORDERS.canonical, "queues", SubscriptionType.QUEUE, NOW)
        # From then on it is what it is.
        for name, other in (("streams", "QUEUE"), ("admins", "QUEUE"), ("queues", "STREAM")):
            with pytest.raises(SubscriptionMismatch):
                await b.registrations.create_subscription(ORDERS.canonical, name, SubscriptionType(other), NOW)
        state = await b.registrations.state(b.store.commands, ORDERS.canonical)
        assert state is not None
        types = {name: str(it.type) for name, it in state.subscriptions.items()}
        assert types == {"streams": "STREAM", "admins": "STREAM", "queues": "QUEUE"}
        assert all(it.settings.from_start and not it.settings.migrated for it in state.subscriptions.values())


async def test_the_log_of_a_pruned_parent_goes_and_the_topic_stays(topology: Topology) -> None:
    async with opened(topology) as b:
        await b.classic.create_partitioned(ORDERS, 2)
        for index in range(2):
            log = await b.open(ORDERS.partition_at(index))
            await b.logs.append(log.claim, 0, [Entry(1_000, 1, b"one")], {}, 3)
        stored = await b.migrations.migrate(ORDERS)
        # Deleting a part by itself would leave a hole.
        for delete in (b.classic.delete_partitioned(ORDERS), b.classic.topics.delete_log(ORDERS.partition_at(0))):
            with pytest.raises(TopicChanging):
                await delete
        stored = await b.transitions.prune(stored, [0])
        await b.collect_all()
        assert await b.classic.topics.list_logs(NAMESPACE) == ["orders-partition-1"]
        assert await b.classic.topics.list_partitioned(NAMESPACE) == ["orders"]
        await b.transitions.prune(stored, [1])
        await b.collect_all()
        assert await b.classic.topics.list_logs(NAMESPACE) == []
        assert await b.classic.topics.list_partitioned(NAMESPACE) == []
        assert not [key for key in await b.keys() if key.startswith((b"/classic", b"/partitioned", b"/garbage"))]
        assert len((await b.layout()).segments) == 2
        with pytest.raises(LogMissing):
            await b.logs.append(log.claim, 1, [Entry(1_001, 1, b"two")], {}, 6)


@pytest.mark.parametrize("partitions", [0, 3])
async def test_a_deleted_topic_takes_what_it_was_made_of_with_it(topology: Topology, partitions: int) -> None:
    async with opened(topology) as b:
        if partitions:
            await b.classic.create_partitioned(ORDERS, partitions)
        else:
            await b.classic.create(ORDERS)
        await b.migrations.migrate(ORDERS)
        await b.transitions.delete(ORDERS.canonical)
        # Before anything is collected, the name is free for a scalable topic.
        await b.transitions.create(ORDERS.canonical, 1)
        await b.collect_all()
        assert await b.classic.topics.list_logs(NAMESPACE) == []
        assert await b.classic.topics.list_partitioned(NAMESPACE) == []
        assert len((await b.layout()).segments) == 1
        await b.transitions.delete(ORDERS.canonical)
        await b.collect_all()
        assert await b.keys() == set()
        await b.classic.create(ORDERS)


async def test_schemas_of_a_single_topic_outlive_its_log(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as b:
        await b.classic.create(ORDERS)
        stored = await b.migrations.migrate(ORDERS)
        path = keys.path_of(ORDERS)
        schemas = keys.schemas_key(path, stored.version.incarnation)
        slot = keys.BUCKET_SLOTS[keys.bucket_of(path)]
        await b.store.commands.call(slot, "HSET", schemas, "next", "1")
        await b.transitions.prune(stored, [0])
        await b.collect_all()
        assert await b.classic.topics.get(ORDERS) is None
        assert await b.store.commands.call(slot, "EXISTS", schemas) == 1
        await b.transitions.delete(ORDERS.canonical)
        assert await b.store.commands.call(slot, "EXISTS", schemas) == 0


async def test_a_namespace_is_cleared_of_migrated_topics(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as b:
        await b.classic.create_partitioned(ORDERS, 3)
        await b.migrations.migrate(ORDERS)
        await b.store.close_namespace(NAMESPACE)
        await b.transitions.delete(ORDERS.canonical)
        await b.classic.clear(NAMESPACE)
        await b.collect_all()
        assert await b.keys() == set()
