"""Consumers of whole nodes that register and leave: how they are answered, and who is told of a change."""

from __future__ import annotations

import pytest

from metadata.registrations import Registrations
from metadata.subscriptions import SubscriptionType
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.sessions.consumers import LONG, TOPIC, near_and_far, serving, stored, until_detached, until_gone
from tests.support.consumers import CHECKPOINT, LIMIT, registering, unsubscribe_command, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

# Registering.


async def test_a_consumer_is_answered_with_its_segments_as_the_layout_has_them(valkey: ValkeyProcess) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        consumer = await client.subscribed(TOPIC, "s", "c")
        assert [(s.segment_id, s.hash_start, s.hash_end) for s in consumer.last.segments] == [
            (number, number * 0x4000, number * 0x4000 + 0x3FFF) for number in range(4)
        ]
        assert [s.segment_topic for s in consumer.last.segments] == [
            "segment://public/default/orders/0000-3fff-0",
            "segment://public/default/orders/4000-7fff-1",
            "segment://public/default/orders/8000-bfff-2",
            "segment://public/default/orders/c000-ffff-3",
        ]
        assert not any(s.bucket_ranges for s in consumer.last.segments), "a segment has one owner"
        await transitions_of(node).split(TOPIC, 0)
        await until_shared([consumer], [1, 2, 3, 4, 5])
        assert consumer.last.layout_epoch == 1


async def test_a_consumer_registers_on_any_node_and_is_told_by_the_one_it_is_on(valkey: ValkeyProcess) -> None:
    """W24: whoever leads."""
    async with near_and_far(valkey.url) as (first, second, _, far, consumers):
        assert [first.leaders.leads(TOPIC), second.leaders.leads(TOPIC)] == [True, False]
        await far.leave(consumers[1])
        await until_shared(consumers[:1], range(4))


async def test_surplus_consumers_are_answered_with_nothing_and_get_what_comes_free(valkey: ValkeyProcess) -> None:
    async with serving(valkey.url, segments=1) as node, registering(node.pulsar_url) as client:
        first = await client.subscribed(TOPIC, "s", "a")
        second = await client.subscribed(TOPIC, "s", "b")
        assert (first.ids, second.ids) == ({0}, set())
        await client.leave(first)
        await until_shared([second], [0])
        assert second.history == [set(), {0}]
        assert len(second.updates) == 1


async def test_a_missing_topic_is_refused_and_not_made(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, registering(node.pulsar_url) as client:
        consumer = await client.subscribed(TOPIC, "s", "c")
        assert consumer.error == api.TopicNotFound
        assert await node.store.get(TOPIC) is None
        await transitions_of(node).create(TOPIC, 1)
        assert (await client.subscribed(TOPIC, "s", "c")).ids == {0}


@pytest.mark.parametrize(
    ("topic", "subscription", "name", "error"),
    [
        ("topic://public/default", "s", "c", api.InvalidTopicName),
        ("topic://public/default/orders", "", "c", None),
        ("topic://public/default/orders", "s", " ", None),
        ("topic://public/default/orders", "x" * 1025, "c", None),
        ("topic://public/default/orders", "s", "ü" * 513, None),
        ("topic://public/default/orders-partition-1", "s", "c", None),
        ("non-persistent://public/default/orders", "s", "c", None),
    ],
)
async def test_what_cannot_be_registered_is_refused_and_the_connection_goes_on(
    valkey: ValkeyProcess, topic: str, subscription: str, name: str, error: int | None
) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        refused = await client.subscribed(topic, subscription, name)
        assert refused.error is not None
        assert error is None or refused.error == error
        assert refused.response.message
        assert (await client.subscribed(TOPIC, "s", "c")).ids == {0, 1, 2, 3}
        state = await Registrations(node.store).state(node.store.commands, TOPIC)
        assert state is not None
        assert set(state.subscriptions) == {"s"}


async def test_a_subscription_of_another_type_refuses_the_consumer(valkey: ValkeyProcess) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        await Registrations(node.store).create_subscription(TOPIC, "queue", SubscriptionType.QUEUE, 0)
        refused = await client.subscribed(TOPIC, "queue", "c")
        assert refused.error == api.NotAllowedError
        assert "QUEUE" in refused.response.message
        assert (await client.subscribed(TOPIC, "stream", "c")).error is None
        assert (await client.subscribed(TOPIC, "stream", "d", kind=CHECKPOINT)).error == api.NotAllowedError
        assert (await client.subscribed(TOPIC, "group", "c", kind=CHECKPOINT)).error is None
        assert (await client.subscribed(TOPIC, "group", "d")).error == api.NotAllowedError
        assert not (await stored(node, "queue")).consumers


async def test_subscriptions_of_a_topic_do_not_disturb_each_other(valkey: ValkeyProcess) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        alone = await client.subscribed(TOPIC, "alone", "c")
        others = [await client.subscribed(TOPIC, "shared", name) for name in "abc"]
        await until_shared(others, range(4))
        for other in others[1:]:
            await client.leave(other)
        await until_shared(others[:1], range(4))
        await client.round_trip()
        assert alone.history == [{0, 1, 2, 3}]


async def test_exotic_names_are_consumers_like_any_other(valkey: ValkeyProcess) -> None:
    names = ["a/b", "c:", "a:", "c:a:x", "/", "日本語", "😀", "a b", "%2F", "generation", "x" * 1024, "\x00"]
    topic = TopicName.scalable("public", "default", "ä/{b001}/日本")
    async with running_node(valkey.url) as node, registering(node.pulsar_url) as client:
        await transitions_of(node).create(topic, len(names))
        for subscription in names:
            consumers = [await client.subscribe(topic, subscription, name) for name in names]
            await until_shared(consumers, range(len(names)))
            assert all(len(consumer.ids) == 1 for consumer in consumers)
        assert all(
            s.segment_topic.startswith("segment://public/default/ä/{b001}/日本/") for s in consumers[0].last.segments
        )
        await client.leave(consumers[1])
        await until_shared([*consumers[:1], *consumers[2:]], range(len(names)))


# Who is told.


async def test_only_consumers_whose_segments_changed_are_told(valkey: ValkeyProcess) -> None:
    """W17: fewest moves, and silence for everybody else."""
    async with serving(valkey.url, segments=8) as node, registering(node.pulsar_url) as client:
        consumers = [await client.subscribe(TOPIC, "s", f"c{number}") for number in range(4)]
        await until_shared(consumers, range(8))
        assert [len(consumer.ids) for consumer in consumers] == [2] * 4
        before = [len(consumer.events) for consumer in consumers]
        fifth = await client.subscribed(TOPIC, "s", "c4")
        await until_shared([*consumers, fifth], range(8))
        await client.round_trip()
        told = [len(consumer.events) - count for consumer, count in zip(consumers, before, strict=True)]
        assert sorted(told) == [0, 0, 0, 1]
        before = [len(consumer.events) for consumer in consumers]
        await client.leave(fifth)
        await until_shared(consumers, range(8))
        await client.round_trip()
        told = [len(consumer.events) - count for consumer, count in zip(consumers, before, strict=True)]
        assert sorted(told) == [0, 0, 0, 1]


async def test_a_clean_leave_rebalances_at_once(valkey: ValkeyProcess) -> None:
    """W23: not after the grace, which is ten minutes here."""
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        consumers = [await client.subscribe(TOPIC, "s", name) for name in "ab"]
        await until_shared(consumers, range(4))
        await client.leave(consumers[0])
        await until_shared(consumers[1:], range(4))
        assert set((await stored(node)).consumers) == {"b"}
        left = len(consumers[0].events)
        again = await client.subscribed(TOPIC, "s", "a")
        await until_shared([again, consumers[1]], range(4))
        assert len(consumers[0].events) == left, "who left is told nothing more"


async def test_leaving_without_having_been_there_succeeds(valkey: ValkeyProcess) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        for consumer_id in (0, 7, 2**64 - 1):
            await client.until_confirmed(await client.unsubscribe(consumer_id))
        consumer = await client.subscribed(TOPIC, "s", "c")
        await client.leave(consumer)
        await client.leave(consumer)
        assert client.errors == {}


async def test_a_consumer_can_have_any_number_as_its_id(valkey: ValkeyProcess) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        consumers = [
            await client.subscribe(TOPIC, "s", f"c{number}", consumer_id=number) for number in (0, 2**63, 2**64 - 1)
        ]
        await until_shared(consumers, range(4))


async def test_leaving_right_behind_registering_is_leaving(valkey: ValkeyProcess) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        other = await client.subscribed(TOPIC, "s", "other")
        _, subscribe = client.subscription(TOPIC, "s", "hasty", consumer_id=77)
        await client.send(subscribe, unsubscribe_command(1_000, 77))
        await client.until_confirmed(1_000)
        await until_gone(node, "hasty")
        await until_shared([other], range(4))


async def test_leaving_while_the_registration_is_on_its_way_is_leaving(valkey: ValkeyProcess) -> None:
    """W23: who was told that it left is not kept until its grace ends."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        serving(valkey.url) as witness,
        running_node(proxy.url, consumer_grace=LONG, prune_interval=LONG, session_lease=60.0) as node,
        registering(witness.pulsar_url) as near,
        registering(node.pulsar_url) as far,
    ):
        other = await near.subscribed(TOPIC, "s", "other")
        proxy.stall()
        hasty = await far.subscribe(TOPIC, "s", "hasty")
        await far.round_trip()
        await far.round_trip()
        request = await far.unsubscribe(hasty.consumer_id)
        await far.round_trip()
        proxy.resume()
        await far.until_confirmed(request)
        await eventually(lambda: node.consumers.counters.attached == 1)
        await until_gone(witness, "hasty", within=30)
        await until_shared([other], range(4))


async def test_leaving_before_the_answer_is_answered_twice(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        serving(proxy.url, store_timeout=5.0) as node,
        registering(node.pulsar_url) as client,
    ):
        proxy.stall()
        consumer = await client.subscribe(TOPIC, "s", "c")
        request_id = await client.unsubscribe(consumer.consumer_id)
        await eventually(lambda: consumer.answered, within=LIMIT)
        assert consumer.error is not None
        proxy.resume()
        await client.until_confirmed(request_id)
        await until_gone(node, "c")


async def test_a_refused_registration_ends_what_was_registered_under_its_id(valkey: ValkeyProcess) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        consumer = await client.subscribed(TOPIC, "s", "c")
        await client.subscribe(TOPIC, "", "nameless", consumer_id=consumer.consumer_id)
        await until_detached(node, "c")


async def test_more_subscriptions_or_consumers_than_there_may_be_are_refused(valkey: ValkeyProcess) -> None:
    async with (
        serving(valkey.url, max_subscriptions=1, max_consumers=1) as node,
        registering(node.pulsar_url) as client,
    ):
        await until_shared([await client.subscribed(TOPIC, "s", "c")], range(4))
        for subscription, name in (("s", "d"), ("t", "c")):
            refused = await client.subscribed(TOPIC, subscription, name)
            assert refused.error == api.TooManyRequests
