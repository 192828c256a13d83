"""Leaders of topics that are deleted or idle: they go where nobody needs them, and those that stay ask for nothing."""

from __future__ import annotations

import pytest
import trio

from metadata import keys
from metadata.errors import TopicMissing
from metadata.leadership import Leaderships
from metadata.records import Leader, StoredTopic
from metadata.registrations import Registrations
from metadata.subscriptions import Attachment, SubscriptionType
from protocol.names import TopicName
from tests.controller.leading_nodes import (
    LONG,
    PATH,
    SETTINGS,
    TOPIC,
    do_nothing,
    leader_of,
    pair,
    subscription_of,
    until_led_by,
)
from tests.controller.staged_leaders import until_steady
from tests.support.consumers import LIMIT, registering, stays, until_shared
from tests.support.nodes import running_node, topics_in_buckets, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

# Retiring.


async def test_an_idle_topic_has_no_leader_after_a_while(valkey: ValkeyProcess) -> None:
    async with pair(valkey, prune_interval=0.3) as (first, second):
        await first.leaders.lead(TOPIC)

        async def nobody_leads() -> bool:
            return await leader_of(second) is None and not len(first.leaders)

        await eventually(nobody_leads, within=LIMIT)
        assert await Leaderships(first.store).listed() == {}


async def test_a_topic_with_a_consumer_or_a_sealed_segment_keeps_its_leader(valkey: ValkeyProcess) -> None:
    async with (
        pair(valkey, prune_interval=0.2, retention=LONG) as (first, _),
        registering(first.pulsar_url) as client,
    ):
        sealed = TopicName.scalable("public", "default", "sealed")
        await transitions_of(first).create(sealed, 1)
        await client.subscribed(TOPIC, "s", "c")
        await first.leaders.as_leader(
            sealed, lambda leader: transitions_of(first).split(sealed, 0, fence=leader.leader.fence)
        )
        leaders = [await first.leaders.lead(topic) for topic in (TOPIC, sealed)]
        await stays(lambda: first.leaders.leads(TOPIC) and first.leaders.leads(sealed), 1.5)
        assert [await first.leaders.lead(topic) for topic in (TOPIC, sealed)] == leaders


async def test_who_registers_while_the_leader_retires_is_led(valkey: ValkeyProcess) -> None:
    """The store has let it go already, and it does not know it yet."""
    async with pair(valkey) as (first, second):
        gate, dropped = trio.Event(), trio.Event()

        class Slow(Leaderships):
            async def drop(self, topic: StoredTopic, leader: Leader, *, idle: bool) -> bool:
                done = await super().drop(topic, leader, idle=idle)
                dropped.set()
                await gate.wait()
                return done

        around = first.leaders._around
        object.__setattr__(around, "leaderships", Slow(first.store))
        object.__setattr__(around.settings, "prune_interval", 0.2)
        await first.leaders.lead(TOPIC)
        with trio.fail_after(LIMIT):
            await dropped.wait()
        assert await leader_of(first) is None
        attachment = Attachment(first.session.record.session, "1" * 16)
        attached = await Registrations(first.store).attach(TOPIC, "s", SubscriptionType.STREAM, "c", attachment)
        assert attached is not None
        object.__setattr__(around.settings, "prune_interval", LONG)
        await first.leaders.ensure_led(TOPIC, attached.leader)
        gate.set()

        async def assigned() -> bool:
            return (await subscription_of(second)).consumers["c"].assignment is not None

        await eventually(assigned, within=30)


# Deleted topics.


async def test_a_topic_that_is_deleted_has_no_leader_left_anywhere(valkey: ValkeyProcess) -> None:
    """W5"""
    async with pair(valkey) as (first, second):
        await first.leaders.lead(TOPIC)
        await transitions_of(second).delete(TOPIC)
        await eventually(lambda: not first.leaders.leads(TOPIC), within=LIMIT)
        for node in (first, second):
            node.leaders.sweep()
            with pytest.raises(TopicMissing):
                await node.leaders.as_leader(TOPIC, do_nothing)
        await stays(lambda: not valkey.client().exists(keys.record_key(PATH)), 0.5)
        assert await Leaderships(first.store).listed() == {}


async def test_a_topic_made_anew_is_led_anew(valkey: ValkeyProcess) -> None:
    async with pair(valkey) as (first, second):
        old = await first.leaders.lead(TOPIC)
        await transitions_of(second).delete(TOPIC)
        await transitions_of(second).create(TOPIC, 2)
        # Asked right away: what it leads may still be the topic that is gone.
        leader = await first.leaders.as_leader(
            TOPIC, lambda leader: transitions_of(first).split(TOPIC, 0, fence=leader.leader.fence)
        )
        assert leader.version.incarnation != old.incarnation
        await until_led_by(first)


# Idle.


@pytest.mark.slow
async def test_leaders_ask_the_store_nothing_while_nothing_happens(valkey: ValkeyProcess) -> None:
    """What a leader reads by is not called once; what nodes live by goes on."""
    topics = topics_in_buckets(range(20))
    async with (
        running_node(valkey.url, **SETTINGS) as node,
        registering(node.pulsar_url) as client,
    ):
        consumers = []
        for topic in topics:
            await transitions_of(node).create(topic, 2)
            consumers.append(await client.subscribed(topic, "s", "c"))
        assert len(node.leaders) == len(topics)
        counters = node.leaders._around.counters
        # The round that found nothing left to do is behind the one that assigned.
        before = await until_steady(lambda: counters.rounds)
        calls = commands(valkey)
        await trio.sleep(2.0)
        await eventually(lambda: commands(valkey)["evalsha"] > calls["evalsha"], within=LIMIT)
        after = commands(valkey)
        assert counters.rounds == before
        assert {name: after[name] - calls.get(name, 0) for name in ("hmget", "hgetall") if name in after} == {
            "hmget": 0,
            "hgetall": 0,
        }
        await transitions_of(node).split(topics[0], 0)
        await until_shared(consumers[:1], [1, 2, 3])
        assert commands(valkey)["hgetall"] > after["hgetall"], "and this is what is counted"


def commands(valkey: ValkeyProcess) -> dict[str, int]:
    """How often each command was called so far."""
    stats = valkey.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(found["calls"]) for name, found in stats.items()}
