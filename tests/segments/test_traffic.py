"""Statistics of what goes through logs: the same at every node, and true within a round of their owners."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

import httpx
import pytest
import trio

from gateway.node import Node
from metadata.log_figures import Traffic
from metadata.log_places import LogPlace
from metadata.segment_logs import SegmentLogs
from protocol import client
from protocol.client.connection import CLIENT_VERSION
from protocol.names import TopicName
from segments import placement
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

ROUND: Final = 0.2
LIMIT: Final = 30.0
BODY: Final = b"x" * 100
SEGMENTS: Final = ("0000-7fff-0", "8000-ffff-1")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two nodes that know each other, with a client of each that asks for statistics."""

    owner: Node
    other: Node
    http: httpx.AsyncClient

    def topic(self) -> TopicName:
        """One whose segments all belong to the first node."""
        names = (TopicName.scalable("public", "default", f"orders-{number}") for number in count())
        return next(name for name in names if all(self._is_owners(LogPlace.of_segment(name, s).name) for s in SEGMENTS))

    def classic(self) -> TopicName:
        names = (TopicName.classic("public", "default", f"orders-{number}") for number in count())
        return next(name for name in names if self._is_owners(str(name)))

    def _is_owners(self, log: str) -> bool:
        sessions = [node.session.record.session for node in (self.owner, self.other)]
        return placement.choose(log, sessions) == sessions[0]

    async def stats(self, node: Node, topic: TopicName, what: str = "stats") -> Any:
        kind = "scalable" if topic.domain == "topic" else "persistent"
        answer = await self.http.get(f"{node.http_url}/admin/v2/{kind}/public/default/{topic.local}/{what}")
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def pair(valkey: ValkeyProcess) -> AsyncIterator[Pair]:
    async with (
        running_node(valkey.url, rebalance_interval=ROUND) as owner,
        running_node(valkey.url, rebalance_interval=ROUND) as other,
        httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as http,
    ):
        await eventually(lambda: len(owner.peers.nodes) == len(other.peers.nodes) == 2, LIMIT)
        yield Pair(owner, other, http)


async def receive(consumer: client.TopicConsumer, messages: int) -> list[client.ReceivedMessage]:
    with trio.fail_after(LIMIT):
        return [await consumer.receive() for _ in range(messages)]


async def send(producer: client.TopicProducer, messages: int) -> None:
    for number in range(messages):
        await producer.post(client.Message(BODY, key=f"key-{number}"))
    await producer.flush()


async def test_a_node_that_owns_nothing_tells_what_goes_through_the_logs_of_another(pair: Pair) -> None:
    topic = pair.topic()
    await transitions_of(pair.owner).create(topic, 2)
    async with (
        client.open_pool(pair.owner.pulsar_url, client_version="tests 1.0") as pool,
        client.open_consumer(pool, str(topic), "s", name="worker") as consumer,
        client.open_producer(pool, str(topic), name="shop") as producer,
    ):
        await send(producer, 40)
        got = await receive(consumer, 40)
        for message in got[:30]:
            await consumer.ack(message)

        async def told(node: Node) -> Any:
            stats = await pair.stats(node, topic)
            subscription = stats["subscriptions"]["s"]
            assert stats["msgRateIn"] > 0
            assert stats["byteRateIn"] > stats["msgRateIn"] * len(BODY)
            assert stats["averageMsgSize"] == pytest.approx(stats["byteRateIn"] / stats["msgRateIn"], rel=0.01)
            assert (subscription["msgBacklog"], subscription["unackedMessages"]) == (10, 10)
            assert subscription["msgRateOut"] == pytest.approx(stats["msgRateOut"], rel=0.01)
            assert subscription["byteRateOut"] > subscription["msgRateOut"] * len(BODY)
            assert subscription["messageAckRate"] > 0
            return stats

        for node in (pair.owner, pair.other):
            stats = await eventually(partial(told, node), LIMIT)
            assert not pair.other.data.hosting.logs
            subscription = stats["subscriptions"]["s"]
            parts = subscription["segments"].values()
            assert sum(part["unackedMessages"] for part in parts) == 10
            assert sum(part["msgRateOut"] for part in parts) == pytest.approx(subscription["msgRateOut"], abs=0.01)
            assert all(part["consumerCount"] == 1 for part in parts)
            # A quarter of what was sent is not acknowledged; keys fell as they did.
            assert 0.1 < subscription["backlogSize"] / stats["storageSize"] < 0.5
            assert stats["backlogSize"] == subscription["backlogSize"]
            [shop] = stats["producers"]
            assert (shop["producerName"], shop["msgInCounter"], shop["segmentIds"]) == ("shop", 40, [0, 1])
            assert shop["msgRateIn"] > 0
            assert shop["address"].startswith("127.0.0.1")
            [worker] = subscription["consumers"]
            assert (worker["consumerName"], worker["segmentIds"]) == ("worker", [0, 1])
            assert (worker["connected"], worker["unackedMessages"]) == (True, 10)
            assert shop["clientVersion"] == worker["clientVersion"] == "tests 1.0"
            owners = {part["ownerBroker"] for part in stats["layout"]["segments"].values()}
            assert owners == {pair.owner.pulsar_url}
            assert [part["producerCount"] for part in stats["layout"]["segments"].values()] == [1, 1]

    async def gone() -> bool:
        stats = await pair.stats(pair.other, topic)
        return not stats["producers"] and not stats["subscriptions"]["s"]["consumers"]

    await eventually(gone, LIMIT)


async def test_what_a_node_gives_up_has_no_rates_any_more(pair: Pair) -> None:
    topic = pair.topic()
    await transitions_of(pair.owner).create(topic, 2)
    async with client.open_pool(pair.owner.pulsar_url) as pool, client.open_producer(pool, str(topic)) as producer:
        await send(producer, 20)

        async def rate() -> float:
            return float((await pair.stats(pair.other, topic))["msgRateIn"])

        await eventually(rate, LIMIT)
    await pair.owner.data.hosting.release_all()
    stats = await pair.stats(pair.other, topic)
    assert (stats["msgRateIn"], stats["byteRateIn"], stats["producers"]) == (0, 0, [])
    assert stats["storageSize"] > 20 * len(BODY)


async def test_what_a_dead_node_has_told_is_not_believed(pair: Pair) -> None:
    topic = pair.topic()
    await transitions_of(pair.owner).create(topic, 2)
    logs, place = SegmentLogs(pair.other.store), LogPlace.of_segment(topic, SEGMENTS[0])
    for session, believed in (("d" * 16, 0), (pair.owner.session.record.session, 5)):
        state = await logs.state(place)
        assert state is not None
        opened = await logs.claim(place, state, session)
        assert opened is not None
        await logs.tell(opened.claim, Traffic(messages_in=5.0).encode(), 3_600)
        assert (await pair.stats(pair.other, topic))["msgRateIn"] == believed


async def test_redeliveries_have_a_rate_of_their_own(pair: Pair) -> None:
    topic = pair.topic()
    await transitions_of(pair.owner).create(topic, 2)
    async with (
        client.open_pool(pair.owner.pulsar_url) as pool,
        client.open_consumer(pool, str(topic), "s") as consumer,
        client.open_producer(pool, str(topic)) as producer,
    ):
        await send(producer, 10)
        await receive(consumer, 10)
        before = (await pair.stats(pair.owner, topic))["subscriptions"]["s"]
        assert (before["msgRateRedeliver"], before["messageAckRate"], before["unackedMessages"]) == (0, 0, 10)
        consumer.redeliver()
        await receive(consumer, 10)

        async def told() -> bool:
            found = (await pair.stats(pair.other, topic))["subscriptions"]["s"]
            return bool(found["msgRateRedeliver"] > 0 and found["msgRateOut"] > found["msgRateRedeliver"])

        await eventually(told, LIMIT)


async def test_classic_topic_has_the_statistics_that_classic_clients_know(pair: Pair) -> None:
    topic = pair.classic()
    async with (
        client.open_pool(pair.owner.pulsar_url) as pool,
        client.open_consumer(pool, str(topic), "s", name="worker") as consumer,
        client.open_producer(pool, str(topic), name="shop") as producer,
    ):
        await send(producer, 20)
        for message in (await receive(consumer, 20))[:15]:
            await consumer.ack(message)

        async def told(node: Node) -> Any:
            stats = await pair.stats(node, topic)
            found = stats["subscriptions"]["s"]
            assert (found["msgBacklog"], found["unackedMessages"], found["type"]) == (5, 5, "Shared")
            assert stats["msgRateIn"] > 0
            assert found["msgRateOut"] == stats["msgRateOut"] > 0
            return stats

        for node in (pair.owner, pair.other):
            stats = await eventually(partial(told, node), LIMIT)
            assert stats["msgThroughputOut"] >= stats["msgRateOut"] * len(BODY)
            assert stats["backlogSize"] == stats["subscriptions"]["s"]["backlogSize"]
            assert stats["backlogSize"] == pytest.approx(stats["storageSize"] / 4, rel=0.1)
            [publisher] = stats["publishers"]
            assert (publisher["producerName"], publisher["accessMode"]) == ("shop", "Shared")
            [worker] = stats["subscriptions"]["s"]["consumers"]
            assert publisher["clientVersion"] == worker["clientVersion"] == CLIENT_VERSION
            assert (worker["consumerName"], worker["msgOutCounter"], worker["unackedMessages"]) == ("worker", 20, 5)
    assert (
        await pair.http.get(f"{pair.owner.http_url}/admin/v2/persistent/public/default/none/stats")
    ).status_code == 404


async def test_partitions_are_told_together_and_each(pair: Pair) -> None:
    base = f"{pair.owner.http_url}/admin/v2/persistent/public/default/many"
    put = await pair.http.put(f"{base}/partitions", content=b"3", headers={"content-type": "application/json"})
    assert put.status_code == 204
    topic = TopicName.classic("public", "default", "many")
    async with (
        client.open_pool(pair.owner.pulsar_url) as pool,
        client.open_consumer(pool, str(topic), "s") as consumer,
        client.open_producer(pool, str(topic)) as producer,
    ):
        await send(producer, 30)
        await receive(consumer, 30)

        async def told(node: Node) -> Any:
            stats = await pair.stats(node, topic, "partitioned-stats")
            assert stats["subscriptions"]["s"]["msgBacklog"] == stats["subscriptions"]["s"]["unackedMessages"] == 30
            return stats

        for node in (pair.owner, pair.other):
            stats = await eventually(partial(told, node), LIMIT)
            parts = stats["partitions"]
            assert list(parts) == [f"persistent://public/default/many-partition-{number}" for number in range(3)]
            assert sum(part["storageSize"] for part in parts.values()) == stats["storageSize"] > 3_000
            assert stats["metadata"]["partitions"] == 3
            assert len(stats["subscriptions"]["s"]["consumers"]) == 3
    refused = await pair.http.get(f"{base}/stats")
    assert (refused.status_code, "partitioned-stats" in refused.json()["reason"]) == (404, True)
    refused = await pair.http.get(f"{base}-partition-0/partitioned-stats")
    assert refused.status_code == 404
