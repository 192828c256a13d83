"""Which node leads: one of many that want to, another when it is gone, and nobody who was deposed."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from controller.leader import TopicLeader
from controller.leaders import LedElsewhere
from controller.transitions import TopicLimits, Transitions
from gateway.node import Node
from layout import records
from layout.errors import LayoutError
from metadata import keys, scripts
from metadata.errors import Fenced, StoreError, TopicMissing
from metadata.leadership import Leaderships
from metadata.node_sessions import NodeRecord
from metadata.records import Leader, StoredTopic
from metadata.registrations import Attachment, Registrations, Subscription, SubscriptionType
from metadata.store import TopicStore, open_store
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from tests.e2e.vela_process import VelaServer
from tests.faults.writers import change
from tests.support.consumers import (
    LIMIT,
    ConsumerConnection,
    RegisteredConsumer,
    connect_consumers,
    is_shared,
    registering,
    stays,
    until_shared,
)
from tests.support.nodes import running_node, topics_in_buckets, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

T = TypeVar("T")

TOPIC = TopicName.parse("topic://public/default/orders")
PATH = keys.path_of(TOPIC)
# No regular look finds anything within a test.
LONG = 600.0
SETTINGS: dict[str, Any] = {"consumer_grace": LONG, "prune_interval": LONG, "session_lease": 1.0}


async def leader_of(node: Node, topic: TopicName = TOPIC) -> Leader | None:
    stored = await node.store.get(topic)
    assert stored is not None
    return stored.leader


async def subscription_of(node: Node, name: str = "s") -> Subscription:
    state = await Registrations(node.store).state(node.store.commands, TOPIC)
    assert state is not None
    return state.subscriptions[name]


async def until_led_by(node: Node, topic: TopicName = TOPIC, within: float = LIMIT) -> None:
    """The node leads, says so, and the store says so."""

    async def led() -> bool:
        leader = await leader_of(node, topic)
        return leader is not None and leader.session == node.session.record.session and node.leaders.leads(topic)

    await eventually(led, within)


async def outcome(act: Callable[[], Awaitable[T]]) -> T | Exception:
    try:
        return await act()
    except Exception as error:
        return error


async def do_nothing(leader: TopicLeader) -> Leader:
    return leader.leader


@asynccontextmanager
async def pair(valkey: ValkeyProcess, segments: int = 4, **settings: Any) -> AsyncIterator[tuple[Node, Node]]:
    async with (
        running_node(valkey.url, **(SETTINGS | settings)) as first,
        running_node(valkey.url, **(SETTINGS | settings)) as second,
    ):
        await transitions_of(first).create(TOPIC, segments)
        yield first, second


@asynccontextmanager
async def cut_off_pair(
    valkey: ValkeyProcess, segments: int = 4, **settings: Any
) -> AsyncIterator[tuple[Node, Node, FaultProxy]]:
    """The first node, which leads the topic, reaches the store through a proxy."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, **(SETTINGS | settings)) as first,
        running_node(valkey.url, **(SETTINGS | settings)) as second,
    ):
        await transitions_of(second).create(TOPIC, segments)
        await first.leaders.lead(TOPIC)
        yield first, second, proxy


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

        await eventually(assigned, within=5)


# Fail-over of the leader, and of the store.


@pytest.mark.slow
async def test_a_new_leader_has_all_registrations_and_gives_everybody_the_whole_grace(valkey: ValkeyProcess) -> None:
    """W4: the time that passed under the old one does not count, and its timers end with it."""
    grace = 2.0
    async with (
        cut_off_pair(valkey, consumer_grace=grace) as (first, second, proxy),
        registering(first.pulsar_url) as lost,
        registering(second.pulsar_url) as client,
        registering(second.pulsar_url) as fresh,
    ):
        steady = await client.subscribed(TOPIC, "s", "steady")
        roamer = await lost.subscribed(TOPIC, "s", "roamer")
        await until_shared([steady, roamer], range(4))
        before = steady.history
        proxy.refuse()
        proxy.cut()
        lost.disconnect()
        await until_led_by(second)
        assert set((await subscription_of(second)).consumers) == {"steady", "roamer"}
        back = await fresh.subscribed(TOPIC, "s", "roamer")
        assert back.history == [roamer.ids]
        await client.round_trip()
        assert steady.history == before
        # The old leader's timers, if it had any, would have ended by now.
        proxy.accept()
        await eventually(lambda: first.session.sessions_lost and first.session.held, within=LIMIT)
        await stays(lambda: len(steady.history) == len(before) and len(back.history) == 1, grace + 0.5)
        assert set((await subscription_of(second)).consumers) == {"steady", "roamer"}


async def test_consumers_of_a_node_that_died_are_evicted_after_their_grace(valkey: ValkeyProcess) -> None:
    """Nothing else happens to the topic that would wake its leader."""
    async with (
        pair(valkey, consumer_grace=0.3) as (first, _),
        registering(first.pulsar_url) as client,
    ):
        steady = await client.subscribed(TOPIC, "s", "steady")
        dead = NodeRecord("d" * 16, "pulsar://d:1", "http://d:2")
        await pretend_alive(valkey, dead, 1_500)
        await eventually(lambda: first.peers.seemed_alive(dead.session), within=LIMIT)
        attachment = Attachment(dead.session, "9" * 16)
        await Registrations(first.store).attach(TOPIC, "s", SubscriptionType.STREAM, "silent", attachment)
        await eventually(lambda: len(steady.ids) == 2, within=LIMIT)
        await until_shared([steady], range(4))


async def test_a_topic_whose_only_node_is_gone_is_taken_over_with_all_that_was_written(valkey: ValkeyProcess) -> None:
    async with pair(valkey, consumer_grace=0.5) as (first, _):
        dead = NodeRecord("d" * 16, "pulsar://d:1", "http://d:2")
        await pretend_alive(valkey, dead, 1_000)
        stored = await first.store.get(TOPIC)
        assert stored is not None
        assert await Leaderships(first.store).take(stored, dead) is not None
        attachment = Attachment(dead.session, "9" * 16)
        await Registrations(first.store).attach(TOPIC, "s", SubscriptionType.STREAM, "silent", attachment)

        async def led_by_one_who_lives() -> bool:
            leader = await leader_of(first)
            return leader is not None and leader.session != dead.session

        await eventually(led_by_one_who_lives, within=LIMIT)

        async def evicted() -> bool:
            return not (await subscription_of(first)).consumers

        await eventually(evicted, within=LIMIT)


@pytest.mark.slow
async def test_after_the_store_lost_its_last_writes_there_is_one_leader_and_every_segment_one_owner() -> None:
    """As after a fail-over to a replica that had not got them: an earlier leader's entry stands there again."""
    with ValkeyProcess(appendfsync="always").start() as valkey:
        async with (
            running_node(valkey.url, **SETTINGS) as first,
            running_node(valkey.url, **SETTINGS) as second,
            registering(first.pulsar_url) as near,
            registering(second.pulsar_url) as far,
        ):
            await transitions_of(first).create(TOPIC, 4)
            consumers = [await near.subscribed(TOPIC, "s", "a"), await far.subscribed(TOPIC, "s", "b")]
            await until_shared(consumers, range(4))
            copy = copy_data(valkey)
            # What is lost: another consumer with its segments, a split, and a change of leader.
            consumers.append(await near.subscribed(TOPIC, "s", "c"))
            await transitions_of(first).split(TOPIC, 0)
            await until_shared(consumers, [1, 2, 3, 4, 5])
            leading = first if first.leaders.leads(TOPIC) else second
            valkey.client().hdel(keys.record_key(PATH), "leader")
            await leading.leaders.as_leader(TOPIC, do_nothing)
            await roll_back(valkey, copy)
            await until_shared(consumers, range(4), within=30)
            assert [first.leaders.leads(TOPIC), second.leaders.leads(TOPIC)].count(True) == 1
            await transitions_of(second).split(TOPIC, 0)
            await until_shared(consumers, [1, 2, 3, 4, 5])


@pytest.mark.slow
async def test_after_a_registration_was_lost_by_the_store_its_node_registers_it_again() -> None:
    with ValkeyProcess(appendfsync="always").start() as valkey:
        async with (
            running_node(valkey.url, **SETTINGS) as first,
            running_node(valkey.url, **SETTINGS) as second,
            registering(second.pulsar_url) as client,
        ):
            await transitions_of(first).create(TOPIC, 4)
            copy = copy_data(valkey)
            consumers = [await client.subscribed(TOPIC, "s", name) for name in "ab"]
            await until_shared(consumers, range(4))
            await roll_back(valkey, copy)

            async def registered() -> bool:
                state = await Registrations(first.store).state(first.store.commands, TOPIC)
                assert state is not None
                return set(state.subscriptions["s"].consumers if "s" in state.subscriptions else ()) == {"a", "b"}

            await eventually(registered, within=30)
            await until_shared(consumers, range(4), within=30)


@pytest.mark.slow
async def test_the_topics_of_a_dead_node_are_shared_by_those_who_are_left(valkey: ValkeyProcess) -> None:
    count = 200
    topics = [TopicName.scalable("public", "default", f"topic-{number}") for number in range(count)]
    async with (
        cut_off_pair(valkey, session_lease=2.0) as (first, second, proxy),
        running_node(valkey.url, **(SETTINGS | {"session_lease": 2.0})) as third,
    ):
        for topic in topics:
            await transitions_of(second).create(topic, 1)
            await first.leaders.lead(topic)
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: len(second.leaders) + len(third.leaders) == count + 1, within=30)
        for topic in topics:
            assert [second.leaders.leads(topic), third.leaders.leads(topic)].count(True) == 1


# Everything at once.


class Churn:
    """Clients of two nodes that come, go, leave and come back while the nodes lose their store and their sessions."""

    def __init__(self, seed: int, valkey: ValkeyProcess, nodes: Sequence[Node], proxies: Sequence[FaultProxy]) -> None:
        self.chance = random.Random(seed)
        self.valkey = valkey
        self.nodes = nodes
        self.proxies = proxies
        self.holders: dict[str, tuple[ConsumerConnection, RegisteredConsumer]] = {}
        self.connections: list[ConsumerConnection] = []

    async def step(self, nursery: trio.Nursery, store: TopicStore, changes: Transitions) -> None:
        names = [f"c{number}" for number in range(6)]
        match self.chance.randrange(15):
            case 0 | 1 | 2:
                await self.come(nursery, self.chance.choice(names))
            case 3 if self.holders:
                # Its connection breaks; it may come back or not.
                name = self.chance.choice(sorted(self.holders))
                self.holders.pop(name)[0].disconnect()
                if self.chance.random() < 0.6:
                    await self.come(nursery, name)
            case 4 if self.holders:
                connection, consumer = self.holders.pop(self.chance.choice(sorted(self.holders)))
                await connection.unsubscribe(consumer.consumer_id)
            case 5 | 6:
                try:
                    await change(store, changes, TOPIC, self.chance)
                except (StoreError, LayoutError):
                    pass
            case 7:
                self.chance.choice(self.proxies).cut()
            case 8:
                proxy = self.chance.choice(self.proxies)
                proxy.refuse()
                proxy.cut()
            case 9:
                self.calm()
            case 10:
                self.valkey.client().delete(keys.node_key(self.chance.choice(self.nodes).session.record.session))
            case 11:
                self.valkey.client().hdel(keys.record_key(PATH), "leader")
            case 12:
                self.chance.choice(self.proxies).swallow_pushes()
            case 13:
                self.chance.choice(self.proxies).stall()
            case 14:
                sha = self.chance.choice(scripts.ALL).sha.encode()
                self.chance.choice(self.proxies).cut_before_reply(lambda request: sha in request, times=2)

    async def come(self, nursery: trio.Nursery, name: str) -> None:
        """A client has one connection: it gives the old one up before it makes another."""
        if name in self.holders:
            self.holders.pop(name)[0].disconnect()
        connection = await connect_consumers(nursery, self.chance.choice(self.nodes).pulsar_url)
        self.connections.append(connection)
        self.holders[name] = connection, await connection.subscribe(TOPIC, "s", name)

    def calm(self) -> None:
        for proxy in self.proxies:
            proxy.accept()
            proxy.resume()
            proxy.deliver_pushes()
            proxy.cut_before_reply(lambda request: False, times=0)

    async def try_again(self, nursery: trio.Nursery) -> None:
        """Who is refused because of an earlier registration of its own that came late asks again, as clients do."""
        for name, (_, consumer) in list(self.holders.items()):
            if consumer.answered and consumer.error is not None:
                assert consumer.error == api.ConsumerBusy, consumer
                await self.come(nursery, name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_whatever_happened_every_segment_ends_with_one_of_the_consumers_that_are_there(
    valkey: ValkeyProcess, seed: int
) -> None:
    settings = SETTINGS | {"session_lease": 0.8, "consumer_grace": 0.5, "prune_interval": 1.0, "probe_interval": 0.3}
    async with (
        FaultProxy.open(*valkey.address) as near,
        FaultProxy.open(*valkey.address) as far,
        running_node(near.url, **settings) as first,
        running_node(far.url, **settings) as second,
        open_store(valkey.url) as store,
        trio.open_nursery() as nursery,
    ):
        changes = Transitions(store, TopicLimits())
        await changes.create(TOPIC, 4)
        churn = Churn(seed, valkey, (first, second), (near, far))
        for _ in range(60):
            await churn.step(nursery, store, changes)
            await trio.sleep(churn.chance.uniform(0, 0.1))
        churn.calm()
        if not churn.holders:
            await churn.come(nursery, "last")

        async def at_rest() -> bool:
            await churn.try_again(nursery)
            stored = await store.get(TOPIC)
            assert stored is not None
            active = {segment.segment_id for segment in records.decode(stored.value).layout.active}
            consumers = [consumer for _, consumer in churn.holders.values()]
            assert is_shared(consumers, active), (active, consumers)
            return True

        await eventually(at_rest, within=30)
        state = await Registrations(store).state(store.commands, TOPIC)
        assert state is not None
        assert set(state.subscriptions["s"].consumers) >= set(churn.holders)

        async def only_they_are_registered() -> bool:
            found = await Registrations(store).state(store.commands, TOPIC)
            return found is not None and set(found.subscriptions["s"].consumers) == set(churn.holders)

        await eventually(only_they_are_registered, within=15)
        assert [complaint for connection in churn.connections for complaint in connection.complaints] == []
        await eventually(lambda: [first.leaders.leads(TOPIC), second.leaders.leads(TOPIC)].count(True) == 1, within=15)
        for connection in churn.connections:
            connection.disconnect()


@pytest.mark.slow
async def test_consumers_of_a_process_that_was_killed_find_their_segments_at_another(
    fresh_valkey: ValkeyProcess, tmp_path: Path
) -> None:
    flags = ("--store", fresh_valkey.url, "--session-lease", "1s", "--consumer-grace", "20s")
    with VelaServer.start(tmp_path / "one", *flags) as one, VelaServer.start(tmp_path / "other", *flags) as other:
        one.create("orders", segments=4)
        async with (
            registering(one.pulsar_url, may_be_cut=True) as lost,
            registering(other.pulsar_url) as staying,
            registering(other.pulsar_url) as fresh,
        ):
            roamers = [await lost.subscribed(TOPIC, "s", name) for name in "ab"]
            steady = await staying.subscribed(TOPIC, "s", "c")
            await until_shared([*roamers, steady], range(4))
            before = len(steady.events)
            one.signal(signal.SIGKILL)
            await eventually(lambda: lost.hung_up, within=LIMIT)
            back = [await fresh.subscribed(TOPIC, "s", roamer.name) for roamer in roamers]
            assert [consumer.history for consumer in back] == [[roamer.ids] for roamer in roamers]
            await staying.round_trip()
            assert len(steady.events) == before
            # And there is somebody to decide what comes next.
            await staying.leave(steady)
            await until_shared(back, range(4), within=30)


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
        after = commands(valkey)
        assert counters.rounds == before
        assert {name: after[name] - calls.get(name, 0) for name in ("hmget", "hgetall") if name in after} == {
            "hmget": 0,
            "hgetall": 0,
        }
        assert after["evalsha"] > calls["evalsha"], "the lease is renewed"
        await transitions_of(node).split(topics[0], 0)
        await until_shared(consumers[:1], [1, 2, 3])
        assert commands(valkey)["hgetall"] > after["hgetall"], "and this is what is counted"


async def until_steady(number: Callable[[], int]) -> int:
    """Wait until a number has not changed for a second; what it is then."""
    with trio.fail_after(LIMIT):
        while True:
            before = number()
            await trio.sleep(1.0)
            if number() == before:
                return before


def commands(valkey: ValkeyProcess) -> dict[str, int]:
    """How often each command was called so far."""
    stats = valkey.info("commandstats")
    return {name.removeprefix("cmdstat_"): int(found["calls"]) for name, found in stats.items()}


async def pretend_alive(valkey: ValkeyProcess, node: NodeRecord, milliseconds: int) -> None:
    """A node that is there for so long and then dies without a word."""
    value = f'{{"session":"{node.session}","pulsar_url":"{node.pulsar_url}","http_url":"{node.http_url}"}}'
    valkey.client().set(keys.node_key(node.session), value, px=milliseconds)
    valkey.client().hset(keys.NODES, node.session, "")


def copy_data(valkey: ValkeyProcess) -> Path:
    """What the store has on disk now. It writes through at once, so that is all it has answered."""
    copy = valkey.directory / "copy"
    shutil.copytree(valkey.directory / "appendonlydir", copy)
    return copy


async def roll_back(valkey: ValkeyProcess, copy: Path) -> None:
    valkey.kill()
    shutil.rmtree(valkey.directory / "appendonlydir")
    shutil.copytree(copy, valkey.directory / "appendonlydir")
    await trio.to_thread.run_sync(valkey.start)
