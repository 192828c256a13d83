"""Namespace watches while hash slots move, a shard is down or fails over, and bells do not ring.

Every case ends the same way: each watcher holds what the store says, and heard of every change once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

import pytest
import trio

from controller.transitions import TopicLimits, Transitions
from gateway.node import Node
from metadata import keys
from metadata.errors import StoreError, TopicExists, TopicMissing
from metadata.lanes import Timeouts
from metadata.store import TopicStore, open_store
from protocol.names import TopicName
from tests.faults.catalogue import BLUE, FILTERS, RED, Catalogue, bucket_of, in_bucket, numbered, slot_of, topic
from tests.faults.namespace_views import NamespaceView, NamespaceViewer, until_equal, viewing_namespaces
from tests.faults.writers import PACE, Writing
from tests.support.clusters import Cluster, ClusterNode
from tests.support.nodes import running_node, topics_in_buckets
from tests.support.processes import ValkeyProcess
from tests.support.valkeys import Topology, start_cluster
from tests.support.waiting import eventually

# A writer's, who waits for a slot that is on its way.
PATIENT = Timeouts(connect=1.0, silence=5.0, patience=20.0)


@dataclass
class Scene:
    """A node with watchers of every kind, and a writer beside it that is no node: nobody else mends the store."""

    node: Node
    viewer: NamespaceViewer
    views: list[NamespaceView]
    store: TopicStore
    changes: Transitions
    written: Catalogue

    async def newcomers(self) -> list[NamespaceView]:
        return [await self.viewer.watch(filters=wanted) for wanted in FILTERS]

    async def assert_silent(self, views: Sequence[NamespaceView]) -> None:
        # Answered in order, so whatever there was to say has been said.
        await self.viewer.connection.partitions(str(topic("any")))
        assert not any(view.updates for view in views)

    async def until_ready(self) -> None:
        await eventually(lambda: not self.node.readiness(), within=30)


@asynccontextmanager
async def scene(store_url: str, *topics: TopicName, **settings: float) -> AsyncIterator[Scene]:
    """The topics are there already, every other one of them blue; one watcher was silenced by its hash."""
    async with (
        running_node(store_url, **settings) as node,
        open_store(store_url, timeouts=PATIENT) as store,
        viewing_namespaces(node) as viewer,
    ):
        changes = Transitions(store, TopicLimits())
        written = Catalogue(changes)
        await written.create(topics[::2], BLUE)
        await written.create(topics[1::2], RED)
        views = [await viewer.watch(filters=wanted) for wanted in FILTERS]
        await written.until_told(views)
        views.append(await viewer.watch(held=written.selected({})))
        await eventually(lambda: node.namespaces.counters.hash_matches == 1)
        yield Scene(node, viewer, views, store, changes, written)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three shards without replicas. One that is down takes only its own slots along, and forgets nothing."""
    with start_cluster(cluster_require_full_coverage="no", appendfsync="always") as cluster:
        yield cluster


@pytest.fixture
def replicated_cluster() -> Iterator[Cluster]:
    """Three shards with a replica each, of which one that is down takes only its own slots along."""
    with start_cluster(replicas=1, cluster_require_full_coverage="no") as cluster:
        yield cluster


# Slots that move.


async def until_followed(node: Node, slot: int, owner: ClusterNode, moves: int) -> None:
    """Until the node has taken up the bucket of this slot at its new owner, which is so many moves after its start."""

    def followed() -> bool:
        known = node.store.directory.owner(slot)
        return known is not None and known.port == owner.port and node.feed.counters.gaps["moved"] >= moves

    await eventually(followed, within=30)
    await eventually(lambda: not node.readiness(), within=30)


@pytest.mark.slow
async def test_watchers_hold_what_the_store_says_before_during_and_after_the_move_of_a_slot(cluster: Cluster) -> None:
    source, target, _ = cluster.shards()
    moving = [bucket for bucket in range(keys.BUCKETS) if cluster.owner(keys.BUCKET_SLOTS[bucket]) is source][:3]
    there = {bucket: in_bucket(bucket, 8) for bucket in moving}
    elsewhere = numbered("elsewhere", 40)
    async with scene(cluster.url, *(name for names in there.values() for name in names[:6]), *elsewhere) as on:
        everybody = list(on.views)
        for moves, (bucket, names) in enumerate(there.items(), start=1):
            slot = keys.BUCKET_SLOTS[bucket]
            mark = on.written.mark(on.views)
            await on.written.paint(names[:1], RED)
            await on.written.until_told(on.views)

            move = await trio.to_thread.run_sync(cluster.begin_move, slot, target)
            # The log and one record are on the other side, so this record can be written there, where nobody listens
            # for this bucket yet.
            gone = (keys.changes_key(bucket), keys.record_key(keys.path_of(names[1])))
            await trio.to_thread.run_sync(move.migrate, *gone)
            await on.written.paint(names[1:2], BLUE)
            await on.written.paint(elsewhere[moves : moves + 1], {})
            await on.written.delete(elsewhere[10 * moves : 10 * moves + 2])
            await on.written.until_told(on.views)
            # Listings follow the redirections, too: those of newcomers, of a new group, and of the comparison.
            newcomers = [*(await on.newcomers()), await on.viewer.watch(filters=BLUE | {"move": str(bucket)})]
            await until_equal(on.store, [*on.views, *newcomers])

            async with trio.open_nursery() as nursery:
                # A creation and a deletion need keys on both sides, and wait.
                nursery.start_soon(on.written.create, names[6:7], BLUE)
                nursery.start_soon(on.written.delete, names[2:3])
                while await trio.to_thread.run_sync(move.keys):
                    await trio.to_thread.run_sync(move.migrate)
                await trio.to_thread.run_sync(move.finish)
            await on.written.until_told([*on.views, *newcomers])

            await until_followed(on.node, slot, target, moves)
            # And by their bells alone, which ring at the new primary now.
            lost = on.node.feed.counters.lost_bells
            await on.written.create(names[7:8], RED)
            await on.written.create_again(names[3:4], BLUE)
            await on.written.paint(names[4:5], BLUE | {"move": str(bucket)})
            await on.written.until_told([*on.views, *newcomers])
            assert on.node.feed.counters.lost_bells == lost
            await until_equal(on.store, [*on.views, *newcomers])
            await mark.until_each_change_was_told_once()
            everybody += newcomers
        assert all(view.kinds.count("snapshot") == 1 for view in everybody if view is not on.views[-1])


@asynccontextmanager
async def coming_and_going(changes: Transitions, topics: Sequence[TopicName]) -> AsyncIterator[Writing]:
    """Create, paint and delete these topics in turn while the block runs, whatever the store says."""
    writing = Writing()

    async def write_one(name: TopicName, turn: int) -> None:
        try:
            match turn % 3:
                case 0:
                    await changes.create(name, 1, BLUE if turn % 2 else RED)
                case 1:
                    await changes.update_properties(name, BLUE if turn % 2 else RED)
                case _:
                    await changes.delete(name)
        except (StoreError, TopicExists, TopicMissing):
            writing.refused += 1
        else:
            writing.done[name] += 1

    async def write() -> None:
        for turn in count():
            for name in topics:
                await write_one(name, turn)
                await trio.sleep(PACE)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        yield writing
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_watchers_survive_slots_that_move_to_and_fro_under_constant_writes(cluster: Cluster) -> None:
    home, away, _ = cluster.shards()
    spread = topics_in_buckets(range(1, keys.BUCKETS, 8))
    moving = [name for name in spread if owner(cluster, name) is home][:2]
    staying = [name for name in spread if name not in moving]
    untouched = [name for each in moving for name in in_bucket(bucket_of(each), 3)]
    async with scene(cluster.url, *untouched) as on:
        views = list(on.views)
        async with (
            coming_and_going(on.changes, moving) as moving_writes,
            coming_and_going(on.changes, staying) as staying_writes,
        ):
            for target in (away, home, away):
                for name in moving:
                    await moving_writes.until_more(3, [name])
                    move = await trio.to_thread.run_sync(cluster.begin_move, slot_of(name), target)
                    await trio.to_thread.run_sync(move.migrate, *move.keys()[::2])
                    views += await on.newcomers()
                    await staying_writes.until_more(5, staying)
                    while await trio.to_thread.run_sync(move.keys):
                        await trio.to_thread.run_sync(move.migrate)
                    await trio.to_thread.run_sync(move.finish)
                    await moving_writes.until_more(3, [name])
        await until_equal(on.store, views)
        await on.until_ready()
        # Nothing ever happened to these but that their slots moved.
        for view in on.views:
            named = {name for update in view.updates[1:] for name in (*update.diff.added, *update.diff.removed)}
            assert not named.intersection(map(str, untouched))


# Shards that are down.


def spread_over(cluster: Cluster) -> dict[ClusterNode, list[TopicName]]:
    """Topics of every shard, by shard."""
    found: dict[ClusterNode, list[TopicName]] = {shard: [] for shard in cluster.shards()}
    for name in numbered("topic", 60):
        found[owner(cluster, name)].append(name)
    return found


def owner(cluster: Cluster, name: TopicName) -> ClusterNode:
    return cluster.owner(slot_of(name))


def doomed_shard(cluster: Cluster) -> ClusterNode:
    """One without the keys that every creation needs."""
    needed = {cluster.owner(keys.STORE_SLOT), cluster.owner(keys.NAMESPACES_SLOT)}
    return next(shard for shard in cluster.shards() if shard not in needed)


async def change_some(written: Catalogue, names: Sequence[TopicName]) -> None:
    """A deletion, a re-creation, and changes of colour in both directions."""
    blue = [name for name in names if written.topics[name] == BLUE]
    red = [name for name in names if written.topics[name] == RED]
    await written.delete(blue[:1])
    await written.create_again(red[:1], RED)
    await written.paint(blue[1:3], RED)
    await written.paint(red[1:3], BLUE)
    await written.paint(red[3:4], {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leave", "come_back"),
    [(ClusterNode.kill, ClusterNode.start), (ClusterNode.pause, ClusterNode.resume)],
    ids=["killed", "silent"],
)
async def test_while_a_shard_is_down_changes_in_the_others_are_told_and_nothing_is_taken_back(
    cluster: Cluster, leave: Callable[[ClusterNode], None], come_back: Callable[[ClusterNode], object]
) -> None:
    by_shard = spread_over(cluster)
    doomed = doomed_shard(cluster)
    healthy = [name for shard, names in by_shard.items() if shard is not doomed for name in names]
    async with scene(cluster.url, *(name for names in by_shard.values() for name in names)) as on:
        mark = on.written.mark(on.views)
        leave(doomed)
        await eventually(on.node.readiness, within=30)
        newcomers = await on.newcomers()
        await change_some(on.written, healthy)
        await on.written.create((name for name in numbered("late", 20) if owner(cluster, name) is not doomed), BLUE)
        await on.written.until_told(on.views)
        await on.assert_silent(newcomers)
        assert on.node.readiness()
        await mark.until_each_change_was_told_once()

        await trio.to_thread.run_sync(come_back, doomed)
        await on.until_ready()
        await until_equal(on.store, [*on.views, *newcomers])
        assert [view.kinds for view in newcomers] == [["snapshot"]] * len(newcomers)
        await change_some(on.written, by_shard[doomed])
        await on.written.until_told([*on.views, *newcomers])
        await until_equal(on.store, [*on.views, *newcomers])
        # The shard came back as it was: what was told is what was written, and nothing of it twice.
        await mark.until_each_change_was_told_once()


@pytest.mark.slow
async def test_a_shard_that_fails_over_takes_back_what_its_replica_never_had_and_nothing_else(
    replicated_cluster: Cluster,
) -> None:
    cluster = replicated_cluster
    by_shard = spread_over(cluster)
    doomed = doomed_shard(cluster)
    (replica,) = cluster.replicas_of(doomed)
    healthy = [name for shard, names in by_shard.items() if shard is not doomed for name in names]
    async with scene(cluster.url, *(name for names in by_shard.values() for name in names)) as on:
        await eventually(lambda: replicated_offset(replica) >= offset(doomed))
        kept = dict(on.written.topics)
        mark = on.written.mark(on.views)
        await trio.to_thread.run_sync(cluster.cut_replication, doomed)
        await change_some(on.written, by_shard[doomed])
        await on.written.until_told(on.views)
        await mark.until_each_change_was_told_once()
        lost = {name for name in by_shard[doomed] if kept[name] != on.written.topics.get(name)}
        lost_again = set(on.written.anew)  # deleted and created again, which the replica does not know of

        # Not before there was time to see what the watchers are told while nobody leads the shard.
        replica.client().config_set("cluster-replica-no-failover", "yes")
        mark = on.written.mark(on.views)
        doomed.kill()
        await eventually(on.node.readiness, within=30)
        newcomers = await on.newcomers()
        await change_some(on.written, healthy)
        await on.written.until_told(on.views)
        await on.assert_silent(newcomers)
        await mark.until_each_change_was_told_once()

        replica.client().config_set("cluster-replica-no-failover", "no")
        await trio.to_thread.run_sync(cluster.fail_over, doomed)
        await on.until_ready()
        on.written.topics |= {name: kept[name] for name in lost}
        # What was made anew is the old one again, and that is another topic than the one that was told.
        on.written.anew |= lost_again
        await on.written.until_told([*on.views, *newcomers])
        await until_equal(on.store, [*on.views, *newcomers])
        await mark.until_each_change_was_told_once()
        assert [view.kinds for view in newcomers] == [["snapshot"]] * len(newcomers)
        await change_some(on.written, by_shard[doomed])
        await on.written.until_told([*on.views, *newcomers])


@pytest.mark.slow
async def test_a_shard_that_changes_its_primary_in_agreement_costs_no_watcher_a_word(
    replicated_cluster: Cluster,
) -> None:
    cluster = replicated_cluster
    by_shard = spread_over(cluster)
    leaving = doomed_shard(cluster)
    async with scene(cluster.url, *(name for names in by_shard.values() for name in names)) as on:
        mark = on.written.mark(on.views)
        gaps = on.node.feed.counters.gaps.total()
        await trio.to_thread.run_sync(partial(cluster.fail_over, leaving, kill=False))
        await eventually(lambda: on.node.feed.counters.gaps.total() > gaps, within=30)
        await on.until_ready()
        await until_equal(on.store, on.views)
        await mark.until_each_change_was_told_once()
        await change_some(on.written, by_shard[leaving])
        await on.written.until_told(on.views)
        await mark.until_each_change_was_told_once()


# Bells that do not ring.


async def test_without_notifications_changes_are_told_by_probing_and_the_flag_is_put_back(topology: Topology) -> None:
    old = numbered("old", 40)
    async with scene(topology.url, *old) as on:
        repairs = on.node.feed.counters.flag_repairs
        for server in topology.primaries():
            server.client().config_set("notify-keyspace-events", "")
        bells = on.node.feed.counters.bells
        mark = on.written.mark(on.views)
        # All over the store, so that every server has something to say.
        await on.written.create(topics_in_buckets(range(keys.BUCKETS)), BLUE)
        await change_some(on.written, old)
        newcomers = await on.newcomers()
        await on.written.until_told([*on.views, *newcomers])
        await until_equal(on.store, [*on.views, *newcomers])
        await mark.until_each_change_was_told_once()
        assert on.node.feed.counters.lost_bells >= 1
        assert on.node.feed.counters.flag_repairs > repairs
        await eventually(lambda: all(flags_of(server) >= {"K", "t"} for server in topology.primaries()))

        lost = on.node.feed.counters.lost_bells
        await change_some(on.written, old[10:])
        await on.written.until_told([*on.views, *newcomers])
        assert on.node.feed.counters.lost_bells == lost
        assert on.node.feed.counters.bells > bells


def offset(primary: ClusterNode) -> int:
    return int(primary.info("replication")["master_repl_offset"])


def replicated_offset(replica: ClusterNode) -> int:
    return int(replica.info("replication")["slave_repl_offset"])


def flags_of(server: ValkeyProcess) -> set[str]:
    return set(str(server.client().config_get("notify-keyspace-events")["notify-keyspace-events"]))
