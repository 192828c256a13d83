"""DAG watches from the socket to the store and back, over every topology, with changes made through other nodes."""

from contextlib import AsyncExitStack

import httpx
import trio

from layout import records
from metadata import keys
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.faults.writers import a_split
from tests.support.nodes import (
    DELETION_NOTICE,
    assert_in_step,
    running_node,
    topics_in_buckets,
    transitions_of,
    until_at_epoch,
    until_in_step,
    viewing,
)
from tests.support.topology import Topology
from tests.support.waiting import eventually

TOPIC = TopicName.parse("topic://public/default/orders")
OTHER = TopicName.parse("topic://public/default/invoices")
# So long that whatever arrives in a test came by a bell.
NEVER = 600.0


async def test_a_lookup_creates_a_topic_of_one_segment(topology: Topology) -> None:
    async with running_node(topology.url) as node, viewing(node) as viewer:
        view = await viewer.watch(TOPIC)
        await eventually(lambda: view.updates)
        dag = view.last.dag
        assert (view.last.resolved_topic_name, dag.epoch, len(dag.segments)) == (str(TOPIC), 0, 1)
        assert [broker.broker_url for broker in dag.segment_brokers] == [node.pulsar_url]
        assert await node.store.list_topics(TOPIC.namespace_name) == [TOPIC.local]
        await assert_in_step(node.store, [view])


async def test_lookups_that_race_on_two_nodes_create_one_topic(topology: Topology) -> None:
    async with (
        running_node(topology.url, probe_interval=NEVER) as node,
        running_node(topology.url, probe_interval=NEVER) as other,
        viewing(node) as viewer,
        viewing(other) as other_viewer,
    ):
        views = [await connection.watch(TOPIC) for connection in (viewer, other_viewer) for _ in range(3)]
        await until_in_step(node.store, views)
        assert {tuple(view.epochs) for view in views} == {(0,)}


async def test_a_lookup_that_may_not_create_is_told_that_there_is_no_topic(topology: Topology) -> None:
    async with running_node(topology.url) as node, viewing(node) as viewer:
        view = await viewer.watch(TOPIC, create=False)
        await eventually(lambda: view.updates)
        assert view.errors == [api.TopicNotFound]
        assert await node.store.get(TOPIC) is None


async def test_splits_and_merges_on_another_node_are_pushed(topology: Topology) -> None:
    async with (
        running_node(topology.url, probe_interval=NEVER) as node,
        running_node(topology.url) as other,
        viewing(node) as viewer,
    ):
        view = await viewer.watch(TOPIC)
        await eventually(lambda: view.updates)
        changes = transitions_of(other)
        await changes.split(TOPIC, 0)
        await until_at_epoch(1, [view])
        await changes.split(TOPIC, 1)
        await until_at_epoch(2, [view])
        await changes.merge(TOPIC, 3, 4)
        await until_at_epoch(3, [view])
        await assert_in_step(other.store, [view])
        assert view.epochs == [0, 1, 2, 3]
        assert node.feed.counters.lost_bells == 0


async def test_the_admin_api_of_another_node_changes_what_watchers_see(topology: Topology) -> None:
    async with (
        running_node(topology.url, probe_interval=NEVER) as node,
        running_node(topology.url) as other,
        viewing(node) as viewer,
        httpx.AsyncClient(base_url=other.http_url, trust_env=False) as admin,
    ):
        path = f"/admin/v2/scalable/public/default/{TOPIC.local}"
        assert (await admin.put(path, params={"numInitialSegments": 4})).status_code == 204
        view = await viewer.watch(TOPIC)
        await eventually(lambda: view.updates)
        assert len(view.last.dag.segments) == 4
        assert (await admin.post(f"{path}/split/2")).status_code == 204
        await until_at_epoch(1, [view])
        assert (await admin.post(f"{path}/merge/0/1")).status_code == 204
        await until_at_epoch(2, [view])
        await assert_in_step(other.store, [view])
        assert (await admin.delete(path)).status_code == 204
        await eventually(lambda: view.errors == [api.TopicNotFound])


async def test_watchers_in_every_bucket_see_changes_made_on_another_node(topology: Topology) -> None:
    topics = topics_in_buckets(range(keys.BUCKETS))
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running_node(topology.url, probe_interval=NEVER))
        other = await stack.enter_async_context(running_node(topology.url, probe_interval=NEVER))
        viewers = [await stack.enter_async_context(viewing(node)) for _ in range(3)]
        views = [await viewer.watch(topic) for viewer in viewers for topic in topics]
        await until_in_step(other.store, views)
        changes = transitions_of(other)
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(changes.split, topic, 0)
        await until_in_step(other.store, views)
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(changes.merge, topic, 1, 2)
        await until_in_step(other.store, views)
        assert {view.last.dag.epoch for view in views} == {2}
        assert (node.hub.counters.points, node.hub.counters.watches) == (len(topics), len(views))
        assert node.feed.counters.lost_bells == 0


async def test_every_node_hears_of_every_other_nodes_changes(topology: Topology) -> None:
    topics = topics_in_buckets(range(0, keys.BUCKETS, 16))
    async with AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(running_node(topology.url, probe_interval=NEVER)) for _ in range(3)]
        viewers = [await stack.enter_async_context(viewing(node)) for node in nodes]
        views = [await viewer.watch(topic) for viewer in viewers for topic in topics]
        await until_in_step(nodes[0].store, views)
        for epoch, node in enumerate(nodes, start=1):
            for topic in topics:
                stored = await node.store.get(topic)
                assert stored is not None
                await transitions_of(node).split(topic, a_split(stored))
            await until_at_epoch(epoch, views)
        await until_in_step(nodes[-1].store, views)
        for viewer in viewers:
            urls = {broker.broker_url for view in viewer.views.values() for broker in view.last.dag.segment_brokers}
            assert urls <= {each.pulsar_url for each in nodes}


async def test_a_deletion_is_told_once_and_only_after_the_notice(topology: Topology) -> None:
    async with (
        running_node(topology.url) as node,
        running_node(topology.url) as other,
        viewing(node) as viewer,
    ):
        view, bystander = await viewer.watch(TOPIC), await viewer.watch(OTHER)
        await eventually(lambda: view.updates and bystander.updates)
        deleted_at = trio.current_time()
        await transitions_of(other).delete(TOPIC)
        await eventually(lambda: view.errors)
        assert trio.current_time() - deleted_at >= DELETION_NOTICE
        # The watch has ended: a new topic of that name is none of its business.
        await transitions_of(other).create(TOPIC, 2)
        again = await viewer.watch(TOPIC)
        await transitions_of(other).split(OTHER, 0)
        await until_in_step(other.store, [again, bystander])
        assert view.errors == [api.TopicNotFound]
        assert view.epochs == [0]
        assert node.hub.counters.deletions == 1


async def test_a_topic_created_again_within_the_notice_is_an_ordinary_push(topology: Topology) -> None:
    async with (
        running_node(topology.url, deletion_notice=2.0) as node,
        running_node(topology.url) as other,
        viewing(node) as viewer,
    ):
        view, doomed = await viewer.watch(TOPIC), await viewer.watch(OTHER)
        await eventually(lambda: view.updates and doomed.updates)
        changes = transitions_of(other)
        await changes.split(TOPIC, 0)
        await until_at_epoch(1, [view])
        reads = node.readback.counters.reads
        await changes.delete(TOPIC)
        await eventually(lambda: node.readback.counters.reads > reads)
        assert view.epochs == [0, 1]
        await changes.create(TOPIC, 3)
        await until_in_step(other.store, [view])
        assert (view.last.dag.epoch, len(view.last.dag.segments)) == (0, 3)
        # Once the notice of a later deletion has passed, so has that of the first, and the new topic was not hit by it.
        await changes.delete(OTHER)
        await eventually(lambda: doomed.errors, within=30)
        await changes.split(TOPIC, 1)
        await until_in_step(other.store, [view])
        assert node.hub.counters.deletions == 1


async def test_a_lookup_within_the_notice_of_a_deletion_creates_the_topic_for_everybody(topology: Topology) -> None:
    async with (
        running_node(topology.url, deletion_notice=120.0) as node,
        running_node(topology.url) as other,
        viewing(node) as viewer,
    ):
        view = await viewer.watch(TOPIC)
        await eventually(lambda: view.updates)
        await transitions_of(other).split(TOPIC, 0)
        await until_at_epoch(1, [view])
        path = keys.path_of(TOPIC)
        point = node.hub._points[keys.bucket_of(path)][path]
        await transitions_of(other).delete(TOPIC)
        await eventually(lambda: point.missing_since is not None)
        newcomer = await viewer.watch(TOPIC)
        await eventually(lambda: newcomer.updates and view.last.dag.epoch == 0)
        await until_in_step(other.store, [view, newcomer])
        stored = await other.store.get(TOPIC)
        assert stored is not None
        assert len(records.decode(stored.value).layout.segments) == 1
