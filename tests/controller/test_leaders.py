"""Which node leads: one of many that want to, another when it is gone, and nobody who was deposed."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from controller.leader import TopicLeader
from controller.leaders import LedElsewhere
from gateway.node import Node
from layout import records
from metadata import keys
from metadata.errors import Fenced, TopicMissing
from metadata.leadership import Leaderships
from metadata.records import Leader, StoredTopic
from metadata.registrations import Registrations
from metadata.store import open_store
from metadata.subscriptions import SubscriptionType
from protocol.names import TopicName
from tests.controller.leading_nodes import (
    PATH,
    SETTINGS,
    TOPIC,
    cut_off_pair,
    do_nothing,
    leader_of,
    outcome,
    pair,
    until_led_by,
)
from tests.support.consumers import LIMIT, registering, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

# Taking.


async def test_of_two_nodes_that_race_exactly_one_leads_and_the_other_learns_it(valkey: ValkeyProcess) -> None:
    """W1: whoever asks gets the leader, or the name of the one who is."""
    async with pair(valkey) as (first, second):
        for number in range(10):
            topic = TopicName.scalable("public", "default", f"race-{number}")
            await transitions_of(first).create(topic, 1)
            results: list[Any] = []

            async def race(node: Node, topic: TopicName = topic, results: list[Any] = results) -> None:
                results.append((node, await outcome(lambda: node.leaders.lead(topic))))

            async with trio.open_nursery() as nursery:
                for node in (first, second) * 5:
                    nursery.start_soon(race, node)
            winners = {node.session.record.session for node, found in results if isinstance(found, TopicLeader)}
            losers = [found for _, found in results if not isinstance(found, TopicLeader)]
            assert len(winners) == 1
            assert all(isinstance(found, LedElsewhere) for found in losers)
            assert {found.leader.session for found in losers} == winners
            assert [first.leaders.leads(topic), second.leaders.leads(topic)].count(True) == 1
            leader = await leader_of(first, topic)
            assert leader is not None
            assert {leader.session} == winners


async def test_a_node_leads_a_topic_once_however_many_ask(valkey: ValkeyProcess) -> None:
    async with pair(valkey) as (first, _):
        found: list[TopicLeader] = []

        async def lead() -> None:
            found.append(await first.leaders.lead(TOPIC))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(lead)
        assert len(set(map(id, found))) == 1
        assert len(first.leaders) == 1


async def test_asking_for_topics_that_do_not_exist_leaves_nothing_behind(valkey: ValkeyProcess) -> None:
    """W3"""
    async with pair(valkey) as (first, _):
        for number in range(50):
            topic = TopicName.scalable("public", "default", f"missing-{number}")
            with pytest.raises(TopicMissing):
                await first.leaders.lead(topic)
            with pytest.raises(TopicMissing):
                await first.leaders.as_leader(topic, do_nothing)
        assert len(first.leaders) == 0
        assert not first.leaders._locks
        assert await Leaderships(first.store).listed() == {}


async def test_a_node_whose_session_is_not_sure_takes_no_lead(valkey: ValkeyProcess) -> None:
    async with cut_off_pair(valkey) as (first, second, proxy):
        await first.leaders.resign()
        proxy.stall()
        await eventually(lambda: not first.session.held, within=LIMIT)
        stored = await second.store.get(TOPIC)
        assert stored is not None
        with pytest.raises(Fenced):
            await first.leaders._take(stored, PATH)
        proxy.resume()


# Losing.


@pytest.mark.slow
async def test_the_topics_of_a_node_that_is_gone_are_taken_over(valkey: ValkeyProcess) -> None:
    async with cut_off_pair(valkey) as (first, second, proxy):
        others = [TopicName.scalable("public", "default", f"topic-{number}") for number in range(20)]
        for topic in others:
            await transitions_of(second).create(topic, 1)
            await first.leaders.lead(topic)
        proxy.refuse()
        proxy.cut()
        for topic in (TOPIC, *others):
            await until_led_by(second, topic)
        assert len(second.leaders) == 21


async def test_a_node_that_stops_leaves_its_topics_to_others_without_waiting_for_its_lease(
    valkey: ValkeyProcess,
) -> None:
    async with running_node(valkey.url, **(SETTINGS | {"session_lease": 60.0, "prune_interval": 1.0})) as heir:
        async with running_node(valkey.url, **(SETTINGS | {"session_lease": 60.0})) as leaving:
            await transitions_of(leaving).create(TOPIC, 1)
            await Registrations(leaving.store).create_subscription(TOPIC, "s", SubscriptionType.STREAM, 0)
            await leaving.leaders.lead(TOPIC)
        await until_led_by(heir)


async def test_a_node_that_stops_does_not_take_back_what_it_left_to_others(valkey: ValkeyProcess) -> None:
    topics = [TopicName.scalable("public", "default", f"topic-{number}") for number in range(300)]
    async with running_node(valkey.url, **(SETTINGS | {"session_lease": 2.0})) as leaving:
        session = leaving.session.record.session
        for topic in topics:
            await transitions_of(leaving).create(topic, 1)
            await leaving.leaders.lead(topic)
        assert leaving.session.record.session == session
    async with open_store(valkey.url) as store:
        left = [stored.leader for stored in await store.get_many(topics) if stored is not None and stored.leader]
        assert left == []
        assert set((await Leaderships(store).listed()).values()) == {""}


async def test_a_deposed_leader_steps_down_and_none_of_its_writes_count(valkey: ValkeyProcess) -> None:
    """W1, W2: it was cut off, another leads, and then it is back and believes that it leads."""
    async with cut_off_pair(valkey, segments=2) as (first, second, proxy):
        deposed = await first.leaders.lead(TOPIC)
        proxy.stall()
        await until_led_by(second)
        assert first.leaders.leads(TOPIC), "it cannot know yet"
        before = await second.store.get(TOPIC)
        proxy.resume()
        with pytest.raises(Fenced):
            await transitions_of(first).split(TOPIC, 0, fence=deposed.leader.fence)
        await eventually(lambda: not first.leaders.leads(TOPIC), within=LIMIT)
        assert await second.store.get(TOPIC) == before
        result = await outcome(lambda: first.leaders.as_leader(TOPIC, do_nothing))
        assert isinstance(result, LedElsewhere)
        assert result.leader.http_url == second.http_url


async def test_a_leader_that_lost_its_session_gives_up_and_leads_under_the_next(valkey: ValkeyProcess) -> None:
    async with pair(valkey) as (first, second):
        old = (await first.leaders.lead(TOPIC)).leader
        await transitions_of(first).split(TOPIC, 0)  # so that it needs a leader
        valkey.client().delete(keys.node_key(old.session))

        async def led_anew() -> Leader | None:
            leader = await leader_of(first)
            living = {first.session.record.session, second.session.record.session} - {old.session}
            return leader if leader is not None and leader.session in living else None

        new = await eventually(led_anew, within=LIMIT)
        assert new is not None
        assert new.term > old.term
        await eventually(lambda: [first.leaders.leads(TOPIC), second.leaders.leads(TOPIC)].count(True) == 1)
        with pytest.raises(Fenced):
            await transitions_of(first).split(TOPIC, 1, fence=old.fence)


async def test_a_leader_whose_entry_is_not_in_the_store_any_more_is_followed_by_another_soon(
    valkey: ValkeyProcess,
) -> None:
    """As after a fail-over that lost it: who is fenced by nobody has nobody to lead in its place."""
    async with pair(valkey) as (first, _), registering(first.pulsar_url) as client:
        consumer = await client.subscribed(TOPIC, "s", "c")
        await eventually(lambda: first.leaders.leads(TOPIC))
        valkey.client().hdel(keys.record_key(PATH), "leader")
        other = await client.subscribe(TOPIC, "s", "d")
        await until_shared([consumer, other], range(4))


async def test_a_leader_that_is_fenced_in_the_middle_of_an_operation_tries_again_as_the_next(
    valkey: ValkeyProcess,
) -> None:
    async with pair(valkey) as (first, _):
        before = await first.leaders.lead(TOPIC)
        valkey.client().hdel(keys.record_key(PATH), "leader")
        seen: list[TopicLeader] = []

        async def split(leader: TopicLeader) -> StoredTopic:
            seen.append(leader)
            return await transitions_of(first).split(TOPIC, 0, fence=leader.leader.fence)

        stored = await first.leaders.as_leader(TOPIC, split)
        assert records.decode(stored.value).layout.epoch == 1
        assert [seen[0] is before, seen[-1] is before] == [True, False]


async def test_a_leader_does_one_layout_operation_at_a_time(valkey: ValkeyProcess) -> None:
    """W7"""
    async with pair(valkey, segments=8) as (first, _):
        running = 0

        async def split(leader: TopicLeader, segment_id: int) -> None:
            nonlocal running
            running += 1
            assert running == 1
            await transitions_of(first).split(TOPIC, segment_id, fence=leader.leader.fence)
            running -= 1

        async def act(segment_id: int) -> None:
            await first.leaders.as_leader(TOPIC, lambda leader: split(leader, segment_id))

        async with trio.open_nursery() as nursery:
            for segment_id in range(8):
                nursery.start_soon(act, segment_id)
        stored = await first.store.get(TOPIC)
        assert stored is not None
        layout = records.decode(stored.value).layout
        layout.validate()
        assert layout.epoch == 8


async def test_an_operation_that_fails_leaves_the_leader_as_it_was(valkey: ValkeyProcess) -> None:
    async with pair(valkey) as (first, _):
        leader = await first.leaders.lead(TOPIC)

        async def fail(leader: TopicLeader) -> None:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await first.leaders.as_leader(TOPIC, fail)
        assert await first.leaders.lead(TOPIC) is leader
        assert await first.leaders.as_leader(TOPIC, do_nothing) == leader.leader
