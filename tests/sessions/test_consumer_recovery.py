"""Consumers are registered again after their node lost its session or the store lost them, and notice nothing."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from metadata import keys, scripts
from metadata.registrations import Registrations
from metadata.subscriptions import Attached
from tests.sessions.consumers import (
    LONG,
    TOPIC,
    counters,
    near_and_far,
    serving,
    stored,
    stored_consumer,
    until_detached,
    until_gone,
)
from tests.support.consumers import CHECKPOINT, LIMIT, RegisteredConsumer, registering, stays, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

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
        for _ in range(2):
            lost = node.session.sessions_lost
            valkey.client().delete(keys.node_key(node.session.record.session))
            await eventually(lambda lost=lost: node.session.sessions_lost > lost, within=LIMIT)  # type: ignore[misc]

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
        await eventually(attached_to_this_session, within=30)
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

        await eventually(registered, within=30)
        await transitions_of(node).split(TOPIC, 0)
        for consumer in consumers:
            await until_shared([consumer], [1, 2, 3, 4, 5])


async def test_a_subscription_that_is_missing_after_a_gap_was_deleted_unless_the_store_went_back(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if all were registered long ago.
    monkeypatch.setattr("sessions.consumers.LONGEST_FEED_LAG", 0.0)
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
        near_and_far(valkey.url, proxy.url, session_lease=0.8, consumer_grace=0.3) as (node, _, _, _, consumers),
    ):
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
        await until_shared([steady], range(4), within=30)
        await far.until_confirmed(request, within=30)


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


async def test_a_connection_that_the_store_remembers_wrongly_ends_with_the_session_that_held_it(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its departure was lost longer ago than departures are remembered: only another session can tell."""
    monkeypatch.setattr("sessions.departures.LONGEST_FEED_LAG", 0.0)
    async with (
        serving(valkey.url, consumer_grace=0.5, session_lease=LONG) as node,
        registering(node.pulsar_url) as client,
        registering(node.pulsar_url) as doomed,
    ):
        steady = await client.subscribed(TOPIC, "s", "steady")
        await until_shared([steady, await doomed.subscribed(TOPIC, "s", "doomed")], range(4))
        path = keys.path_of(TOPIC)
        members, changes = keys.members_key(path, "s"), keys.changes_key(keys.bucket_of(path))
        before, length = valkey.client().hgetall(members), valkey.command("XLEN", changes)
        doomed.disconnect()
        await until_shared([steady], range(4))
        known = node.feed.counters.changes
        await eventually(lambda: node.feed.counters.changes >= known and not node.consumers._reading, within=LIMIT)
        # The store goes back to before all that.
        entries = valkey.command("XRANGE", changes, "-", "+")
        valkey.command("XDEL", changes, *(entry[0] for entry in entries[length:]))
        valkey.client().hset(members, mapping=before)  # type: ignore[arg-type]
        await eventually(lambda: node.session.sessions_lost == 1, within=LIMIT)
        await until_gone(node, "doomed")
        await until_shared([steady], range(4))
