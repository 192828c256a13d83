"""Messages of a classic topic that becomes scalable while clients use it, through whole nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import trio

from controller.classic import ClassicTransitions
from controller.migration import Migrations
from controller.transitions import TopicLimits
from gateway.node import Node
from layout import records
from metadata import keys
from metadata.classic_migration import seal_partition
from protocol.client import requests
from protocol.client.consuming import open_consumer
from protocol.client.pool import ConnectionPool, open_pool
from protocol.client.producing import open_producer
from protocol.client.streaming import open_stream_consumer
from protocol.framing import encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.segments.test_messages import received, send_numbers, values
from tests.segments.test_sending import PRODUCER_ID, connected, message, receipts
from tests.support.nodes import created_classic, running_node, viewing
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

CLASSIC = TopicName.classic("public", "default", "classic")
SCALABLE = CLASSIC.canonical


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url, prune_interval=0.2, message_age=0.0) as node:
        yield node


@pytest.fixture
async def pool(node: Node) -> AsyncIterator[ConnectionPool]:
    async with open_pool(node.pulsar_url) as pool:
        yield pool


async def migrate(node: Node, *, force: bool = False) -> None:
    limits = TopicLimits()
    await Migrations(node.store, ClassicTransitions(node.store, limits), limits).migrate(CLASSIC, force=force)


@pytest.mark.parametrize("partitions", [0, 3])
async def test_what_was_not_consumed_before_is_consumed_after_it_with_what_comes(
    node: Node, pool: ConnectionPool, partitions: int
) -> None:
    await created_classic(node, CLASSIC, partitions)
    async with open_consumer(pool, str(CLASSIC), "s") as consumer, open_producer(pool, str(CLASSIC)) as producer:
        await send_numbers(producer, range(60))
        done = values(await received(consumer, 20))
    await migrate(node)
    async with open_producer(pool, str(SCALABLE)) as producer:
        # The subscription is there although nobody uses it, so this is for it.
        await send_numbers(producer, range(60, 90))
    async with open_consumer(pool, str(SCALABLE), "s") as consumer:
        rest = values(await received(consumer, 70))
    assert sorted(done + rest) == list(range(90))


async def forty_before_and_forty_after(node: Node, pool: ConnectionPool, partitions: int) -> None:
    """Messages of a classic topic with the subscription "s", and of the scalable one that it became."""
    await created_classic(node, CLASSIC, partitions)
    async with open_consumer(pool, str(CLASSIC), "s"), open_producer(pool, str(CLASSIC)) as producer:
        await send_numbers(producer, range(40))
    await migrate(node)
    async with open_producer(pool, str(SCALABLE)) as producer:
        await send_numbers(producer, range(40, 80))


@pytest.mark.parametrize("partitions", [0, 3])
async def test_a_stream_has_the_old_messages_before_the_new_ones(
    node: Node, pool: ConnectionPool, partitions: int
) -> None:
    """W20"""
    await forty_before_and_forty_after(node, pool, partitions)
    async with open_stream_consumer(pool, str(SCALABLE), "s", name="a") as consumer:
        came = values(await received(consumer, 80))
    assert sorted(came[:40]) == list(range(40))
    assert sorted(came[40:]) == list(range(40, 80))


@pytest.mark.parametrize("partitions", [0, 3])
async def test_what_follows_the_old_logs_comes_as_soon_as_they_are_consumed(
    valkey: ValkeyProcess, partitions: int
) -> None:
    """The leader hears of it from the owner of the log, not when it happens to look for what can be pruned."""
    async with running_node(valkey.url, prune_interval=600.0) as node, open_pool(node.pulsar_url) as pool:
        await forty_before_and_forty_after(node, pool, partitions)
        async with open_stream_consumer(pool, str(SCALABLE), "s", name="a") as consumer:
            messages = await received(consumer, 40, ack=False)
            # Its own writes have it look again as well. Only when it has come to rest, the acknowledgements are all
            # that can wake it.
            await leader_rests(node)
            for message in messages:
                await consumer.ack(message)
            with trio.fail_after(30):
                assert sorted(values(await received(consumer, 40))) == list(range(40, 80))


@pytest.mark.parametrize("partitions", [0, 3])
async def test_the_next_owner_of_an_old_log_tells_again_that_it_is_drained(
    valkey: ValkeyProcess, node: Node, pool: ConnectionPool, partitions: int
) -> None:
    """The one before may have died between writing the cursor and telling the leader, who is in another bucket."""
    await created_classic(node, CLASSIC, partitions)
    async with open_consumer(pool, str(CLASSIC), "s") as consumer, open_producer(pool, str(CLASSIC)) as producer:
        await send_numbers(producer, range(10))
        await received(consumer, 10)
    await migrate(node)
    await leader_rests(node)
    path = keys.path_of(SCALABLE)

    def told() -> int:
        changes: Any = valkey.client().xrange(keys.changes_key(keys.bucket_of(path)))
        return sum(entry[b"kind"] == b"drained" and entry[b"topic"] == path.encode() for _, entry in changes)

    before = told()
    [owned, *_] = node.data.hosting.logs
    await owned.let_go()
    await node.data.hosting.open(owned.name)
    await eventually(lambda: told() == before + 1, within=30)


async def leader_rests(node: Node) -> None:
    """Return when the leaders of a node have had nothing to do for a second."""
    seen, since = node.leaders.counters.rounds, trio.current_time()

    def is_at_rest() -> bool:
        nonlocal seen, since
        if node.leaders.counters.rounds != seen:
            seen, since = node.leaders.counters.rounds, trio.current_time()
        return trio.current_time() - since > 1

    await eventually(is_at_rest, within=30)


async def test_old_logs_go_once_everybody_has_consumed_them(node: Node, pool: ConnectionPool) -> None:
    """W20"""
    await created_classic(node, CLASSIC, 2)
    async with open_consumer(pool, str(CLASSIC), "s"), open_producer(pool, str(CLASSIC)) as producer:
        await send_numbers(producer, range(20))
    await migrate(node)

    async def segments() -> int:
        stored = await node.store.get(SCALABLE)
        assert stored is not None
        return len(records.decode_layout(stored.value).segments)

    async with open_stream_consumer(pool, str(SCALABLE), "s", name="a") as consumer:
        messages = await received(consumer, 20, ack=False)
        rounds = node.leaders.counters.rounds
        # The leader has looked, and not one of them goes while it holds something.
        await eventually(lambda: node.leaders.counters.rounds > rounds + 1, within=30)
        assert await segments() == 4
        for message in messages:
            await consumer.ack(message)

        async def pruned() -> bool:
            return await segments() == 2

        await eventually(pruned, within=30)
        await node.garbage.collect()
        await node.garbage.collect()
        topics = ClassicTransitions(node.store, TopicLimits()).topics
        assert await topics.list_logs(CLASSIC.namespace_name) == []
        assert await topics.get(CLASSIC) is None


async def test_a_consumer_that_has_an_old_log_open_is_seen_to_have_it(node: Node, pool: ConnectionPool) -> None:
    """W20"""
    await created_classic(node, CLASSIC, 2)
    async with open_consumer(pool, str(CLASSIC), "s"), open_producer(pool, str(CLASSIC)) as producer:
        await send_numbers(producer, range(10))
    await migrate(node)
    async with open_stream_consumer(pool, str(SCALABLE), "s", name="a") as consumer:
        await received(consumer, 1, ack=False)
        claims = {(name, segment_id) for name in "ab" for segment_id in range(4)}
        seen = await node.data.port.still_open(SCALABLE, "s", claims)
        assert seen == {("a", 0), ("a", 1)}


async def test_a_watcher_of_the_classic_topic_is_told_the_layout_of_the_scalable_one(node: Node) -> None:
    await created_classic(node, CLASSIC, 2)
    async with viewing(node) as viewer:
        view = await viewer.watch(CLASSIC)
        await eventually(lambda: len(view.last.dag.segments) == 2)
        await migrate(node)
        await eventually(lambda: len(view.last.dag.segments) == 4)
        assert (view.last.dag.epoch, view.errors) == (0, [])
        assert [broker.segment_id for broker in view.last.dag.segment_brokers] == [2, 3]
        assert node.hub.counters.went_back == 0


@pytest.mark.parametrize("partitions", [0, 3])
async def test_layout_of_the_scalable_topic_comes_before_the_refusal_of_its_old_log(
    node: Node, partitions: int
) -> None:
    await created_classic(node, CLASSIC, partitions)
    client = await connected(node)
    await client.send(encode(requests.open_topic_watch(7, str(CLASSIC), False)))
    assert len((await client.receive()).scalableTopicUpdate.dag.segments) == max(1, partitions)
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = str(CLASSIC.partition_at(1) if partitions else CLASSIC)
    command.producer.producer_id = PRODUCER_ID
    command.producer.request_id = 1
    await client.send(encode(command))
    assert (await client.receive()).type == BaseCommand.PRODUCER_SUCCESS
    await client.send(message(0))
    await receipts(client, 1)
    told: list[BaseCommand] = []
    sequence = 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(migrate, node, force=True))
        while not told or told[-1].type != BaseCommand.SEND_ERROR:
            await client.send(message(sequence))
            sequence += 1
            told.append(await client.receive())
    assert told[-1].send_error.error == api.TopicTerminatedError
    layouts = [c.scalableTopicUpdate.dag for c in told if c.type == BaseCommand.SCALABLE_TOPIC_UPDATE]
    assert [len(layout.segments) for layout in layouts] == [2 * max(1, partitions)]


async def test_producer_of_a_topic_that_stays_half_migrated_hears_that_its_log_is_sealed(node: Node) -> None:
    await created_classic(node, CLASSIC, 2)
    topics = ClassicTransitions(node.store, TopicLimits()).topics
    seen = await topics.get(CLASSIC)
    assert seen is not None
    client = await connected(node)
    await client.send(encode(requests.open_topic_watch(7, str(CLASSIC), False)))
    assert len((await client.receive()).scalableTopicUpdate.dag.segments) == 2
    await seal_partition(node.store, CLASSIC.partition_at(0), seen.version.incarnation)
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = str(CLASSIC.partition_at(0))
    command.producer.producer_id = PRODUCER_ID
    command.producer.request_id = 1
    await client.send(encode(command))
    assert (await client.receive(within=30)).error.error == api.TopicTerminatedError
