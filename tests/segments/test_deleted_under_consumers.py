"""A subscription is deleted under consumers of our own client: they end, and do not make it anew."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

import pytest
import trio

from gateway.node import Node
from metadata.registrations import Registrations
from protocol.client import (
    ConnectionPool,
    Message,
    ServerRefused,
    SubscriptionDeleted,
    TopicConsumer,
    TopicFailed,
    TopicJoined,
    TopicLeft,
    open_consumer,
    open_namespace_consumer,
    open_namespace_stream_consumer,
    open_pool,
    open_producer,
    open_stream_consumer,
)
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.segments.test_namespace_consumers import NAMESPACE, Events, World, consumed, taken, topic
from tests.support.consumers import stays
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

TOPIC: Final = TopicName.scalable("public", "default", "orders")
# What everything in a test may take together on a busy machine.
LIMIT: Final = 60.0
# Some rounds of the pauses that are made between two attempts in the beginning.
SEVERAL_ATTEMPTS: Final = 2.0

Opener: TypeAlias = Callable[..., AbstractAsyncContextManager[Any]]

both_kinds = pytest.mark.parametrize("opened", [open_consumer, open_stream_consumer])
both_namespace_kinds = pytest.mark.parametrize("opened", [open_namespace_consumer, open_namespace_stream_consumer])


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    with trio.fail_after(LIMIT):
        async with running_node(valkey.url) as node:
            await transitions_of(node).create(TOPIC, 2)
            yield node


@pytest.fixture
async def pool(node: Node) -> AsyncIterator[ConnectionPool]:
    async with open_pool(node.pulsar_url, timeout=10) as pool:
        yield pool


@pytest.fixture
def world(node: Node, pool: ConnectionPool) -> World:
    return World(node, pool)


def attached(consumer: TopicConsumer) -> int:
    return sum(segment.is_attached for segment in consumer._segments.values())


async def until_attached(*consumers: TopicConsumer, segments: int = 2) -> None:
    """To all segments: whoever asks for one after the deletion is a new consumer there."""
    await eventually(lambda: sum(attached(consumer) for consumer in consumers) == segments)


# Consumers of one topic.


@both_kinds
async def test_a_consumer_ends_with_its_subscription_and_a_new_one_begins_it_anew(
    node: Node, pool: ConnectionPool, opened: Opener
) -> None:
    registrations = Registrations(node.store)
    async with open_producer(pool, str(TOPIC)) as producer:
        await producer.send(Message(b"1", "a"))
    async with opened(pool, str(TOPIC), "s", initial_position="earliest") as consumer:
        message = await consumer.receive()
        await until_attached(consumer)
        await registrations.delete_subscription(TOPIC, "s")
        with pytest.raises(SubscriptionDeleted, match="open a new consumer"):
            await consumer.receive()
        await eventually(lambda: consumer.segments == [])
        assert consumer.ack_soon(message) is None
    assert await registrations.names(TOPIC) == []
    async with opened(pool, str(TOPIC), "s", initial_position="earliest") as consumer:
        assert (await consumer.receive()).value == b"1"


async def test_a_stream_consumer_without_segments_ends_with_its_subscription(node: Node, pool: ConnectionPool) -> None:
    async with (
        open_stream_consumer(pool, str(TOPIC), "s", name="a") as first,
        open_stream_consumer(pool, str(TOPIC), "s", name="b") as second,
        open_stream_consumer(pool, str(TOPIC), "s", name="c") as third,
    ):
        consumers = [first, second, third]
        await eventually(lambda: sorted(attached(consumer) for consumer in consumers) == [0, 1, 1])
        await Registrations(node.store).delete_subscription(TOPIC, "s")
        for consumer in consumers:
            with pytest.raises(SubscriptionDeleted):
                await consumer.receive()


@both_kinds
async def test_a_consumer_that_has_ended_does_not_come_back_by_another_connection(
    node: Node, pool: ConnectionPool, opened: Opener
) -> None:
    registrations = Registrations(node.store)
    async with opened(pool, str(TOPIC), "s") as consumer:
        await until_attached(consumer)
        await registrations.delete_subscription(TOPIC, "s")
        with pytest.raises(SubscriptionDeleted):
            await consumer.receive()
        for connection in pool.connections:
            connection.close()
        async with open_consumer(pool, str(TOPIC), "other"):
            pass  # there are connections again
        assert await registrations.names(TOPIC) == ["other"]
        assert consumer.segments == []


async def test_a_stream_consumer_of_a_deleted_topic_ends_and_does_not_bring_it_back(
    node: Node, pool: ConnectionPool
) -> None:
    async with open_stream_consumer(pool, str(TOPIC), "s") as consumer:
        await until_attached(consumer)
        await transitions_of(node).delete(TOPIC)
        with pytest.raises(ServerRefused) as caught:
            await consumer.receive()
        assert caught.value.server_error == api.TopicNotFound
        assert not isinstance(caught.value, SubscriptionDeleted)
    assert await node.store.get(TOPIC) is None


# Consumers of a namespace.


@both_namespace_kinds
async def test_a_subscription_that_is_deleted_at_one_topic_stays_so_and_the_other_topics_go_on(
    world: World, opened: Opener
) -> None:
    events = Events()
    registrations = Registrations(world.node.store)
    await world.create("a", "b")
    async with opened(world.pool, NAMESPACE, "s", on_topic=events) as consumer:
        await world.send("a", "1")
        await world.send("b", "1")
        assert await taken(consumer, 2) == [("a", "1"), ("b", "1")]
        await registrations.delete_subscription(topic("a"), "s")
        await eventually(lambda: TopicFailed in events.of("a"), LIMIT)
        assert isinstance(consumer.failures[str(topic("a"))], SubscriptionDeleted)
        await world.send("b", "2")
        assert await taken(consumer, 1) == [("b", "2")]
        await stays(lambda: events.of("a") == [TopicJoined, TopicLeft, TopicFailed], SEVERAL_ATTEMPTS)
        assert await registrations.names(topic("a")) == []
        assert consumed(consumer, ["b", TOPIC.local])
    # A consumer that is opened afresh has not been on it.
    async with opened(world.pool, NAMESPACE, "s", initial_position="earliest") as consumer:
        assert await taken(consumer, 1) == [("a", "1")]


@both_namespace_kinds
async def test_a_topic_made_anew_is_consumed_although_the_subscription_of_the_former_was_deleted(
    world: World, opened: Opener
) -> None:
    await world.create("a")
    async with opened(world.pool, NAMESPACE, "s") as consumer:
        await until_attached(*consumer._consumers(), segments=3)
        await Registrations(world.node.store).delete_subscription(topic("a"), "s")
        await eventually(lambda: str(topic("a")) in consumer.failures, LIMIT)
        await world.delete("a")
        await world.create("a")
        await world.send("a", "1")
        assert await taken(consumer, 1) == [("a", "1")]
        assert consumer.failures == {}
