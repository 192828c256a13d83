"""Everything that is done to the nodes, the store and the layout of a topic while messages pass through them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import httpx
import trio

from layout import records
from layout.layouts import Layout
from metadata import scripts
from tests.e2e.forked import ForkedServer
from tests.e2e.vela_process import SCALABLE, START_LIMIT
from tests.faults.message_clients import Consumer, Producer, Recorder
from tests.faults.message_history import WentBack
from tests.faults.message_topics import Topic
from tests.support.ports import HOST, ReservedPort
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

# A lease is small enough to wait for, and large enough that a busy machine seldom loses it by accident.
LEASE: Final = 3.0
FLAGS: Final = (
    *("--session-lease", f"{LEASE:g}s"),
    *("--consumer-grace", "3s"),
    *("--handover", "3s"),
    *("--probe-interval", "200ms"),
    *("--prune-interval", "1s"),
    *("--rebalance-interval", "500ms"),
    *("--store-timeout", "1s"),
    *("--store-connect-timeout", "1s"),
    *("--shutdown-grace", "500ms"),
    *("--log-level", "debug"),
)
# Layouts are kept between these numbers of active segments, so that there is always something to split and to merge.
FEWEST, MOST = 2, 6
# Seconds between two faults of a kind, at most.
PACE: Final = MappingProxyType({"layout": 1.0, "nodes": 3.0, "store": 3.0, "clients": 2.0, "seeks": 1.5})
# Calls of nodes to the store whose answers are lost now and then.
_INTERRUPTED: Final = (scripts.APPEND_ENTRIES, scripts.SAVE_CURSORS, scripts.CLAIM_SEGMENT, scripts.RELEASE_SEGMENT)
_STEAL: Final = """
local held = redis.call('HMGET', KEYS[1], 'owner', 'term')
if (held[1] or '') == '' then return 0 end
local term = string.format('%.0f', tonumber(held[2]) + 1)
redis.call('HSET', KEYS[1], 'owner', 'nobody:' .. term, 'term', term)
return 1
"""


class Cluster:
    """Nodes on one store, each on its own way to it, that come back at the addresses they had."""

    def __init__(
        self,
        store: ValkeyProcess,
        proxies: Sequence[FaultProxy],
        directory: Path,
        fault: str = "",
        *,
        keeps: bool = False,
    ) -> None:
        """`keeps`: what is consumed stays, so that it can be consumed again."""
        self.store = store
        self.proxies = proxies
        self.nodes: list[ForkedServer] = []
        self._directory = directory
        self._fault = fault
        self._age = ("--message-age", "1h" if keeps else "0ms")  # or what is consumed goes at once
        self._ports = [ReservedPort() for _ in proxies]
        self._started = 0
        self.ended: list[ForkedServer] = []

    @property
    def urls(self) -> list[str]:
        return [f"pulsar://{HOST}:{port.number}" for port in self._ports]

    async def start(self) -> None:
        self.nodes = [self._spawn(index) for index in range(len(self.proxies))]
        for node in self.nodes:
            await eventually(partial(getattr, node, "is_ready"), within=START_LIMIT)

    async def start_again(self, index: int) -> None:
        """Another process in the place of one that has ended."""
        self.ended.append(self.nodes[index])
        node = self.nodes[index] = self._spawn(index)
        await eventually(lambda: node.is_ready, within=START_LIMIT)

    def _spawn(self, index: int) -> ForkedServer:
        self._started += 1
        return ForkedServer(
            self._directory / f"node-{index}-{self._started}",
            *("--listen", f"{HOST}:{self._ports[index].number}"),
            *("--store", self.proxies[index].url),
            *FLAGS,
            *self._age,
            fault=self._fault,
        )

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        for port in self._ports:
            port.release()


class Faults:
    """Each kind goes on by itself, so that they meet; what one of them breaks it mends before it goes on."""

    def __init__(
        self,
        cluster: Cluster,
        topic: Topic,
        producers: Sequence[Producer],
        consumers: Sequence[Consumer],
        recorder: Recorder,
        chance: random.Random,
        http: httpx.AsyncClient,
        *,
        seeker: Consumer | None = None,
        goes_back: bool = False,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._producers = producers
        self._consumers = consumers
        self._recorder = recorder
        self._chance = chance
        self._http = http
        self._seeker = seeker
        self._goes_back = goes_back
        # A node needs the store to start, and who looks into the store must not wait for it.
        self._store_needed = trio.Lock()
        self._stopping = trio.Event()

    async def run(self, seconds: float) -> None:
        """Go on for so long; at the end everything runs again."""
        async with trio.open_nursery() as nursery:
            for kind, choices in self._kinds().items():
                nursery.start_soon(self._go_on, kind, choices)
            if self._goes_back:
                await trio.sleep(seconds / 3)
                nursery.start_soon(self._forget, seconds / 3)
                seconds *= 2 / 3
            await trio.sleep(seconds)
            self._stopping.set()
        self._recorder.fault("no more faults")

    def _kinds(self) -> Mapping[str, Sequence[Callable[[], Awaitable[None]]]]:
        clients = [self._close_consumer, self._drop_consumer, self._cut_client, self._cut_client]
        if self._goes_back:
            # Nothing that keeps what the store has forgotten on its way for longer.
            return {"clients": clients}
        seeking = {} if self._seeker is None else {"seeks": [self._seek]}
        moving = {"layout": [self._split_or_merge]} if self._topic.kind == "scalable" and not seeking else {}
        return {
            **seeking,
            **moving,
            "nodes": [self._kill_node, self._kill_node, self._stop_node, self._pause_node],
            "store": [
                self._kill_store,
                self._pause_store,
                self._cut_node_off,
                self._lose_answer,
                self._lose_answer,
                self._steal_segment,
                self._steal_segment,
            ],
            "clients": clients,
        }

    async def _go_on(self, kind: str, choices: Sequence[Callable[[], Awaitable[None]]]) -> None:
        while not self._stopping.is_set():
            with trio.move_on_after(self._chance.uniform(0.05, PACE[kind])):
                await self._stopping.wait()
                return
            await self._chance.choice(choices)()

    # The layout.

    async def _split_or_merge(self) -> None:
        layout = await self._layout()
        active = layout.active
        if len(active) <= FEWEST or (len(active) < MOST and self._chance.random() < 0.5):
            action = f"split/{self._chance.choice(active).segment_id}"
        else:
            left = self._chance.randrange(len(active) - 1)
            action = f"merge/{active[left].segment_id}/{active[left + 1].segment_id}"
        running = [node for node in self._cluster.nodes if node.running and node.out]
        if not running:
            return
        try:
            answer = await self._http.post(
                f"{self._chance.choice(running).http_url}{SCALABLE}/{self._topic.local}/{action}"
            )
            outcome = str(answer.status_code)
        except httpx.HTTPError as error:
            outcome = type(error).__name__
        self._recorder.fault(f"{action}: {outcome}")

    async def _layout(self) -> Layout:
        async with self._store_needed:
            value = self._cluster.store.command("HGET", self._topic.record_key, "value")
        return records.decode_layout(value)

    # Nodes. One at a time.

    async def _kill_node(self) -> None:
        index = self._chance.randrange(len(self._cluster.nodes))
        self._recorder.fault(f"node {index} is killed")
        await trio.to_thread.run_sync(self._cluster.nodes[index].kill)
        await self._come_back(index)

    async def _stop_node(self) -> None:
        index = self._chance.randrange(len(self._cluster.nodes))
        self._recorder.fault(f"node {index} stops in order")
        await trio.to_thread.run_sync(self._cluster.nodes[index].stop)
        await self._come_back(index)

    async def _come_back(self, index: int) -> None:
        # Sooner or later than its lease ends.
        await trio.sleep(self._chance.uniform(0, 1.5 * LEASE))
        async with self._store_needed:
            await self._cluster.start_again(index)
        self._recorder.fault(f"node {index} is back")

    async def _pause_node(self) -> None:
        """It does not know that it was away, and goes on as the owner of what others have claimed meanwhile."""
        index = self._chance.randrange(len(self._cluster.nodes))
        node = self._cluster.nodes[index]
        self._recorder.fault(f"node {index} is paused")
        node.pause()
        await trio.sleep(self._chance.uniform(0.1, 2 * LEASE))
        node.resume()
        self._recorder.fault(f"node {index} goes on")

    # The store. One thing at a time.

    async def _kill_store(self) -> None:
        async with self._store_needed:
            self._recorder.fault("the store is killed")
            await trio.to_thread.run_sync(self._cluster.store.kill)
            await trio.sleep(self._chance.uniform(0, 1))
            await trio.to_thread.run_sync(self._cluster.store.start)
            self._recorder.fault("the store is back")

    async def _pause_store(self) -> None:
        async with self._store_needed:
            self._recorder.fault("the store is paused")
            self._cluster.store.pause()
            await trio.sleep(self._chance.uniform(0.1, 2))
            self._cluster.store.resume()
            self._recorder.fault("the store goes on")

    async def _cut_node_off(self) -> None:
        """A node loses its way to the store while the other one goes on."""
        index = self._chance.randrange(len(self._cluster.proxies))
        proxy = self._cluster.proxies[index]
        async with self._store_needed:
            self._recorder.fault(f"node {index} is cut off from the store")
            if self._chance.random() < 0.5:
                proxy.refuse()
                proxy.cut()
            else:
                proxy.stall()
            await trio.sleep(self._chance.uniform(0.1, 1.5 * LEASE))
            proxy.accept()
            proxy.resume()
            self._recorder.fault(f"node {index} reaches the store again")

    async def _lose_answer(self) -> None:
        """A call is executed, and its caller never hears of it."""
        script = self._chance.choice(_INTERRUPTED)
        index = self._chance.randrange(len(self._cluster.proxies))
        sha = script.sha.encode()
        self._recorder.fault(f"node {index} gets no answer to {script.name}")
        self._cluster.proxies[index].cut_before_reply(lambda request: sha in request)

    async def _steal_segment(self) -> None:
        """A segment is claimed by somebody who is gone at once."""
        layout = await self._layout() if self._topic.kind == "scalable" else None
        key = self._chance.choice(self._topic.log_keys(layout))
        async with self._store_needed:
            stolen = self._cluster.store.command("EVAL", _STEAL, 1, key)
        if stolen:
            self._recorder.fault(f"{key.decode()} is stolen from its owner")

    async def _forget(self, seconds: float) -> None:
        """The store is as it was some time ago, as after a fail-over to a replica that lagged behind."""
        store = self._cluster.store
        files, copy = store.directory / "appendonlydir", store.directory / "copy"
        to = self._recorder.now()
        # A command that is cut in the middle is left out when it is loaded.
        await trio.to_thread.run_sync(partial(shutil.copytree, files, copy))
        await trio.sleep(seconds)
        async with self._store_needed:
            await trio.to_thread.run_sync(store.kill)
            await trio.to_thread.run_sync(shutil.rmtree, files)
            await trio.to_thread.run_sync(copy.rename, files)
            await trio.to_thread.run_sync(store.start)
        self._recorder.note(WentBack(self._recorder.now(), to))
        self._recorder.fault("the store went back")

    # Clients.

    async def _seek(self) -> None:
        assert self._seeker is not None
        self._recorder.fault(f"{self._seeker.name} moves")
        self._seeker.move()

    async def _cut_client(self) -> None:
        clients: list[Producer | Consumer] = [*self._producers, *self._consumers]
        cut = self._chance.choice(clients)
        self._recorder.fault(f"{cut.name} loses its connections")
        cut.cut()

    async def _close_consumer(self) -> None:
        consumer = self._chance.choice(self._consumers)
        self._recorder.fault(f"{consumer.name} leaves and comes back")
        consumer.leave()

    async def _drop_consumer(self) -> None:
        consumer = self._chance.choice(self._consumers)
        self._recorder.fault(f"{consumer.name} hangs up and comes back")
        consumer.drop()
