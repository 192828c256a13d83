"""Several real `vela serve` processes on one store, each on its own way to it if a test wants to cut it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import msgspec
import trio

from layout import records
from layout.layouts import Layout
from metadata import keys
from metadata.records import Leader
from metadata.subscriptions import Assignment, Attachment
from protocol.names import TopicName
from tests.e2e.forked import ForkedServer
from tests.e2e.peers import Update, full, greeted, next_update, watch
from tests.e2e.vela_process import SCALABLE, START_LIMIT, VelaServer
from tests.support.consumers import ConsumerConnection, RegisteredConsumer, connect_consumers
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

# Small enough to wait for, and large enough that a busy machine does not lose a lease by accident.
LEASE: Final = 2.0
GRACE: Final = 5.0
QUICK: Final = (
    *("--session-lease", f"{LEASE:g}s"),
    *("--consumer-grace", f"{GRACE:g}s"),
    *("--probe-interval", "200ms"),
    *("--prune-interval", "500ms"),
    *("--message-age", "0ms"),
    *("--store-timeout", "500ms"),
    *("--store-connect-timeout", "500ms"),
    *("--shutdown-grace", "500ms"),
)
# What a take-over, a reconnect and a read-back may add up to on a busy machine.
SETTLE_LIMIT: Final = 30.0

# One look at a topic, all of it of the same moment: its record, its segments with their states, the garbage list.
_LOOK: Final = """
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local state = redis.call('HMGET', key, 'state', 'incarnation')
  found[#found + 1] = {key, state[1] or '', state[2] or ''}
end
return {redis.call('HMGET', KEYS[1], 'value', 'incarnation', 'leader'), found, redis.call('HKEYS', KEYS[2])}
"""


@dataclass(frozen=True, slots=True)
class StoredConsumer:
    attachment: Attachment
    assignment: Assignment | None

    @property
    def segments(self) -> frozenset[int]:
        return frozenset() if self.assignment is None else frozenset(self.assignment.segment_ids)


@dataclass(frozen=True, slots=True)
class StoredState:
    """A topic as the store has it at one moment."""

    layout: Layout
    incarnation: str
    leader: Leader | None
    states: Mapping[str, str]  # of segments of this incarnation, by descriptor
    garbage: frozenset[str]  # descriptors whose storage is to be deleted

    def check(self) -> None:
        """No segment is lost, doubled or in another state than the layout says."""
        self.layout.validate()
        expected = {segment.descriptor: segment.state.value for segment in self.layout.segments.values()}
        kept = {name: state for name, state in self.states.items() if name in expected or name not in self.garbage}
        assert kept == expected, f"epoch {self.layout.epoch}: stored {kept}, in the layout {expected}"


class ControllerCluster:
    """The store, the nodes on it and, if asked for, one proxy per node. Nodes may be replaced."""

    def __init__(self, store: ValkeyProcess, directory: Path, http: httpx.AsyncClient, flags: Sequence[str]) -> None:
        self.store = store
        self.http = http
        self.nodes: list[ForkedServer] = []
        self.proxies: list[FaultProxy] = []
        self._directory = directory
        self._flags = flags
        self._started = 0
        self._copy: Path | None = None

    # Nodes.

    def spawn(self, store_url: str) -> ForkedServer:
        """A node that is not ready yet."""
        self._started += 1
        return ForkedServer(self._directory / f"node-{self._started}", "--store", store_url, *self._flags)

    def url_for(self, index: int) -> str:
        return self.proxies[index].url if self.proxies else self.store.url

    async def until_ready(self, *nodes: ForkedServer) -> None:
        for node in nodes:
            await eventually(partial(getattr, node, "is_ready"), within=START_LIMIT)

    async def start_again(self, index: int) -> ForkedServer:
        """Another process in the place of one that has ended."""
        node = self.nodes[index] = self.spawn(self.url_for(index))
        await self.until_ready(node)
        return node

    def at(self, pulsar_url: str) -> int:
        """Which node has this address."""
        return next(index for index, node in enumerate(self.nodes) if node.running and node.pulsar_url == pulsar_url)

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    # Admin requests; redirects are followed.

    async def create(self, topic: str, segments: int = 1, *, at: int = 0) -> None:
        answer = await self.http.put(f"{self.nodes[at].http_url}{SCALABLE}/{topic}?numInitialSegments={segments}")
        assert answer.status_code == 204, answer.text

    async def operate(self, topic: str, operation: str, *, at: int = 0) -> httpx.Response:
        return await self.http.post(f"{self.nodes[at].http_url}{SCALABLE}/{topic}/{operation}")

    async def metric(self, index: int, name: str) -> float:
        text = (await self.http.get(f"{self.nodes[index].http_url}/metrics")).text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))

    # The truth.

    def look(self, topic: str) -> StoredState:
        path = path_of(topic)
        pattern = keys.segment_key(path, "*")
        script_keys = [keys.record_key(path), keys.garbage_key(keys.bucket_of(path))]
        record, segments, garbage = self.store.command("EVAL", _LOOK, len(script_keys), *script_keys, pattern)
        value, incarnation, leader = record
        assert value is not None, f"{topic} is not in the store"
        prefix = incarnation + b"/" + path.encode() + b"/"
        return StoredState(
            records.decode_layout(value),
            incarnation.decode(),
            Leader.parse(leader) if leader else None,
            {
                key.decode().rpartition("/")[2]: state.decode()
                for key, state, holder in segments
                if holder == incarnation
            },
            frozenset(entry[len(prefix) :].decode() for entry in garbage if entry.startswith(prefix)),
        )

    def leader_of(self, topic: str) -> Leader | None:
        return self.look(topic).leader

    def led_by(self, topic: str) -> int:
        """Which of the running nodes leads a topic; an assertion fails where none does."""
        leader = self.leader_of(topic)
        assert leader is not None, f"nobody leads {topic}"
        found = [i for i, node in enumerate(self.nodes) if node.running and node.pulsar_url == leader.pulsar_url]
        assert found, f"{topic} is led by {leader.pulsar_url}, which is gone"
        return found[0]

    async def until_led(self, topic: str, *, otherwise_than: Leader | None = None, within: float = 30.0) -> int:
        """Wait for a leader that is a session of a running node, and another leadership than this one."""

        def led() -> list[int]:
            leader = self.leader_of(topic)
            assert leader is not None
            assert leader != otherwise_than
            assert self.is_session(leader.session), f"{leader} is gone"
            return [self.led_by(topic)]

        [index] = await eventually(led, within)
        return index

    def consumers(self, topic: str, subscription: str) -> dict[str, StoredConsumer]:
        fields = self.store.command("HGETALL", keys.members_key(path_of(topic), subscription))
        return {
            name[2:].decode(): StoredConsumer(
                msgspec.json.decode(entry, type=Attachment),
                msgspec.json.decode(given, type=Assignment) if (given := fields.get(b"a:" + name[2:])) else None,
            )
            for name, entry in fields.items()
            if name.startswith(b"c:")
        }

    def generation(self, topic: str, subscription: str) -> int:
        """How often the assignments of a subscription were written."""
        return int(self.store.command("HGET", keys.members_key(path_of(topic), subscription), "generation") or 0)

    def is_session(self, session: str) -> bool:
        """Whether a node is alive under this session."""
        return bool(session and self.store.command("EXISTS", keys.node_key(session)))

    # What can happen to the store.

    def copy_store(self) -> None:
        """Keep what is on its disk now; with `appendfsync always` that is all it has answered."""
        if self._copy is not None:
            shutil.rmtree(self._copy)
        self._copy = self.store.directory / "copy"
        shutil.copytree(self.store.directory / "appendonlydir", self._copy)

    async def roll_back_store(self) -> None:
        """It comes back without its latest writes, as after a fail-over to a replica that had not got them."""
        assert self._copy is not None
        self.store.kill()
        shutil.rmtree(self.store.directory / "appendonlydir")
        shutil.copytree(self._copy, self.store.directory / "appendonlydir")
        await trio.to_thread.run_sync(self.store.start)

    async def restart_store(self) -> None:
        self.store.kill()
        await trio.to_thread.run_sync(self.store.start)


class Team:
    """Consumers of one subscription, each on a connection of its own to one of the nodes."""

    def __init__(
        self, cluster: ControllerCluster, nursery: trio.Nursery, topic: str, subscription: str = "sub"
    ) -> None:
        self.topic = topic
        self.subscription = subscription
        self.members: dict[str, RegisteredConsumer] = {}
        self.connections: dict[str, ConsumerConnection] = {}
        self.places: dict[str, int] = {}
        self._cluster = cluster
        self._nursery = nursery

    async def join(self, name: str, at: int) -> RegisteredConsumer:
        """Register, anew or again, over a new connection, and wait for the answer."""
        consumer = await self.begin_to_join(name, at)
        await eventually(lambda: consumer.answered, within=SETTLE_LIMIT)
        assert consumer.error is None, consumer.response
        return consumer

    async def begin_to_join(self, name: str, at: int) -> RegisteredConsumer:
        """The same without waiting."""
        connection = await connect_consumers(self._nursery, self._cluster.nodes[at].pulsar_url)
        consumer = await connection.subscribe(full(self.topic), self.subscription, name)
        self.members[name], self.connections[name], self.places[name] = consumer, connection, at
        return consumer

    def lose(self, name: str) -> None:
        """Its connection is gone, and it will not come back."""
        self.connections.pop(name).disconnect()
        del self.members[name], self.places[name]

    def at(self, *nodes: int) -> list[str]:
        """The names of those who are connected there."""
        return [name for name, place in self.places.items() if place in nodes]

    def told(self) -> dict[str, set[int]]:
        return {name: consumer.ids for name, consumer in self.members.items()}

    def pushes(self) -> dict[str, int]:
        return {name: len(consumer.updates) for name, consumer in self.members.items()}

    async def until_settled(self, within: float = SETTLE_LIMIT) -> None:
        await eventually(self.check_settled, within)

    async def exercise(self, within: float = SETTLE_LIMIT) -> None:
        """Give everybody something else, to see that each of them still hears."""
        await self.until_settled(within)
        running = [index for index, node in enumerate(self._cluster.nodes) if node.running]
        for number, ids in enumerate(list(self.told().values())):
            if ids:
                answer = await self._cluster.operate(self.topic, f"split/{min(ids)}", at=running[number % len(running)])
                assert answer.status_code == 204, answer.text
        await self.until_settled(within)

    def check_settled(self) -> bool:
        """All are registered and nobody else; they have the active segments between them, and know it."""
        state = self._cluster.look(self.topic)
        state.check()
        stored = self._cluster.consumers(self.topic, self.subscription)
        assert stored.keys() == self.members.keys(), f"stored {sorted(stored)}, there are {sorted(self.members)}"
        assert all(self._cluster.is_session(consumer.attachment.node) for consumer in stored.values())
        assert state.leader is not None
        assert self._cluster.is_session(state.leader.session)
        owned = Counter(segment_id for consumer in stored.values() for segment_id in consumer.segments)
        assert owned == Counter(segment.segment_id for segment in state.layout.active), f"owned {owned}"
        given = {name: set(consumer.segments) for name, consumer in stored.items()}
        assert given == self.told(), f"stored {given}, told {self.told()}"
        for name, connection in self.connections.items():
            assert not connection.hung_up, f"{name} was cut"
            if connection.complaints:
                raise Complaints(f"{name}: {connection.complaints}")
        return True


class Complaints(Exception):
    """What no waiting makes good."""


class DagView:
    """A DAG watch at one node, with every update that came."""

    def __init__(self) -> None:
        self.updates: list[Update] = []

    @property
    def controllers(self) -> list[str]:
        """Whom it was told to be the leader, one after the other."""
        urls = [update.dag.controller_broker_url for update in self.updates]
        return [url for url, before in zip(urls, [None, *urls], strict=False) if url != before]

    def shows_only_later_leaders(self, leader: Leader | None, *, than: Leader) -> bool:
        """It has come from the one leader to the other, and never back."""
        assert leader is not None
        assert self.controllers[0] == than.pulsar_url
        assert self.controllers[-1] == leader.pulsar_url
        assert than.pulsar_url not in self.controllers[1:]
        return True

    async def run(self, node: VelaServer, topic: str) -> None:
        async with greeted(node) as client:
            await client.send(watch(1, full(topic), create=False))
            while True:
                update = await next_update(client, within=float("inf"))
                assert not update.HasField("error"), update
                self.updates.append(update)


@asynccontextmanager
async def running_cluster(
    directory: Path, count: int, *flags: str, proxied: bool = False
) -> AsyncIterator[ControllerCluster]:
    """So many ready nodes; at the end none of those still running may have logged a traceback."""
    async with AsyncExitStack() as stack:
        store = stack.enter_context(ValkeyProcess(appendfsync="always").start())
        limits = httpx.Limits(max_keepalive_connections=0)
        http = await stack.enter_async_context(
            httpx.AsyncClient(timeout=30, trust_env=False, follow_redirects=True, limits=limits)
        )
        cluster = ControllerCluster(store, directory, http, [*QUICK, *flags])
        if proxied:
            cluster.proxies = [await stack.enter_async_context(FaultProxy.open(*store.address)) for _ in range(count)]
        stack.callback(cluster.close)
        cluster.nodes = [cluster.spawn(cluster.url_for(index)) for index in range(count)]
        await cluster.until_ready(*cluster.nodes)
        yield cluster
        for node in cluster.nodes:
            assert "Traceback" not in node.err, node.err


def path_of(topic: str) -> str:
    return keys.path_of(TopicName("topic", "public", "default", topic))


def host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
