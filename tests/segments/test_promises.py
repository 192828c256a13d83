"""What clients at other nodes hear of a split and of a drained parent, how soon, and without any timer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import httpx
import pytest

from gateway.node import Node
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.controller.staged_leaders import until_steady
from tests.segments.test_sending import PRODUCER_ID, SEGMENT, TOPIC, connected, message, producer, receipts
from tests.segments.wire_consumer import WireConsumer, acknowledgement
from tests.support.consumers import registering
from tests.support.nodes import running_node, transitions_of, viewing
from tests.support.processes import ValkeyProcess
from tests.support.promises import floor_of
from tests.support.waiting import eventually

# Whatever is done by a clock comes too late.
HOUR: Final = 3_600.0
LIMIT: Final = 30.0
# Promised to watchers and to consumers.
LAYOUT_TOLD: Final = 0.5
CHILDREN_RELEASED: Final = 1.0

Pair = tuple[Node, Node]


@pytest.fixture
async def pair(valkey: ValkeyProcess) -> AsyncIterator[Pair]:
    """A node that leads a topic, and one that owns its only segment."""
    timers = {"prune_interval": HOUR, "rebalance_interval": HOUR, "probe_interval": HOUR}
    async with running_node(valkey.url, **timers) as leading, running_node(valkey.url, **timers) as owning:
        await eventually(lambda: len(leading.peers.nodes) == len(owning.peers.nodes) == 2, LIMIT)
        await transitions_of(leading).create(TOPIC, 1)
        await owning.data.hosting.open(SEGMENT, by_force=True)
        yield leading, owning


async def split(node: Node) -> None:
    """By its admin API, and without another node: it leads the topic."""
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        answer = await http.post(f"{node.http_url}/admin/v2/scalable/public/default/{TOPIC.local}/split/0")
    assert answer.status_code == 204, answer.text


async def test_watchers_at_another_node_have_the_new_layout_soon_after_a_split_is_answered(pair: Pair) -> None:
    leading, owning = pair
    async with viewing(leading) as near, viewing(owning) as far, floor_of(leading, SEGMENT) as floor:
        views = [await viewer.watch(TOPIC) for viewer in (near, far) for _ in range(20)]
        await eventually(lambda: all(view.updates for view in views), LIMIT)
        await split(leading)
        await floor.within(LAYOUT_TOLD, lambda: all(view.last.dag.epoch == 1 for view in views))


async def test_producer_that_watches_nothing_hears_that_another_node_has_sealed_its_segment(pair: Pair) -> None:
    leading, owning = pair
    client = await connected(owning)
    await producer(client)
    await client.send(message(0))
    await receipts(client, 1)
    await split(leading)
    await client.send(message(1))
    refused = await client.receive()
    assert refused.type == BaseCommand.SEND_ERROR
    assert (refused.send_error.sequence_id, refused.send_error.error) == (1, api.TopicTerminatedError)
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = SEGMENT
    command.producer.producer_id = PRODUCER_ID + 1
    command.producer.request_id = 2
    await client.send(encode(command))
    assert (await client.receive()).error.error == api.TopicTerminatedError
    [owned] = owning.data.hosting.logs
    assert (owned.sealed, owned.next) == (True, 1)


async def test_last_acknowledgement_of_a_parent_releases_its_children_by_itself(pair: Pair) -> None:
    leading, owning = pair
    client = await connected(owning)
    await producer(client)
    await client.send(b"".join(message(number) for number in range(10)))
    await receipts(client, 10)
    async with registering(leading.pulsar_url) as connection, floor_of(leading, SEGMENT) as floor:
        consumer = await connection.subscribed(TOPIC, "s", "a")
        await eventually(lambda: consumer.ids == {0}, LIMIT)
        reader = WireConsumer(await connected(owning))
        assert (await reader.subscribe(permits=10)).type == BaseCommand.SUCCESS
        got = await reader.messages(10)
        await split(leading)
        [owned] = owning.data.hosting.logs
        await eventually(lambda: owned.sealed, LIMIT)
        assert (await reader.ack(got[-2], cumulative=True, request_id=1)) is not None
        # The leader is done with the split: what comes now comes of the acknowledgement.
        await until_steady(lambda: leading.leaders.counters.rounds)
        assert consumer.ids == {0}
        await reader.client.send(encode(acknowledgement(got[-1], request_id=2)))
        # That there is nothing more is said first.
        assert (await reader.client.receive()).type == BaseCommand.REACHED_END_OF_TOPIC
        assert (await reader.client.receive()).ackResponse.request_id == 2
        await floor.within(CHILDREN_RELEASED, lambda: consumer.ids == {1, 2})
