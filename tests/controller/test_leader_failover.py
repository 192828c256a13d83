"""When a leader or its store dies, another leads with all that was registered, and nobody loses its segments."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import trio

from metadata import keys
from metadata.leadership import Leaderships
from metadata.node_sessions import NodeRecord
from metadata.registrations import Registrations
from metadata.subscriptions import Attachment, SubscriptionType
from protocol.names import TopicName
from tests.controller.leading_nodes import (
    PATH,
    SETTINGS,
    TOPIC,
    cut_off_pair,
    do_nothing,
    leader_of,
    pair,
    subscription_of,
    until_led_by,
)
from tests.e2e.vela_process import VelaServer
from tests.support.consumers import LIMIT, registering, stays, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually


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
        await pretend_alive(valkey, dead, 600_000)
        await eventually(lambda: first.peers.seemed_alive(dead.session), within=LIMIT)
        attachment = Attachment(dead.session, "9" * 16)
        await Registrations(first.store).attach(TOPIC, "s", SubscriptionType.STREAM, "silent", attachment)
        await eventually(lambda: len(steady.ids) == 2, within=LIMIT)
        valkey.client().delete(keys.node_key(dead.session))
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
            pair(valkey) as (first, second),
            registering(first.pulsar_url) as near,
            registering(second.pulsar_url) as far,
        ):
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
            await eventually(lambda: first.leaders.leads(TOPIC) != second.leaders.leads(TOPIC))
            await transitions_of(second).split(TOPIC, 0)
            await until_shared(consumers, [1, 2, 3, 4, 5])


@pytest.mark.slow
async def test_after_a_registration_was_lost_by_the_store_its_node_registers_it_again() -> None:
    with ValkeyProcess(appendfsync="always").start() as valkey:
        async with (
            pair(valkey) as (first, second),
            registering(second.pulsar_url) as client,
        ):
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
        cut_off_pair(valkey, session_lease=4.0) as (first, second, proxy),
        running_node(valkey.url, **(SETTINGS | {"session_lease": 4.0})) as third,
    ):
        for topic in topics:
            await transitions_of(second).create(topic, 1)
            await first.leaders.lead(topic)
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: len(second.leaders) + len(third.leaders) == count + 1, within=30)
        for topic in topics:
            assert [second.leaders.leads(topic), third.leaders.leads(topic)].count(True) == 1


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
