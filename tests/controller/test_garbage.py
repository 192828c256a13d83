"""What deleted topics and pruned segments leave behind goes, whatever is in the way, and nothing else does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from controller.garbage import GarbageCollector
from controller.transitions import TopicLimits, Transitions
from metadata import keys, scripts
from metadata.lanes import Timeouts
from metadata.store import TopicStore, open_store
from protocol.names import TopicName
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.topology import Topology
from tests.support.waiting import eventually

TOPIC = TopicName.scalable("public", "default", "orders")
PATH = keys.path_of(TOPIC)
EXOTIC = ["a/b", "ä%2Fö", "日本語", "{b000}", "x" * 1024, "a b", "0000-ffff-0", "a/0000-ffff-0", "%"]
HASTY = Timeouts(connect=0.5, silence=0.3, patience=1.0)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[TopicStore, Transitions, GarbageCollector]]:
    async with open_store(url) as store:
        yield store, Transitions(store, TopicLimits(max_segments=2_000)), GarbageCollector(store, interval=1)


async def segment_keys(store: TopicStore, topology: Topology | ValkeyProcess) -> set[bytes]:
    servers = topology.primaries() if isinstance(topology, Topology) else [topology]
    found: set[bytes] = set()
    for server in servers:
        listed: Any = server.client().keys("/segments/*")
        found |= set(listed)
    return found


async def listed(store: TopicStore) -> int:
    """How much is to be collected, in all buckets."""
    return sum(
        await store.bulk.gather([(keys.BUCKET_SLOTS[b], ("HLEN", keys.garbage_key(b))) for b in range(keys.BUCKETS)])
    )


async def test_the_segments_of_a_deleted_topic_are_listed_and_then_gone(topology: Topology) -> None:
    """W11"""
    async with opened(topology.url) as (store, transitions, garbage):
        await transitions.create(TOPIC, 3)
        await transitions.split(TOPIC, 0)
        await transitions.delete(TOPIC)
        assert await listed(store) == len(await segment_keys(store, topology)) == 5
        await garbage.collect()
        assert (await listed(store), await segment_keys(store, topology)) == (0, set())
        assert garbage.collected == 5


async def test_a_pruned_segment_is_gone_and_its_children_are_not(topology: Topology) -> None:
    async with opened(topology.url) as (store, transitions, garbage):
        await transitions.create(TOPIC, 1)
        await transitions.split(TOPIC, 0)
        stored = await store.get(TOPIC)
        assert stored is not None
        await transitions.prune(stored, [0])
        await garbage.collect()
        assert await segment_keys(store, topology) == {
            keys.segment_key(PATH, "0000-7fff-1"),
            keys.segment_key(PATH, "8000-ffff-2"),
        }


async def test_a_topic_of_the_same_name_keeps_its_segments(topology: Topology) -> None:
    """The list names the topic that is gone by its incarnation."""
    async with opened(topology.url) as (store, transitions, garbage):
        await transitions.create(TOPIC, 2)
        await transitions.delete(TOPIC)
        await transitions.create(TOPIC, 2)
        await garbage.collect()
        assert await listed(store) == 0
        assert len(await segment_keys(store, topology)) == 2
        stored = await store.get(TOPIC)
        assert stored is not None
        for key in await segment_keys(store, topology):
            incarnation: Any = topology.client_for(key).hget(key, "incarnation")
            assert incarnation.decode() == stored.version.incarnation


async def test_names_of_all_shapes_are_collected_and_their_neighbours_are_not(topology: Topology) -> None:
    async with opened(topology.url) as (store, transitions, garbage):
        topics = [TopicName("topic", "t=1", "n.s:2", name) for name in EXOTIC]
        for topic in topics:
            await transitions.create(topic, 2)
        for gone, topic in enumerate(topics, start=1):
            await transitions.delete(topic)
            await garbage.collect()
            assert len(await segment_keys(store, topology)) == 2 * (len(topics) - gone)
        assert await listed(store) == 0


async def test_more_than_a_slice_of_one_bucket_is_collected_at_once(valkey: ValkeyProcess) -> None:
    async with opened(valkey.url) as (store, transitions, garbage):
        await transitions.create(TOPIC, 1_234)
        await transitions.delete(TOPIC)
        await garbage.collect()
        assert garbage.collected == 1_234
        assert (await listed(store), await segment_keys(store, valkey)) == (0, set())


async def test_two_collectors_delete_everything_once(topology: Topology) -> None:
    async with opened(topology.url) as (store, transitions, first), opened(topology.url) as (_, _, second):
        for number in range(20):
            topic = TopicName.scalable("public", "default", f"topic-{number}")
            await transitions.create(topic, 10)
            await transitions.delete(topic)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(first.collect)
            nursery.start_soon(second.collect)
        assert first.collected + second.collected == 200
        assert (await listed(store), await segment_keys(store, topology)) == (0, set())


async def test_collecting_again_after_a_lost_reply_is_harmless(valkey: ValkeyProcess) -> None:
    sha = scripts.COLLECT_GARBAGE.sha.encode()
    async with FaultProxy.open(*valkey.address) as proxy, opened(proxy.url) as (store, transitions, garbage):
        await transitions.create(TOPIC, 50)
        await transitions.delete(TOPIC)
        proxy.cut_before_reply(lambda request: sha in request, times=2)
        await garbage.collect()
        assert proxy.cuts
        assert (await listed(store), await segment_keys(store, valkey)) == (0, set())


async def test_a_collector_collects_by_itself_soon_when_told_and_after_a_while_when_not(valkey: ValkeyProcess) -> None:
    async with opened(valkey.url) as (store, transitions, _), trio.open_nursery() as nursery:
        patient, busy = GarbageCollector(store, interval=600), GarbageCollector(store, interval=0.2)
        nursery.start_soon(patient.run)

        async def all_gone() -> bool:
            return not await listed(store)

        await transitions.create(TOPIC, 2)
        await transitions.delete(TOPIC)
        patient.collect_soon()
        await eventually(all_gone)

        async def all_counted() -> bool:
            return patient.collected == 2

        await eventually(all_counted)
        nursery.start_soon(busy.run)
        await transitions.create(TOPIC, 2)
        await transitions.delete(TOPIC)
        await eventually(all_gone)
        nursery.cancel_scope.cancel()


async def test_a_collector_waits_for_a_store_that_is_away(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        open_store(proxy.url, timeouts=HASTY) as far,
        opened(valkey.url) as (store, transitions, _),
        trio.open_nursery() as nursery,
    ):
        collector = GarbageCollector(far, interval=0.2)
        proxy.refuse()
        proxy.cut()
        nursery.start_soon(collector.run)
        await transitions.create(TOPIC, 2)
        await transitions.delete(TOPIC)
        await trio.sleep(2 * HASTY.patience)
        assert collector.collected == 0
        proxy.accept()

        async def all_gone() -> bool:
            return not await listed(store)

        await eventually(all_gone, within=30)
        nursery.cancel_scope.cancel()


async def test_a_full_store_is_emptied_all_the_same(valkey: ValkeyProcess) -> None:
    async with opened(valkey.url) as (store, transitions, garbage):
        await transitions.create(TOPIC, 5)
        valkey.client().config_set("maxmemory", 1)
        try:
            await transitions.delete(TOPIC)
            await garbage.collect()
        finally:
            valkey.client().config_set("maxmemory", 0)
        assert (await listed(store), await segment_keys(store, valkey)) == (0, set())


async def test_entries_that_nobody_of_ours_wrote_do_not_stop_the_rest(topology: Topology) -> None:
    async with opened(topology.url) as (store, transitions, garbage):
        await transitions.create(TOPIC, 3)
        await transitions.delete(TOPIC)
        for bucket in (0, keys.bucket_of(PATH)):
            # The last one belongs into another bucket, whose keys a cluster keeps elsewhere.
            for entry in (b"\xff\xfe", b"", b"nothing", b"a/b", b"0000000000000000/no/such/place/0000-ffff-0"):
                topology.client_for(keys.garbage_key(bucket)).hset(keys.garbage_key(bucket), entry, "1")
        await garbage.collect()
        assert await segment_keys(store, topology) == set()


async def test_a_list_that_is_none_costs_only_its_bucket(valkey: ValkeyProcess) -> None:
    async with opened(valkey.url) as (store, transitions, garbage):
        await transitions.create(TOPIC, 3)
        await transitions.delete(TOPIC)
        other = next(bucket for bucket in range(keys.BUCKETS) if bucket != keys.bucket_of(PATH))
        valkey.client().set(keys.garbage_key(other), "not a hash")
        await garbage.collect()
        assert await segment_keys(store, valkey) == set()
