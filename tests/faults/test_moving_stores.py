"""Open watches while the store's data change hands: a slot that moves, a shard and a primary that fail over."""

from functools import partial

import pytest
import trio

from metadata import keys
from protocol.names import TopicName
from tests.faults.writers import a_split, keep_changing
from tests.support.nodes import running_node, topics_in_buckets, transitions_of, until_at_epoch, until_in_step, viewing
from tests.support.valkeys import Cluster, Replicated
from tests.support.waiting import eventually

TOPIC = TopicName.parse("topic://public/default/orders")
SPREAD = topics_in_buckets(range(5, keys.BUCKETS, 16))


@pytest.mark.slow
async def test_watches_go_on_while_slots_move_to_a_new_primary(fresh_cluster: Cluster) -> None:
    moving, staying = SPREAD[:3], SPREAD[3:]
    async with (
        running_node(fresh_cluster.url) as node,
        running_node(fresh_cluster.url) as other,
        viewing(node) as viewer,
    ):
        views = [await viewer.watch(topic) for topic in SPREAD]
        await until_in_step(other.store, views)
        changes = transitions_of(other)
        async with (
            keep_changing(other.store, changes, moving) as moving_writing,
            keep_changing(other.store, changes, staying) as writing,
        ):
            await moving_writing.until_more(4, moving)
            target = await trio.to_thread.run_sync(fresh_cluster.add_primary)
            for topic in moving:
                slot = _slot(topic)
                move = await trio.to_thread.run_sync(fresh_cluster.begin_move, slot, target)
                # Half way: some keys of the slot are here and some there. Scripts that need both, or that make new
                # keys, are told to try again until the move is finished; the other slots do not notice.
                await trio.to_thread.run_sync(move.migrate, *move.keys()[::2])
                await writing.until_more(2, staying)
                while await trio.to_thread.run_sync(move.keys):
                    await trio.to_thread.run_sync(move.migrate)
                await trio.to_thread.run_sync(move.finish)
                await moving_writing.until_more(2, [topic])
            await writing.until_more(4, staying)
        await until_in_step(other.store, views)
        await eventually(lambda: not node.readiness(), within=30)
        assert {str(owner) for owner in node.store.directory.primaries()} >= {f"127.0.0.1:{target.port}"}
        # And by their bells alone, which ring at the new primary now.
        lost = node.feed.counters.lost_bells
        for topic in moving:
            stored = await other.store.get(topic)
            assert stored is not None
            await changes.split(topic, a_split(stored))
        await until_in_step(other.store, views)
        assert node.feed.counters.lost_bells == lost


@pytest.mark.slow
async def test_watches_go_on_while_a_shard_fails_over(fresh_cluster: Cluster) -> None:
    async with (
        running_node(fresh_cluster.url) as node,
        running_node(fresh_cluster.url) as other,
        viewing(node) as viewer,
    ):
        views = [await viewer.watch(topic) for topic in SPREAD]
        await until_in_step(other.store, views)
        doomed = fresh_cluster.owner(_slot(SPREAD[0]))
        hit = [topic for topic in SPREAD if fresh_cluster.owner(_slot(topic)) is doomed]
        spared = [topic for topic in SPREAD if topic not in hit]
        async with (
            keep_changing(other.store, transitions_of(other), hit) as hit_writing,
            keep_changing(other.store, transitions_of(other), spared) as writing,
        ):
            await hit_writing.until_more(4, hit)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(trio.to_thread.run_sync, fresh_cluster.fail_over, doomed))
                await eventually(node.readiness)
                # The other shards are not concerned.
                before = {view.topic: len(view.updates) for view in views}
                await writing.until_more(4, spared)
                await eventually(lambda: any(len(v.updates) > before[v.topic] for v in views if v.topic in spared))
            await eventually(lambda: not node.readiness(), within=30)
            await hit_writing.until_more(4, hit)
        await until_in_step(other.store, views)
        assert not node.readiness()
        assert node.hub.counters.deletions == 0


@pytest.mark.slow
async def test_after_a_fail_over_that_lost_writes_watchers_end_at_what_the_store_says(
    fresh_replicated: Replicated,
) -> None:
    async with (
        running_node(fresh_replicated.url) as node,
        running_node(fresh_replicated.url) as other,
        viewing(node) as viewer,
    ):
        changes = transitions_of(other)
        views = [await viewer.watch(topic) for topic in SPREAD]
        view = await viewer.watch(TOPIC)
        await until_in_step(other.store, [*views, view])
        await changes.split(TOPIC, 0)
        await until_at_epoch(1, [view])
        await eventually(lambda: fresh_replicated.primary.client().wait(1, 100) == 1)
        await trio.to_thread.run_sync(fresh_replicated.cut_replication)
        for segment in (1, 2):
            await changes.split(TOPIC, segment)
        for topic in SPREAD:
            await changes.split(topic, 0)
        await eventually(lambda: view.last.dag.epoch == 3 and all(v.last.dag.epoch == 1 for v in views))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, fresh_replicated.fail_over)
            await eventually(node.readiness)
        await eventually(lambda: not node.readiness(), within=30)
        await until_in_step(other.store, [*views, view])
        assert view.epochs[-2:] == [3, 1]
        assert {tuple(v.epochs) for v in views} == {(0, 1, 0)}
        assert node.hub.counters.went_back == len(views) + 1

        await changes.split(TOPIC, 1)
        await until_in_step(other.store, [*views, view])
        assert view.last.dag.epoch == 2


@pytest.mark.slow
async def test_a_creation_and_a_deletion_lost_by_a_fail_over_are_undone_for_watchers(
    fresh_replicated: Replicated,
) -> None:
    kept, created = SPREAD[:2]
    async with (
        running_node(fresh_replicated.url, deletion_notice=30.0) as node,
        running_node(fresh_replicated.url) as other,
        viewing(node) as viewer,
    ):
        view = await viewer.watch(kept)
        await until_in_step(other.store, [view])
        await transitions_of(other).split(kept, 0)
        await until_in_step(other.store, [view])
        await eventually(lambda: fresh_replicated.primary.client().wait(1, 100) == 1)
        await trio.to_thread.run_sync(fresh_replicated.cut_replication)
        reads = node.readback.counters.reads
        await transitions_of(other).delete(kept)
        await eventually(lambda: node.readback.counters.reads > reads)
        newcomer = await viewer.watch(created)
        await eventually(lambda: newcomer.updates)

        await trio.to_thread.run_sync(fresh_replicated.fail_over)
        await eventually(lambda: not node.readiness(), within=30)
        # The deleted topic is back as it was, and nobody noticed; the created one is gone and may come back.
        await until_in_step(other.store, [view])
        assert view.epochs == [0, 1]
        assert await other.store.get(created) is None
        await transitions_of(other).create(created, 3)
        await until_in_step(other.store, [newcomer, view])
        assert len(newcomer.last.dag.segments) == 3


def _slot(topic: TopicName) -> int:
    return keys.BUCKET_SLOTS[keys.bucket_of(keys.path_of(topic))]
