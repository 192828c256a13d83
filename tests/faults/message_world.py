"""One run: two nodes on one store, four producers, consumers of each kind, faults for a while, then peace.

What a seed decides is what is done and in which order; when exactly it meets the servers is up to the machine.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import trio

from protocol import client
from tests.faults.message_clients import Consumer, Producer, Recorder, queue_consumer, stream_consumer
from tests.faults.message_faults import Cluster, Faults
from tests.faults.message_history import Anew, History, Subscription
from tests.faults.message_topics import Topic, TopicKind
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import Never, eventually

NODES: Final = 2
STREAM: Final = Subscription("stream", ordered=True)
# As a stream is, for topics that cannot have one.
FAILOVER: Final = Subscription("failover", ordered=True, takes_turns=True)
QUEUE: Final = Subscription("queue", ordered=False)
KEYS: Final = Subscription("keys", ordered=False, keyed=True)
SEEK: Final = Subscription("seek", ordered=False)
# For how long consumers of keys keep some messages: others must not be given the same key meanwhile.
HOLDS: Final = 0.2
PARTITIONS: Final = 3
# How long nothing may come, on a busy machine, while what happened last is made good: leases, graces, hand-overs.
SETTLE_LIMIT: Final = 60.0
# For how long messages are sent after everything: enough that each key has some.
LAST_MESSAGES: Final = 1.0
# Before the faults are over: a run in which hardly anything was sent proves nothing.
FEWEST_STORED: Final = 100


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    seconds: float = 15.0  # of faults
    producers: int = 4
    rate: float = 20.0  # messages per second of each producer, on average
    keys: int = 12
    stream_consumers: int = 3
    queue_consumers: int = 2
    key_consumers: int = 2
    topic: TopicKind = "scalable"
    seeks: bool = False  # one more subscription is moved now and then; nothing is trimmed, and the layout stays
    goes_back: bool = False  # the store forgets the last seconds once, and little else happens
    settle_limit: float = SETTLE_LIMIT
    program: Path | None = None  # of the store, if it is not to be Valkey
    planted: str = ""  # a fault that the servers have, out of `tests.faults.planted`


async def run(plan: Plan, directory: Path) -> History:
    """The history of a run, complete unless messages were lost."""
    chance = random.Random(plan.seed)
    ordered = STREAM if plan.topic == "scalable" else FAILOVER
    recorder = Recorder([ordered, QUEUE, KEYS, *([SEEK] if plan.seeks else [])])
    async with AsyncExitStack() as stack:
        # Killed, it loses nothing that it answered.
        store = stack.enter_context(ValkeyProcess(plan.program, appendfsync="always").start())
        proxies = [await stack.enter_async_context(FaultProxy.open(*store.address)) for _ in range(NODES)]
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=10, trust_env=False, follow_redirects=True))
        cluster = Cluster(store, proxies, directory, plan.planted, keeps=plan.seeks)
        stack.callback(cluster.close)
        await cluster.start()
        world = _World(plan, cluster, recorder, chance, http)
        await world.run()
        for node in (*cluster.nodes, *cluster.ended):
            assert "Traceback" not in node.err, node.err
    return recorder.history()


class _World:
    def __init__(
        self, plan: Plan, cluster: Cluster, recorder: Recorder, chance: random.Random, http: httpx.AsyncClient
    ) -> None:
        self._plan = plan
        self._cluster = cluster
        self._recorder = recorder
        self._chance = chance
        self._http = http
        self._topic = Topic(f"messages-{plan.seed}", plan.topic, PARTITIONS)
        name = self._topic.name
        self._keys = [f"k{number}" for number in range(plan.keys)]
        self._consumers: list[Consumer] = [
            *(queue_consumer(recorder, name, QUEUE, f"q{n}") for n in range(plan.queue_consumers)),
            *(
                queue_consumer(recorder, name, KEYS, f"k{n}", client.KEY_SHARED, holds=HOLDS)
                for n in range(plan.key_consumers)
            ),
        ]
        for n in range(plan.stream_consumers):
            if plan.topic == "scalable":
                self._consumers.append(stream_consumer(recorder, name, STREAM, f"s{n}"))
            else:
                self._consumers.append(queue_consumer(recorder, name, FAILOVER, f"f{n}", client.FAILOVER))
        self._seeker = queue_consumer(recorder, name, SEEK, "seeker") if plan.seeks else None
        if self._seeker is not None:
            self._consumers.append(self._seeker)

    async def run(self) -> None:
        path, body = self._topic.creation
        created = await self._http.put(f"{self._cluster.nodes[0].http_url}{path}", json=body)
        assert created.status_code == 204, created.text
        async with trio.open_nursery() as nursery:
            for consumer in self._consumers:
                await nursery.start(consumer.run, self._cluster.urls, self._seeded())
            async with self._producing("p") as producers:
                faults = Faults(
                    self._cluster,
                    self._topic,
                    producers,
                    self._consumers,
                    self._recorder,
                    self._seeded(),
                    self._http,
                    seeker=self._seeker,
                    goes_back=self._plan.goes_back,
                )
                await faults.run(self._plan.seconds)
                # However long that takes here.
                await eventually(lambda: self._recorder.stored >= FEWEST_STORED, within=2 * SETTLE_LIMIT)
            if await self._is_consumed():
                await self._begin_anew()
            for consumer in self._consumers:
                consumer.stop()

    @asynccontextmanager
    async def _producing(self, name: str) -> AsyncIterator[list[Producer]]:
        """Producers while the body runs; returns when they know what became of their messages."""
        plan = self._plan
        producers = [
            Producer(self._recorder, f"{name}{number}", self._keys, plan.rate, self._seeded())
            for number in range(plan.producers)
        ]
        async with trio.open_nursery() as nursery:
            for producer in producers:
                await nursery.start(producer.run, self._cluster.urls, self._topic.name)
            yield producers
            for producer in producers:
                producer.stop()

    async def _is_consumed(self) -> bool:
        """Wait until every message has come and every acknowledgement is confirmed; False if nothing goes on."""
        before = -1
        while self._recorder.settled > before:
            before = self._recorder.settled
            try:
                await eventually(lambda: not self._recorder.missing(), within=self._plan.settle_limit)
            except Never:
                continue
            return True
        self._recorder.fault(f"after {self._plan.settle_limit:g} s {self._recorder.missing()}")
        for consumer in self._consumers:
            self._recorder.fault(consumer.standing())
        stats = await self._http.get(f"{self._cluster.nodes[0].http_url}{self._topic.stats_path}")
        self._recorder.fault(stats.text)
        return False

    async def _begin_anew(self) -> None:
        """Let all nodes forget what is not stored: whatever comes back then comes before what is sent after it."""
        for index, node in enumerate(self._cluster.nodes):
            await trio.to_thread.run_sync(node.kill)
            await self._cluster.start_again(index)
        self._recorder.note(Anew(self._recorder.now()))
        async with self._producing("last"):
            await trio.sleep(LAST_MESSAGES)
        await self._is_consumed()

    def _seeded(self) -> random.Random:
        """A chance of its own for everything that runs by itself, or it would depend on who comes first."""
        return random.Random(self._chance.random())
