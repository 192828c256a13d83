"""Trouble with the store, its records or its names delays what namespace watches are told, and hides only itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from controller.transitions import Transitions
from gateway.node import Node
from metadata import keys
from metadata.errors import StoreError, TopicExists, TopicMissing
from metadata.store import TopicStore
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName
from tests.faults.namespace_topics import BLUE, PREFIX, RED, create, names, set_properties, settled, topic
from tests.faults.namespace_views import NamespaceViewer, stored_names, until_equal, viewing_namespaces
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.valkeys import Replicated
from tests.support.waiting import eventually


@asynccontextmanager
async def behind_a_proxy(valkey: ValkeyProcess) -> AsyncIterator[tuple[FaultProxy, Node, Node, NamespaceViewer]]:
    """A node that reaches the store through a proxy, another that does not, and a viewer at the first."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url) as node,
        running_node(valkey.url) as other,
        viewing_namespaces(node) as viewer,
    ):
        yield proxy, node, other, viewer


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
    await eventually(lambda: len(done) >= goal, within=30)


async def test_watches_survive_connections_that_are_cut_again_and_again(valkey: ValkeyProcess) -> None:
    async with behind_a_proxy(valkey) as (proxy, node, other, viewer):
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
    async with behind_a_proxy(valkey) as (proxy, node, other, viewer):
        changes = transitions_of(other)
        await create(changes, *names(20), properties=BLUE)
        views = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE)]
        await until_equal(other.store, views)
        proxy.refuse()
        proxy.cut()
        await eventually(node.readiness, within=30)
        newcomers = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE, RED)]
        await changes.delete(topic("topic-3"))
        await changes.delete(topic("topic-4"))
        await create(changes, "topic-4", "new", properties=BLUE)
        await viewer.connection.partitions(PREFIX + "a")
        assert not any(view.updates for view in newcomers)
        proxy.accept()
        await eventually(lambda: not node.readiness(), within=30)
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
                    await eventually(node.readiness, within=30)
                    views.append(await viewer.watch())
                    await trio.to_thread.run_sync(server.start)
                    await eventually(lambda: not node.readiness(), within=30)
                nursery.cancel_scope.cancel()
            await until_equal(node.store, views)


async def test_lost_bells_delay_diffs_by_no_more_than_the_probe(valkey: ValkeyProcess) -> None:
    async with behind_a_proxy(valkey) as (proxy, node, other, viewer):
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
    async with behind_a_proxy(valkey) as (proxy, node, other, viewer):
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
    async with behind_a_proxy(valkey) as (proxy, node, other, viewer):
        views = [await viewer.watch(filters=wanted) for wanted in ({}, BLUE)]
        await until_equal(other.store, views)
        proxy.stall()
        # One that begins before the silence is noticed.
        views.append(await viewer.watch(filters=RED))
        await create(transitions_of(other), *names(10), properties=BLUE)
        await eventually(node.readiness, within=30)
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
        await eventually(node.readiness, within=30)
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
        await eventually(lambda: not node.readiness(), within=30)
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
