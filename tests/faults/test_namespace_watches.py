"""Namespace watches on real nodes and stores: what is told, to which id, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from metadata import keys
from protocol.wire import pulsar_api_pb2 as api
from tests.faults.namespace_topics import BLUE, PREFIX, RED, create, names, set_properties, settled, topic
from tests.faults.namespace_views import until_equal, viewing_namespaces
from tests.support.nodes import running_node, transitions_of
from tests.support.valkeys import Topology
from tests.support.waiting import eventually

NEVER = 60.0


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
        # So patient with its store that nothing is listed again because the machine is busy.
        node = await stack.enter_async_context(running_node(topology.url, probe_interval=NEVER, store_timeout=10.0))
        other = await stack.enter_async_context(running_node(topology.url))
        changes = transitions_of(other)
        await create(changes, *names(50), properties=BLUE | {"tier": "1"})
        # What is heard after a listing is evaluated once more, by each group.
        await eventually(lambda: node.feed.counters.changes >= 50)
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
