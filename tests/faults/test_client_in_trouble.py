"""Messages while everything moves: no confirmed one is lost, none is stored twice, and keys stay in order."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from gateway.node import Node
from gateway.quantities import HostPort
from metadata.errors import StoreError
from protocol.client import (
    ConnectionPool,
    Message,
    MessageId,
    ReceivedMessage,
    Sending,
    StreamConsumer,
    TopicConsumer,
    TopicProducer,
    open_consumer,
    open_pool,
    open_producer,
    open_reader,
    open_stream_consumer,
)
from protocol.names import TopicName
from tests.faults.writers import change
from tests.support.nodes import running_node, transitions_of
from tests.support.ports import HOST, ReservedPort
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

TOPIC = TopicName.scalable("public", "default", "t")
KEYS = [f"key-{number}" for number in range(24)]
# Everything below within it on a busy machine.
LIMIT = 100


class Ledger:
    """What was sent and what came, to be compared in the end."""

    def __init__(self) -> None:
        self.stored: dict[int, MessageId] = {}
        self.under_way: set[Sending] = set()
        self.received: dict[str, list[tuple[str | None, int]]] = defaultdict(list)
        self._next = 0

    def next_message(self) -> tuple[int, Message]:
        self._next += 1
        return self._next, Message(b"%d" % self._next, KEYS[self._next % len(KEYS)])

    def note(self, who: str, message: ReceivedMessage) -> None:
        self.received[who].append((message.key, int(message.value)))

    def awaits_receipts(self) -> bool:
        """Whether something is written whose receipt has not come."""
        return any(sending.was_written and not sending.is_settled for sending in self.under_way)

    def has_all(self, who: str) -> bool:
        return {value for _, value in self.received[who]} >= self.stored.keys()

    def check_order(self, who: str) -> None:
        """Each key in order, as far as messages came for the first time."""
        newest: Counter[str | None] = Counter()
        seen: set[int] = set()
        for key, value in self.received[who]:
            if value not in seen:
                assert value > newest[key], f"{who}: {value} of {key} came after {newest[key]}"
                newest[key] = value
                seen.add(value)


async def keep_sending(producer: TopicProducer, ledger: Ledger, until: trio.Event) -> None:
    """Send in bursts until the event, and wait for every outcome."""

    async def settle(number: int, sending: Sending) -> None:
        ledger.under_way.add(sending)
        ledger.stored[number] = await sending.wait()
        ledger.under_way.remove(sending)

    async with trio.open_nursery() as nursery:
        while not until.is_set():
            for _ in range(10):
                number, message = ledger.next_message()
                nursery.start_soon(settle, number, await producer.post(message))
            await trio.sleep(0.02)


async def keep_receiving(consumer: TopicConsumer, ledger: Ledger, who: str) -> None:
    async for message in consumer:
        ledger.note(who, message)
        if isinstance(consumer, StreamConsumer) and message.taken % 2:
            consumer.ack_cumulative_soon(message)
        else:
            consumer.ack_soon(message)


async def read_all(pool: ConnectionPool, count: int) -> list[int]:
    """What all segments hold, by reading until so many came and a little longer."""
    values: list[int] = []
    async with open_reader(pool, str(TOPIC)) as reader:
        while True:
            with trio.move_on_after(LIMIT if len(values) < count else 1) as waiting:
                values.append(int((await reader.receive()).value))
            if waiting.cancelled_caught:
                return values


@asynccontextmanager
async def traffic(pool: ConnectionPool, ledger: Ledger) -> AsyncIterator[TopicProducer]:
    """A producer, a stream of two consumers and a queue while the block runs; at its end everything has to add up."""
    done = trio.Event()
    async with (
        trio.open_nursery() as receivers,
        open_stream_consumer(pool, str(TOPIC), "stream", name="one", initial_position="earliest") as one,
        open_stream_consumer(pool, str(TOPIC), "stream", name="two", initial_position="earliest") as two,
        open_consumer(pool, str(TOPIC), "queue", initial_position="earliest") as queue,
    ):
        for consumer, who in ((one, "stream"), (two, "stream"), (queue, "queue")):
            receivers.start_soon(keep_receiving, consumer, ledger, who)
        async with open_producer(pool, str(TOPIC), send_timeout=LIMIT) as producer, trio.open_nursery() as senders:
            senders.start_soon(keep_sending, producer, ledger, done)
            yield producer
            done.set()
        await eventually(lambda: ledger.has_all("stream") and ledger.has_all("queue"), within=LIMIT)
    ledger.check_order("stream")
    places = Counter((place.topic, place.entry) for place in ledger.stored.values() if place.is_known)
    assert not [place for place, count in places.items() if count > 1]
    values = await read_all(pool, len(ledger.stored))
    assert set(values) == ledger.stored.keys()
    assert len(values) - len(set(values)) <= producer.possible_duplicates


async def transform(node: Node, chance: random.Random) -> None:
    try:
        await change(node.store, transitions_of(node), TOPIC, chance)
    except StoreError:
        pass  # another change was faster


async def lose_connections_and_receipts(pool: ConnectionPool, producer: TopicProducer, ledger: Ledger) -> None:
    """Close all connections, over and over, until something that was written had to be written again.

    Once may not be enough: what was under way can have been meant for a segment that is sealed by now.
    """
    before = producer.resent
    while producer.resent == before:
        # Nothing else runs between the last look and the closing, so the receipt cannot come any more.
        await eventually(ledger.awaits_receipts)
        for connection in pool.connections:
            connection.close()
        with trio.move_on_after(1):
            await eventually(lambda: producer.resent > before)


async def test_splits_and_merges_lose_and_repeat_nothing(valkey: ValkeyProcess) -> None:
    chance, ledger = random.Random(1), Ledger()
    with trio.fail_after(LIMIT):
        async with running_node(valkey.url) as node, open_pool(node.pulsar_url) as pool:
            await transitions_of(node).create(TOPIC, 1)
            async with traffic(pool, ledger) as producer:
                changes = 0
                while changes < 25 or producer.rerouted == 0:
                    await trio.sleep(0.1)
                    await transform(node, chance)
                    changes += 1


async def test_lost_connections_between_splits_lose_nothing(valkey: ValkeyProcess) -> None:
    chance, ledger = random.Random(2), Ledger()
    with trio.fail_after(LIMIT):
        async with running_node(valkey.url) as node, open_pool(node.pulsar_url) as pool:
            await transitions_of(node).create(TOPIC, 2)
            async with traffic(pool, ledger) as producer:
                for number in range(15):
                    await trio.sleep(0.2)
                    if number % 3 == 0:
                        await transform(node, chance)
                    else:
                        await lose_connections_and_receipts(pool, producer, ledger)


async def test_a_restarted_node_goes_on_where_it_was(valkey: ValkeyProcess) -> None:
    ledger = Ledger()
    port = ReservedPort()
    listen = HostPort(HOST, port.number)
    restart, restarted = trio.Event(), trio.Event()

    async def serve(task_status: trio.TaskStatus[str]) -> None:
        async with running_node(valkey.url, listen=listen) as node:
            await transitions_of(node).create(TOPIC, 2)
            task_status.started(node.pulsar_url)
            await restart.wait()
        async with running_node(valkey.url, listen=listen):
            restarted.set()
            await trio.sleep_forever()

    try:
        with trio.fail_after(LIMIT):
            async with trio.open_nursery() as nursery:
                url = await nursery.start(serve)
                async with open_pool(url) as pool, traffic(pool, ledger):
                    await eventually(lambda: len(ledger.stored) > 100)
                    restart.set()
                    await restarted.wait()
                    before = len(ledger.stored)
                    await eventually(lambda: len(ledger.stored) > before + 200, within=LIMIT)
                nursery.cancel_scope.cancel()
    finally:
        port.release()


async def test_a_segment_whose_node_is_gone_is_found_at_another(valkey: ValkeyProcess) -> None:
    ledger = Ledger()
    with trio.fail_after(LIMIT):
        async with running_node(valkey.url) as stays, trio.open_nursery() as nursery:
            await transitions_of(stays).create(TOPIC, 4)
            gone = trio.CancelScope()

            async def second(task_status: trio.TaskStatus[str]) -> None:
                with gone:
                    async with running_node(valkey.url) as node:
                        task_status.started(node.pulsar_url)
                        await trio.sleep_forever()

            other = await nursery.start(second)
            async with open_pool([other, stays.pulsar_url]) as pool, traffic(pool, ledger):
                await eventually(lambda: len(ledger.stored) > 100, within=30)
                gone.cancel()
                before = len(ledger.stored)
                await eventually(lambda: len(ledger.stored) > before + 200, within=LIMIT)
