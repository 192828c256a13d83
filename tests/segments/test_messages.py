"""Messages through whole nodes: from a producer into the store, and to everybody who subscribed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Final

import pytest
import trio

from gateway.node import Node
from layout import records
from layout.layouts import Layout
from protocol.client.consuming import open_consumer
from protocol.client.entries import ReceivedMessage
from protocol.client.outgoing import Message
from protocol.client.pool import ConnectionPool, open_pool
from protocol.client.producing import TopicProducer, open_producer
from protocol.client.streaming import open_stream_consumer
from protocol.client.topic_consumer import TopicConsumer
from protocol.names import TopicName
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

TOPIC: Final = TopicName.scalable("public", "default", "orders")
CLASSIC: Final = "persistent://public/default/classic"
LIMIT: Final = 30.0


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        yield node


@pytest.fixture
async def pool(node: Node) -> AsyncIterator[ConnectionPool]:
    async with open_pool(node.pulsar_url) as pool:
        yield pool


async def received(consumer: TopicConsumer, count: int, *, ack: bool = True) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    with trio.fail_after(LIMIT):
        while len(found) < count:
            message = await consumer.receive()
            found.append(message)
            if ack:
                await consumer.ack(message)
    return found


async def send_numbers(producer: TopicProducer, numbers: range, keys: int = 8) -> None:
    for number in numbers:
        await producer.post(Message(b"%d" % number, key=f"key-{number % keys}"))
    await producer.flush()


async def layout_of(node: Node) -> Layout:
    stored = await node.store.get(TOPIC)
    assert stored is not None
    return records.decode_layout(stored.value)


def values(messages: list[ReceivedMessage]) -> list[int]:
    return [int(message.value) for message in messages]


@pytest.mark.parametrize("topic", [str(TOPIC), CLASSIC])
async def test_what_is_sent_is_received(pool: ConnectionPool, topic: str) -> None:
    async with open_consumer(pool, topic, "s") as consumer, open_producer(pool, topic) as producer:
        await send_numbers(producer, range(200))
        assert sorted(values(await received(consumer, 200))) == list(range(200))


async def test_every_subscription_gets_every_message(pool: ConnectionPool) -> None:
    async with (
        open_consumer(pool, str(TOPIC), "one") as one,
        open_consumer(pool, str(TOPIC), "two") as two,
        open_producer(pool, str(TOPIC)) as producer,
    ):
        await send_numbers(producer, range(50))
        assert sorted(values(await received(one, 50))) == list(range(50))
        assert sorted(values(await received(two, 50))) == list(range(50))


async def test_what_was_acknowledged_does_not_come_back_after_a_restart(valkey: ValkeyProcess) -> None:
    async with (
        running_node(valkey.url) as node,
        open_pool(node.pulsar_url) as pool,
        open_consumer(pool, str(TOPIC), "s") as consumer,
        open_producer(pool, str(TOPIC)) as producer,
    ):
        await send_numbers(producer, range(20))
        done = values(await received(consumer, 7))
    async with (
        running_node(valkey.url) as node,
        open_pool(node.pulsar_url) as pool,
        open_consumer(pool, str(TOPIC), "s") as consumer,
    ):
        left = values(await received(consumer, 13))
        assert sorted(done + left) == list(range(20))
        assert consumer.receive_nowait() is None


async def test_message_ids_go_on_where_they_were_and_never_come_again(valkey: ValkeyProcess) -> None:
    seen: set[tuple[int, int]] = set()
    for attempt in range(3):
        async with running_node(valkey.url) as node, open_pool(node.pulsar_url) as pool:
            if attempt == 2:
                await transitions_of(node).delete(TOPIC)
            async with open_producer(pool, str(TOPIC)) as producer:
                for _ in range(3):
                    told = await producer.send(b"x")
                    assert (told.ledger, told.index) not in seen
                    seen.add((told.ledger, told.index))
    assert len({ledger for ledger, _ in seen}) == 2


async def test_messages_of_a_key_stay_in_order_through_splits_and_merges(node: Node, pool: ConnectionPool) -> None:
    transitions = transitions_of(node)
    await transitions.create(TOPIC, 1)
    by_key: dict[str | None, list[int]] = defaultdict(list)
    count = 0

    async def consume(name: str, started: trio.Event) -> None:
        nonlocal count
        async with open_stream_consumer(pool, str(TOPIC), "s", name=name) as consumer:
            started.set()
            async for message in consumer:
                by_key[message.key].append(int(message.value))
                count += 1
                consumer.ack_cumulative_soon(message)

    async with trio.open_nursery() as nursery:
        for name in "ab":
            started = trio.Event()
            nursery.start_soon(consume, name, started)
            with trio.fail_after(LIMIT):
                await started.wait()
        async with open_producer(pool, str(TOPIC)) as producer:
            await send_numbers(producer, range(100))
            await transitions.split(TOPIC, 0)
            await send_numbers(producer, range(100, 200))
            await transitions.split(TOPIC, 1)
            await send_numbers(producer, range(200, 300))
            await transitions.merge(TOPIC, 3, 4)
            await send_numbers(producer, range(300, 400))
        await eventually(lambda: count >= 400, within=LIMIT)
        nursery.cancel_scope.cancel()
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    assert sorted(number for numbers in by_key.values() for number in numbers) == list(range(400))


async def test_queue_consumer_misses_nothing_of_a_split(node: Node, pool: ConnectionPool) -> None:
    """Its default is to begin at the end, and the children must begin at their start for it."""
    transitions = transitions_of(node)
    await transitions.create(TOPIC, 1)
    async with open_consumer(pool, str(TOPIC), "s") as consumer, open_producer(pool, str(TOPIC)) as producer:
        await send_numbers(producer, range(40))
        await transitions.split(TOPIC, 0)
        await send_numbers(producer, range(40, 80))
        assert sorted(set(values(await received(consumer, 80)))) == list(range(80))


async def test_drained_parent_is_noted_at_once(node: Node, pool: ConnectionPool) -> None:
    transitions = transitions_of(node)
    await transitions.create(TOPIC, 1)
    async with (
        open_stream_consumer(pool, str(TOPIC), "s", name="a") as consumer,
        open_producer(pool, str(TOPIC)) as producer,
    ):
        await send_numbers(producer, range(10))
        await transitions.split(TOPIC, 0)
        held = await received(consumer, 10, ack=False)
        await trio.sleep(0.3)
        assert len(consumer.assigned) == 1
        await consumer.ack_cumulative(held[-1])
        await eventually(lambda: len(consumer.assigned) == 2, within=LIMIT)


async def test_messages_of_a_consumer_that_left_go_to_another(pool: ConnectionPool) -> None:
    async with open_producer(pool, str(TOPIC)) as producer, open_consumer(pool, str(TOPIC), "s", name="b") as other:
        async with open_consumer(pool, str(TOPIC), "s", name="a", queue_size=1000) as consumer:
            await send_numbers(producer, range(20))
            await received(consumer, 1, ack=False)
        assert sorted(values(await received(other, 20))) == list(range(20))


async def test_seek_brings_back_what_was_acknowledged(pool: ConnectionPool) -> None:
    async with open_consumer(pool, CLASSIC, "s") as consumer, open_producer(pool, CLASSIC) as producer:
        await send_numbers(producer, range(10))
        first = await received(consumer, 10)
        await consumer.seek(first[4].message_id)
        again = values(await received(consumer, 5))
        assert again == [4, 5, 6, 7, 8]


async def test_logs_are_given_up_when_a_node_stops(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, open_pool(node.pulsar_url) as pool:
        async with open_producer(pool, str(TOPIC)) as producer:
            await producer.send(b"x")
        [owned] = node.data.hosting.logs
        assert valkey.client().hget(owned.place.key, "owner")
        node.stop()
    assert valkey.client().hget(owned.place.key, "owner") in (b"", None)
