"""Open watches while the store is killed, cut off, silent, full, flushed, or loses its bells.

Every case ends the same way: pushes resume by themselves, every watch's last frame equals a fresh read, and nobody was
told an error.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from controller.transitions import Transitions
from gateway.node import Node
from metadata import keys
from metadata.store import TopicStore, open_store
from protocol.names import TopicName
from tests.faults.writers import a_split, keep_changing
from tests.support.nodes import (
    DELETION_NOTICE,
    PROBE_INTERVAL,
    View,
    Viewer,
    assert_in_step,
    running_node,
    topics_in_buckets,
    transitions_of,
    until_in_step,
    viewing,
)
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

TOPICS = topics_in_buckets(range(3, keys.BUCKETS, 16))
UNWATCHED, MISSING, ABSENT = (TopicName("topic", "public", "default", name) for name in ("idle", "new", "absent"))


@dataclass
class Scene:
    """A node whose store can be troubled, a client with open watches, and a look at the store past the trouble."""

    node: Node
    viewer: Viewer
    views: list[View]
    store: TopicStore
    changes: Transitions

    async def split_all(self) -> None:
        for topic in TOPICS:
            stored = await self.store.get(topic)
            assert stored is not None
            await self.changes.split(topic, a_split(stored))

    async def until_away(self) -> None:
        await eventually(self.node.readiness, within=30)

    async def until_ready(self) -> None:
        await eventually(lambda: not self.node.readiness(), within=30)

    async def in_step_and_following(self) -> None:
        """Everybody knows what the store says, hears of the next change, and was never told an error."""
        await until_in_step(self.store, self.views)
        await self.split_all()
        await until_in_step(self.store, self.views)
        assert not self.node.readiness()
        assert self.node.hub.counters.deletions == 0


@asynccontextmanager
async def scene(store_url: str, *, past_trouble: str | None = None, **settings: float) -> AsyncIterator[Scene]:
    """`past_trouble` is a way to the store that the trouble does not touch; without it there is no other."""
    async with (
        running_node(store_url, **settings) as node,
        running_node(past_trouble or store_url) as other,
        viewing(node) as viewer,
    ):
        views = [await viewer.watch(topic) for topic in TOPICS]
        changes = transitions_of(other)
        await until_in_step(other.store, views)
        await changes.create(UNWATCHED, 3)
        yield Scene(node, viewer, views, other.store, changes)


def copy_of(server: ValkeyProcess) -> dict[bytes, bytes]:
    """Every key but the leases of nodes, in the form that `put_back` takes."""
    client = server.client()
    names: list[bytes] = client.keys("/*")  # type: ignore[assignment] # bytes: the client does not decode
    return {name: client.dump(name) for name in names if not name.startswith(b"/nodes/")}  # type: ignore[misc] # as above


def put_back(server: ValkeyProcess, copies: dict[bytes, bytes]) -> None:
    """All at once, as a restored backup appears."""
    with server.client().pipeline(transaction=True) as restoring:
        for name, value in copies.items():
            restoring.restore(name, 0, value, replace=True)
        restoring.execute()


@pytest.fixture
def careful_valkey() -> Iterator[ValkeyProcess]:
    """A store that loses nothing when it is killed: what it answered is on its disk."""
    with ValkeyProcess(appendfsync="always").start() as server:
        yield server


@pytest.mark.slow
async def test_watches_survive_a_store_that_is_killed_and_restarted(careful_valkey: ValkeyProcess) -> None:
    async with scene(careful_valkey.url) as on:
        async with keep_changing(on.store, on.changes, TOPICS) as writing:
            for _ in range(2):
                await writing.until_more(4, TOPICS)
                careful_valkey.kill()
                await on.until_away()
                await trio.to_thread.run_sync(careful_valkey.start)
                await on.until_ready()
            await writing.until_more(4, TOPICS)
        await on.in_step_and_following()
        assert on.node.hub.counters.went_back == 0


async def test_what_changed_while_the_connection_was_cut_is_pushed_afterwards(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, scene(proxy.url, past_trouble=valkey.url) as on:
        proxy.refuse()
        proxy.cut()
        await on.until_away()
        await on.split_all()
        proxy.accept()
        await on.until_ready()
        await on.in_step_and_following()
        assert on.node.feed.counters.gaps["connection"] >= 1


async def test_watches_survive_connections_that_are_cut_again_and_again(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, scene(proxy.url, past_trouble=valkey.url) as on:
        async with keep_changing(on.store, on.changes, TOPICS) as writing:
            for _ in range(10):
                proxy.cut()
                await writing.until_more(3, TOPICS)
        await on.in_step_and_following()


@pytest.mark.slow
async def test_lookups_during_a_silence_of_the_store_are_answered_when_it_speaks_again(
    fresh_valkey: ValkeyProcess,
) -> None:
    async with scene(fresh_valkey.url, store_timeout=1.0) as on:
        fresh_valkey.pause()
        # Both kinds: while the silence is still unnoticed, and after.
        views = [await on.viewer.watch(topic) for topic in (UNWATCHED, MISSING)]
        await on.until_away()
        views += [await on.viewer.watch(topic) for topic in (UNWATCHED, MISSING, TOPICS[0])]
        refusable = await on.viewer.watch(ABSENT, create=False)
        # Longer than every call to the store has patience.
        await trio.sleep(6.0)
        assert on.node.readiness()
        assert not any(view.updates for view in (*views, refusable))
        fresh_valkey.resume()
        await on.until_ready()
        await until_in_step(on.store, views)
        # "Not found" comes from a read after the command, and this one says so.
        await eventually(lambda: refusable.errors)
        await on.in_step_and_following()


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_watches_survive_a_store_that_is_silent_for_a_minute(fresh_valkey: ValkeyProcess) -> None:
    async with scene(fresh_valkey.url, probe_interval=3.0, deletion_notice=5.0) as on:
        fresh_valkey.pause()
        views = [await on.viewer.watch(topic) for topic in (UNWATCHED, MISSING)]
        await trio.sleep(60)
        assert on.node.readiness()
        fresh_valkey.resume()
        await on.until_ready()
        await until_in_step(on.store, views)
        await on.in_step_and_following()


@pytest.mark.slow
async def test_a_stalled_network_loses_nothing(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, scene(proxy.url, past_trouble=valkey.url) as on:
        proxy.stall()
        await on.split_all()
        await on.until_away()
        await on.split_all()
        proxy.resume()
        await on.until_ready()
        await on.in_step_and_following()


async def test_a_full_store_still_pushes_splits_and_holds_creating_lookups_until_there_is_room(
    fresh_valkey: ValkeyProcess,
) -> None:
    async with scene(fresh_valkey.url) as on:
        fresh_valkey.client().config_set("maxmemory", "1")
        held = await on.viewer.watch(MISSING)
        existing = await on.viewer.watch(UNWATCHED)
        await on.split_all()
        await until_in_step(on.store, [*on.views, existing])
        # A node whose store is full serves all that is there.
        assert not on.node.readiness()
        assert not held.updates
        assert await on.store.get(MISSING) is None
        fresh_valkey.client().config_set("maxmemory", "0")
        await until_in_step(on.store, [held])
        assert held.epochs == [0]
        await on.in_step_and_following()


async def test_connections_lost_while_the_store_is_full_are_made_again(fresh_valkey: ValkeyProcess) -> None:
    async with scene(fresh_valkey.url) as on:
        fresh_valkey.client().config_set("maxmemory", "1")
        fresh_valkey.command("CLIENT", "KILL", "TYPE", "pubsub")
        await eventually(lambda: on.node.feed.counters.gaps["connection"] >= 1)
        await on.until_ready()
        await on.in_step_and_following()


async def test_a_node_can_start_while_its_store_is_full(fresh_valkey: ValkeyProcess) -> None:
    async with scene(fresh_valkey.url) as on:
        fresh_valkey.client().config_set("maxmemory", "1")
        async with running_node(fresh_valkey.url) as late, viewing(late) as viewer:
            view = await viewer.watch(TOPICS[0])
            await until_in_step(on.store, [view])


@pytest.mark.slow
async def test_watches_of_a_flushed_store_hold_until_its_data_are_put_back(fresh_valkey: ValkeyProcess) -> None:
    async with scene(fresh_valkey.url) as on:
        await on.split_all()
        await until_in_step(on.store, on.views)
        copies = copy_of(fresh_valkey)
        fresh_valkey.client().flushall()
        await on.until_away()
        assert "identity" in on.node.readiness()[0]
        told = [len(view.updates) for view in on.views]
        newcomers = [await on.viewer.watch(topic) for topic in (TOPICS[0], UNWATCHED, MISSING)]
        await trio.sleep(2 * DELETION_NOTICE + 2 * PROBE_INTERVAL)
        assert [len(view.updates) for view in on.views] == told
        assert not any(view.updates for view in newcomers)

        put_back(fresh_valkey, copies)
        await on.until_ready()
        await until_in_step(on.store, newcomers)
        # They hold what they were told before the flush: no frame was needed, but for who leads the topic now.
        for view, count in zip(on.views, told, strict=True):
            assert {update.dag.epoch for update in view.updates[count:]} <= {view.updates[count - 1].dag.epoch}
        await on.in_step_and_following()


@pytest.mark.slow
async def test_lookups_before_a_flush_is_noticed_are_held_and_write_nothing(fresh_valkey: ValkeyProcess) -> None:
    async with scene(fresh_valkey.url, probe_interval=2.0) as on:
        copies = copy_of(fresh_valkey)
        fresh_valkey.client().flushall()
        assert not on.node.readiness()
        views = [await on.viewer.watch(UNWATCHED, create=create) for create in (False, True)]
        await on.until_away()
        assert not any(view.updates for view in views)
        assert not fresh_valkey.client().keys("/topics/*")
        put_back(fresh_valkey, copies)
        await on.until_ready()
        await until_in_step(on.store, views)
        await on.in_step_and_following()


@pytest.mark.slow
async def test_watches_of_a_store_that_restarts_empty_hold_until_a_backup_is_restored(
    fresh_valkey: ValkeyProcess,
) -> None:
    files, backup = fresh_valkey.directory / "appendonlydir", fresh_valkey.directory / "backup"
    async with scene(fresh_valkey.url) as on:
        await trio.to_thread.run_sync(fresh_valkey.stop)
        shutil.copytree(files, backup)
        await trio.to_thread.run_sync(fresh_valkey.start)
        await on.until_ready()
        # Changed since the backup was made: the restored store is older than what watchers know.
        await on.split_all()
        await until_in_step(on.store, on.views)
        fresh_valkey.kill()
        shutil.rmtree(files)
        await trio.to_thread.run_sync(fresh_valkey.start)
        await eventually(lambda: "identity" in " ".join(on.node.readiness()), within=30)
        await trio.sleep(2 * DELETION_NOTICE)

        fresh_valkey.kill()
        shutil.rmtree(files)
        shutil.move(backup, files)
        await trio.to_thread.run_sync(fresh_valkey.start)
        await on.until_ready()
        await until_in_step(on.store, on.views)
        assert {view.last.dag.epoch for view in on.views} == {0}
        assert on.node.hub.counters.went_back == len(TOPICS)
        await on.in_step_and_following()


async def test_lost_bells_delay_pushes_by_no_more_than_the_probe(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, scene(proxy.url, past_trouble=valkey.url) as on:
        proxy.swallow_pushes()
        await on.split_all()
        await until_in_step(on.store, on.views)
        assert proxy.swallowed >= len(TOPICS)
        assert on.node.feed.counters.lost_bells >= 1
        assert not on.node.readiness()
        proxy.deliver_pushes()
        await on.in_step_and_following()


async def test_a_cleared_notification_flag_is_put_back_and_bells_ring_again(valkey: ValkeyProcess) -> None:
    async with scene(valkey.url) as on:
        valkey.client().config_set("notify-keyspace-events", "")
        await on.split_all()
        await until_in_step(on.store, on.views)
        await eventually(lambda: on.node.feed.counters.flag_repairs >= 1)
        lost = on.node.feed.counters.lost_bells
        await on.in_step_and_following()
        assert on.node.feed.counters.lost_bells == lost


async def test_watchers_behind_a_trimmed_change_log_are_read_again(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, scene(proxy.url, past_trouble=valkey.url) as on:
        proxy.swallow_pushes()
        for _ in range(2):
            await on.split_all()
            for topic in TOPICS:
                log = keys.changes_key(keys.bucket_of(keys.path_of(topic)))
                valkey.client().xtrim(log, maxlen=0, approximate=False)
        await until_in_step(on.store, on.views)
        assert on.node.feed.counters.gaps["log"] >= 1
        proxy.deliver_pushes()
        await on.in_step_and_following()


async def test_the_last_frames_of_a_node_that_only_looks_equal_those_of_one_that_listens(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy:
        proxy.swallow_pushes()
        async with (
            running_node(proxy.url) as deaf,
            running_node(valkey.url) as hearing,
            open_store(valkey.url) as store,
            viewing(deaf) as one,
            viewing(hearing) as two,
        ):
            views = [await viewer.watch(topic) for viewer in (one, two) for topic in TOPICS]
            await until_in_step(store, views)
            async with keep_changing(hearing.store, transitions_of(hearing), TOPICS) as writing:
                await writing.until_more(3 * len(TOPICS), TOPICS)
            await until_in_step(store, views)
            await assert_in_step(store, views)
            assert proxy.swallowed > 0
