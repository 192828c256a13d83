"""A client that stops reading, among many that read on."""

from contextlib import AsyncExitStack

import pytest
import trio

from protocol.names import TopicName
from tests.faults.writers import a_split
from tests.support.nodes import running_node, transitions_of, until_at_epoch, until_in_step, viewing
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

TOPIC = TopicName.parse("topic://public/default/orders")
WATCHERS = 50
SPLITS = 30
# One frame of this many is more than a connection with a small receive buffer swallows.
SEGMENTS = 250


@pytest.mark.slow
async def test_a_peer_that_stops_reading_delays_nobody_and_then_gets_the_newest_only(valkey: ValkeyProcess) -> None:
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(running_node(valkey.url))
        other = await stack.enter_async_context(running_node(valkey.url))
        changes = transitions_of(other)
        stored = await changes.create(TOPIC, SEGMENTS)
        viewers = [await stack.enter_async_context(viewing(node)) for _ in range(WATCHERS - 1)]
        slow = await stack.enter_async_context(viewing(node, receive_buffer=4_096))
        views = [await viewer.watch(TOPIC) for viewer in viewers]
        late = await slow.watch(TOPIC)
        await until_in_step(other.store, [*views, late])

        slow.stop_reading()
        for epoch in range(1, SPLITS + 1):
            stored = await changes.split(TOPIC, a_split(stored))
            # Each state reaches everybody else before the next is made: nobody waits for the one that does not read.
            await until_at_epoch(epoch, views)
        every_epoch = list(range(SPLITS + 1))
        assert all(view.epochs == every_epoch for view in views)
        assert node.counters.pushes_replaced > 0
        assert node.counters.outbox_bytes > 0

        told = len(late.updates)
        slow.read_on()
        await until_in_step(other.store, [late])
        # What had left for it before it was noticed to be slow, and then the newest, in order.
        assert late.epochs == sorted(set(late.epochs))
        assert len(late.updates) - told < SPLITS / 2
        await eventually(lambda: node.counters.outbox_bytes == 0)

        await changes.split(TOPIC, a_split(stored))
        await until_in_step(other.store, [*views, late])


async def test_watches_of_a_peer_that_stops_reading_each_keep_their_newest(valkey: ValkeyProcess) -> None:
    topics = [TopicName("topic", "public", "default", f"topic-{number}") for number in range(4)]
    async with (
        running_node(valkey.url) as node,
        running_node(valkey.url) as other,
        viewing(node, receive_buffer=4_096) as slow,
        viewing(node) as quick,
    ):
        changes = transitions_of(other)
        for topic in topics:
            await changes.create(topic, SEGMENTS)
        late = [await slow.watch(topic) for topic in topics]
        views = [await quick.watch(topic) for topic in topics]
        await until_in_step(other.store, [*late, *views])
        slow.stop_reading()
        for segment in range(8):
            async with trio.open_nursery() as nursery:
                for topic in topics:
                    nursery.start_soon(changes.split, topic, segment)
            await until_at_epoch(segment + 1, views)
        slow.read_on()
        await until_in_step(other.store, [*late, *views])
        assert all(view.epochs == sorted(set(view.epochs)) for view in late)
        assert sum(len(view.updates) for view in late) < sum(len(view.updates) for view in views)


@pytest.mark.slow
async def test_a_peer_that_never_reads_again_is_cut_and_the_others_stay(valkey: ValkeyProcess) -> None:
    async with (
        running_node(valkey.url, stall_limit=1.0) as node,
        running_node(valkey.url) as other,
        viewing(node) as quick,
    ):
        changes = transitions_of(other)
        stored = await changes.create(TOPIC, SEGMENTS)
        view = await quick.watch(TOPIC)
        with trio.CancelScope() as given_up:
            async with viewing(node, receive_buffer=4_096) as slow:
                late = await slow.watch(TOPIC)
                await until_in_step(other.store, [view, late])
                slow.stop_reading()
                for _ in range(10):
                    stored = await changes.split(TOPIC, a_split(stored))
                    await until_in_step(other.store, [view])
                await eventually(lambda: node.counters.stalls == 1)
                given_up.cancel()
        await eventually(lambda: (node.counters.connections, node.counters.outbox_bytes) == (1, 0))
        assert node.hub.counters.watches == 1
        await changes.split(TOPIC, a_split(stored))
        await until_in_step(other.store, [view])
