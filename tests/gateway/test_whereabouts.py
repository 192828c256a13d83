"""Layouts say where segments are served: what a lookup says, also when nodes come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from gateway.node import Node
from metadata.log_places import LogPlace
from protocol import client
from protocol.names import SegmentName, TopicName
from tests.support.nodes import View, running_node, transitions_of, viewing
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

TOPIC: Final = TopicName.scalable("public", "default", "orders")
# So many that it does not happen that one of two nodes gets none of them.
SEGMENTS: Final = 32
# A node that has gone is noticed within a third of its lease of two seconds, one that was killed when that ends.
LIMIT: Final = 30.0


@asynccontextmanager
async def stoppable_node(store_url: str) -> AsyncIterator[tuple[Node, trio.CancelScope]]:
    """A node that ends, when its scope is cancelled, without giving up anything in order."""

    async def run(task_status: trio.TaskStatus[tuple[Node, trio.CancelScope]]) -> None:
        with trio.CancelScope() as scope:
            async with running_node(store_url) as node:
                task_status.started((node, scope))
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        yield await nursery.start(run)
        nursery.cancel_scope.cancel()


def segments_of(view: View) -> dict[int, str]:
    """The names of the active segments of a layout, as it was told."""
    brokers = {broker.segment_id for broker in view.last.dag.segment_brokers}
    return {
        segment.segment_id: str(SegmentName(view.topic, segment.hash_start, segment.hash_end, segment.segment_id))
        for segment in view.last.dag.segments
        if segment.segment_id in brokers
    }


def told(view: View) -> dict[int, str]:
    return {broker.segment_id: broker.broker_url for broker in view.last.dag.segment_brokers}


async def looked_up(node: Node, view: View) -> dict[int, str]:
    async with client.connect(node.pulsar_url) as connection:
        return {
            segment_id: (await connection.lookup(name)).brokerServiceUrl
            for segment_id, name in segments_of(view).items()
        }


async def agree(nodes: list[Node], views: list[View]) -> dict[int, str]:
    """What all lookups and all layouts say, once they say the same."""

    async def same() -> dict[int, str]:
        found = [told(view) for view in views] + [
            await looked_up(node, view) for node, view in zip(nodes, views, strict=True)
        ]
        assert all(one == found[0] for one in found), found
        assert len(found[0]) == SEGMENTS
        return found[0]

    return await eventually(same, LIMIT)


async def test_watchers_hear_that_a_segment_of_a_node_that_died_is_elsewhere(valkey: ValkeyProcess) -> None:
    async with (
        running_node(valkey.url) as living,
        stoppable_node(valkey.url) as (doomed, scope),
        viewing(living) as viewer,
    ):
        await eventually(lambda: len(living.peers.nodes) == len(doomed.peers.nodes) == 2, LIMIT)
        await transitions_of(living).create(TOPIC, 1)
        view = await viewer.watch(TOPIC)
        await doomed.data.hosting.open(LogPlace.of_segment(TOPIC, "0000-ffff-0").name, by_force=True)
        await eventually(lambda: view.updates and told(view) == {0: doomed.pulsar_url}, LIMIT)
        epoch = view.last.dag.epoch
        scope.cancel()
        await eventually(lambda: told(view) == {0: living.pulsar_url}, LIMIT)
        assert view.last.dag.epoch == epoch
        # Nobody has opened it yet: it is about where it should be.
        assert living.data.hosting.logs == []


async def test_lookups_and_layouts_say_the_same_at_every_node(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as first, viewing(first) as near:
        await transitions_of(first).create(TOPIC, SEGMENTS)
        views = [await near.watch(TOPIC)]
        await eventually(lambda: views[0].updates, LIMIT)
        assert set((await agree([first], views)).values()) == {first.pulsar_url}
        async with stoppable_node(valkey.url) as (second, scope):
            async with viewing(second) as far:
                views.append(await far.watch(TOPIC))
                await eventually(lambda: views[1].updates, LIMIT)
                # Nobody owns them: the node that has come gets its part.
                urls = await agree([first, second], views)
                assert set(urls.values()) == {first.pulsar_url, second.pulsar_url}
                # Owned by the node that should have them, and by the one that should not.
                for number, (segment_id, name) in enumerate(segments_of(views[0]).items()):
                    chosen = first if urls[segment_id] == first.pulsar_url else second
                    await (first if number % 5 == 0 else chosen).data.hosting.open(name, by_force=True)
                urls = await agree([first, second], views)
                assert all(urls[number] == first.pulsar_url for number in range(0, SEGMENTS, 5))
            scope.cancel()
            await eventually(lambda: len(first.peers.nodes) == 1, LIMIT)
            assert set((await agree([first], views[:1])).values()) == {first.pulsar_url}


async def test_node_that_nobody_has_seen_yet_is_named_as_soon_as_it_owns_something(valkey: ValkeyProcess) -> None:
    """Looks are far apart where leases are long."""
    async with running_node(valkey.url, session_lease=60) as first, viewing(first) as viewer:
        await transitions_of(first).create(TOPIC, 1)
        view = await viewer.watch(TOPIC)
        await eventually(lambda: view.updates, LIMIT)
        async with running_node(valkey.url, session_lease=60) as second:
            await second.data.hosting.open(LogPlace.of_segment(TOPIC, "0000-ffff-0").name, by_force=True)
            await eventually(lambda: told(view) == {0: second.pulsar_url}, LIMIT)
