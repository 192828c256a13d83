"""The backlog of a segment over HTTP and over real logs: the same at the node that owns it and at one that does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import httpx
import pytest

from gateway.node import Node
from metadata.registrations import Registrations
from metadata.subscriptions import SubscriptionType
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.segments.test_sending import SEGMENT, TOPIC, connected, message, producer, receipts
from tests.segments.wire_consumer import WireConsumer
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

ADMIN: Final = "/admin/v2"
TOPIC_PATH: Final = f"{ADMIN}/scalable/public/default/{TOPIC.local}"
LIMIT: Final = 30.0

Pair = tuple[Node, Node]


@pytest.fixture
async def pair(valkey: ValkeyProcess) -> AsyncIterator[Pair]:
    """The owner of the only segment of a topic, with ten messages in it, and another node."""
    async with running_node(valkey.url) as owning, running_node(valkey.url) as other:
        await eventually(lambda: len(owning.peers.nodes) == len(other.peers.nodes) == 2, LIMIT)
        await transitions_of(owning).create(TOPIC, 1)
        await owning.data.hosting.open(SEGMENT, by_force=True)
        client = await connected(owning)
        await producer(client)
        await client.send(b"".join(message(number) for number in range(10)))
        await receipts(client, 10)
        yield owning, other


async def request(node: Node, method: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30, trust_env=False, follow_redirects=True) as http:
        return await http.request(method, f"{node.http_url}{path}")


async def backlogs(pair: Pair, subscription: str, descriptor: str = "0000-ffff-0") -> list[int]:
    """As each of the nodes tells it."""
    path = f"{ADMIN}/segments/public/default/{TOPIC.local}/{descriptor}/subscription/{subscription}/backlog"
    answers = [await request(node, "GET", path) for node in pair]
    assert [answer.status_code for answer in answers] == [200, 200]
    return [answer.json() for answer in answers]


async def test_what_is_acknowledged_is_not_in_it_at_any_node(pair: Pair) -> None:
    consumer = WireConsumer(await connected(pair[0]), kind=api.CommandSubscribe.Shared)
    assert (await consumer.subscribe(permits=10)).type == BaseCommand.SUCCESS
    assert await backlogs(pair, "s") == [10, 10]
    got = await consumer.messages(10)
    for number, index in enumerate((0, 4, 7)):
        assert await consumer.ack(got[index], request_id=number) is not None
    assert await backlogs(pair, "s") == [7, 7]
    for number, index in enumerate(set(range(10)) - {0, 4, 7}):
        assert await consumer.ack(got[index], request_id=number) is not None
    assert await backlogs(pair, "s") == [0, 0]


async def test_it_is_the_same_once_nobody_owns_the_segment(pair: Pair) -> None:
    consumer = WireConsumer(await connected(pair[0]))
    await consumer.subscribe(permits=10)
    got = await consumer.messages(10)
    assert await consumer.ack(got[3], cumulative=True, request_id=1) is not None
    await pair[0].data.hosting.release_all()
    assert not [*pair[0].data.hosting.logs, *pair[1].data.hosting.logs]
    assert await backlogs(pair, "s") == [6, 6]


async def test_segment_at_which_a_subscription_never_was_is_unread_if_it_is_the_younger(pair: Pair) -> None:
    registrations = Registrations(pair[0].store)
    await registrations.create_subscription(TOPIC, "before", SubscriptionType.QUEUE, 1)
    assert (await request(pair[0], "POST", f"{TOPIC_PATH}/split/0")).status_code == 204
    await registrations.create_subscription(TOPIC, "after", SubscriptionType.QUEUE, 1)
    await registrations.create_subscription(TOPIC, "all", SubscriptionType.QUEUE, 1, from_start=True)
    child = "0000-7fff-1"
    owned = await pair[0].data.hosting.open(SEGMENT.replace("0000-ffff-0", child), by_force=True)
    client = await connected(pair[0])
    await producer(client, topic=owned.name)
    await client.send(message(0) + message(1))
    await receipts(client, 2)
    assert await backlogs(pair, "before", child) == [2, 2]
    assert await backlogs(pair, "after", child) == [0, 0]
    # One that was made to begin at the start has everything, also what is sealed.
    assert await backlogs(pair, "all", child) == [2, 2]
    assert await backlogs(pair, "all") == [10, 10]
    assert await backlogs(pair, "before") == [0, 0]


async def test_trimmed_messages_are_not_in_it(pair: Pair) -> None:
    consumer = WireConsumer(await connected(pair[0]))
    await consumer.subscribe()
    [owned] = pair[0].data.hosting.logs
    await owned.trim(4)
    assert await backlogs(pair, "s") == [6, 6]
