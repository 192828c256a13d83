"""Who was answered by a node finds the change in whatever that node shows afterwards, however lazily it reads."""

from __future__ import annotations

import httpx
import pytest
import trio

from gateway.node import Node
from metadata import keys
from protocol.names import TopicName
from tests.faults.namespace_topics import BLUE, PREFIX, RED, create, set_properties, topic
from tests.faults.namespace_views import NamespaceView, NamespaceViewer, viewing_namespaces
from tests.support.asking import asking
from tests.support.nodes import CONVERGENCE_LIMIT, View, Viewer, created_classic, running_node, transitions_of, viewing
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology
from tests.support.waiting import eventually

# Nothing is read because time has passed: only what somebody waits for.
NEVER = 60.0


async def deafen(node: Node) -> None:
    """From now on the store rings no bells, and it is long until the node looks for itself."""
    await node.store.commands.call(keys.BUCKET_SLOTS[0], "CONFIG", "SET", "notify-keyspace-events", "")


async def shown(viewer: NamespaceViewer, **asked: object) -> NamespaceView:
    """A watch that was answered; what came first is its answer."""
    view = await viewer.watch(**asked)  # type: ignore[arg-type]  # passed on as they are
    await eventually(lambda: bool(view.updates), within=CONVERGENCE_LIMIT)
    return view


async def answered(viewer: Viewer, name: TopicName, *, create: bool = True) -> View:
    """A watch of a topic that was answered."""
    view = await viewer.watch(name, create=create)
    await eventually(lambda: bool(view.updates), within=CONVERGENCE_LIMIT)
    return view


async def test_each_of_forty_topics_is_in_the_snapshot_asked_for_after_its_answer(topology: Topology) -> None:
    async with (
        running_node(topology.url) as node,
        viewing_namespaces(node) as viewer,
        httpx.AsyncClient(base_url=node.http_url, timeout=30.0) as admin,
    ):
        await shown(viewer)
        for number in range(40):
            answer = await admin.put(f"/admin/v2/scalable/public/default/topic-{number}")
            assert answer.status_code == 204, answer.text
            view = await shown(viewer)
            assert set(view.updates[0].snapshot.topics) == {f"{PREFIX}topic-{n}" for n in range(number + 1)}


async def test_snapshots_do_not_wait_for_bells_nor_for_the_window(valkey: ValkeyProcess) -> None:
    async with (
        running_node(valkey.url, probe_interval=NEVER, coalesce=NEVER) as node,
        viewing_namespaces(node) as viewer,
    ):
        changes = transitions_of(node)
        for filters in ({}, BLUE, RED):
            await shown(viewer, filters=filters)
        # From here on the groups are within their window, and read nothing by themselves.
        await create(changes, "first", properties=BLUE)
        await deafen(node)
        await create(changes, *(f"topic-{n}" for n in range(20)), properties=BLUE)
        assert len((await shown(viewer, filters=BLUE)).updates[0].snapshot.topics) == 21
        await set_properties(node.store, "topic-3", RED)
        assert list((await shown(viewer, filters=RED)).updates[0].snapshot.topics) == [f"{PREFIX}topic-3"]
        assert len((await shown(viewer, filters=BLUE)).updates[0].snapshot.topics) == 20
        await changes.delete(topic("topic-4"))
        view = await shown(viewer)
        assert (len(view.held or ()), f"{PREFIX}topic-4" in (view.held or ())) == (20, False)


async def test_an_old_hash_is_no_match_after_an_answered_change(valkey: ValkeyProcess) -> None:
    async with (
        running_node(valkey.url, probe_interval=NEVER, coalesce=NEVER) as node,
        viewing_namespaces(node) as viewer,
    ):
        changes = transitions_of(node)
        await create(changes, "first")
        await shown(viewer)
        await create(changes, "second")
        await shown(viewer)
        held = {f"{PREFIX}first", f"{PREFIX}second"}
        await create(changes, "third")
        view = await shown(viewer, held=held)
        assert view.kinds == ["snapshot"]
        assert view.held == held | {f"{PREFIX}third"}
        silent = await viewer.watch(held=view.held)
        await eventually(lambda: node.namespaces.counters.hash_matches == 1)
        assert silent.kinds == []


async def test_what_a_lookup_creates_is_in_the_next_snapshot(valkey: ValkeyProcess) -> None:
    async with (
        running_node(valkey.url, probe_interval=NEVER, coalesce=NEVER) as node,
        viewing_namespaces(node) as viewer,
        viewing(node) as watcher,
    ):
        await shown(viewer)
        await deafen(node)
        for name in ("one", "two", "three"):
            await answered(watcher, topic(name))
            assert PREFIX + name in (await shown(viewer)).updates[0].snapshot.topics


async def test_the_first_dag_of_a_watch_has_every_answered_change(valkey: ValkeyProcess) -> None:
    orders = topic("orders")
    async with running_node(valkey.url, probe_interval=NEVER) as node, viewing(node) as viewer:
        changes = transitions_of(node)
        await changes.create(orders, 1)
        await answered(viewer, orders)
        await deafen(node)
        for epoch, segment in enumerate((0, 1, 2), start=1):
            await changes.split(orders, segment)
            assert (await answered(viewer, orders)).epochs == [epoch]
        await changes.delete(orders)
        gone = await answered(viewer, orders, create=False)
        assert gone.errors
        assert not gone.epochs


@pytest.mark.parametrize("partitions", [0, 3])
async def test_the_answer_to_a_pattern_has_every_classic_topic_that_was_answered_for(
    valkey: ValkeyProcess, partitions: int
) -> None:
    async with (
        running_node(valkey.url, probe_interval=NEVER, coalesce=NEVER) as node,
        asking(node) as asker,
        asking(node) as other,
    ):
        await asker.watch(".*")
        await created_classic(node, TopicName.classic("public", "default", "first"))
        await deafen(node)
        expected = {"persistent://public/default/first"}
        for number in range(3):
            name = TopicName.classic("public", "default", f"orders-{number}")
            await created_classic(node, name, partitions)
            expected |= {str(name.partition_at(i)) for i in range(partitions)} if partitions else {str(name)}
            answer = (await other.watch(".*", watcher_id=number + 2)).watchTopicListSuccess
            assert set(answer.topic) == expected
            await other.close_watch(number + 2)


async def test_watches_are_answered_while_this_node_writes_without_a_pause(valkey: ValkeyProcess) -> None:
    async with (
        running_node(valkey.url) as node,
        viewing_namespaces(node) as viewer,
        trio.open_nursery() as nursery,
    ):
        await create(transitions_of(node), "busy")
        await shown(viewer)

        async def write() -> None:
            number = 0
            while True:
                number += 1
                await set_properties(node.store, "busy", {"number": str(number)})

        nursery.start_soon(write)
        for _ in range(20):
            assert (await shown(viewer)).held == {f"{PREFIX}busy"}
        nursery.cancel_scope.cancel()
