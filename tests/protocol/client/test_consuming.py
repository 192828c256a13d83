"""Consumers and readers of whole topics: every segment there is, as the layout says it, or every partition."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from protocol.client import SHARED, MessageId, ServerRefused, TopicConsumer, open_consumer, open_pool, open_reader
from protocol.wire import pulsar_api_pb2 as api
from tests.protocol.client.consumer_server import ConsumerServer, segment_topic
from tests.protocol.client.producer_scripts import LEDGER
from tests.protocol.client.scripted_server import TOPIC, scripted_server
from tests.support.waiting import eventually

LIMIT = 30.0
PLAIN = "persistent://public/default/p"
EARLIEST = 2**64 - 1


def segment(segment_id: int, *sealed: int) -> tuple[int, ...]:
    return (segment_id, 0, 0xFFFF, *sealed)


@asynccontextmanager
async def consuming(server: ConsumerServer, topic: str = TOPIC, **options: Any) -> AsyncIterator[TopicConsumer]:
    with trio.fail_after(LIMIT):
        async with (
            scripted_server(server.run) as listening,
            open_pool(listening.url) as pool,
            open_consumer(pool, topic, "s", **options) as consumer,
        ):
            yield consumer


@asynccontextmanager
async def reading(server: ConsumerServer, **options: Any) -> AsyncIterator[TopicConsumer]:
    with trio.fail_after(LIMIT):
        async with (
            scripted_server(server.run) as listening,
            open_pool(listening.url) as pool,
            open_reader(pool, TOPIC, **options) as reader,
        ):
            yield reader


async def test_active_and_sealed_segments_are_shared_and_followed_as_the_layout_changes() -> None:
    server = ConsumerServer()
    server.segments = [segment(0, 1), segment(1)]
    async with consuming(server, name="me") as consumer:
        assert set(server.attached) == {segment_topic(0), segment_topic(1)}
        assert {(request.subType, request.consumer_name) for request in server.subscribed} == {
            (SHARED, "me-seg-0"),
            (SHARED, "me-seg-1"),
        }
        await server.deliver(0, 0)
        await consumer.ack(await consumer.receive())
        await server.push_layout(segment(1, 1), segment(2))
        await eventually(lambda: set(server.attached) == {segment_topic(1), segment_topic(2)})
        await server.deliver(2, 0)
        assert (await consumer.receive()).topic == segment_topic(2)
    assert server.events[0] == "closed 0"
    assert server.names == []


async def test_segments_take_turns_however_much_one_of_them_has() -> None:
    server = ConsumerServer()
    server.segments = [segment(0), segment(1)]
    async with consuming(server) as consumer:
        await server.deliver(0, *range(10))
        await server.deliver(1, 0, 1)
        await trio.testing.wait_all_tasks_blocked(0.05)  # until all of them have arrived
        first = [(await consumer.receive()).topic for _ in range(6)]
        assert first.count(segment_topic(1)) == 2


async def test_a_segment_that_was_pruned_before_the_layout_came_is_done_without() -> None:
    server = ConsumerServer()
    server.segments = [segment(0), segment(1)]
    server.missing.add(segment_topic(0))
    async with consuming(server) as consumer:
        assert set(server.attached) == {segment_topic(1)}
        await server.deliver(1, 0)
        assert (await consumer.receive()).topic == segment_topic(1)


async def test_a_segment_that_was_missing_is_looked_for_again() -> None:
    server = ConsumerServer()
    server.missing.add(segment_topic(0))
    async with consuming(server) as consumer:
        await eventually(lambda: server.events.count("missed 0") == 2)
        server.missing.clear()
        await server.deliver(0, 0)
        assert (await consumer.receive()).topic == segment_topic(0)


async def test_a_deleted_topic_ends_the_consumer() -> None:
    server = ConsumerServer()
    async with consuming(server) as consumer:
        await server.delete()
        with pytest.raises(ServerRefused, match="The topic was deleted") as caught:
            await consumer.receive()
        assert caught.value.server_error == api.TopicNotFound


async def test_a_reader_of_what_comes_next_reads_later_segments_from_their_start() -> None:
    server = ConsumerServer()
    async with reading(server, start="latest"):
        await server.push_layout(segment(0, 1), segment(1))
        await eventually(lambda: len(server.subscribed) == 2)
    first, later = server.subscribed
    assert first.start_message_id.ledgerId == 2**63 - 1
    assert later.start_message_id.ledgerId == EARLIEST


async def test_a_reader_from_a_message_reads_the_other_segments_from_their_start() -> None:
    server = ConsumerServer()
    server.segments = [segment(0), segment(1)]
    async with reading(server, start=MessageId(segment_topic(1), LEDGER, 3)):
        pass
    starts = {request.topic: request.start_message_id.ledgerId for request in server.subscribed}
    assert starts == {segment_topic(0): EARLIEST, segment_topic(1): LEDGER}
    assert not any(request.durable for request in server.subscribed)


async def test_partitions_are_consumed_together() -> None:
    server = ConsumerServer(partitions=3)
    async with consuming(server, PLAIN) as consumer:
        assert sorted(consumer.segments) == [f"{PLAIN}-partition-{index}" for index in range(3)]


async def test_a_plain_topic_that_is_not_there_is_told_at_once() -> None:
    server = ConsumerServer()
    server.missing.add(PLAIN)
    with trio.fail_after(LIMIT):
        async with scripted_server(server.run) as listening, open_pool(listening.url) as pool:
            with pytest.raises(ServerRefused, match="not there"):
                async with open_consumer(pool, PLAIN, "s"):
                    pass
