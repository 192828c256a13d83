"""Which nodes are alive, as each of them sees it: noticed soon, told once, and not guessed while the store is away."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
import trio

from metadata import keys
from metadata.lanes import Timeouts
from metadata.node_sessions import NodeRecord, NodeSession
from metadata.peers import Peers
from metadata.store import open_store
from tests.support.consumers import stays
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.topology import Topology
from tests.support.waiting import eventually

LEASE = 1.0
HASTY = Timeouts(connect=0.5, silence=0.2, patience=0.4)
LIMIT = 30.0


@dataclass
class Watcher:
    """A node that has a session and watches the others."""

    session: NodeSession
    peers: Peers
    died: list[str]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    @property
    def name(self) -> str:
        return self.session.record.session

    def sees(self, *others: Watcher) -> bool:
        return [node.session for node in self.peers.nodes] == [self.name, *sorted(other.name for other in others)]


@asynccontextmanager
async def watching(url: str, *, lease: float = LEASE, timeouts: Timeouts | None = None) -> AsyncIterator[Watcher]:
    async with open_store(url, timeouts=timeouts) as store, trio.open_nursery() as nursery:
        session = NodeSession(store, lease=lease, pulsar_url="pulsar://a:1", http_url="http://a:2")
        died: list[str] = []

        def on_death(dead: Collection[str]) -> None:
            died.extend(dead)

        watcher = Watcher(session, Peers(store, session, lease=lease, on_death=on_death), died)
        nursery.start_soon(session.run)
        nursery.start_soon(watcher.peers.run)
        await eventually(lambda: session.held, within=LIMIT)
        try:
            yield watcher
        finally:
            nursery.cancel_scope.cancel()


def pretend_alive(valkey: ValkeyProcess, session: str, milliseconds: int) -> None:
    """A node that is there for so long, and then dies without a word."""
    record = NodeRecord(session, "pulsar://d:1", "http://d:2")
    valkey.client().set(keys.node_key(session), msgspec.json.encode(record), px=milliseconds)
    valkey.client().hset(keys.NODES, session, "")


async def test_nodes_see_each_other_come_and_go(topology: Topology) -> None:
    async with watching(topology.url) as first:
        async with watching(topology.url) as second, watching(topology.url) as third:
            await eventually(lambda: first.sees(second, third), within=LIMIT)
            await eventually(lambda: second.sees(first, third) and third.sees(first, second), within=LIMIT)
            assert await first.peers.is_alive(second.name)
            assert first.peers.seemed_alive(second.name)
            assert first.died == []
        await eventually(lambda: first.sees(), within=LIMIT)
        assert sorted(first.died) == sorted([second.name, third.name])
        assert not await first.peers.is_alive(second.name)
        assert not first.peers.seemed_alive(third.name)


@pytest.mark.slow
async def test_a_node_that_dies_without_a_word_is_noticed_and_told_once(valkey: ValkeyProcess) -> None:
    async with watching(valkey.url) as first, watching(valkey.url) as second:
        pretend_alive(valkey, "d" * 16, 600_000)
        await eventually(lambda: all(w.peers.seemed_alive("d" * 16) for w in (first, second)), within=LIMIT)
        valkey.client().delete(keys.node_key("d" * 16))
        await eventually(lambda: "d" * 16 in first.died and "d" * 16 in second.died, within=LIMIT)
        await stays(lambda: first.died == second.died == ["d" * 16], 2 * LEASE)
        assert not valkey.client().hexists(keys.NODES, "d" * 16)


async def test_a_node_is_noticed_to_be_dead_when_its_lease_ends_and_not_a_third_of_ours_later(
    valkey: ValkeyProcess,
) -> None:
    """With looks that are a minute apart, one falls on the end of the lease."""
    async with watching(valkey.url, lease=180.0) as watcher:
        pretend_alive(valkey, "d" * 16, 3_000)
        # The look that finds it, which would be due in a minute otherwise.
        await watcher.peers._look()
        watcher.died.clear()
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watcher.peers.run)
                await eventually(lambda: watcher.died == ["d" * 16], within=LIMIT)
                nursery.cancel_scope.cancel()


async def test_a_session_that_began_since_the_last_look_is_alive(valkey: ValkeyProcess) -> None:
    async with watching(valkey.url, lease=60.0) as watcher:
        pretend_alive(valkey, "d" * 16, 60_000)
        assert not watcher.peers.seemed_alive("d" * 16)
        assert await watcher.peers.is_alive("d" * 16)
        assert not await watcher.peers.is_alive("e" * 16)
        assert not await watcher.peers.is_alive("")


async def test_a_node_never_takes_itself_for_dead(valkey: ValkeyProcess) -> None:
    async with watching(valkey.url) as watcher:
        valkey.client().hdel(keys.NODES, watcher.name)
        assert await watcher.peers.is_alive(watcher.name)
        first = watcher.name
        valkey.client().delete(keys.node_key(first))
        await eventually(lambda: watcher.session.sessions_lost == 1, within=LIMIT)
        assert watcher.name != first
        assert await watcher.peers.is_alive(watcher.name)
        assert watcher.name not in watcher.died


async def test_a_node_that_was_struck_off_the_list_by_mistake_is_back_on_it_soon(valkey: ValkeyProcess) -> None:
    async with watching(valkey.url) as first, watching(valkey.url) as second:
        await eventually(lambda: first.sees(second), within=LIMIT)
        valkey.client().hdel(keys.NODES, second.name)
        await eventually(lambda: valkey.client().hexists(keys.NODES, second.name), within=LIMIT)
        await eventually(lambda: first.sees(second), within=LIMIT)
        assert await first.peers.is_alive(second.name)


async def test_nobody_is_declared_dead_while_the_store_does_not_answer(fresh_valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*fresh_valkey.address) as proxy,
        watching(proxy.url, timeouts=HASTY) as cut_off,
        watching(fresh_valkey.url) as other,
    ):
        await eventually(lambda: cut_off.sees(other) and other.sees(cut_off), within=LIMIT)
        # Sessions that a busy machine has lost already are not what this is about.
        cut_off.died.clear()
        other.died.clear()
        first = cut_off.name
        since = cut_off.peers.in_touch_since
        assert since < float("inf")
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: cut_off.peers.in_touch_since == float("inf"), within=LIMIT)
        await eventually(lambda: first in other.died, within=LIMIT)
        assert cut_off.died == []
        proxy.accept()
        await eventually(lambda: since < cut_off.peers.in_touch_since < float("inf"), within=LIMIT)
        await eventually(lambda: cut_off.sees(other) and other.sees(cut_off), within=LIMIT)
        # Its own earlier session is gone, of course.
        assert set(cut_off.died) <= {first}


async def test_a_short_interruption_does_not_begin_anything_anew(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, watching(proxy.url, lease=180.0) as watcher:
        await eventually(lambda: watcher.peers.in_touch_since < float("inf"), within=LIMIT)
        since = watcher.peers.in_touch_since
        proxy.cut()
        await watcher.peers._look()
        assert watcher.peers.in_touch_since == since


async def test_who_was_not_running_has_not_been_in_touch(valkey: ValkeyProcess) -> None:
    """A process that was stopped for a while cannot say who was silent meanwhile."""
    async with watching(valkey.url, lease=0.9) as watcher:
        await eventually(lambda: watcher.peers.in_touch_since < float("inf"), within=LIMIT)
        since = watcher.peers.in_touch_since
        time.sleep(1.5)  # noqa: ASYNC251  # the whole loop, on purpose
        assert watcher.peers.in_touch_since == float("inf")
        await eventually(lambda: since < watcher.peers.in_touch_since < float("inf"), within=LIMIT)


async def test_a_death_is_told_although_the_list_of_nodes_cannot_be_tidied(valkey: ValkeyProcess) -> None:
    """Whoever strikes a dead node off the list must have told it before: nobody finds it there again."""
    async with FaultProxy.open(*valkey.address) as proxy, watching(proxy.url, timeouts=HASTY) as watcher:
        pretend_alive(valkey, "d" * 16, 600_000)
        await eventually(lambda: watcher.peers.seemed_alive("d" * 16), within=LIMIT)
        proxy.cut_before_reply(lambda request: b"HDEL" in request, times=1_000_000)
        valkey.client().delete(keys.node_key("d" * 16))
        await eventually(lambda: not valkey.client().hexists(keys.NODES, "d" * 16), within=LIMIT)
        await trio.sleep(3 * HASTY.patience)
        proxy.cut_before_reply(lambda request: False, times=0)
        await eventually(lambda: watcher.died == ["d" * 16], within=30)


@pytest.mark.parametrize("value", [b"no JSON", b"{}", b"\xff"])
async def test_a_node_whose_record_cannot_be_read_is_nothing_to_the_others(valkey: ValkeyProcess, value: bytes) -> None:
    """It is alive, for its lease stands, and that is all that can be said."""
    async with watching(valkey.url) as first:
        valkey.client().set(keys.node_key("odd"), value)
        valkey.client().hset(keys.NODES, "odd", "")
        async with watching(valkey.url) as second:
            await eventually(lambda: first.peers.seemed_alive(second.name), within=LIMIT)
        await eventually(lambda: second.name in first.died, within=LIMIT)
        assert first.peers.in_touch_since < float("inf")
        assert "odd" not in first.died


async def test_a_name_on_the_list_that_is_none_is_nothing_to_the_others(valkey: ValkeyProcess) -> None:
    async with watching(valkey.url) as first:
        valkey.client().hset(keys.NODES, b"\xff\xfe", "")
        async with watching(valkey.url) as second:
            await eventually(lambda: first.peers.seemed_alive(second.name), within=LIMIT)


@pytest.mark.slow
async def test_many_nodes_see_the_death_of_one(valkey: ValkeyProcess) -> None:
    async with watching(valkey.url, lease=3.0) as watcher:
        for number in range(200):
            pretend_alive(valkey, f"{number:016x}", 600_000)
        pretend_alive(valkey, "d" * 16, 600_000)
        await eventually(lambda: len(watcher.peers.nodes) == 202, within=LIMIT)
        valkey.client().delete(keys.node_key("d" * 16))
        await eventually(lambda: watcher.died == ["d" * 16], within=LIMIT)
        assert len(watcher.peers.nodes) == 201
