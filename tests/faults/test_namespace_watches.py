"""Namespace watches on real nodes and stores: what is told, what it costs, and that trouble only delays it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing

from controller.transitions import Transitions
from layout import records
from metadata import keys
from metadata.errors import StoreError, TopicExists, TopicMissing
from metadata.store import TopicStore
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.faults.namespace_views import stored_names, until_equal, viewing_namespaces
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.valkeys import Replicated, Topology
from tests.support.waiting import eventually

NEVER = 60.0
PREFIX = "topic://public/default/"
BLUE, RED = {"team": "blue"}, {"team": "red"}


def topic(name: str, namespace: str = "default") -> TopicName:
    return TopicName.scalable("public", namespace, name)


async def create(changes: Transitions, *names: str, properties: Mapping[str, str] | None = None) -> None:
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(changes.create, topic(name), 1, properties or {})


async def set_properties(store: TopicStore, name: str, properties: Mapping[str, str]) -> None:
    stored = await store.get(topic(name))
    assert stored is not None
    record = records.decode(stored.value).with_properties(properties)
    await store.replace(topic(name), stored.version, records.encode(record))


async def settled() -> None:
    """Everything that can happen without a word from outside has happened."""
    await trio.testing.wait_all_tasks_blocked(0.1)


def names(count: int, start: int = 0) -> list[str]:
    return [f"topic-{number}" for number in range(start, start + count)]


# What is told.


async def test_a_watch_gets_a_snapshot_and_then_diffs(topology: Topology) -> None:
    async with (
        running_node(topology.url, probe_interval=NEVER) as node,
        running_node(topology.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        changes = transitions_of(other)
        await create(changes, *names(20))
        view = await viewer.watch()
        await until_equal(other.store, [view])
        assert view.kinds == ["snapshot"]
        assert len(view.held or ()) == 20
        await create(changes, "new")
        await until_equal(other.store, [view])
        await changes.delete(topic("topic-3"))
        await until_equal(other.store, [view])
        assert [(list(u.diff.added), list(u.diff.removed)) for u in view.updates[1:]] == [
            ([PREFIX + "new"], []),
            ([], [PREFIX + "topic-3"]),
        ]
        assert node.feed.counters.lost_bells == 0


async def test_an_empty_or_unknown_namespace_is_an_empty_snapshot(topology: Topology) -> None:
    async with running_node(topology.url) as node, viewing_namespaces(node) as viewer:
        views = [await viewer.watch(name) for name in ("public/default", "nobody/nothing")]
        views.append(await viewer.watch(filters=BLUE))
        await until_equal(node.store, views)
        assert [view.kinds for view in views] == [["snapshot"]] * 3
        silent = await viewer.watch("nobody/nothing", held=[])
        await create(transitions_of(node), "a", properties=BLUE)
        await until_equal(node.store, [*views, silent])
        assert [view.kinds for view in (*views, silent)] == [
            ["snapshot", "diff"],
            ["snapshot"],
            ["snapshot", "diff"],
            [],
        ]


async def test_the_right_hash_is_answered_with_silence_and_a_wrong_one_with_a_snapshot(topology: Topology) -> None:
    async with running_node(topology.url) as node, viewing_namespaces(node) as viewer:
        changes = transitions_of(node)
        await create(changes, *names(30))
        held = {PREFIX + name for name in names(30)}
        right, wrong = await viewer.watch(held=held), await viewer.watch(held=[PREFIX + "stale"])
        await until_equal(node.store, [right, wrong])
        await eventually(lambda: node.namespaces.counters.hash_matches == 1)
        assert (right.kinds, wrong.kinds) == ([], ["snapshot"])
        await create(changes, "new")
        await until_equal(node.store, [right, wrong])
        assert (right.kinds, wrong.kinds) == (["diff"], ["snapshot", "diff"])


async def test_names_of_every_kind_are_told_as_they_are_and_hash_alike(topology: Topology) -> None:
    exotic = ["a/b", "a b", "ü", "日本語", "𝄞", "\N{REPLACEMENT CHARACTER}", "%2F", "a,b", "{b017}", "x" * 1024]
    async with running_node(topology.url) as node, viewing_namespaces(node) as viewer:
        early = await viewer.watch()
        await create(transitions_of(node), *exotic)
        late = await viewer.watch()
        await until_equal(node.store, [early, late])
        assert late.held == {PREFIX + name for name in exotic}
        silent = await viewer.watch(held=late.held)
        await eventually(lambda: node.namespaces.counters.hash_matches == 1)
        await transitions_of(node).delete(topic("𝄞"))
        await until_equal(node.store, [early, late, silent])
        assert silent.kinds == ["diff"]


async def test_a_topic_deleted_and_created_again_stands_in_both_lists(topology: Topology) -> None:
    async with (
        running_node(topology.url, coalesce=1.0) as node,
        running_node(topology.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        changes = transitions_of(other)
        await create(changes, "a", "b")
        view = await viewer.watch()
        await until_equal(other.store, [view])
        await changes.delete(topic("a"))
        await create(changes, "a")
        await eventually(lambda: sum(len(u.diff.added) for u in view.updates) == 1)
        assert sum(len(update.diff.removed) for update in view.updates) == 1
        await until_equal(other.store, [view])


async def test_properties_move_topics_in_and_out_of_filtered_watches(topology: Topology) -> None:
    async with (
        running_node(topology.url, probe_interval=NEVER) as node,
        running_node(topology.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        changes = transitions_of(other)
        await create(changes, *names(10), properties=BLUE | {"tier": "1"})
        await create(changes, *names(10, 10), properties=RED | {"tier": "1"})
        await create(changes, *names(10, 20))
        filters: list[Mapping[str, str]] = [{}, BLUE, RED, {"tier": "1"}, RED | {"tier": "1"}, {"team": ""}]
        views = [await viewer.watch(filters=wanted) for wanted in filters]
        await until_equal(other.store, views)
        assert [len(view.held or ()) for view in views] == [30, 10, 10, 20, 10, 0]
        everything = views[0]
        for name, properties in [
            ("topic-0", RED | {"tier": "1"}),
            ("topic-11", BLUE),
            ("topic-25", {"team": "", "tier": "1", "more": "x"}),
            ("topic-1", BLUE | {"tier": "1", "more": "x"}),
            ("topic-2", {}),
        ]:
            await set_properties(other.store, name, properties)
            await until_equal(other.store, views)
        assert everything.kinds == ["snapshot"]
        # "topic-1" got a property that nobody asks for: of the three others that it is in, none was told.
        assert not any(PREFIX + "topic-1" in (*u.diff.added, *u.diff.removed) for view in views for u in view.updates)
        # A split changes the record and nothing that anybody filters by.
        before = [len(view.updates) for view in views]
        await changes.split(topic("topic-3"), 0)
        await eventually(lambda: node.readback.counters.reads >= 6)
        await settled()
        assert [len(view.updates) for view in views] == before


async def test_watchers_on_every_node_hold_the_same(topology: Topology) -> None:
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(running_node(topology.url, probe_interval=NEVER)) for _ in range(3)]
        viewers = [await stack.enter_async_context(viewing_namespaces(node)) for node in nodes]
        views = [await viewer.watch(filters=wanted) for viewer in viewers for wanted in ({}, BLUE)]
        for number, node in enumerate(nodes):
            changes = transitions_of(node)
            await create(changes, *names(20, 20 * number), properties=BLUE if number % 2 else RED)
            await changes.delete(topic(f"topic-{20 * number}"))
        await until_equal(nodes[0].store, views)
        assert {view.hash for view in views[::2]} == {views[0].hash}
        assert sum(node.feed.counters.lost_bells for node in nodes) == 0


async def test_a_burst_of_creations_reaches_everybody_in_few_frames(topology: Topology) -> None:
    async with (
        running_node(topology.url, coalesce=0.2) as node,
        running_node(topology.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        views = [await viewer.watch() for _ in range(3)]
        await until_equal(other.store, views)
        await create(transitions_of(other), *names(500))
        await until_equal(other.store, views)
        # At most one at once, and one for each window that the creations took.
        assert all(len(view.updates) < 100 for view in views)
        assert {tuple(u.SerializeToString()[2:] for u in view.updates) for view in views} == {
            tuple(u.SerializeToString()[2:] for u in views[0].updates)
        }


# Ids.


async def test_a_reused_id_belongs_to_the_newer_watch_alone(topology: Topology) -> None:
    async with running_node(topology.url) as node, viewing_namespaces(node) as viewer:
        await create(transitions_of(node), "red", properties=RED)
        old = await viewer.watch(filters=RED, watch_id=7)
        await until_equal(node.store, [old])
        old.ended.cancel()
        new = await viewer.watch(filters=BLUE, watch_id=7)
        await until_equal(node.store, [new])
        assert (node.namespaces.counters.watches, node.namespaces.counters.groups) == (1, 1)
        await create(transitions_of(node), "red-2", properties=RED)
        await create(transitions_of(node), "blue", properties=BLUE)
        await until_equal(node.store, [new])
        assert new.kinds == ["snapshot", "diff"]


async def test_closed_watches_and_connections_leave_nothing_behind(topology: Topology) -> None:
    async with running_node(topology.url) as node:
        async with viewing_namespaces(node) as viewer:
            watches = [
                await viewer.connection.open_namespace_watch("public/default", properties={"n": str(number % 5)})
                for number in range(20)
            ]
            for watch in watches:
                assert (await watch.next()).HasField("snapshot")
            assert (node.namespaces.counters.watches, node.namespaces.counters.groups) == (20, 5)
            for watch in watches[:10]:
                await watch.close()
                await watch.close()
            await eventually(lambda: node.namespaces.counters.watches == 10)
        await eventually(lambda: node.namespaces.counters.watches == node.namespaces.counters.groups == 0)
        reads = node.readback.counters.reads
        await create(transitions_of(node), "unwatched")
        await eventually(lambda: node.feed.counters.changes >= 1)
        await settled()
        assert node.readback.counters.reads == reads


async def test_an_invalid_namespace_is_an_error_and_the_connection_stays(topology: Topology) -> None:
    async with running_node(topology.url) as node, viewing_namespaces(node) as viewer:
        watch = await viewer.connection.open_namespace_watch("no-namespace")
        assert (await watch.next()).error == api.InvalidTopicName
        view = await viewer.watch()
        await until_equal(node.store, [view])


async def test_a_dag_watch_and_a_namespace_watch_with_one_id_do_not_mix(topology: Topology) -> None:
    async with running_node(topology.url) as node, viewing_namespaces(node) as viewer:
        view = await viewer.watch(watch_id=1)
        dag = await viewer.connection.open_watch(PREFIX + "a", 1)
        assert (await dag.next()).HasField("dag")
        await until_equal(node.store, [view])
        assert view.held == {PREFIX + "a"}
        await dag.close()
        await create(transitions_of(node), "b")
        await until_equal(node.store, [view])


# What it costs.


async def test_all_watchers_of_a_group_share_one_listing_and_one_evaluation_per_event(topology: Topology) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running_node(topology.url, probe_interval=NEVER))
        other = await stack.enter_async_context(running_node(topology.url))
        changes = transitions_of(other)
        await create(changes, *names(50), properties=BLUE | {"tier": "1"})
        viewers = [await stack.enter_async_context(viewing_namespaces(node)) for _ in range(5)]
        # The order of filters does not matter, and neither does the connection.
        orders = [BLUE | {"tier": "1"}, {"tier": "1"} | BLUE]
        filtered = [await viewer.watch(filters=orders[n % 2]) for n in range(10) for viewer in viewers]
        others = [await viewer.watch(filters=RED) for viewer in viewers]
        plain = [await viewer.watch() for viewer in viewers]
        views = [*filtered, *others, *plain]
        await until_equal(other.store, views)
        counters = node.namespaces.counters
        assert (counters.groups, counters.watches) == (3, len(views))
        # Groups that wait at the same time share one listing; topics heard of meanwhile are read once more.
        listings = counters.listings
        assert listings <= 3 * keys.BUCKETS
        assert 2 * 50 <= counters.evaluations <= 2 * 2 * 50

        reads, evaluations = node.readback.counters.reads, counters.evaluations
        for number in range(5):
            await create(changes, f"new-{number}", properties=BLUE | {"tier": "1"})
            await until_equal(other.store, views)
        assert node.readback.counters.reads - reads == 5
        assert counters.evaluations - evaluations == 2 * 5
        assert counters.listings == listings
        assert all(len(view.updates) == 6 for view in (*filtered, *plain))
        assert all(len(view.updates) == 1 for view in others)


async def test_who_comes_back_with_the_right_hash_costs_neither_a_listing_nor_a_snapshot(topology: Topology) -> None:
    async with running_node(topology.url, probe_interval=NEVER) as node, viewing_namespaces(node) as viewer:
        await create(transitions_of(node), *names(200))
        first = await viewer.watch()
        await until_equal(node.store, [first])
        # The creations are heard of, too.
        await eventually(lambda: node.feed.counters.changes >= 200)
        await settled()
        listings, reads = node.namespaces.counters.listings, node.readback.counters.reads
        for matches in range(5, 105, 5):
            async with viewing_namespaces(node) as again:
                views = [await again.watch(held=first.held) for _ in range(5)]
                # Answered in order, so whatever there was to say has been said.
                await again.connection.partitions(PREFIX + "a")
                assert not any(view.updates for view in views)
                assert node.namespaces.counters.hash_matches == matches
        assert (node.namespaces.counters.listings, node.readback.counters.reads) == (listings, reads)


# Trouble.


async def keep_writing(store: TopicStore, changes: Transitions, done: list[str]) -> None:
    """Create, delete and recolour topics for ever, whatever the store says."""
    number = 0
    while True:
        number += 1
        name = f"topic-{number % 40}"
        try:
            if number % 3 == 0:
                await changes.delete(topic(name))
            elif number % 7 == 0:
                await set_properties(store, name, BLUE if number % 2 else RED)
            else:
                await changes.create(topic(name), 1, BLUE if number % 2 else RED)
            done.append(name)
        except (StoreError, TopicExists, TopicMissing, AssertionError):
            pass
        await trio.sleep(0.002)


async def until_longer(done: list[str], by: int) -> None:
    goal = len(done) + by
    await eventually(lambda: len(done) >= goal, within=20)


async def test_watches_survive_connections_that_are_cut_again_and_again(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url) as node,
        running_node(valkey.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        views = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE, RED)]
        await until_equal(other.store, views)
        async with trio.open_nursery() as nursery:
            done: list[str] = []
            nursery.start_soon(keep_writing, other.store, transitions_of(other), done)
            for _ in range(10):
                proxy.cut()
                views.append(await viewer.watch(filters=BLUE))
                views.append(await viewer.watch(held=views[0].held or ()))
                await until_longer(done, 20)
            nursery.cancel_scope.cancel()
        await until_equal(other.store, views)
        assert node.feed.counters.gaps["connection"] >= 1


async def test_what_changed_while_the_store_was_cut_off_is_told_as_a_diff_and_newcomers_wait(
    valkey: ValkeyProcess,
) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url) as node,
        running_node(valkey.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        changes = transitions_of(other)
        await create(changes, *names(20), properties=BLUE)
        views = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE)]
        await until_equal(other.store, views)
        proxy.refuse()
        proxy.cut()
        await eventually(node.readiness, within=10)
        newcomers = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE, RED)]
        await changes.delete(topic("topic-3"))
        await changes.delete(topic("topic-4"))
        await create(changes, "topic-4", "new", properties=BLUE)
        await viewer.connection.partitions(PREFIX + "a")
        assert not any(view.updates for view in newcomers)
        proxy.accept()
        await eventually(lambda: not node.readiness(), within=15)
        await until_equal(other.store, [*views, *newcomers])
        for view in views:
            assert view.kinds.count("snapshot") == 1
            assert sorted(name for u in view.updates for name in u.diff.added) == [PREFIX + "new", PREFIX + "topic-4"]
            assert sorted(name for u in view.updates for name in u.diff.removed) == [
                PREFIX + "topic-3",
                PREFIX + "topic-4",
            ]
        assert [view.kinds[0] for view in newcomers] == ["snapshot"] * 3


@pytest.mark.slow
async def test_watches_survive_a_store_that_is_killed_and_restarted() -> None:
    with ValkeyProcess(appendfsync="always").start() as server:
        async with running_node(server.url) as node, viewing_namespaces(node) as viewer:
            views = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE, RED)]
            await until_equal(node.store, views)
            async with trio.open_nursery() as nursery:
                done: list[str] = []
                nursery.start_soon(keep_writing, node.store, transitions_of(node), done)
                for _ in range(2):
                    await until_longer(done, 30)
                    server.kill()
                    await eventually(node.readiness, within=10)
                    views.append(await viewer.watch())
                    await trio.to_thread.run_sync(server.start)
                    await eventually(lambda: not node.readiness(), within=15)
                nursery.cancel_scope.cancel()
            await until_equal(node.store, views)


async def test_lost_bells_delay_diffs_by_no_more_than_the_probe(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url) as node,
        running_node(valkey.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        views = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE)]
        await until_equal(other.store, views)
        proxy.swallow_pushes()
        await create(transitions_of(other), *names(30), properties=BLUE)
        await until_equal(other.store, views)
        await transitions_of(other).delete(topic("topic-0"))
        await set_properties(other.store, "topic-1", RED)
        await until_equal(other.store, views)
        assert node.feed.counters.lost_bells >= 1
        # Only what changed was read again, and nothing was listed.
        assert node.namespaces.counters.listings == 2 * keys.BUCKETS


async def test_a_trimmed_change_log_is_made_up_for_by_listing_its_bucket(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url) as node,
        running_node(valkey.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        # Nothing is as empty as a log that never had an entry: both had one.
        await create(transitions_of(other), "before", "after")
        await transitions_of(other).delete(topic("after"))
        view = await viewer.watch()
        await until_equal(other.store, [view])
        proxy.swallow_pushes()
        await transitions_of(other).delete(topic("before"))
        await create(transitions_of(other), "after")
        for name in ("before", "after"):
            log = keys.changes_key(keys.bucket_of(keys.path_of(topic(name))))
            valkey.client().xtrim(log, maxlen=0, approximate=False)
        proxy.deliver_pushes()
        await until_equal(other.store, [view])
        assert view.kinds.count("snapshot") == 1
        assert node.feed.counters.gaps["log"] >= 1


async def test_a_silent_network_only_delays(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url) as node,
        running_node(valkey.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        views = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE)]
        await until_equal(other.store, views)
        proxy.stall()
        # One that begins before the silence is noticed.
        views.append(await viewer.watch(filters=RED))
        await create(transitions_of(other), *names(10), properties=BLUE)
        await eventually(node.readiness, within=10)
        views.append(await viewer.watch())
        await create(transitions_of(other), *names(10, 10), properties=RED)
        proxy.resume()
        await until_equal(other.store, views)


async def test_a_flushed_store_is_no_reason_to_say_that_topics_are_gone(fresh_valkey: ValkeyProcess) -> None:
    async with running_node(fresh_valkey.url) as node, viewing_namespaces(node) as viewer:
        await create(transitions_of(node), *names(20), properties=BLUE)
        views = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE)]
        await until_equal(node.store, views)
        fresh_valkey.client().flushall()
        # Before and after it is noticed.
        late = [await viewer.watch(filters=wanted) for wanted in (RED, {"tier": "1"})]
        await eventually(node.readiness, within=10)
        late.append(await viewer.watch())
        late.append(await viewer.watch("public/other"))
        await settled()
        assert [view.kinds for view in views] == [["snapshot"]] * 2
        assert not any(view.updates for view in late)


@pytest.mark.slow
async def test_after_a_fail_over_that_lost_writes_watchers_hold_what_the_store_says(
    fresh_replicated: Replicated,
) -> None:
    async with (
        running_node(fresh_replicated.url) as node,
        running_node(fresh_replicated.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        changes = transitions_of(other)
        await create(changes, *names(10), properties=BLUE)
        views = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE, RED)]
        await until_equal(other.store, views)
        await eventually(lambda: fresh_replicated.primary.client().wait(1, 100) == 1)
        kept = set(views[0].held or ())
        await trio.to_thread.run_sync(fresh_replicated.cut_replication)
        await create(changes, "lost", properties=RED)
        await changes.delete(topic("topic-0"))
        await changes.delete(topic("topic-1"))
        await create(changes, "topic-1", properties=BLUE)
        await set_properties(other.store, "topic-2", RED)
        await until_equal(other.store, views)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, fresh_replicated.fail_over)
            await eventually(node.readiness)
            late = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE, RED)]
        await eventually(lambda: not node.readiness(), within=20)
        await until_equal(other.store, [*views, *late])
        assert views[0].held == kept
        # The new "topic-1" never was: the old one is back, and that is another topic.
        assert views[0].kinds.count("snapshot") == 1
        last = [name for u in views[0].updates[-3:] for name in (*u.diff.added, *u.diff.removed)]
        assert last.count(PREFIX + "topic-1") >= 2
        await create(changes, "next", properties=RED)
        await until_equal(other.store, [*views, *late])


# Records and names that nobody of ours wrote.


async def test_a_record_that_cannot_be_read_hides_only_itself_from_filters(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, viewing_namespaces(node) as viewer:
        await create(transitions_of(node), *names(10), properties=BLUE)
        bad = keys.record_key(keys.path_of(topic("topic-3")))
        valkey.client().hset(bad, "value", "nonsense")
        await create(transitions_of(node), "new", properties=BLUE)
        view, plain = await viewer.watch(filters=BLUE), await viewer.watch()
        await eventually(lambda: view.held is not None and plain.held is not None)
        everything = await stored_names(node.store, plain)
        assert plain.held == everything
        assert view.held == everything - {PREFIX + "topic-3"}


async def test_a_damaged_record_hides_only_itself_from_filters(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, viewing_namespaces(node) as viewer:
        await create(transitions_of(node), *names(10), properties=BLUE)
        bad = keys.record_key(keys.path_of(topic("topic-3")))
        valkey.client().delete(bad)
        valkey.client().set(bad, "not a hash")
        view = await viewer.watch(filters=BLUE)
        await eventually(lambda: view.held is not None)
        assert view.held == {PREFIX + name for name in names(10) if name != "topic-3"}


@pytest.mark.parametrize("name", [b"\xff\xfe", b"", b" "])
async def test_a_name_in_the_index_that_is_none_hides_only_itself(valkey: ValkeyProcess, name: bytes) -> None:
    async with running_node(valkey.url) as node, viewing_namespaces(node) as viewer:
        await create(transitions_of(node), "a", "b", properties=BLUE)
        bucket = keys.bucket_of(keys.path_of(topic("a")))
        valkey.client().hset(keys.index_key(bucket, NamespaceName("public", "default")), name, "0" * 16)
        views = [await viewer.watch(), await viewer.watch(filters=BLUE)]
        await eventually(lambda: all(view.held is not None for view in views))
        for view in views:
            assert {PREFIX + "a", PREFIX + "b"} <= (view.held or set())


async def test_a_set_that_does_not_fit_one_frame_is_whole_and_hashes_alike(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, max_message_size=16_384) as node, viewing_namespaces(node) as viewer:
        await create(transitions_of(node), *(f"{'long-' * 40}{number}" for number in range(300)))
        view = await viewer.watch()
        await until_equal(node.store, [view])
        assert view.kinds[0] == "snapshot"
        assert len(view.kinds) >= 4
        assert max(update.ByteSize() for update in view.updates) <= 16_384
        silent = await viewer.watch(held=view.held)
        await eventually(lambda: node.namespaces.counters.hash_matches == 1)
        assert topic_set_hash(view.held or ()) == silent.hash
