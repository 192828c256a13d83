"""How long messages stay that everybody has consumed, through whole nodes: what the namespace and the topic say."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from controller.migration import Migrations
from controller.transitions import TopicLimits
from gateway.node import Node
from protocol.client.consuming import open_consumer
from protocol.client.pool import ConnectionPool, open_pool
from protocol.client.producing import open_producer
from protocol.names import NamespaceName, TopicName
from segments.open_log import OpenLog
from tests.segments.test_messages import received, send_numbers
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

NAMESPACE = NamespaceName("acme", "eu")
CLASSIC = TopicName.classic("acme", "eu", "orders")
SCALABLE = CLASSIC.canonical
AN_HOUR = b'{"retention_policies": {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}}'


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    # It looks after its logs when a test says so.
    async with running_node(valkey.url, message_age=0.0, rebalance_interval=3600.0) as node:
        yield node


@pytest.fixture
async def pool(node: Node) -> AsyncIterator[ConnectionPool]:
    async with open_pool(node.pulsar_url) as pool:
        yield pool


async def consumed(node: Node, pool: ConnectionPool, topic: TopicName, count: int = 20) -> list[OpenLog]:
    """The logs of a topic through which so many messages have gone."""
    async with open_consumer(pool, str(topic), "s") as consumer, open_producer(pool, str(topic)) as producer:
        await send_numbers(producer, range(count))
        await received(consumer, count)
    logs = [owned for owned in node.data.hosting.logs if owned.next]

    def is_consumed() -> bool:
        return all(it.cursor.mark == owned.next - 1 for owned in logs for it in owned.subscriptions.values())

    await eventually(is_consumed)
    assert sum(owned.next for owned in logs) > 0
    return logs


def entries(logs: list[OpenLog]) -> int:
    return sum(owned.next - owned.first for owned in logs)


@pytest.mark.parametrize("partitions", [0, 3])
async def test_classic_logs_are_kept_as_long_as_their_namespace_says(
    node: Node, pool: ConnectionPool, partitions: int
) -> None:
    await node.store.create_namespace(NAMESPACE, AN_HOUR)
    await created_classic(node, CLASSIC, partitions)
    logs = await consumed(node, pool, CLASSIC)
    stored = entries(logs)
    await node.data.upkeep.trim()
    assert entries(logs) == stored


async def test_classic_logs_are_kept_as_the_server_says_where_their_namespace_does_not(
    node: Node, pool: ConnectionPool
) -> None:
    await node.store.create_namespace(NAMESPACE, b"{}")
    await created_classic(node, CLASSIC)
    logs = await consumed(node, pool, CLASSIC)
    await node.data.upkeep.trim()
    assert entries(logs) == 0


@pytest.mark.parametrize("partitions", [0, 3])
async def test_the_logs_of_a_migrated_topic_are_kept_as_long_as_it_says(
    node: Node, pool: ConnectionPool, partitions: int
) -> None:
    await node.store.create_namespace(NAMESPACE, b"{}")
    classic = await created_classic(node, CLASSIC, partitions)
    logs = await consumed(node, pool, CLASSIC)
    stored = entries(logs)
    await Migrations(node.store, classic, TopicLimits()).migrate(CLASSIC)
    await transitions_of(node).update_retention(SCALABLE, 60)
    await node.data.upkeep.trim()
    assert {owned.place.segment_id for owned in logs} == {None}
    assert entries(logs) == stored
    await transitions_of(node).update_retention(SCALABLE, 0)
    await node.data.upkeep.trim()
    assert entries(logs) == 0


@pytest.mark.parametrize(
    ("minutes", "megabytes", "share"), [(60, 0, 0), (0, 1, 0), (-1, 1, 0.5), (60, 1, 0.5), (60, 9, 1)]
)
async def test_what_was_consumed_goes_once_it_is_past_the_time_or_the_size(
    node: Node, pool: ConnectionPool, minutes: int, megabytes: int, share: float
) -> None:
    policy = f'{{"retentionTimeInMinutes": {minutes}, "retentionSizeInMB": {megabytes}}}'
    await node.store.create_namespace(NAMESPACE, f'{{"retention_policies": {policy}}}'.encode())
    await created_classic(node, CLASSIC)
    async with open_consumer(pool, str(CLASSIC), "s") as consumer, open_producer(pool, str(CLASSIC)) as producer:
        for _ in range(8):
            await producer.send(bytes(256 * 1024))
        await received(consumer, 8)
        [log] = node.data.hosting.logs
        await eventually(lambda: log.subscriptions["s"].cursor.mark == log.next - 1)
        await node.data.upkeep.trim()
        # Of eight quarters of a megabyte, with what is stored beside them, a megabyte has room for three.
        assert log.next - log.first == {0: 0, 0.5: 3, 1: 8}[share]


async def test_what_is_not_consumed_stays_whatever_its_size(node: Node, pool: ConnectionPool) -> None:
    await node.store.create_namespace(
        NAMESPACE, b'{"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}}'
    )
    await created_classic(node, CLASSIC)
    async with open_consumer(pool, str(CLASSIC), "s"), open_producer(pool, str(CLASSIC)) as producer:
        await send_numbers(producer, range(20))
        [log] = node.data.hosting.logs
        await node.data.upkeep.trim()
        assert log.first == 0


async def test_what_is_young_stays_for_readers_whatever_its_size(valkey: ValkeyProcess) -> None:
    async with (
        running_node(valkey.url, message_age=600.0, rebalance_interval=3600.0) as node,
        open_pool(node.pulsar_url) as pool,
    ):
        await node.store.create_namespace(
            NAMESPACE, b'{"retention_policies": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}}'
        )
        await created_classic(node, CLASSIC)
        logs = await consumed(node, pool, CLASSIC)
        stored = entries(logs)
        await node.data.upkeep.trim()
        assert entries(logs) == stored
