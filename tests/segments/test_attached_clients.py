"""A topic that clients are connected to, at whichever node, is deleted only by force, and a classic one migrated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

import httpx
import pytest

from gateway.node import Node
from layout.records import decode_layout
from protocol import client
from protocol.framing import encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments import placement
from tests.segments.test_sending import connected
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

ROUND: Final = 0.2
LIMIT: Final = 30.0
TOPIC: Final = TopicName.classic("public", "default", "orders")


@dataclass(frozen=True, slots=True)
class Admin:
    """Asks one node about one topic."""

    http: httpx.AsyncClient
    node: Node
    topic: TopicName = TOPIC
    partitions: int = 0

    async def create(self) -> None:
        await created_classic(self.node, self.topic, self.partitions)

    async def delete(self) -> int:
        """The status that it gets."""
        below = "/partitions" if self.partitions else ""
        return (await self.http.delete(self._url("persistent") + below)).status_code

    async def migrate(self) -> int:
        return (await self.http.post(f"{self._url('scalable')}/migrate")).status_code

    def _url(self, kind: str) -> str:
        return f"{self.node.http_url}/admin/v2/{kind}/public/default/{self.topic.local}"


@asynccontextmanager
async def attached(node: Node, what: str, topic: TopicName = TOPIC) -> AsyncIterator[None]:
    """A client of this kind that is connected."""
    async with client.open_pool(node.pulsar_url) as pool:
        match what:
            case "producer":
                async with client.open_producer(pool, str(topic)) as producer:
                    await producer.send(b"hello")
                    yield
            case "consumer":
                async with client.open_consumer(pool, str(topic), "s"):
                    yield
            case _:
                async with client.open_reader(pool, str(topic)):
                    yield


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as http:
        yield http


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("what", ["producer", "consumer", "reader"])
async def test_connected_clients_keep_a_topic_as_it_is(
    valkey: ValkeyProcess, http: httpx.AsyncClient, what: str, partitions: int
) -> None:
    async with running_node(valkey.url) as node:
        admin = Admin(http, node, partitions=partitions)
        await admin.create()
        async with attached(node, what):
            assert await admin.delete() == 412
            assert await admin.migrate() == 409

        async def deleted() -> bool:
            return await admin.delete() == 204

        # The server hears of it when the connections are closed.
        await eventually(deleted, LIMIT)


async def test_a_topic_is_migrated_once_its_clients_have_left(valkey: ValkeyProcess, http: httpx.AsyncClient) -> None:
    async with running_node(valkey.url) as node:
        admin = Admin(http, node, partitions=2)
        await admin.create()
        async with attached(node, "consumer"):
            assert await admin.migrate() == 409

        async def migrated() -> bool:
            return await admin.migrate() == 204

        await eventually(migrated, LIMIT)


async def test_clients_at_another_node_count_within_a_round(valkey: ValkeyProcess, http: httpx.AsyncClient) -> None:
    async with (
        running_node(valkey.url, rebalance_interval=ROUND) as owner,
        running_node(valkey.url, rebalance_interval=ROUND) as other,
    ):
        await eventually(lambda: len(owner.peers.nodes) == len(other.peers.nodes) == 2, LIMIT)
        sessions = [node.session.record.session for node in (owner, other)]
        names = (TopicName.classic("public", "default", f"orders-{number}") for number in count())
        topic = next(name for name in names if placement.choose(str(name), sessions) == sessions[0])
        admin = Admin(http, other, topic)
        await admin.create()

        async def is_seen() -> bool:
            return (await other.data.port.classic_traffic(topic)).clients == 1

        async def deleted() -> bool:
            return await admin.delete() == 204

        async with attached(owner, "reader", topic):
            await eventually(is_seen, LIMIT)
            assert not other.data.hosting.logs
            assert (await admin.delete(), await admin.migrate()) == (412, 409)
        await eventually(deleted, LIMIT)


@pytest.mark.parametrize(("value", "status"), [("true", 204), ("false", 409)])
async def test_clients_that_follow_a_topic_do_not_keep_it_from_being_migrated(
    valkey: ValkeyProcess, http: httpx.AsyncClient, value: str, status: int
) -> None:
    async with running_node(valkey.url) as node:
        admin = Admin(http, node)
        await admin.create()
        aware = await connected(node)
        producer = BaseCommand(type=BaseCommand.PRODUCER)
        producer.producer.topic = str(TOPIC)
        producer.producer.producer_id = producer.producer.request_id = 1
        producer.producer.metadata.add(key="__pulsar.v5.managed", value=value)
        consumer = BaseCommand(type=BaseCommand.SUBSCRIBE)
        consumer.subscribe.topic = str(TOPIC)
        consumer.subscribe.subscription = "s"
        consumer.subscribe.subType = api.CommandSubscribe.Shared
        consumer.subscribe.consumer_id = consumer.subscribe.request_id = 2
        consumer.subscribe.metadata.add(key="__pulsar.v5.managed", value=value)
        for command, answer in ((producer, BaseCommand.PRODUCER_SUCCESS), (consumer, BaseCommand.SUCCESS)):
            await aware.send(encode(command))
            assert (await aware.receive()).type == answer
        # What they use must not go away under them.
        assert await admin.delete() == 412
        assert await admin.migrate() == status


@pytest.mark.parametrize("what", ["producer", "consumer", "reader"])
async def test_clients_of_a_scalable_name_follow_a_migration(
    valkey: ValkeyProcess, http: httpx.AsyncClient, what: str
) -> None:
    async with running_node(valkey.url) as node:
        admin = Admin(http, node)
        await admin.create()
        async with attached(node, what, TOPIC.canonical):
            assert (await node.data.port.classic_traffic(TOPIC)).clients == 1
            assert await admin.migrate() == 204


@pytest.mark.parametrize("what", ["producer", "queue"])
async def test_clients_of_segments_keep_a_scalable_topic_at_whichever_node_it_is_deleted(
    valkey: ValkeyProcess, http: httpx.AsyncClient, what: str
) -> None:
    async with (
        running_node(valkey.url, rebalance_interval=ROUND) as one,
        running_node(valkey.url, rebalance_interval=ROUND) as other,
    ):
        topic = TOPIC.canonical
        await transitions_of(one).create(topic, 1)

        async def statuses(query: str = "") -> list[int]:
            path = f"/admin/v2/scalable/public/default/{topic.local}{query}"
            return [(await http.delete(node.http_url + path)).status_code for node in (one, other)]

        async def are_seen() -> bool:
            stored = await one.store.get(topic)
            assert stored is not None
            segments = tuple(decode_layout(stored.value).segments.values())
            incarnation = stored.version.incarnation
            figures = [await node.data.port.figures(topic, incarnation, segments, {}) for node in (one, other)]
            return all(sum(it.traffic.clients for it in told.values()) == 1 for told in figures)

        async def are_gone() -> bool:
            return (await statuses())[1] == 404

        async with client.open_pool(one.pulsar_url) as pool:
            opened = (
                client.open_producer(pool, str(topic))
                if what == "producer"
                else client.open_consumer(pool, str(topic), "s")
            )
            async with opened as it:
                if what == "producer":
                    assert isinstance(it, client.TopicProducer)
                    await it.send(b"x")  # it opens segments as it needs them
                await eventually(are_seen, LIMIT)
                assert await statuses() == [412, 412]
        # Who has left does not count, at the other node after a round.
        await eventually(are_gone, LIMIT)


async def test_a_scalable_topic_is_deleted_by_force_under_its_clients(
    valkey: ValkeyProcess, http: httpx.AsyncClient
) -> None:
    async with running_node(valkey.url) as node:
        topic = TOPIC.canonical
        await transitions_of(node).create(topic, 1)
        async with client.open_pool(node.pulsar_url) as pool, client.open_consumer(pool, str(topic), "s"):
            path = f"{node.http_url}/admin/v2/scalable/public/default/{topic.local}"
            assert (await http.delete(path)).status_code == 412
            assert (await http.delete(f"{path}?force=true")).status_code == 204
