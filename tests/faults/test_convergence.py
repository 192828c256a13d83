"""The guarantee: once writes stop, every watcher holds exactly the store's state, whatever happened before."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import pytest
import trio

from controller.transitions import TransitionError
from gateway.node import Node
from layout.errors import LayoutError
from metadata import keys
from metadata.errors import StoreError
from metadata.store import TopicStore, open_store
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.faults.writers import change
from tests.support.nodes import (
    DELETION_NOTICE,
    PROBE_INTERVAL,
    View,
    Viewer,
    assert_in_step,
    running_node,
    transitions_of,
    viewing,
)
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

# Never deleted, so none of their watchers may ever hear an error; the others come and go.
LASTING: Final = [TopicName("topic", "public", "default", f"lasting-{number}") for number in range(12)]
FLEETING: Final = [TopicName("topic", "public", "default", f"fleeting-{number}") for number in range(18)]
# Pauses between two steps of a writer and between two faults.
WRITE_PAUSE, FAULT_PAUSE = 0.03, 0.25


@pytest.fixture
def careful_valkey() -> Iterator[ValkeyProcess]:
    """Killed, it loses nothing that it answered: a topic that was never deleted is always there."""
    with ValkeyProcess(appendfsync="always").start() as server:
        yield server


class Turmoil:
    """Two nodes on one store, each behind a proxy of its own, and everything that can happen to them."""

    def __init__(
        self, server: ValkeyProcess, proxies: list[FaultProxy], nodes: list[Node], viewers: list[Viewer], seed: int
    ) -> None:
        self.server = server
        self.proxies = proxies
        self.nodes = nodes
        self.viewers = viewers
        self.chance = random.Random(seed)
        self.writes = 0
        self.deleted: set[TopicName] = set()

    @property
    def views(self) -> list[View]:
        return [view for viewer in self.viewers for view in viewer.views.values()]

    async def write(self, node: Node) -> None:
        """Random changes through one node; refusals and unknown outcomes are part of it."""
        changes = transitions_of(node)
        while True:
            topic = self.chance.choice([*LASTING, *FLEETING])
            try:
                if topic in LASTING or self.chance.random() < 0.6:
                    await change(node.store, changes, topic, self.chance)
                elif await node.store.get(topic) is None:
                    await changes.create(topic, self.chance.randint(1, 4))
                else:
                    self.deleted.add(topic)
                    await changes.delete(topic)
                self.writes += 1
            except (StoreError, LayoutError, TransitionError):
                pass
            await trio.sleep(self.chance.uniform(0, 2 * WRITE_PAUSE))

    async def look(self) -> None:
        """Clients come back to topics whose watch ended, and ask for some that may not be there."""
        while True:
            viewer, topic = self.chance.choice(self.viewers), self.chance.choice(FLEETING)
            if not [view for view in viewer.views.values() if view.topic == topic and not view.errors]:
                await viewer.watch(topic, create=self.chance.random() < 0.5)
            await trio.sleep(WRITE_PAUSE)

    async def disturb(self) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [
            self._cut, self._cut, self._refuse, self._swallow, self._swallow, self._stall,
            self._clear_flag, self._trim, self._restart,
        ]  # fmt: skip
        while True:
            await self.chance.choice(faults)()
            await trio.sleep(self.chance.uniform(0, 2 * FAULT_PAUSE))

    def calm(self) -> None:
        for proxy in self.proxies:
            proxy.accept()
            proxy.resume()
            proxy.deliver_pushes()

    async def _cut(self) -> None:
        self.chance.choice(self.proxies).cut()

    async def _refuse(self) -> None:
        proxy = self.chance.choice(self.proxies)
        proxy.refuse()
        proxy.cut()
        await trio.sleep(self.chance.uniform(0, 0.5))
        proxy.accept()

    async def _swallow(self) -> None:
        proxy = self.chance.choice(self.proxies)
        proxy.swallow_pushes()
        await trio.sleep(self.chance.uniform(0, 1.0))
        proxy.deliver_pushes()

    async def _stall(self) -> None:
        proxy = self.chance.choice(self.proxies)
        proxy.stall()
        # Sometimes longer than the store may be silent, sometimes not.
        await trio.sleep(self.chance.uniform(0, 1.0))
        proxy.resume()

    async def _clear_flag(self) -> None:
        self.server.client().config_set("notify-keyspace-events", "")

    async def _trim(self) -> None:
        for bucket in self.chance.sample(range(keys.BUCKETS), 32):
            self.server.client().xtrim(keys.changes_key(bucket), maxlen=self.chance.choice([0, 1]), approximate=False)

    async def _restart(self) -> None:
        with trio.CancelScope(shield=True):
            self.server.kill()
            await trio.to_thread.run_sync(self.server.start)


async def settled(store: TopicStore, views: list[View]) -> bool:
    """Every open watch shows what the store says, and no topic that is gone has an open watch."""
    present = {topic for topic in LASTING + FLEETING if await store.get(topic) is not None}
    still_open = [view for view in views if not view.errors]
    assert not [view.topic for view in still_open if view.topic not in present]
    await assert_in_step(store, still_open)
    return True


async def run_turmoil(server: ValkeyProcess, seed: int, seconds: float) -> None:
    async with (
        FaultProxy.open(*server.address) as proxy,
        FaultProxy.open(*server.address) as other_proxy,
        running_node(proxy.url) as node,
        running_node(other_proxy.url) as other,
        viewing(node) as viewer,
        viewing(other) as other_viewer,
    ):
        turmoil = Turmoil(server, [proxy, other_proxy], [node, other], [viewer, other_viewer], seed)
        for connection in turmoil.viewers:
            for topic in (*LASTING, *FLEETING):
                await connection.watch(topic)
        await eventually(lambda: all(view.updates for view in turmoil.views))
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for writer in turmoil.nodes:
                    nursery.start_soon(turmoil.write, writer)
                nursery.start_soon(turmoil.look)
                nursery.start_soon(turmoil.disturb)
        turmoil.calm()
        quiet_at = trio.current_time()
        async with open_store(server.url) as store:
            await eventually(lambda: settled(store, turmoil.views), within=30)
            took = trio.current_time() - quiet_at
            await eventually(lambda: not node.readiness() and not other.readiness(), within=30)
            await settled(store, turmoil.views)
        _report(turmoil, seed, took)
        check_history(turmoil)


def check_history(turmoil: Turmoil) -> None:
    """What was told on the way: no wrong error, none twice, and nothing after the last word."""
    assert turmoil.writes > 20
    for view in turmoil.views:
        assert set(view.errors) <= {api.TopicNotFound}
        assert not view.errors or (len(view.errors) == 1 and view.updates[-1].HasField("error"))
        assert not view.errors or not view.epochs or view.topic in turmoil.deleted
        if view.topic in LASTING:
            assert not view.errors
            # The same epoch may come twice: then another node leads the topic.
            assert view.epochs == sorted(view.epochs), f"{view.topic} went back"
    assert sum(node.hub.counters.went_back for node in turmoil.nodes) == 0


def _report(turmoil: Turmoil, seed: int, took: float) -> None:
    gaps = [dict(node.feed.counters.gaps) for node in turmoil.nodes]
    lost = [node.feed.counters.lost_bells for node in turmoil.nodes]
    ended = sum(bool(view.errors) for view in turmoil.views)
    print(
        f"seed {seed}: {turmoil.writes} writes, {len(turmoil.views)} watches of which {ended} ended, gaps {gaps}, "
        f"lost bells {lost}; in step {took:.2f} s after the last write "
        f"(probe interval {PROBE_INTERVAL:g} s, deletion notice {DELETION_NOTICE:g} s)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_every_watcher_ends_at_the_stores_state_whatever_happened(
    careful_valkey: ValkeyProcess, seed: int
) -> None:
    await run_turmoil(careful_valkey, seed, seconds=5.0)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(10, 16))
async def test_every_watcher_ends_at_the_stores_state_after_a_long_turmoil(
    careful_valkey: ValkeyProcess, seed: int
) -> None:
    await run_turmoil(careful_valkey, seed, seconds=60.0)
