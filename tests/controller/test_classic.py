"""Classic topics over every topology: single and partitioned, one name for one kind, and steps that can be repeated."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from controller.classic import Attached, ClassicTransitions, Clients, StillUsed, nobody_attached
from controller.garbage import GarbageCollector
from controller.transitions import InvalidProperties, TopicLimits, Transitions
from metadata import keys
from metadata.classic_records import ClassicLog, PartitionedState, PartitionedTopic
from metadata.errors import (
    BadPartitions,
    NamespaceClosing,
    NamespaceMissing,
    NamespaceNotEmpty,
    NameTaken,
    StoreFull,
    TopicChanging,
    TopicExists,
    TopicMissing,
)
from metadata.store import TopicStore, open_store
from protocol.errors import InvalidName
from protocol.names import NamespaceName, TopicName
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology

TOPIC = TopicName.classic("public", "default", "orders")
NAMESPACE = NamespaceName("public", "default")


@asynccontextmanager
async def opened(
    valkey: ValkeyProcess | Topology,
    limits: TopicLimits | None = None,
    *,
    auto_create: bool = True,
    attached: Attached = nobody_attached,
) -> AsyncIterator[tuple[TopicStore, ClassicTransitions]]:
    async with open_store(valkey.url) as store:
        yield store, ClassicTransitions(store, limits or TopicLimits(), auto_create=auto_create, attached=attached)


async def log_of(classic: ClassicTransitions, topic: TopicName = TOPIC) -> ClassicLog:
    found = await classic.topics.get(topic)
    assert isinstance(found, ClassicLog)
    return found


async def partitioned(classic: ClassicTransitions, topic: TopicName = TOPIC) -> PartitionedTopic:
    found = await classic.topics.get(topic)
    assert isinstance(found, PartitionedTopic)
    return found


async def garbage_of(store: TopicStore) -> list[bytes]:
    replies = await store.bulk.gather(
        [(keys.BUCKET_SLOTS[b], ("HKEYS", keys.garbage_key(b))) for b in range(keys.BUCKETS)]
    )
    return sorted(entry for reply in replies for entry in reply)


async def test_a_topic_is_created_read_listed_and_deleted(topology: Topology) -> None:
    async with opened(topology) as (store, classic):
        await classic.create(TOPIC, {"owner": "shop"})
        found = await log_of(classic)
        assert (found.sealed, found.properties, found.partitions) == (False, {"owner": "shop"}, 0)
        assert found.ctime_ms > 1_600_000_000_000
        assert await classic.topics.list_logs(NAMESPACE) == ["orders"]
        # Namespace listings of scalable topics know nothing of it.
        assert await store.list_topics(NAMESPACE) == []
        await classic.delete(TOPIC)
        assert await classic.topics.get(TOPIC) is None
        assert await classic.topics.list_logs(NAMESPACE) == []
        assert await garbage_of(store) == [f"{found.incarnation}/public/default/orders/".encode()]
        collector = GarbageCollector(store, interval=1)
        await collector.collect()
        assert (await garbage_of(store), collector.collected) == ([], 1)


async def test_garbage_of_a_deleted_topic_does_not_touch_the_one_created_after_it(topology: Topology) -> None:
    async with opened(topology) as (store, classic):
        await classic.create(TOPIC)
        await classic.delete(TOPIC)
        await classic.create(TOPIC)
        again = await log_of(classic)
        await GarbageCollector(store, interval=1).collect()
        assert await log_of(classic) == again


async def test_a_partitioned_topic_has_all_its_partitions_at_once(topology: Topology) -> None:
    async with opened(topology) as (_, classic):
        await classic.create_partitioned(TOPIC, 5, {"a": "b"})
        found = await partitioned(classic)
        assert (found.partitions, found.properties, found.state) == (5, {"a": "b"}, PartitionedState.ACTIVE)
        logs = [f"orders-partition-{index}" for index in range(5)]
        assert await classic.topics.list_logs(NAMESPACE) == logs
        assert await classic.topics.list_partitioned(NAMESPACE) == ["orders"]
        for name in found.logs:
            assert (await log_of(classic, name)).incarnation == found.version.incarnation


async def test_partitions_only_become_more(topology: Topology) -> None:
    async with opened(topology) as (_, classic):
        await classic.create_partitioned(TOPIC, 2)
        await classic.grow(TOPIC, 4)
        assert (await partitioned(classic)).partitions == 4
        assert len(await classic.topics.list_logs(NAMESPACE)) == 4
        with pytest.raises(BadPartitions):
            await classic.grow(TOPIC, 3)
        with pytest.raises(TopicMissing):
            await classic.grow(TopicName.classic("public", "default", "other"), 3)


async def test_a_deleted_partitioned_topic_leaves_nothing_but_garbage(topology: Topology) -> None:
    async with opened(topology) as (store, classic):
        await classic.create_partitioned(TOPIC, 20)
        await classic.delete_partitioned(TOPIC)
        assert await classic.topics.get(TOPIC) is None
        assert await classic.topics.list_logs(NAMESPACE) == []
        assert await classic.topics.list_partitioned(NAMESPACE) == []
        # Its partitions, and its schemas.
        assert len(await garbage_of(store)) == 21


async def test_a_name_belongs_to_one_kind_of_topic(topology: Topology) -> None:
    async with opened(topology) as (store, classic):
        scalable = Transitions(store, TopicLimits())
        await scalable.create(TOPIC.canonical, 1)
        with pytest.raises(NameTaken):
            await classic.create(TOPIC)
        with pytest.raises(NameTaken):
            await classic.create_partitioned(TOPIC, 2)
        with pytest.raises(NameTaken):
            await classic.provide(TOPIC)
        await scalable.delete(TOPIC.canonical)

        await classic.create(TOPIC)
        with pytest.raises(NameTaken):
            await scalable.create(TOPIC.canonical, 1)
        with pytest.raises(NameTaken):
            await classic.create_partitioned(TOPIC, 2)
        await classic.delete(TOPIC)

        await classic.create_partitioned(TOPIC, 2)
        with pytest.raises(NameTaken):
            await scalable.create(TOPIC.canonical, 1)
        with pytest.raises(NameTaken):
            await classic.create(TOPIC)
        with pytest.raises(NameTaken):
            await classic.provide(TOPIC)
        await classic.delete_partitioned(TOPIC)
        await scalable.create(TOPIC.canonical, 1)


async def test_of_all_kinds_created_under_one_name_at_once_one_wins(topology: Topology) -> None:
    async with opened(topology) as (store, classic):
        scalable = Transitions(store, TopicLimits())
        outcomes: list[str] = []

        async def attempt(kind: str, *arguments: Any) -> None:
            try:
                match kind:
                    case "scalable":
                        await scalable.create(TOPIC.canonical, 1)
                    case "single":
                        await classic.create(TOPIC)
                    case _:
                        await classic.create_partitioned(TOPIC, 2)
            except TopicExists:
                return
            outcomes.append(kind)

        async with trio.open_nursery() as nursery:
            for kind in ("scalable", "single", "partitioned") * 3:
                nursery.start_soon(attempt, kind)
        assert len(outcomes) == 1


async def test_use_creates_a_topic_once(topology: Topology) -> None:
    async with opened(topology) as (_, classic):
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(classic.provide, TOPIC)
        first = await log_of(classic)
        await classic.provide(TOPIC)
        assert await log_of(classic) == first


async def test_use_creates_nothing_where_that_is_off(valkey: ValkeyProcess) -> None:
    async with opened(valkey, auto_create=False) as (store, classic):
        with pytest.raises(TopicMissing):
            await classic.provide(TOPIC)
        with pytest.raises(NamespaceMissing):
            await classic.create(TOPIC)
        await store.ensure_namespace(NAMESPACE)
        await classic.create(TOPIC)
        await classic.provide(TOPIC)


async def test_a_missing_partition_is_created_by_its_use_even_where_topics_are_not(valkey: ValkeyProcess) -> None:
    async with opened(valkey, auto_create=False) as (store, classic):
        await store.ensure_namespace(NAMESPACE)
        # As a crash between the record and its partitions leaves it.
        await classic.topics.create_partitioned(TOPIC, 3, {})
        await classic.provide(TOPIC.partition_at(1))
        assert await classic.topics.list_logs(NAMESPACE) == ["orders-partition-1"]
        await classic.grow(TOPIC, 3)
        assert len(await classic.topics.list_logs(NAMESPACE)) == 3


async def test_a_partition_without_its_topic_is_not_created(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (_, classic):
        with pytest.raises(TopicMissing):
            await classic.provide(TOPIC.partition_at(0))
        await classic.create_partitioned(TOPIC, 2)
        with pytest.raises(TopicMissing):
            await classic.provide(TOPIC.partition_at(2))
        await classic.provide(TOPIC.partition_at(1))


async def test_an_interrupted_deletion_is_finished_by_another_and_lets_nobody_in(topology: Topology) -> None:
    async with opened(topology) as (_, classic):
        await classic.create_partitioned(TOPIC, 3)
        seen = await partitioned(classic)
        await classic.topics.replace_partitioned(seen, state=PartitionedState.DELETING)
        await classic.topics.delete_log(TOPIC.partition_at(0))
        with pytest.raises(TopicMissing):
            await classic.provide(TOPIC.partition_at(0))
        with pytest.raises(TopicChanging):
            await classic.grow(TOPIC, 4)
        with pytest.raises(TopicExists):
            await classic.create_partitioned(TOPIC, 3)
        await classic.delete_partitioned(TOPIC)
        assert await classic.topics.get(TOPIC) is None
        assert await classic.topics.list_logs(NAMESPACE) == []


async def test_a_partition_that_is_used_while_its_topic_is_deleted_does_not_stay(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(valkey) as (store, classic):
        await classic.create_partitioned(TOPIC, 1)
        await classic.topics.delete_log(TOPIC.partition_at(0))
        other = ClassicTransitions(store, TopicLimits())
        create_log = classic.topics.create_log

        async def create_late(*arguments: Any) -> str:
            await other.delete_partitioned(TOPIC)
            return await create_log(*arguments)

        monkeypatch.setattr(classic.topics, "create_log", create_late)
        with pytest.raises(TopicMissing):
            await classic.provide(TOPIC.partition_at(0))
        assert await classic.topics.list_logs(NAMESPACE) == []


async def test_a_partition_that_outlived_its_topic_is_replaced_by_that_of_the_next_one(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (store, classic):
        await classic.create_partitioned(TOPIC, 2)
        old = await log_of(classic, TOPIC.partition_at(1))
        await classic.topics.delete_log(TOPIC.partition_at(0))
        await classic.topics.delete_partitioned(TOPIC)
        await classic.create_partitioned(TOPIC, 2)
        new = await log_of(classic, TOPIC.partition_at(1))
        assert new.incarnation == (await partitioned(classic)).version.incarnation != old.incarnation
        assert f"{old.incarnation}/public/default/orders-partition-1/".encode() in await garbage_of(store)


async def test_a_partition_is_deleted_by_itself_only_if_its_topic_is_gone(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (_, classic):
        await classic.create_partitioned(TOPIC, 1)
        with pytest.raises(NameTaken):
            await classic.delete(TOPIC.partition_at(0))
        with pytest.raises(NameTaken):
            await classic.delete(TOPIC)
        await classic.topics.delete_partitioned(TOPIC)
        await classic.delete(TOPIC.partition_at(0))
        with pytest.raises(TopicMissing):
            await classic.delete(TOPIC.partition_at(0))
        with pytest.raises(TopicMissing):
            await classic.delete_partitioned(TOPIC)


async def test_a_topic_with_clients_is_only_deleted_by_force(valkey: ValkeyProcess) -> None:
    async def one_attached(topic: TopicName) -> Clients:
        return Clients(int(topic.local.endswith("1")))

    async with opened(valkey, attached=one_attached) as (_, classic):
        await classic.create_partitioned(TOPIC, 2)
        with pytest.raises(StillUsed):
            await classic.delete_partitioned(TOPIC)
        assert (await partitioned(classic)).state is PartitionedState.ACTIVE
        await classic.delete_partitioned(TOPIC, force=True)
        single = TopicName.classic("public", "default", "single-1")
        await classic.create(single)
        with pytest.raises(StillUsed):
            await classic.delete(single)
        await classic.delete(single, force=True)


@pytest.mark.parametrize("local", ["orders-partition-0", " orders", "a\nb", ".."])
async def test_odd_names_are_not_created(valkey: ValkeyProcess, local: str) -> None:
    async with opened(valkey) as (_, classic):
        with pytest.raises(InvalidName):
            await classic.create(TopicName.classic("public", "default", local))
        with pytest.raises(InvalidName):
            await classic.create_partitioned(TopicName.classic("public", "default", local), 1)


async def test_numbers_and_properties_are_bounded(valkey: ValkeyProcess) -> None:
    async with opened(valkey, TopicLimits(max_partitions=4, max_properties=1)) as (_, classic):
        for number in (0, -1, 5):
            with pytest.raises(BadPartitions):
                await classic.create_partitioned(TOPIC, number)
        with pytest.raises(InvalidProperties):
            await classic.create(TOPIC, {"a": "1", "b": "2"})
        await classic.create_partitioned(TOPIC, 4)
        with pytest.raises(BadPartitions):
            await classic.grow(TOPIC, 5)


async def test_a_namespace_with_classic_topics_is_not_empty(topology: Topology) -> None:
    async with opened(topology) as (store, classic):
        await classic.create(TOPIC)
        with pytest.raises(NamespaceNotEmpty):
            await store.delete_namespace(NAMESPACE)
        await store.close_namespace(NAMESPACE)
        other = TopicName.classic("public", "default", "other")
        with pytest.raises(NamespaceClosing):
            await classic.create(other)
        with pytest.raises(NamespaceClosing):
            await classic.create_partitioned(other, 2)


async def test_a_full_store_refuses_topics_and_deletes_them(valkey: ValkeyProcess) -> None:
    async with opened(valkey) as (_, classic):
        await classic.create_partitioned(TOPIC, 2)
        valkey.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreFull):
            await classic.create(TopicName.classic("public", "default", "other"))
        await classic.delete_partitioned(TOPIC)
        valkey.command("CONFIG", "SET", "maxmemory", "0")
        assert await classic.topics.list_logs(NAMESPACE) == []
