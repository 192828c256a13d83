"""Whatever stands in the store may be damaged. It costs what depends on it, and is well again once it is restored.

Each kind of key is damaged in every way that a wrong hand can: another type, other bytes in each of its fields, fields
that are missing or of no name. Meanwhile everybody tries to use what is damaged, and others use what is not.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

import httpx
import pytest
import trio

from gateway.node import Node
from metadata import keys
from metadata.complaints import forget_complaints
from metadata.log_places import LogPlace
from protocol.client.consuming import open_consumer
from protocol.client.outgoing import Message
from protocol.client.pool import ConnectionPool, open_pool
from protocol.client.producing import TopicProducer, open_producer
from protocol.client.topic_consumer import TopicConsumer
from protocol.errors import ProtocolError
from protocol.names import NamespaceName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.support.asking import asking
from tests.support.consumers import registering
from tests.support.nodes import View, Viewer, created_classic, running_node, started_node, transitions_of, viewing
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

SICK: Final = NamespaceName("public", "sick")
VICTIM: Final = TopicName.scalable("public", "sick", "victim")
CLASSIC: Final = TopicName.classic("public", "sick", "classic")
PARTITIONED: Final = TopicName.classic("public", "sick", "parts")
HEALTHY: Final = TopicName.scalable("public", "default", "healthy")
SUBSCRIPTION: Final = "sub"
LIMIT: Final = 30.0
# What one try at something damaged may take: some of it waits for the damage to be mended.
TRY: Final = 0.2
# Bytes that none of our fields should hold; some hold such a thing by right, and then nothing is wrong.
BYTES: Final = (b"\xff\xfe", b"", b"{", b"[]", b'{"epoch":-1}', b"-7", b"9" * 30, b"[" * 20_000)
# Fields that no key of ours has.
NAMES: Final = (b"\xff\xfe", b"a//b", b"", b"c:\xff", b"e:x", b"owner:x", b"request:x", b"v:x", b"a/b/c/d/e")
# Entries of a stream that no script of ours writes.
ENTRIES: Final[Sequence[dict[Any, Any]]] = (
    {b"x": b"y"},
    {b"topic": b"\xff", b"kind": b"topic"},
    {b"h": b"\xff", b"d": b""},
)


@dataclass(frozen=True)
class Place:
    """Where something lies that is damaged: its key, as soon as the topics are there."""

    name: str
    key: Callable[[Scene], bytes]


class Scene:
    """A node with topics to be damaged, and one that everybody goes on using."""

    def __init__(
        self, node: Node, server: ValkeyProcess, pool: ConnectionPool, viewer: Viewer, http: httpx.AsyncClient
    ) -> None:
        self._http = http
        self.node = node
        self.server = server
        self.pool = pool
        self.viewer = viewer
        self.incarnations: dict[TopicName, str] = {}
        self.healthy: Healthy

    async def prepare(self) -> None:
        await self.node.store.create_namespace(SICK)
        for topic in (VICTIM, HEALTHY):
            await transitions_of(self.node).create(topic, 1)
        await created_classic(self.node, CLASSIC)
        await created_classic(self.node, PARTITIONED, 2)
        for topic in (VICTIM, CLASSIC, PARTITIONED):
            async with open_producer(self.pool, str(topic)) as producer, self.consumer(topic) as consumer:
                await producer.send(Message(b"first", key="k"))
                with trio.fail_after(LIMIT):
                    await consumer.ack(await consumer.receive())
        assert (await self.call("POST", "schemas/public/sick/victim/schema", json=SCHEMA)).status_code == 200
        stored = await self.node.store.get(VICTIM)
        assert stored is not None
        self.incarnations[VICTIM] = stored.version.incarnation
        for topic in (CLASSIC, CLASSIC.partition_at(0)):
            state = await self.node.data.plane.hosting._around.logs.state(LogPlace.of_classic(CLASSIC))
            assert state is not None
            self.incarnations[topic] = state.incarnation

    def consumer(self, topic: TopicName) -> Any:
        return open_consumer(self.pool, str(topic), SUBSCRIPTION, initial_position="earliest")

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self._http.request(method, f"/admin/v2/{path}", **options)

    def copies(self, key: bytes) -> dict[bytes, bytes]:
        """Of what is to be damaged, with all that goes with it."""
        client = self.server.client()
        names: list[bytes] = client.keys("/*")  # type: ignore[assignment] # bytes: the client does not decode
        return {name: client.dump(name) for name in names if b"/sick" in name or name == key}  # type: ignore[misc] # as above

    def put_back(self, copies: dict[bytes, bytes], key: bytes) -> None:
        with self.server.client().pipeline(transaction=True) as restoring:
            restoring.delete(key)
            for name, value in copies.items():
                restoring.restore(name, 0, value, replace=True)
            restoring.execute()

    async def try_everything(self) -> None:
        """What clients and operators do with the damaged topics; each is answered, or waits."""
        async with trio.open_nursery() as nursery:
            for path in GETS:
                nursery.start_soon(self._ask, "GET", path)
            nursery.start_soon(self._ask, "PUT", "schemas/public/sick/victim/compatibility")
            nursery.start_soon(self._watch)
            nursery.start_soon(self._watch_list)
            for topic in (VICTIM, CLASSIC, PARTITIONED):
                nursery.start_soon(self._use, topic)

    async def _ask(self, method: str, path: str) -> None:
        with trio.move_on_after(TRY):
            response = await self.call(method, path)
            assert "Something went wrong" not in response.text, (path, response.text)

    async def _watch(self) -> None:
        view = await self.viewer.watch(VICTIM, create=False)
        with trio.move_on_after(TRY):
            await eventually(lambda: bool(view.updates))

    async def _watch_list(self) -> None:
        with trio.move_on_after(TRY):
            async with asking(self.node) as asker:
                await asker.watch("public/sick/.*", namespace="public/sick")

    async def _use(self, topic: TopicName) -> None:
        with trio.move_on_after(TRY):
            try:
                async with open_producer(self.pool, str(topic)) as producer, self.consumer(topic) as consumer:
                    await producer.send(Message(b"try", key="k"))
                    await consumer.ack(await consumer.receive())
            except ProtocolError:
                pass

    async def is_well(self) -> None:
        """Everything that was damaged can be used again."""
        for path in GETS:
            response = await self.call("GET", path)
            assert response.status_code in (200, 204, 404), (path, response.text)
        view = await self.viewer.watch(VICTIM, create=False)
        await eventually(lambda: view.updates and view.last.HasField("dag"))
        for topic in (VICTIM, CLASSIC, PARTITIONED):
            with trio.fail_after(LIMIT):
                async with open_producer(self.pool, str(topic)) as producer, self.consumer(topic) as consumer:
                    await producer.send(Message(b"well", key="k"))
                    while (await consumer.receive()).value != b"well":
                        pass


SCHEMA: Final = {"type": "STRING", "schema": "", "properties": {}}
GETS: Final = (
    "namespaces/public",
    "namespaces/public/sick",
    "namespaces/public/sick/retention",
    "scalable/public/sick",
    "scalable/public/sick/victim",
    "scalable/public/sick/victim/stats",
    "scalable/public/sick/victim/subscriptions",
    "schemas/public/sick/victim/schema",
    "schemas/public/sick/victim/schemas",
    "persistent/public/sick",
    "persistent/public/sick/partitioned",
    "persistent/public/sick/classic/stats",
    "persistent/public/sick/classic/subscriptions",
    "persistent/public/sick/parts/partitions",
    "persistent/public/sick/parts/partitioned-stats",
)


class Healthy:
    """Somebody who produces, consumes, watches and administers another topic all the time."""

    def __init__(self, scene: Scene, producer: TopicProducer, consumer: TopicConsumer) -> None:
        self._scene = scene
        self._producer = producer
        self._consumer = consumer
        self._numbers = count()

    async def goes_on(self) -> None:
        with trio.fail_after(LIMIT):
            value = b"%d" % next(self._numbers)
            await self._producer.send(Message(value, key="k"))
            message = await self._consumer.receive()
            assert message.value == value
            await self._consumer.ack(message)
            response = await self._scene.call("GET", "scalable/public/default/healthy")
            assert response.status_code == 200, response.text
        assert not self._scene.viewer.hung_up


def scalable(scene: Scene) -> LogPlace:
    return LogPlace.of_segment(VICTIM, "0000-ffff-0")


_PATH: Final = keys.path_of(VICTIM)
_CLASSIC_PATH: Final = keys.path_of(CLASSIC)
_PARTS_PATH: Final = keys.path_of(PARTITIONED)
_BUCKET: Final = keys.bucket_of(_PATH)

PLACES: Final = (
    Place("record", lambda scene: keys.record_key(_PATH)),
    Place("segment", lambda scene: scalable(scene).key),
    Place("log", lambda scene: scalable(scene).log(scene.incarnations[VICTIM])),
    Place("cursors", lambda scene: scalable(scene).cursors(scene.incarnations[VICTIM])),
    Place("producers", lambda scene: scalable(scene).producers(scene.incarnations[VICTIM])),
    Place("ledgers", lambda scene: keys.ledgers_key(_BUCKET)),
    Place("subscriptions", lambda scene: keys.subscriptions_key(_PATH)),
    Place("members", lambda scene: keys.members_key(_PATH, SUBSCRIPTION)),
    Place("deleted", lambda scene: keys.deleted_key(_PATH)),
    Place("leaders", lambda scene: keys.leaders_key(_BUCKET)),
    Place("garbage", lambda scene: keys.garbage_key(_BUCKET)),
    Place("schemas", lambda scene: keys.schemas_key(_PATH, scene.incarnations[VICTIM])),
    Place("index", lambda scene: keys.index_key(_BUCKET, SICK)),
    Place("classic", lambda scene: keys.classic_key(_CLASSIC_PATH)),
    Place("classic cursors", lambda scene: LogPlace.of_classic(CLASSIC).cursors(scene.incarnations[CLASSIC])),
    Place("classic index", lambda scene: keys.classic_index_key(keys.bucket_of(_CLASSIC_PATH), SICK)),
    Place("partitioned", lambda scene: keys.partitioned_key(_PARTS_PATH)),
    Place("partitioned index", lambda scene: keys.partitioned_index_key(keys.bucket_of(_PARTS_PATH), SICK)),
    Place("namespaces", lambda scene: keys.NAMESPACES),
    Place("nodes", lambda scene: keys.NODES),
    Place("node", lambda scene: keys.node_key("0123456789abcdef")),
    Place("changes", lambda scene: keys.changes_key(_BUCKET)),
    Place("mark", lambda scene: keys.marker_key(_BUCKET)),
)


@pytest.fixture(autouse=True)
def _complain_anew() -> Iterator[None]:
    forget_complaints()
    yield
    forget_complaints()


@asynccontextmanager
async def scene_at(server: ValkeyProcess) -> AsyncIterator[Scene]:
    async with (
        running_node(server.url, prune_interval=0.5) as node,
        open_pool(node.pulsar_url) as pool,
        viewing(node) as viewer,
        httpx.AsyncClient(base_url=node.http_url, timeout=LIMIT, verify=False) as http,
    ):
        scene = Scene(node, server, pool, viewer, http)
        await scene.prepare()
        async with (
            open_producer(pool, str(HEALTHY)) as producer,
            open_consumer(pool, str(HEALTHY), "sub", initial_position="earliest") as consumer,
        ):
            scene.healthy = Healthy(scene, producer, consumer)
            yield scene


def damages(server: ValkeyProcess, key: bytes) -> Iterator[tuple[str, Callable[[], object]]]:
    """What can be done to a key, by what it holds."""
    client = server.client()
    kind = client.type(key)

    def replace(write: Callable[..., object], *content: bytes) -> None:
        client.delete(key)
        write(key, *content)

    yield "another type", partial(replace, client.sadd, b"x")
    if kind == b"hash":
        fields: list[bytes] = list(client.hkeys(key))  # type: ignore[arg-type] # not a coroutine: the client blocks
        for position, field in enumerate(fields):
            # Not all of them each time, which would take minutes: in turns, so that all of them are met in a hash.
            for number in (position, position + 3, position + 5):
                value = BYTES[number % len(BYTES)]
                yield f"{field!r} is {value[:32]!r}", partial(client.hset, key, field, value)
            yield f"{field!r} is missing", partial(client.hdel, key, field)
    if kind in (b"hash", b"none"):
        for name in NAMES:
            yield f"there is {name!r}", partial(client.hset, key, name, b"\xff")
    if kind == b"stream":
        for entry in ENTRIES:
            yield f"there is {entry!r}", partial(client.xadd, key, entry)
    if kind in (b"string", b"none"):
        for value in BYTES:
            yield f"it is {value[:32]!r}", partial(replace, client.set, value)
    if kind == b"none":
        yield "a list", partial(replace, client.rpush, b"\xff", b"", b"  ")


def faults_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        f"{record.getMessage()}: {record.exc_text or record.exc_info}" for record in caplog.records if record.exc_info
    ]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
async def test_what_is_damaged_costs_itself_and_is_well_once_it_is_restored(
    valkey: ValkeyProcess, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with scene_at(valkey) as scene:
        key = place.key(scene)
        copies = scene.copies(key)
        for what, damage in damages(valkey, key):
            damage()
            await scene.try_everything()
            await scene.healthy.goes_on()
            assert not faults_in(caplog), (what, faults_in(caplog))
            assert not scene.node.failures, what
            if what == "another type":
                # And again after a restart.
                async with (
                    started_node(valkey.url, store_timeout=1.0) as second,
                    open_pool(second.pulsar_url) as pool,
                    open_producer(pool, str(HEALTHY)) as producer,
                ):
                    with trio.fail_after(LIMIT):
                        await producer.send(Message(b"second", key="k"))
                with trio.fail_after(LIMIT):
                    message = await scene.healthy._consumer.receive()
                    await scene.healthy._consumer.ack(message)
            scene.put_back(copies, key)
        await eventually(lambda: not scene.node.readiness())
        await scene.is_well()
        await scene.healthy.goes_on()
        assert not faults_in(caplog), faults_in(caplog)
        assert not scene.node.failures


async def test_a_consumer_that_comes_to_damaged_data_is_told_and_may_come_again(valkey: ValkeyProcess) -> None:
    client = valkey.client()
    async with running_node(valkey.url) as node, registering(node.pulsar_url) as connection:
        await transitions_of(node).create(HEALTHY, 1)
        key = keys.subscriptions_key(keys.path_of(HEALTHY))
        client.set(key, "damaged")
        refused = await connection.subscribed(HEALTHY, SUBSCRIPTION, "c")
        assert refused.error == api.MetadataError
        assert key.decode() in refused.response.message
        client.delete(key)
        consumer = await connection.subscribed(HEALTHY, SUBSCRIPTION, "c")
        await eventually(lambda: consumer.ids == {0})


async def test_damage_is_said_once_although_it_is_met_again_and_again(
    valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(valkey.url) as node, viewing(node) as viewer:
        await transitions_of(node).create(HEALTHY, 1)
        valkey.client().hset(keys.record_key(keys.path_of(HEALTHY)), "value", b"{")
        for _ in range(5):
            view = await viewer.watch(HEALTHY)
            await eventually(partial(_is_refused, view))
    assert len([it for it in caplog.messages if "cannot be served" in it]) == 1


def _is_refused(view: View) -> bool:
    return view.errors == [api.MetadataError]
