"""A subscription is deleted through one node while another one, which owns its log, is dead or paused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from protocol.client.consuming import open_consumer
from protocol.client.outgoing import Message
from protocol.client.pool import ConnectionPool, open_pool
from protocol.client.producing import open_producer
from protocol.client.streaming import open_stream_consumer
from protocol.client.topic_consumer import TopicConsumer
from tests.e2e.controller_cluster import running_cluster
from tests.e2e.peers import full
from tests.e2e.vela_process import SCALABLE
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

TOPIC: Final = "orders"
SUBSCRIPTION: Final = f"{SCALABLE}/{TOPIC}/subscriptions/s"
COUNT: Final = 200
# Some of it passes until the lease of the owner is over.
LIMIT: Final = 60.0


@asynccontextmanager
async def consuming(pool: ConnectionPool, kind: str) -> AsyncIterator[TopicConsumer]:
    opened = open_stream_consumer if kind == "STREAM" else open_consumer
    async with opened(pool, full(TOPIC), "s", name="c", initial_position="earliest") as consumer:
        yield consumer


async def send(pool: ConnectionPool, numbers: range) -> None:
    async with open_producer(pool, full(TOPIC)) as producer:
        for number in numbers:
            await producer.post(Message(b"%d" % number, key=f"key-{number % 8}"))
        await producer.flush()


async def received(consumer: TopicConsumer, count: int) -> list[int]:
    """So many different messages, in numerical order, and all of them acknowledged."""
    found: set[int] = set()
    with trio.fail_after(LIMIT):
        while len(found) < count:
            message = await consumer.receive()
            found.add(int(message.value))
            consumer.ack_soon(message)
        await consumer.flush_acks()
    return sorted(found)


async def owner_at(url: str) -> str:
    """The address of the node that has the first segment, or is to have it, as the node at this one says."""
    async with open_pool(url) as pool:
        answer = await (await pool.service()).lookup(f"segment://public/default/{TOPIC}/0000-ffff-0")
    return answer.brokerServiceUrl


async def until_sent_to(url: str) -> None:
    """Until the node at this address sends clients nowhere else, neither for the segment nor for the controller."""

    async def is_there() -> bool:
        async with open_pool(url) as pool:
            watch = await (await pool.service()).open_watch(full(TOPIC))
            controller = (await watch.next()).dag.controller_broker_url
        return controller in ("", url) and await owner_at(url) == url

    await eventually(is_there)


@pytest.mark.parametrize("kind", ["QUEUE", "STREAM"])
@pytest.mark.parametrize("trouble", ["killed", "paused", "paused briefly"])
async def test_deleted_subscription_begins_anew_while_the_owner_of_its_log_is(
    tmp_path: Path, kind: str, trouble: str
) -> None:
    async with running_cluster(tmp_path, 2, "--message-age", "1h") as cluster:
        await cluster.create(TOPIC)
        async with open_pool(cluster.nodes[0].pulsar_url) as pool:
            await send(pool, range(COUNT))
            async with consuming(pool, kind) as consumer:
                assert await received(consumer, COUNT) == list(range(COUNT))
        owner = cluster.at(await owner_at(cluster.nodes[0].pulsar_url))
        other = cluster.nodes[1 - owner]
        if trouble == "killed":
            cluster.nodes[owner].kill()
        else:
            cluster.nodes[owner].pause()
        answer = await cluster.http.delete(f"{other.http_url}{SUBSCRIPTION}")
        assert answer.status_code == 204, answer.text
        assert (await cluster.http.get(f"{other.http_url}{SCALABLE}/{TOPIC}/subscriptions")).json() == {}
        answer = await cluster.http.put(f"{other.http_url}{SUBSCRIPTION}?type={kind}")
        assert answer.status_code == 204, answer.text
        if trouble == "paused briefly":
            cluster.nodes[owner].resume()
        else:
            # Clients that are sent to a paused node wait there until their own patience is over.
            await until_sent_to(other.pulsar_url)
        async with open_pool(other.pulsar_url) as pool, consuming(pool, kind) as consumer:
            assert await received(consumer, COUNT) == list(range(COUNT))
            cluster.nodes[owner].resume()
            listed = (await cluster.http.get(f"{other.http_url}{SCALABLE}/{TOPIC}/subscriptions")).json()
            assert list(listed) == ["s"]
            assert (listed["s"]["type"], listed["s"]["consumers"]) == (kind, int(kind == "STREAM"))
            answer = await cluster.http.post(f"{other.http_url}{SUBSCRIPTION}/seek?timestamp=0")
            assert answer.status_code == 204, answer.text
            assert await received(consumer, COUNT) == list(range(COUNT))
            answer = await cluster.http.post(f"{other.http_url}{SCALABLE}/{TOPIC}/split/0")
            assert answer.status_code == 204, answer.text
            await send(pool, range(COUNT, 2 * COUNT))
            assert await received(consumer, COUNT) == list(range(COUNT, 2 * COUNT))
