"""Leaders whose session, store, record or address is not what it should be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from controller.leaders import LedElsewhere
from gateway.node import Node
from metadata import keys
from metadata.errors import StoreUnavailable
from metadata.node_sessions import NodeRecord
from metadata.records import Leader, StoredTopic
from metadata.registrations import Registrations
from metadata.subscriptions import SubscriptionType
from protocol.names import TopicName
from tests.controller.leading_nodes import PATH, SETTINGS, TOPIC, do_nothing, leader_of, pair, until_led_by
from tests.support.clusters import Cluster, ClusterNode, start_cluster
from tests.support.consumers import LIMIT, registering, stays, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually


def die_without_resigning(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing() -> None:
        pass

    monkeypatch.setattr(node.leaders, "_resigned", True)
    monkeypatch.setattr(node.leaders, "resign", nothing)


async def test_a_take_over_that_fails_once_is_tried_again_soon(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_node(valkey.url, **SETTINGS) as heir:
        leaderships = heir.leaders._around.leaderships
        original = leaderships.listed_where_possible
        failures: list[int] = []

        async def listed() -> tuple[dict[str, str], bool]:
            if len(failures) < 2:
                failures.append(1)
                raise StoreUnavailable("not now")
            return await original()

        async with running_node(valkey.url, **SETTINGS) as first:
            await transitions_of(first).create(TOPIC, 1)
            await first.leaders.lead(TOPIC)
            await eventually(lambda: heir.peers.seemed_alive(first.session.record.session), within=LIMIT)
            monkeypatch.setattr(leaderships, "listed_where_possible", listed)
            die_without_resigning(first, monkeypatch)
        await until_led_by(heir)
        assert len(failures) == 2


async def test_a_lead_that_was_taken_with_a_session_that_is_lost_meanwhile_is_none(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W1: nobody leads under a session that is dead."""
    async with running_node(valkey.url, **SETTINGS) as node:
        await transitions_of(node).create(TOPIC, 1)
        leaderships = node.leaders._around.leaderships
        original = leaderships.take

        async def take(topic: StoredTopic, record: NodeRecord) -> Leader | None:
            if not node.session.sessions_lost:
                await begin_another_session(node)
            return await original(topic, record)

        monkeypatch.setattr(leaderships, "take", take)
        leader = await node.leaders.lead(TOPIC)
        assert leader.leader.session == node.session.record.session
        assert await leader_of(node) == leader.leader


async def test_a_living_node_with_the_same_address_is_another_node(
    valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with pair(valkey, advertise="pulsar://balancer.example:6650") as (first, second):
        await first.leaders.lead(TOPIC)
        await eventually(lambda: second.peers.seemed_alive(first.session.record.session), within=LIMIT)
        with pytest.raises(LedElsewhere):
            await second.leaders.as_leader(TOPIC, do_nothing)
        assert first.leaders.leads(TOPIC)
        assert "advertises pulsar://balancer.example:6650 as well" in caplog.text


async def test_an_earlier_life_of_this_node_is_not_waited_for(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, **SETTINGS) as node:
        await transitions_of(node).create(TOPIC, 1)
        dead = NodeRecord("d" * 16, node.session.record.pulsar_url, node.session.record.http_url)
        stored = await node.store.get(TOPIC)
        assert stored is not None
        assert await node.leaders._around.leaderships.take(stored, dead) is not None
        # As if it had died just now, with most of its lease left.
        valkey.client().set(keys.node_key(dead.session), msgspec.json.encode(dead), px=60_000)
        valkey.client().hset(keys.NODES, dead.session, "")
        assert (await node.leaders.lead(TOPIC)).leader.session == node.session.record.session


async def test_a_topic_whose_record_is_damaged_is_left_in_peace_until_it_is_mended(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, **SETTINGS) as node, registering(node.pulsar_url) as client:
        await transitions_of(node).create(TOPIC, 4)
        first = await client.subscribed(TOPIC, "s", "a")
        record = keys.record_key(PATH)
        value: Any = valkey.client().hget(record, "value")
        valkey.client().hset(record, "value", "no JSON")
        registrations = Registrations(node.store)
        await registrations.create_subscription(TOPIC, "other", SubscriptionType.QUEUE, 0, from_start=True)  # wakes it
        changes = keys.changes_key(keys.bucket_of(PATH))
        rounds = node.leaders.counters.rounds
        await eventually(lambda: node.leaders.counters.rounds > rounds, within=LIMIT)
        length, rounds = valkey.client().xlen(changes), node.leaders.counters.rounds
        await stays(lambda: (valkey.client().xlen(changes), node.leaders.counters.rounds) == (length, rounds), 1.0)
        valkey.client().hset(record, "value", value)
        second = await client.subscribed(TOPIC, "s", "b")
        await until_shared([first, second], range(4))


async def test_a_round_that_fails_for_no_known_reason_is_tried_again(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(valkey.url, **SETTINGS) as node, registering(node.pulsar_url) as client:
        await transitions_of(node).create(TOPIC, 4)
        registrations = node.leaders._around.registrations
        original = registrations.assign
        failures: list[int] = []

        async def assign(*args: Any, **more: Any) -> int:
            if len(failures) < 3:
                failures.append(1)
                raise ZeroDivisionError
            return await original(*args, **more)

        monkeypatch.setattr(registrations, "assign", assign)
        await until_shared([await client.subscribed(TOPIC, "s", "a")], range(4))
        assert len(failures) == 3
        assert caplog.text.count("failed and is tried again") == 3


async def test_what_is_no_topic_in_the_list_of_led_ones_costs_nothing_but_itself(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, **SETTINGS) as node:
        await transitions_of(node).create(TOPIC, 1)
        for entry in ("no topic", "a/b/c/d", ""):
            valkey.client().hset(keys.leaders_key(keys.bucket_of(PATH)), entry, "")
        valkey.client().hset(keys.leaders_key(keys.bucket_of(PATH)), b"\xff/\xff/\xff", "")
        valkey.client().hset(keys.leaders_key(keys.bucket_of(PATH)), PATH, "")
        node.leaders.sweep()
        await until_led_by(node)


async def test_a_consumer_of_a_node_that_came_and_went_unseen_is_evicted(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Looks are so far apart that the leader's node does not see the other one at any.
    settings = SETTINGS | {"consumer_grace": 0.5, "session_lease": 6.0}
    async with running_node(valkey.url, **settings) as node, registering(node.pulsar_url) as client:
        await transitions_of(node).create(TOPIC, 4)
        stays_on = await client.subscribed(TOPIC, "s", "stays")
        looked_at = node.peers._looked_at
        await eventually(lambda: node.peers._looked_at > looked_at, within=LIMIT)

        async def never(*_: Any) -> bool:
            await trio.sleep_forever()
            raise AssertionError

        async with (
            running_node(valkey.url, **settings) as other,
            registering(other.pulsar_url, may_be_cut=True) as far,
        ):
            await until_shared([stays_on, await far.subscribed(TOPIC, "s", "goes")], range(4))
            monkeypatch.setattr(other.consumers._departures._registrations, "detach", never)
        await until_shared([stays_on], range(4))


async def away_from(node: Node, cluster: Cluster) -> ClusterNode:
    """A shard that has neither the session of a node nor what all share."""
    while True:
        own = keys.slot_of(keys.node_key(node.session.record.session))
        held = {cluster.owner(slot) for slot in (keys.NODES_SLOT, keys.NAMESPACES_SLOT, own)}
        for shard in cluster.shards():
            if shard not in held:
                return shard
        await begin_another_session(node)


async def begin_another_session(node: Node) -> None:
    lost = node.session.sessions_lost
    node.session.renounce()
    await eventually(lambda: node.session.sessions_lost > lost and node.session.held, within=LIMIT)


def topic_on(cluster: Cluster, shard: ClusterNode, wanted: bool) -> TopicName:
    for number in range(1_000):
        topic = TopicName.scalable("public", "default", f"t{number}")
        owner = cluster.owner(keys.BUCKET_SLOTS[keys.bucket_of(keys.path_of(topic))])
        if (owner is shard) is wanted:
            return topic
    raise AssertionError("no such name")


async def test_one_shard_that_is_away_evicts_nobody_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SETTINGS | {"consumer_grace": 2.0, "session_lease": 1.5}
    with start_cluster(cluster_require_full_coverage="no") as cluster:
        async with running_node(cluster.url, **settings) as node, registering(node.pulsar_url) as client:
            away = await away_from(node, cluster)
            there, elsewhere = topic_on(cluster, away, True), topic_on(cluster, away, False)
            for topic in (there, elsewhere):
                await transitions_of(node).create(topic, 4)
            steady = await client.subscribed(there, "s", "steady")
            async with running_node(cluster.url, **settings) as other, registering(node.pulsar_url) as doomed:
                await until_shared([steady, await doomed.subscribed(there, "s", "doomed")], range(4))
                while cluster.owner(keys.slot_of(keys.node_key(other.session.record.session))) is away:
                    # Then nobody could tell that it is gone.
                    await begin_another_session(other)
                await other.leaders.lead(elsewhere)
                await eventually(lambda: node.peers.seemed_alive(other.session.record.session), within=LIMIT)
                die_without_resigning(other, monkeypatch)

                async def detached() -> bool:
                    state = await Registrations(node.store).state(node.store.commands, there)
                    assert state is not None
                    return not state.subscriptions["s"].consumers["doomed"].attachment.node

                # The last thing before: nobody must be evicted while the shard is still there.
                doomed.disconnect()
                await eventually(detached, within=LIMIT)
                away.pause()
            await until_led_by(node, elsewhere)
            await trio.sleep(2 * settings["consumer_grace"])
            away.resume()
            await eventually(lambda: node.feed.whole, within=LIMIT)
            # From now on, and not from when its connection was lost.
            await stays(lambda: node.leaders.counters.evictions == 0, 1.0)
            await until_shared([steady], range(4))
            assert node.leaders.counters.evictions == 1


async def test_another_retention_of_the_namespace_is_noticed_by_leaders_that_look_seldom(
    valkey: ValkeyProcess,
) -> None:
    # The leader itself would look again after sixty of these.
    async with running_node(valkey.url, **(SETTINGS | {"prune_interval": 0.5})) as node:
        await transitions_of(node).create(TOPIC, 1)
        namespace = TOPIC.namespace_name
        kept = b'{"retention_policies":{"retentionTimeInMinutes":-1}}'
        await node.store.replace_namespace(namespace, b"{}", kept)
        await node.leaders.as_leader(
            TOPIC, lambda leader: transitions_of(node).split(TOPIC, 0, fence=leader.leader.fence)
        )
        await eventually(lambda: node.leaders._leading[PATH]._prune_at > trio.current_time() + 10, within=LIMIT)
        await node.store.replace_namespace(namespace, kept, b'{"retention_policies":{"retentionTimeInMinutes":0}}')
        await eventually(lambda: node.leaders.counters.pruned == 1, within=LIMIT)
