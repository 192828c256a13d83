"""Registered consumers of whole nodes on a real store: what they are told, in which order, and what they are not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from controller.leader import LeaderCounters
from gateway.node import Node
from metadata import keys, scripts
from metadata.registrations import Attached, Consumer, Registrations, Subscription, SubscriptionType
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.support.consumers import (
    CHECKPOINT,
    LIMIT,
    ConsumerConnection,
    RegisteredConsumer,
    connect_consumers,
    registering,
    stays,
    subscribe_command,
    unsubscribe_command,
    until_shared,
)
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

TOPIC = TopicName.parse("topic://public/default/orders")
# Long enough that no grace ends, no lease is missed and nothing is found by a regular look, whatever the machine does.
LONG = 600.0


@asynccontextmanager
async def serving(url: str, segments: int = 4, **settings: Any) -> AsyncIterator[Node]:
    """A node with the topic; graces and sweeps last longer than any test unless it says otherwise."""
    async with running_node(url, **({"consumer_grace": LONG, "prune_interval": LONG} | settings)) as node:
        await transitions_of(node).create(TOPIC, segments)
        yield node


async def stored(node: Node, subscription: str = "s") -> Subscription:
    state = await Registrations(node.store).state(node.store.commands, TOPIC)
    assert state is not None
    return state.subscriptions[subscription]


async def stored_consumer(node: Node, name: str) -> Consumer:
    found = (await stored(node)).consumers.get(name)
    assert found is not None, f"{name} is not registered"
    return found


async def until_detached(node: Node, name: str) -> None:
    async def detached() -> bool:
        return not (await stored_consumer(node, name)).attachment.node

    await eventually(detached, within=LIMIT)


async def until_gone(node: Node, name: str, within: float = LIMIT) -> None:
    async def gone() -> bool:
        return name not in (await stored(node)).consumers

    await eventually(gone, within)


def counters(node: Node) -> LeaderCounters:
    return node.leaders._around.counters


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
    async with (
        serving(valkey.url) as first,
        running_node(valkey.url) as second,
        registering(first.pulsar_url) as near,
        registering(second.pulsar_url) as far,
    ):
        consumers = [await near.subscribed(TOPIC, "s", "near"), await far.subscribed(TOPIC, "s", "far")]
        await until_shared(consumers, range(4))
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
        await until_gone(witness, "hasty", within=5)
        await until_shared([other], range(4))


# Identity: the name, and the latest connection.


async def test_who_reconnects_gets_the_same_back_and_nobody_else_notices(valkey: ValkeyProcess) -> None:
    async with (
        serving(valkey.url) as node,
        registering(node.pulsar_url) as staying,
        registering(node.pulsar_url) as first,
        registering(node.pulsar_url) as second,
    ):
        steady = await staying.subscribed(TOPIC, "s", "steady")
        roamer = await first.subscribed(TOPIC, "s", "roamer")
        await until_shared([steady, roamer], range(4))
        before, rebalances = len(steady.events), counters(node).rebalances
        first.disconnect()
        await until_detached(node, "roamer")
        back = await second.subscribed(TOPIC, "s", "roamer")
        assert back.history == [roamer.ids]
        await staying.round_trip()
        assert len(steady.events) == before
        assert counters(node).rebalances == rebalances


async def test_a_later_connection_has_the_consumer_and_the_end_of_the_earlier_means_nothing(
    valkey: ValkeyProcess,
) -> None:
    """W21: within the grace of nothing at all, too."""
    async with (
        serving(valkey.url, consumer_grace=0.0) as node,
        running_node(valkey.url, consumer_grace=0.0) as elsewhere,
        registering(node.pulsar_url) as earlier,
        registering(elsewhere.pulsar_url) as later,
        registering(node.pulsar_url) as other,
    ):
        old = await earlier.subscribed(TOPIC, "s", "c")
        neighbour = await other.subscribed(TOPIC, "s", "neighbour")
        await until_shared([old, neighbour], range(4))
        new = await later.subscribed(TOPIC, "s", "c")
        assert new.ids == old.ids
        attachment = (await stored_consumer(node, "c")).attachment
        await eventually(lambda: not any(c.name == "c" for group in node.consumers._groups.values() for c in group))
        earlier.disconnect()
        await eventually(lambda: node.counters.connections == 1)
        # Whatever the end of the connection leads to is behind this.
        await transitions_of(node).split(TOPIC, 0)
        await until_shared([new, neighbour], [1, 2, 3, 4, 5])
        assert (await stored_consumer(node, "c")).attachment == attachment
        assert counters(node).evictions == counters(elsewhere).evictions == 0


async def test_the_earlier_of_two_connections_can_not_leave_for_the_later(valkey: ValkeyProcess) -> None:
    """W21"""
    async with (
        serving(valkey.url) as node,
        registering(node.pulsar_url) as earlier,
        registering(node.pulsar_url) as later,
    ):
        old = await earlier.subscribed(TOPIC, "s", "c")
        new = await later.subscribed(TOPIC, "s", "c")
        await earlier.leave(old)
        await transitions_of(node).split(TOPIC, 0)
        await until_shared([new], [1, 2, 3, 4, 5])


async def test_a_connection_takes_its_own_consumer_over_under_another_id(valkey: ValkeyProcess) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        old = await client.subscribed(TOPIC, "s", "c")
        new = await client.subscribed(TOPIC, "s", "c")
        assert new.ids == old.ids
        before = len(old.events)
        await transitions_of(node).split(TOPIC, 0)
        await until_shared([new], [1, 2, 3, 4, 5])
        await client.round_trip()
        assert len(old.events) == before


@pytest.mark.parametrize("round_number", range(5))
async def test_of_registrations_in_one_piece_under_one_id_the_last_is_answered(
    valkey: ValkeyProcess, round_number: int
) -> None:
    """What a connection asks for later counts, however close behind."""
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        pairs = [client.subscription(TOPIC, "s", "c", consumer_id=5) for _ in range(6)]
        await client.send(*(command for _, command in pairs))
        last = pairs[-1][0]
        await eventually(lambda: last.answered, within=5)
        await until_shared([last], range(4))
        await transitions_of(node).split(TOPIC, 0)
        await until_shared([last], [1, 2, 3, 4, 5])


@pytest.mark.parametrize("round_number", range(5))
async def test_of_registrations_in_one_piece_under_one_name_the_last_has_the_consumer(
    valkey: ValkeyProcess, round_number: int
) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        pairs = [client.subscription(TOPIC, "s", "c") for _ in range(6)]
        await client.send(*(command for _, command in pairs))
        last = pairs[-1][0]
        await eventually(lambda: last.answered, within=5)
        await transitions_of(node).split(TOPIC, 0)
        await until_shared([last], [1, 2, 3, 4, 5])


async def test_every_registration_is_answered_also_one_that_another_took_over(valkey: ValkeyProcess) -> None:
    """A client that gets no answer waits for half a minute before it does anything else."""
    async with (
        serving(valkey.url) as node,
        registering(node.pulsar_url) as client,
        registering(node.pulsar_url) as other,
    ):
        pairs = [(c, *c.subscription(TOPIC, "s", "c")) for c in (client, other) * 5]
        for connection, _, command in pairs:
            await connection.send(command)
        await eventually(lambda: all(consumer.answered for _, consumer, _ in pairs), within=5)


async def test_a_registration_that_arrives_late_and_for_nobody_does_not_end_the_one_that_came_after(
    valkey: ValkeyProcess,
) -> None:
    """W21: its client lost patience with a slow node, hung up and registered at another."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        serving(valkey.url) as node,
        running_node(
            proxy.url, consumer_grace=LONG, prune_interval=LONG, store_timeout=30.0, session_lease=60.0
        ) as slow,
        registering(node.pulsar_url) as later,
    ):
        async with registering(slow.pulsar_url) as earlier:
            proxy.stall()
            await earlier.subscribe(TOPIC, "s", "c")
            await earlier.round_trip()
            await earlier.round_trip()
        await eventually(lambda: slow.counters.connections == 0)
        consumer = await later.subscribed(TOPIC, "s", "c")
        assert consumer.ids == {0, 1, 2, 3}
        proxy.resume()
        await eventually(lambda: slow.consumers.counters.attached == 1, within=LIMIT)

        async def attached_here() -> bool:
            return (await stored_consumer(node, "c")).attachment.node == node.session.record.session

        await eventually(attached_here, within=5)
        await transitions_of(node).split(TOPIC, 0)
        await until_shared([consumer], [1, 2, 3, 4, 5])


async def test_a_connection_that_dies_while_it_registers_leaves_no_zombie(valkey: ValkeyProcess) -> None:
    """W22: the registration arrives, and is detached, and its grace ends."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        serving(valkey.url, consumer_grace=0.2) as witness,
        running_node(proxy.url, consumer_grace=0.2, session_lease=LONG) as node,
        registering(witness.pulsar_url) as steady,
    ):
        other = await steady.subscribed(TOPIC, "s", "other")
        for delivered in (False, True):
            async with registering(node.pulsar_url, may_be_cut=True) as client:
                if delivered:
                    # Its last word is read, and then its end, before the store has answered.
                    proxy.stall()
                await client.subscribe(TOPIC, "s", "zombie")
                client.disconnect()
            await eventually(lambda: node.counters.connections == 0)
            proxy.resume()
            await until_gone(witness, "zombie")
        await until_shared([other], range(4))


@pytest.mark.slow
async def test_a_registration_that_ran_unheard_while_its_connection_died_leaves_no_zombie(
    valkey: ValkeyProcess,
) -> None:
    """W22: the reply is lost, and the store away until after the node has given up asking."""
    attach = scripts.ATTACH_CONSUMER.sha.encode()
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        serving(valkey.url, consumer_grace=0.2) as witness,
        running_node(proxy.url, consumer_grace=0.2, session_lease=60.0) as node,
    ):
        async with registering(node.pulsar_url, may_be_cut=True) as client:
            proxy.cut_before_reply(lambda request: attach in request)
            await client.subscribe(TOPIC, "s", "zombie")
            await eventually(lambda: proxy.cuts)
            proxy.refuse()
            proxy.cut()
            client.disconnect()
        assert (await stored_consumer(witness, "zombie")).attachment.node == node.session.record.session
        # Longer than a call is tried: twice the time-out of half a second.
        await trio.sleep(2.0)
        proxy.accept()
        await eventually(lambda: not node.readiness(), within=LIMIT)
        await until_gone(witness, "zombie", within=5)


async def test_a_connection_that_dies_is_noticed_by_all_its_consumers(valkey: ValkeyProcess) -> None:
    async with (
        serving(valkey.url, consumer_grace=0.2) as node,
        registering(node.pulsar_url) as doomed,
        registering(node.pulsar_url) as client,
    ):
        steady = [await client.subscribed(TOPIC, f"s{number}", "steady") for number in range(5)]
        going = [await doomed.subscribed(TOPIC, f"s{number}", "going") for number in range(5)]
        for pair in zip(steady, going, strict=True):
            await until_shared(pair, range(4))
        doomed.disconnect()
        for consumer in steady:
            await until_shared([consumer], range(4))
        assert counters(node).evictions == 5


# Topics and subscriptions that go.


async def test_consumers_of_a_deleted_topic_are_told_and_do_not_bring_it_back(valkey: ValkeyProcess) -> None:
    """W5"""
    async with (
        serving(valkey.url, session_lease=1.0, prune_interval=0.3) as node,
        running_node(valkey.url, session_lease=1.0, prune_interval=0.3) as other,
        registering(node.pulsar_url) as near,
        registering(other.pulsar_url) as far,
    ):
        consumers = [await near.subscribed(TOPIC, "s", "near"), await far.subscribed(TOPIC, "s", "far")]
        await until_shared(consumers, range(4))
        await transitions_of(other).delete(TOPIC)
        await eventually(lambda: [consumer.ids for consumer in consumers] == [set(), set()], within=LIMIT)
        await near.leave(consumers[0])
        far.disconnect()
        await eventually(lambda: other.counters.connections == 0)
        await eventually(lambda: not node.leaders.leads(TOPIC) and not other.leaders.leads(TOPIC))
        path = keys.path_of(TOPIC)

        def untouched() -> bool:
            found: Any = valkey.client().keys("*orders*")
            return all(key.startswith(b"/segments/") for key in found)

        # Two leases and several looks for topics without a leader.
        await stays(untouched, 2.0)
        assert not valkey.client().hexists(keys.leaders_key(keys.bucket_of(path)), path)


async def test_consumers_of_a_topic_that_was_made_anew_are_not_taken_along(valkey: ValkeyProcess) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        old = await client.subscribed(TOPIC, "s", "c")
        changes = transitions_of(node)
        await changes.delete(TOPIC)
        await changes.create(TOPIC, 2)
        await eventually(lambda: old.ids == set(), within=LIMIT)
        new = await client.subscribed(TOPIC, "s", "c")
        assert new.ids == {0, 1}
        await changes.split(TOPIC, 0)
        await until_shared([new], [1, 2, 3])
        assert old.ids == set()


async def test_a_topic_made_anew_gets_a_leader_although_the_old_one_still_had_one_here(valkey: ValkeyProcess) -> None:
    """The node hears of the change late: its leader of the old topic is no leader of the new one."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, consumer_grace=LONG, prune_interval=LONG, probe_interval=1.0) as node,
        running_node(valkey.url, consumer_grace=LONG, prune_interval=LONG) as other,
        registering(node.pulsar_url) as client,
    ):
        changes = transitions_of(other)
        await changes.create(TOPIC, 4)
        await client.subscribed(TOPIC, "s", "old")
        await eventually(lambda: node.leaders.leads(TOPIC))
        proxy.swallow_pushes()
        await changes.delete(TOPIC)
        await changes.create(TOPIC, 2)
        new = await client.subscribe(TOPIC, "s", "new")
        await until_shared([new], [0, 1])


async def test_consumers_of_a_subscription_that_was_deleted_are_told(valkey: ValkeyProcess) -> None:
    """W25"""
    async with (
        serving(valkey.url) as node,
        running_node(valkey.url) as other,
        registering(node.pulsar_url) as near,
        registering(other.pulsar_url) as far,
    ):
        consumers = [await near.subscribed(TOPIC, "s", "near"), await far.subscribed(TOPIC, "s", "far")]
        bystander = await near.subscribed(TOPIC, "t", "near")
        await until_shared(consumers, range(4))
        await Registrations(other.store).delete_subscription(TOPIC, "s", force=True)
        await eventually(lambda: [consumer.ids for consumer in consumers] == [set(), set()], within=LIMIT)
        assert await Registrations(node.store).names(TOPIC) == ["t"]
        again = await near.subscribed(TOPIC, "s", "again")
        await until_shared([again], range(4))
        await near.round_trip()
        assert bystander.history == [{0, 1, 2, 3}]
        assert [consumer.ids for consumer in consumers] == [set(), set()]


async def test_a_consumer_waiting_for_its_first_assignment_is_told_that_the_topic_is_gone(
    valkey: ValkeyProcess,
) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        # A leader that seems alive and does nothing, so that nobody is assigned anything.
        node.leaders._around.peers._alive["f" * 16] = node.session.record
        entry = b'{"session":"ffffffffffffffff","term":1,"nonce":"0","pulsar_url":"","http_url":""}'
        valkey.client().hset(keys.record_key(keys.path_of(TOPIC)), "leader", entry)
        waiting = await client.subscribe(TOPIC, "s", "c")
        await eventually(lambda: node.consumers.counters.attached == 1)
        assert not waiting.answered
        await transitions_of(node).delete(TOPIC)
        await eventually(lambda: waiting.answered, within=LIMIT)
        assert waiting.error == api.TopicNotFound


async def test_who_registers_anew_and_finds_the_topic_gone_is_told(valkey: ValkeyProcess) -> None:
    """The node has not heard of the deletion when the loss of its session lets it register everybody again."""
    await _find_it_gone(valkey, recreate=False)


async def test_who_registers_anew_and_finds_another_topic_is_told(valkey: ValkeyProcess) -> None:
    await _find_it_gone(valkey, recreate=True)


async def _find_it_gone(valkey: ValkeyProcess, *, recreate: bool) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, consumer_grace=LONG, prune_interval=LONG, probe_interval=LONG) as node,
        running_node(valkey.url, consumer_grace=LONG, prune_interval=LONG) as other,
        registering(node.pulsar_url) as client,
    ):
        await transitions_of(other).create(TOPIC, 4)
        consumer = await client.subscribed(TOPIC, "s", "c")
        proxy.swallow_pushes()
        await transitions_of(other).delete(TOPIC)
        if recreate:
            await transitions_of(other).create(TOPIC, 2)
        valkey.client().delete(keys.node_key(node.session.record.session))
        await eventually(lambda: not node.consumers.counters.consumers, within=LIMIT)
        await client.round_trip()
        assert consumer.ids == set()


# Grace.


async def test_who_does_not_come_back_is_evicted_after_the_grace_and_the_rest_share(valkey: ValkeyProcess) -> None:
    async with (
        serving(valkey.url, consumer_grace=0.5) as node,
        registering(node.pulsar_url) as client,
        registering(node.pulsar_url) as doomed,
    ):
        steady = await client.subscribed(TOPIC, "s", "steady")
        going = await doomed.subscribed(TOPIC, "s", "going")
        await until_shared([steady, going], range(4))
        doomed.disconnect()
        await until_shared([steady], range(4))
        assert set((await stored(node)).consumers) == {"steady"}
        assert counters(node).evictions == 1


async def test_who_comes_back_after_its_eviction_begins_anew(valkey: ValkeyProcess) -> None:
    async with (
        serving(valkey.url, consumer_grace=0.1) as node,
        registering(node.pulsar_url) as client,
        registering(node.pulsar_url) as doomed,
        registering(node.pulsar_url) as fresh,
    ):
        steady = await client.subscribed(TOPIC, "s", "steady")
        await doomed.subscribed(TOPIC, "s", "going")
        doomed.disconnect()
        await until_shared([steady], range(4))
        back = await fresh.subscribed(TOPIC, "s", "going")
        await until_shared([steady, back], range(4))


@pytest.mark.slow
async def test_nobody_is_evicted_because_the_store_was_away_for_longer_than_the_grace(
    fresh_valkey: ValkeyProcess,
) -> None:
    """Leases run out, sessions are lost, consumers registered anew; and they notice nothing."""
    async with (
        serving(fresh_valkey.url, consumer_grace=1.5, session_lease=1.0) as node,
        running_node(fresh_valkey.url, consumer_grace=1.5, session_lease=1.0) as other,
        registering(node.pulsar_url) as near,
        registering(other.pulsar_url) as far,
    ):
        consumers = [await near.subscribed(TOPIC, "s", "near"), await far.subscribed(TOPIC, "s", "far")]
        await until_shared(consumers, range(4))
        before = [consumer.history for consumer in consumers]
        fresh_valkey.pause()
        await trio.sleep(4.0)
        fresh_valkey.resume()
        await eventually(lambda: node.session.sessions_lost and other.session.sessions_lost, within=LIMIT)
        await eventually(lambda: node.session.held and other.session.held, within=LIMIT)
        await eventually(lambda: node.leaders.leads(TOPIC) or other.leaders.leads(TOPIC), within=LIMIT)

        async def both_attached() -> bool:
            nodes = {name: found.attachment.node for name, found in (await stored(node)).consumers.items()}
            return nodes == {"near": node.session.record.session, "far": other.session.record.session}

        await eventually(both_attached, within=LIMIT)
        # The grace and more, counted from now.
        await stays(lambda: counters(node).evictions + counters(other).evictions == 0, 2.5)
        await near.round_trip()
        await far.round_trip()
        assert [consumer.history for consumer in consumers] == before


@pytest.mark.slow
async def test_a_detached_consumer_keeps_its_segments_while_the_store_is_away(fresh_valkey: ValkeyProcess) -> None:
    async with (
        serving(fresh_valkey.url, consumer_grace=2.0, session_lease=1.0) as node,
        registering(node.pulsar_url) as client,
        registering(node.pulsar_url) as doomed,
        registering(node.pulsar_url) as fresh,
    ):
        steady = await client.subscribed(TOPIC, "s", "steady")
        roamer = await doomed.subscribed(TOPIC, "s", "roamer")
        await until_shared([steady, roamer], range(4))
        doomed.disconnect()
        await until_detached(node, "roamer")
        fresh_valkey.pause()
        await trio.sleep(3.0)
        # It could not have come back meanwhile.
        back = await fresh.subscribe(TOPIC, "s", "roamer")
        fresh_valkey.resume()
        await eventually(lambda: back.answered, within=LIMIT)
        assert back.ids == roamer.ids
        assert counters(node).evictions == 0


# The node's session.


async def test_after_a_lost_session_everybody_is_attached_again_and_notices_nothing(valkey: ValkeyProcess) -> None:
    async with (
        serving(valkey.url, session_lease=0.6, consumer_grace=2.0) as node,
        registering(node.pulsar_url) as client,
    ):
        consumers = [await client.subscribe(TOPIC, f"s{number % 2}", f"c{number}") for number in range(10)]
        await until_shared(consumers[::2], range(4))
        await until_shared(consumers[1::2], range(4))
        before = [consumer.history for consumer in consumers]
        for lost in (1, 2):
            first = node.session.record.session
            valkey.client().delete(keys.node_key(first))
            await eventually(lambda lost=lost: node.session.sessions_lost == lost, within=LIMIT)  # type: ignore[misc]

            async def all_attached() -> bool:
                mine = node.session.record.session
                found = [*(await stored(node, "s0")).consumers.values(), *(await stored(node, "s1")).consumers.values()]
                return len(found) == 10 and all(consumer.attachment.node == mine for consumer in found)

            await eventually(all_attached, within=LIMIT)
        await eventually(lambda: node.leaders.leads(TOPIC), within=LIMIT)
        await transitions_of(node).split(TOPIC, 0)
        await until_shared(consumers[::2], [1, 2, 3, 4, 5])
        assert all(
            c.history[: len(h)] == h and len(c.history) <= len(h) + 2 for c, h in zip(consumers, before, strict=True)
        )
        assert counters(node).evictions == 0


async def test_a_registration_under_a_session_that_is_lost_meanwhile_ends_under_the_next(
    valkey: ValkeyProcess,
) -> None:
    """The call waits, as for a store that is away; the session ends; the call goes through."""
    async with (
        serving(valkey.url, session_lease=1.0, consumer_grace=0.5) as node,
        registering(node.pulsar_url) as client,
    ):
        steady = await client.subscribed(TOPIC, "s", "steady")
        gate, waiting = trio.Event(), trio.Event()

        class SlowOnce(Registrations):
            async def attach(self, *args: Any, **more: Any) -> Attached | None:
                if not waiting.is_set():
                    waiting.set()
                    await gate.wait()
                return await super().attach(*args, **more)

        node.consumers._registrations = SlowOnce(node.store)
        late = await client.subscribe(TOPIC, "s", "late")
        with trio.fail_after(LIMIT):
            await waiting.wait()
        attached = node.consumers.counters.attached
        valkey.client().delete(keys.node_key(node.session.record.session))
        await eventually(lambda: node.session.sessions_lost, within=LIMIT)
        # Long enough for another call under the new session, if there is to be one.
        with trio.move_on_after(2):
            await eventually(lambda: node.consumers.counters.attached >= attached + 2, within=LIMIT)
        gate.set()

        async def attached_to_this_session() -> bool:
            mine = node.session.record.session
            return {c.attachment.node for c in (await stored(node)).consumers.values()} == {mine}

        await until_shared([steady, late], range(4))
        await eventually(attached_to_this_session, within=5)
        await transitions_of(node).split(TOPIC, 0)
        await until_shared([steady, late], [1, 2, 3, 4, 5])
        assert counters(node).evictions == 0


async def test_the_last_reader_of_a_group_that_was_evicted_while_its_connection_stands_comes_back(
    valkey: ValkeyProcess,
) -> None:
    """The group went with it. Its node did not run for a while, as if stopped by a signal, and lost no connection."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        serving(valkey.url, session_lease=0.6, consumer_grace=0.1) as other,
        running_node(
            proxy.url, session_lease=6.0, consumer_grace=0.1, prune_interval=LONG, store_timeout=60.0
        ) as stopped,
        registering(stopped.pulsar_url) as client,
    ):
        await other.leaders.lead(TOPIC)
        reader = await client.subscribed(TOPIC, "readers", "r", kind=CHECKPOINT)
        proxy.stall()
        valkey.client().delete(keys.node_key(stopped.session.record.session))

        async def group_gone() -> bool:
            return await Registrations(other.store).names(TOPIC) == []

        await eventually(group_gone, within=LIMIT)
        proxy.resume()

        async def attached_again() -> bool:
            return await Registrations(other.store).names(TOPIC) == ["readers"]

        await eventually(attached_again, within=LIMIT)
        await transitions_of(other).split(TOPIC, 0)
        await until_shared([reader], [0, 1, 2, 3, 4, 5])


async def test_all_subscriptions_of_a_topic_that_the_store_lost_are_registered_again(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by a read of its own, and what one of them finds out says nothing about the others."""
    monkeypatch.setattr("sessions.consumers._READ_INTERVAL", 0.5)
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        consumers = [await client.subscribed(TOPIC, name, "c") for name in ("s", "t")]
        path = keys.path_of(TOPIC)
        bucket = keys.bucket_of(path)
        await eventually(lambda: not node.consumers._reading, within=LIMIT)
        # One of them has just been read, and is read again after the other.
        node.consumers._mark((path, "t"))
        await trio.sleep(0.2)
        client_of_store = valkey.client()
        client_of_store.unlink(keys.subscriptions_key(path), keys.members_key(path, "s"), keys.members_key(path, "t"))
        node.consumers.gap([bucket])

        async def registered() -> bool:
            return await Registrations(node.store).names(TOPIC) == ["s", "t"]

        await eventually(registered, within=5)
        await transitions_of(node).split(TOPIC, 0)
        for consumer in consumers:
            await until_shared([consumer], [1, 2, 3, 4, 5])


async def test_a_subscription_that_is_missing_after_a_gap_was_deleted_unless_the_store_went_back(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if all were registered long ago.
    monkeypatch.setattr("sessions.consumers._LONGEST_FEED_LAG", 0.0)
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        path = keys.path_of(TOPIC)
        deleted, lost = [await client.subscribed(TOPIC, name, "c") for name in ("deleted", "lost")]
        await eventually(lambda: not node.consumers._reading, within=LIMIT)
        for name in ("deleted", "lost"):
            valkey.client().hdel(keys.subscriptions_key(path), name)
            valkey.client().unlink(keys.members_key(path, name))
            if name == "lost":
                node.consumers.rolled_back([keys.bucket_of(path)])
            node.consumers.gap([keys.bucket_of(path)])
            await eventually(lambda: not node.consumers._reading, within=LIMIT)
        await eventually(lambda: not deleted.ids, within=LIMIT)
        assert await Registrations(node.store).names(TOPIC) == ["lost"]
        assert lost.ids == {0, 1, 2, 3}


async def test_a_consumer_that_was_evicted_while_its_connection_stands_comes_back(valkey: ValkeyProcess) -> None:
    """Its node was cut off for longer than lease and grace, and others went on without it."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        serving(valkey.url, session_lease=0.8, consumer_grace=0.3) as node,
        running_node(proxy.url, session_lease=0.8, consumer_grace=0.3) as cut_off,
        registering(node.pulsar_url) as near,
        registering(cut_off.pulsar_url) as far,
    ):
        consumers = [await near.subscribed(TOPIC, "s", "near"), await far.subscribed(TOPIC, "s", "far")]
        await until_shared(consumers, range(4))
        proxy.refuse()
        proxy.cut()
        await until_gone(node, "far")
        await eventually(lambda: consumers[0].ids == {0, 1, 2, 3}, within=LIMIT)
        proxy.accept()
        await until_shared(consumers, range(4))


async def test_a_departure_that_the_store_lost_before_the_feed_had_read_it_is_told_again(valkey: ValkeyProcess) -> None:
    async with (
        serving(valkey.url) as node,
        registering(node.pulsar_url) as leaver,
        registering(node.pulsar_url) as doomed,
        registering(node.pulsar_url) as client,
    ):
        for connection, name in ((client, "stays"), (leaver, "leaves"), (doomed, "is gone")):
            await connection.subscribed(TOPIC, "s", name)
        members = keys.members_key(keys.path_of(TOPIC), "s")
        registered = valkey.client().hgetall(members)
        await leaver.leave(leaver.consumers[0])
        doomed.disconnect()
        await until_detached(node, "is gone")
        # The store goes back a little, to an end of the log that the feed knows.
        valkey.client().hset(members, mapping=registered)  # type: ignore[arg-type]
        valkey.command("CLIENT", "KILL", "TYPE", "pubsub")
        await until_gone(node, "leaves")
        await until_detached(node, "is gone")
        assert node.session.sessions_lost == 0
        assert (await stored_consumer(node, "stays")).attachment.node


async def test_leaving_is_confirmed_although_the_session_was_lost_meanwhile(valkey: ValkeyProcess) -> None:
    """W23: the consumer said that it goes for good, and gets to know that it has gone."""
    detach = scripts.DETACH_CONSUMER.sha.encode()
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        serving(valkey.url) as witness,
        running_node(proxy.url, session_lease=0.6, consumer_grace=LONG, prune_interval=LONG) as node,
        registering(witness.pulsar_url) as near,
        registering(node.pulsar_url) as far,
    ):
        steady = await near.subscribed(TOPIC, "s", "steady")
        going = await far.subscribed(TOPIC, "s", "going")
        await until_shared([steady, going], range(4))
        proxy.cut_before_reply(lambda request: detach in request, times=1_000_000)
        request = await far.unsubscribe(going.consumer_id)
        await eventually(lambda: proxy.cuts)
        valkey.client().delete(keys.node_key(node.session.record.session))
        await eventually(lambda: node.session.sessions_lost, within=LIMIT)
        # The call that is under way is given up after a second.
        await trio.sleep(1.5)
        proxy.cut_before_reply(lambda request: False, times=0)
        await until_shared([steady], range(4), within=5)
        await far.until_confirmed(request, within=5)


# Trouble with the store.


async def test_lost_replies_delay_an_answer_and_change_nothing(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, consumer_grace=LONG, prune_interval=LONG) as node,
        registering(node.pulsar_url) as client,
    ):
        await transitions_of(node).create(TOPIC, 4)
        consumers: list[RegisteredConsumer] = []
        for script in (scripts.ATTACH_CONSUMER, scripts.TAKE_LEAD, scripts.ASSIGN):
            sha = script.sha.encode()
            proxy.cut_before_reply(lambda request, sha=sha: sha in request, times=2)  # type: ignore[misc]
            consumers.append(await client.subscribe(TOPIC, "s", f"c{len(consumers)}"))
            await until_shared(consumers, range(4))
        proxy.cut_before_reply(lambda request: scripts.DETACH_CONSUMER.sha.encode() in request, times=2)
        await client.leave(consumers.pop())
        await until_shared(consumers, range(4))


async def test_a_registration_waits_for_the_store_and_is_answered_when_it_is_back(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, consumer_grace=LONG, prune_interval=LONG, session_lease=2.0) as node,
        registering(node.pulsar_url) as client,
    ):
        await transitions_of(node).create(TOPIC, 4)
        proxy.refuse()
        proxy.cut()
        consumer = await client.subscribe(TOPIC, "s", "c")
        await client.round_trip()
        await stays(lambda: not consumer.answered, 1.5)
        proxy.accept()
        await until_shared([consumer], range(4))


async def test_nothing_is_told_on_the_word_of_a_store_that_lost_its_identity(fresh_valkey: ValkeyProcess) -> None:
    """A flushed server is not one on which every topic was deleted."""
    async with serving(fresh_valkey.url) as node, registering(node.pulsar_url) as client:
        consumer = await client.subscribed(TOPIC, "s", "c")
        fresh_valkey.client().flushall()
        await eventually(node.readiness, within=LIMIT)
        await stays(lambda: consumer.history == [{0, 1, 2, 3}], 1.5)


# Numbers.


@pytest.mark.slow
async def test_a_thousand_consumers_that_join_at_once_cause_few_rebalances_and_few_pushes(
    valkey: ValkeyProcess,
) -> None:
    count, segments = 1_000, 1_000
    async with serving(valkey.url, segments=segments) as node, registering(node.pulsar_url) as client:
        first = await client.subscribed(TOPIC, "s", "c0000")
        begun = counters(node).rebalances
        pairs = [client.subscription(TOPIC, "s", f"c{number:04d}") for number in range(1, count)]
        await client.send(*(command for _, command in pairs))
        consumers = [first, *(consumer for consumer, _ in pairs)]
        await until_shared(consumers, range(segments), within=60)
        rebalances, assigned = counters(node).rebalances - begun, counters(node).assigned
        assert rebalances <= 20
        pushes = sum(len(consumer.updates) for consumer in consumers)
        assert pushes <= assigned
        assert node.consumers.counters.pushes == pushes
        assert all(len(consumer.ids) == 1 for consumer in consumers)


@pytest.mark.slow
async def test_a_thousand_consumers_whose_connections_break_at_once_come_back_to_the_same(
    valkey: ValkeyProcess,
) -> None:
    count = 1_000
    async with (
        serving(valkey.url, segments=count) as node,
        registering(node.pulsar_url) as first,
        registering(node.pulsar_url) as second,
    ):
        before = [first.subscription(TOPIC, "s", f"c{number:04d}") for number in range(count)]
        await first.send(*(command for _, command in before))
        await until_shared([consumer for consumer, _ in before], range(count), within=60)
        rebalances = counters(node).rebalances
        first.disconnect()
        after = [second.subscription(TOPIC, "s", f"c{number:04d}") for number in range(count)]
        await second.send(*(command for _, command in after))
        await eventually(lambda: all(consumer.answered for consumer, _ in after), within=60)
        assert [consumer.history for consumer, _ in after] == [[consumer.ids] for consumer, _ in before]
        assert counters(node).rebalances == rebalances


# A peer that does not read.


async def test_a_slow_client_that_registers_again_under_an_id_ends_with_the_newest_assignment(
    valkey: ValkeyProcess,
) -> None:
    """An assignment for the consumer that had the id before is queued, and must not keep a place before the answer."""
    async with (
        serving(valkey.url, segments=900) as node,
        registering(node.pulsar_url) as other,
        registering(node.pulsar_url, receive_buffer=4_096) as slow,
    ):
        first = await slow.subscribed(TOPIC, "s", "slow")
        slow.stop_reading()
        # Each takes some of the slow one's segments. The first push fills its socket, the others wait.
        others = [await other.subscribed(TOPIC, "s", f"c{number}") for number in range(3)]
        await eventually(lambda: node.counters.pushes_queued, within=LIMIT)
        again = await slow.subscribe(TOPIC, "s", "slow", consumer_id=first.consumer_id)
        await eventually(lambda: node.consumers.counters.attached == 5, within=LIMIT)
        others.append(await other.subscribed(TOPIC, "s", "last"))
        assert node.counters.outbox_bytes, "the slow one is not slow enough"
        slow.read_on()
        await slow.round_trip()
        # What was on its way to the earlier one under this id may come before the answer.
        slow.complaints.clear()
        await until_shared([*others, again], range(900), within=5)


async def test_a_slow_client_is_told_the_newest_only(valkey: ValkeyProcess) -> None:
    async with (
        serving(valkey.url, segments=900) as node,
        registering(node.pulsar_url) as other,
        registering(node.pulsar_url, receive_buffer=4_096) as slow,
    ):
        consumer = await slow.subscribed(TOPIC, "s", "slow")
        slow.stop_reading()
        others = [await other.subscribed(TOPIC, "s", f"c{number}") for number in range(8)]
        assert node.counters.outbox_bytes, "the slow one is not slow enough"
        slow.read_on()
        await until_shared([*others, consumer], range(900))
        assert len(consumer.updates) < 8


@pytest.mark.parametrize("deleted", ["topic", "subscription"])
async def test_a_slow_client_is_told_that_it_has_nothing_any_more(valkey: ValkeyProcess, deleted: str) -> None:
    """The last word on a consumer waits in the queue of its connection, although the consumer is forgotten."""
    async with (
        serving(valkey.url, segments=900) as node,
        registering(node.pulsar_url) as other,
        registering(node.pulsar_url, receive_buffer=4_096) as slow,
    ):
        consumer = await slow.subscribed(TOPIC, "s", "slow")
        slow.stop_reading()
        for number in range(3):
            await other.subscribed(TOPIC, "s", f"c{number}")
        await eventually(lambda: node.counters.outbox_bytes, within=LIMIT)
        if deleted == "topic":
            await transitions_of(node).delete(TOPIC)
        else:
            await Registrations(node.store).delete_subscription(TOPIC, "s", force=True)
        await eventually(lambda: not node.consumers.counters.consumers, within=LIMIT)
        slow.read_on()
        await slow.round_trip()
        assert consumer.ids == set()


@pytest.mark.parametrize("reading", [True, False])
async def test_a_connection_with_unread_answers_can_be_cut_and_its_consumers_are_detached(
    valkey: ValkeyProcess, reading: bool
) -> None:
    async with trio.open_nursery() as nursery, serving(valkey.url, segments=200, consumer_grace=0.3) as node:
        client = await connect_consumers(nursery, node.pulsar_url, receive_buffer=4_096)
        if not reading:
            client.stop_reading()
        await _register_many(client, 50)
        await eventually(lambda: node.consumers.counters.attached == 50, within=LIMIT)
        client.disconnect()
        await eventually(lambda: not node.consumers.counters.consumers, within=LIMIT)

        async def empty() -> bool:
            return not (await stored(node)).consumers

        await eventually(empty, within=LIMIT)


async def _register_many(client: ConsumerConnection, count: int) -> None:
    await client.send(*(subscribe_command(n, TOPIC, "s", f"c{n}", n) for n in range(count)))
