"""DAG watches on classic topics: a made-up layout that follows the number of partitions, on every kind of store."""

from __future__ import annotations

import pytest

from controller.classic import ClassicTransitions
from controller.transitions import TopicLimits
from gateway.node import Node
from metadata.store import open_store
from protocol.client import connect
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.support.nodes import View, running_node, transitions_of, viewing
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.topology import Topology
from tests.support.waiting import eventually

ORDERS = TopicName.classic("public", "default", "orders")


def classic_of(node: Node) -> ClassicTransitions:
    return ClassicTransitions(node.store, TopicLimits())


def told(view: View) -> list[str]:
    """The logs behind the segments of the last DAG, which must be a made-up one."""
    update = view.last
    assert not update.HasField("error"), update
    assert update.resolved_topic_name == str(ORDERS.canonical)
    dag = update.dag
    assert (dag.epoch, list(dag.segment_brokers), dag.HasField("controller_broker_url")) == (0, [], False)
    assert {segment.state for segment in dag.segments} == {api.ACTIVE}
    assert [segment.segment_id for segment in dag.segments] == list(range(len(dag.segments)))
    return [segment.legacy_topic_name for segment in dag.segments]


def partitions(count: int) -> list[str]:
    return [str(ORDERS.partition_at(index)) for index in range(count)]


@pytest.mark.parametrize("name", [ORDERS, ORDERS.canonical], ids=["persistent", "topic"])
async def test_a_watch_on_a_partitioned_topic_follows_its_partitions(topology: Topology, name: TopicName) -> None:
    async with running_node(topology.url) as node, viewing(node) as viewer:
        classic = classic_of(node)
        await classic.create_partitioned(ORDERS, 2)
        view = await viewer.watch(name)
        await eventually(lambda: told(view) == partitions(2))
        dag = view.last.dag
        assert [(s.hash_start, s.hash_end) for s in dag.segments] == [(0, 0x7FFF), (0x8000, 0xFFFF)]
        assert {s.created_at_ms for s in dag.segments} != {0}
        await classic.grow(ORDERS, 4)
        await eventually(lambda: told(view) == partitions(4))
        # No topic was created by that, and other changes of the topic were no news.
        assert await node.store.get(ORDERS.canonical) is None
        assert len(view.updates) == 2


async def test_a_watch_on_a_single_topic_has_one_segment(topology: Topology) -> None:
    async with running_node(topology.url) as node, viewing(node) as viewer:
        await classic_of(node).create(ORDERS)
        view = await viewer.watch(ORDERS, create=False)
        await eventually(lambda: told(view) == [str(ORDERS)])


async def test_a_missing_classic_topic_is_created_for_its_watch(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, viewing(node) as viewer:
        view = await viewer.watch(ORDERS)
        await eventually(lambda: told(view) == [str(ORDERS)])
        assert await classic_of(node).topics.list_logs(ORDERS.namespace_name) == ["orders"]
        assert await node.store.list_topics(ORDERS.namespace_name) == []


@pytest.mark.parametrize(("auto_create", "create"), [(False, True), (True, False)])
async def test_it_is_not_created_where_that_is_not_wanted(
    valkey: ValkeyProcess, auto_create: bool, create: bool
) -> None:
    async with running_node(valkey.url, auto_create=auto_create) as node, viewing(node) as viewer:
        view = await viewer.watch(ORDERS, create=create)
        await eventually(lambda: view.errors == [api.TopicNotFound])
        assert await classic_of(node).topics.list_logs(ORDERS.namespace_name) == []


async def test_whoever_creates_first_decides_what_kind_of_topic_all_watch(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, viewing(node) as viewer:
        views = [await viewer.watch(name) for name in (ORDERS, ORDERS.canonical) * 3]
        await eventually(lambda: all(view.updates for view in views))
        assert len({view.last.dag.SerializeToString() for view in views}) == 1


async def test_a_deleted_classic_topic_is_told_as_gone(topology: Topology) -> None:
    async with running_node(topology.url) as node, viewing(node) as viewer:
        classic = classic_of(node)
        await classic.create_partitioned(ORDERS, 2)
        view = await viewer.watch(ORDERS)
        await eventually(lambda: told(view) == partitions(2))
        await classic.delete_partitioned(ORDERS)
        await eventually(lambda: view.errors == [api.TopicNotFound])


async def test_a_scalable_topic_in_its_place_is_an_ordinary_update(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, viewing(node) as viewer:
        classic = classic_of(node)
        await classic.create(ORDERS)
        view = await viewer.watch(ORDERS)
        await eventually(lambda: told(view) == [str(ORDERS)])
        await classic.delete(ORDERS)
        await transitions_of(node).create(ORDERS.canonical, 3)
        await eventually(lambda: len(view.last.dag.segments) == 3)
        assert view.errors == []
        assert not view.last.dag.segments[0].HasField("legacy_topic_name")


async def test_changes_during_an_outage_of_the_store_are_told_after_it(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url) as node,
        viewing(node) as viewer,
        open_store(valkey.url) as direct,
    ):
        classic = ClassicTransitions(direct, TopicLimits())
        await classic.create_partitioned(ORDERS, 2)
        view = await viewer.watch(ORDERS)
        await eventually(lambda: told(view) == partitions(2))
        proxy.refuse()
        proxy.cut()
        await classic.grow(ORDERS, 5)
        proxy.accept()
        await eventually(lambda: told(view) == partitions(5), within=30)


async def test_a_watched_namespace_is_not_read_because_of_its_classic_topics(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, connect(node.pulsar_url) as connection:
        watch = await connection.open_namespace_watch("public/default")
        assert list((await watch.next()).snapshot.topics) == []
        changes = node.feed.counters.changes
        await classic_of(node).create_partitioned(ORDERS, 20)
        await eventually(lambda: node.feed.counters.changes >= changes + 21)
        await transitions_of(node).create(TopicName.scalable("public", "default", "scalable"), 1)
        assert list((await watch.next()).diff.added) == ["topic://public/default/scalable"]
        # The scalable one: when it was written here, and when the feed told of it.
        assert node.readback.counters.reads <= 2
