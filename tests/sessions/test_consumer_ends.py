"""Consumers whose topic or subscription is deleted are told, and who does not come back within its grace is evicted."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from metadata import keys
from metadata.registrations import Registrations
from metadata.subscriptions import SubscriptionType
from protocol.wire import pulsar_api_pb2 as api
from sessions.departures import Departure, Departures
from tests.sessions.consumers import LONG, TOPIC, counters, near_and_far, serving, stored, until_detached
from tests.support.consumers import LIMIT, registering, stays, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

# Topics and subscriptions that go.


async def test_consumers_of_a_deleted_topic_are_told_and_do_not_bring_it_back(valkey: ValkeyProcess) -> None:
    """W5"""
    pair = near_and_far(valkey.url, session_lease=1.0, prune_interval=0.3)
    async with pair as (node, other, near, far, consumers):
        await transitions_of(other).delete(TOPIC)
        await eventually(lambda: [consumer.ids for consumer in consumers] == [set(), set()], within=LIMIT)
        await eventually(lambda: all(consumer.closed for consumer in consumers), within=LIMIT)
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
    async with near_and_far(valkey.url) as (node, other, near, _, consumers):
        bystander = await near.subscribed(TOPIC, "t", "near")
        await Registrations(other.store).delete_subscription(TOPIC, "s")
        await eventually(lambda: [consumer.ids for consumer in consumers] == [set(), set()], within=LIMIT)
        assert await Registrations(node.store).names(TOPIC) == ["t"]
        again = await near.subscribed(TOPIC, "s", "again")
        await until_shared([again], range(4))
        await near.round_trip()
        assert bystander.history == [{0, 1, 2, 3}]
        assert [consumer.ids for consumer in consumers] == [set(), set()]
        await eventually(lambda: all(consumer.closed for consumer in consumers), within=LIMIT)
        assert not again.closed
        assert not bystander.closed


async def test_consumers_of_a_deleted_subscription_do_not_join_another_one_of_its_name(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may begin elsewhere, and whoever deleted the former did not mean to keep its consumers."""
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        consumers = [await client.subscribed(TOPIC, "s", f"c{number}") for number in range(5)]
        await until_shared(consumers, range(4))
        registrations = Registrations(node.store)
        with monkeypatch.context() as unheard:
            # The node reads nothing until both have happened.
            unheard.setattr(node.consumers, "_trusted", lambda bucket: False)
            await registrations.delete_subscription(TOPIC, "s")
            await registrations.create_subscription(TOPIC, "s", SubscriptionType.STREAM, 1)
        node.consumers.changed(0, keys.path_of(TOPIC))
        await eventually(lambda: all(consumer.closed for consumer in consumers), within=LIMIT)
        assert (await stored(node)).consumers == {}


async def test_a_consumer_without_segments_is_told_apart_from_one_whose_subscription_was_deleted(
    valkey: ValkeyProcess,
) -> None:
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        consumers = [await client.subscribed(TOPIC, "s", f"c{number}") for number in range(5)]
        await until_shared(consumers, range(4))
        await client.round_trip()
        [surplus] = [consumer for consumer in consumers if not consumer.ids]
        assert not surplus.closed
        told = surplus.history
        await Registrations(node.store).delete_subscription(TOPIC, "s")
        await eventually(lambda: all(consumer.closed for consumer in consumers), within=LIMIT)
        assert surplus.history == told


async def test_a_consumer_whose_name_another_connection_has_is_not_closed(valkey: ValkeyProcess) -> None:
    """It would come back, and take the name in its turn."""
    async with (
        serving(valkey.url) as node,
        registering(node.pulsar_url) as client,
        registering(node.pulsar_url) as successor,
    ):
        old = await client.subscribed(TOPIC, "s", "c")
        new = await successor.subscribed(TOPIC, "s", "c")
        await until_shared([new], range(4))
        await eventually(lambda: old.ids == set(), within=LIMIT)
        await client.round_trip()
        assert not old.closed


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
    pair = near_and_far(fresh_valkey.url, consumer_grace=1.5, session_lease=1.0)
    async with pair as (node, other, near, far, consumers):
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


async def test_consumers_of_a_connection_that_ends_are_signed_off_by_one_task_a_few_at_a_time(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 200
    under_way: set[str] = set()
    told: set[str] = set()
    most = 0
    tell = Departures.tell

    async def counted(departures: Departures, departure: Departure) -> None:
        nonlocal most
        under_way.add(departure.name)
        most = max(most, len(under_way))
        await tell(departures, departure)
        under_way.discard(departure.name)
        told.add(departure.name)

    monkeypatch.setattr(Departures, "tell", counted)
    async with serving(valkey.url, segments=1) as node:
        async with registering(node.pulsar_url) as client:
            pairs = [client.subscription(TOPIC, "s", f"c{number}") for number in range(count)]
            await client.send(*(command for _, command in pairs))
            await eventually(lambda: node.consumers.counters.attached == count)
        await eventually(lambda: len(told) == count)
        assert 1 < most <= 64
        assert node.consumers.counters.consumers == 0
        assert not any(consumer.attachment.node for consumer in (await stored(node)).consumers.values())
