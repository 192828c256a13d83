"""A subscription is one registration: it begins everywhere at its moment, and what an earlier one of its name has left
does not count.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from controller.classic import ClassicTransitions
from controller.migration import Migrations
from controller.transitions import TopicLimits
from gateway.node import Node
from layout import records
from metadata.registrations import Registrations
from metadata.store import open_store
from metadata.subscriptions import Attachment, SubscriptionType
from protocol.client.consuming import open_consumer
from protocol.client.errors import SubscriptionDeleted
from protocol.client.pool import open_pool
from protocol.client.producing import open_producer
from protocol.framing import encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.port import place_of
from tests.segments.test_messages import LIMIT, send_numbers
from tests.segments.test_sending import TOPIC, connected
from tests.segments.wire_consumer import WireConsumer, subscribe
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

ROUNDS = 60


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        yield node


async def logs_of(node: Node) -> dict[bool, list[str]]:
    """The names of the logs of its topic, active ones and sealed ones."""
    stored = await node.store.get(TOPIC)
    assert stored is not None
    named: dict[bool, list[str]] = {True: [], False: []}
    for segment in records.decode_layout(stored.value).segments.values():
        named[segment.is_active].append(place_of(TOPIC, segment).name)
    return named


async def test_latest_is_the_moment_of_the_registration_at_segments_that_are_opened_later(node: Node) -> None:
    async with open_pool(node.pulsar_url) as pool, open_producer(pool, str(TOPIC)) as producer:
        await send_numbers(producer, range(3))
        await transitions_of(node).split(TOPIC, 0)
        await send_numbers(producer, range(4))
        await Registrations(node.store).attach(TOPIC, "s", SubscriptionType.STREAM, "c", Attachment("f" * 16, "1" * 16))
        await send_numbers(producer, range(10))
    logs = await logs_of(node)
    [sealed] = logs[False]
    got = 0
    for name in (sealed, *logs[True]):
        command = subscribe(topic=name)
        command.subscribe.initialPosition = api.CommandSubscribe.Latest
        client = await connected(node)
        await client.send(encode(command))
        assert (await client.receive()).type == BaseCommand.SUCCESS
        got += next(it for it in node.data.hosting.logs if it.name == name).subscriptions["s"].backlog
    assert got == 10
    owned = next(it for it in node.data.hosting.logs if it.name == sealed)
    assert owned.subscriptions["s"].backlog == 0


async def test_consumer_of_a_deleted_subscription_does_not_make_it_anew_by_coming_back(node: Node) -> None:
    consumer = WireConsumer(await connected(node), kind=api.CommandSubscribe.Shared)
    assert (await consumer.subscribe()).type == BaseCommand.SUCCESS
    registrations = Registrations(node.store)
    await registrations.delete_subscription(TOPIC, "s")
    assert (await consumer.client.receive()).type == BaseCommand.CLOSE_CONSUMER
    for _ in range(2):
        refusal = await consumer.subscribe()
        assert (refusal.type, refusal.error.error) == (BaseCommand.ERROR, api.TopicNotFound)
    assert await registrations.names(TOPIC) == []
    other = WireConsumer(await connected(node), kind=api.CommandSubscribe.Shared)
    assert (await other.subscribe()).type == BaseCommand.SUCCESS
    assert await registrations.names(TOPIC) == ["s"]


async def test_own_client_ends_when_its_subscription_is_deleted_and_does_not_make_it_anew(node: Node) -> None:
    await transitions_of(node).split(TOPIC, 0)
    registrations = Registrations(node.store)
    async with open_pool(node.pulsar_url) as pool:
        async with open_consumer(pool, str(TOPIC), "s") as consumer:
            await registrations.delete_subscription(TOPIC, "s")
            with pytest.raises(SubscriptionDeleted, match="open a new consumer"), trio.fail_after(LIMIT):
                await consumer.receive()
        assert await registrations.names(TOPIC) == []
        # On the same connection another consumer is a new one.
        async with open_consumer(pool, str(TOPIC), "s"):
            assert await registrations.names(TOPIC) == ["s"]


async def test_consumer_comes_back_where_the_store_has_lost_its_subscription(node: Node, valkey: ValkeyProcess) -> None:
    consumer = WireConsumer(await connected(node), kind=api.CommandSubscribe.Shared)
    assert (await consumer.subscribe()).type == BaseCommand.SUCCESS
    registrations = Registrations(node.store)
    for key in valkey.client().scan_iter("/topics/*/subscriptions*"):
        valkey.client().delete(key)
    await registrations.create_subscription(TOPIC, "other", SubscriptionType.QUEUE, 0)  # is heard
    assert (await consumer.client.receive()).type == BaseCommand.CLOSE_CONSUMER
    assert (await consumer.subscribe()).type == BaseCommand.SUCCESS


async def test_deletion_whose_reply_is_lost_has_happened_once(node: Node, valkey: ValkeyProcess) -> None:
    registrations = Registrations(node.store)
    await registrations.create_subscription(TOPIC, "s", SubscriptionType.QUEUE, 0)
    async with FaultProxy.open(*valkey.address) as proxy, open_store(proxy.url) as far:
        proxy.cut_before_reply(lambda request: b"/deleted" in request)
        await Registrations(far).delete_subscription(TOPIC, "s")
        assert proxy.cuts == 1
    assert await registrations.names(TOPIC) == []


@pytest.mark.parametrize("partitions", [0, 2])
async def test_whoever_subscribes_while_a_classic_topic_is_migrated_is_known_to_the_scalable_one(
    node: Node, partitions: int
) -> None:
    for number in range(ROUNDS):
        topic = TopicName.classic("public", "default", f"classic-{number}")
        await created_classic(node, topic, partitions)
        log = str(topic.partition_at(0) if partitions else topic)
        consumer = WireConsumer(await connected(node), topic=log)
        limits = TopicLimits()

        async def come(consumer: WireConsumer = consumer) -> None:
            async def is_let_in() -> bool:
                return (await consumer.subscribe()).type == BaseCommand.SUCCESS

            await eventually(is_let_in)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come)
            for _ in range(number):
                await trio.lowlevel.checkpoint()
            await Migrations(node.store, ClassicTransitions(node.store, limits), limits).migrate(topic, force=True)
        assert await Registrations(node.store).names(topic.canonical) == ["s"]


async def test_owner_that_has_not_heard_of_a_deletion_writes_what_does_not_count(node: Node) -> None:
    """As one that was paused: it has the log, and saves the cursor of the registration that it knew."""
    registrations = Registrations(node.store)
    consumer = WireConsumer(await connected(node), kind=api.CommandSubscribe.Shared)
    assert (await consumer.subscribe()).type == BaseCommand.SUCCESS
    async with open_pool(node.pulsar_url) as pool, open_producer(pool, str(TOPIC)) as producer:
        await send_numbers(producer, range(5))
    [owned] = node.data.hosting.logs
    node.data.hosting._checking[owned.place.topic_path] = False  # it hears nothing
    before = owned.subscriptions["s"]
    await registrations.delete_subscription(TOPIC, "s")
    await registrations.create_subscription(TOPIC, "s", SubscriptionType.QUEUE, 1, from_start=True)
    before.cursor.ack_cumulative(4)
    await owned.saved(before)
    stored = await node.store.get(TOPIC)
    assert stored is not None
    [segment] = records.decode_layout(stored.value).segments.values()
    registration = await registrations.find(TOPIC, "s")
    assert registration is not None
    assert await node.data.port.backlog(TOPIC, "s", segment, registration) == 5
    again = WireConsumer(await connected(node), kind=api.CommandSubscribe.Shared)
    assert (await again.subscribe(permits=10)).type == BaseCommand.SUCCESS
    assert len(await again.messages(5)) == 5
