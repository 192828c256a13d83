"""A consumer is its name, and the latest connection that registered it has it, whatever an earlier one does."""

from __future__ import annotations

import time

import pytest
import trio

from metadata import scripts
from tests.sessions.consumers import LONG, TOPIC, counters, serving, stored_consumer, until_detached, until_gone
from tests.support.consumers import LIMIT, registering, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually


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
        assert new.ids == {0, 1, 2, 3}
        await eventually(lambda: old.history == [{0, 1, 2, 3}, set()], within=LIMIT)
        await transitions_of(node).split(TOPIC, 0)
        await until_shared([new], [1, 2, 3, 4, 5])
        await client.round_trip()
        assert old.history == [{0, 1, 2, 3}, set()]


@pytest.mark.parametrize("apart", [False, True])
async def test_of_two_clients_with_one_name_the_earlier_is_told_that_it_has_nothing(
    valkey: ValkeyProcess, apart: bool
) -> None:
    """W21: no two of them work on the same segments."""
    async with (
        serving(valkey.url) as node,
        running_node(valkey.url, consumer_grace=LONG, prune_interval=LONG) as other,
        registering(node.pulsar_url) as earlier,
        registering((other if apart else node).pulsar_url) as later,
    ):
        first = await earlier.subscribed(TOPIC, "s", "c")
        second = await later.subscribed(TOPIC, "s", "c")
        await eventually(lambda: not first.ids, within=LIMIT)
        assert second.ids == {0, 1, 2, 3}
        await transitions_of(node).split(TOPIC, 0)
        await until_shared([second], [1, 2, 3, 4, 5])
        assert first.history == [{0, 1, 2, 3}, set()]


async def test_the_later_connection_has_the_consumer_whatever_the_clock_of_its_node_shows(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W21"""
    async with serving(valkey.url) as node, registering(node.pulsar_url) as half_open:
        old = await half_open.subscribed(TOPIC, "s", "c")
        real = time.time
        monkeypatch.setattr("time.time", lambda: real() - 3_600)
        async with (
            running_node(valkey.url, consumer_grace=LONG, prune_interval=LONG) as behind,
            registering(behind.pulsar_url) as client,
        ):
            new = await client.subscribed(TOPIC, "s", "c")
            await eventually(lambda: not old.ids, within=LIMIT)
            assert (await stored_consumer(node, "c")).attachment.node == behind.session.record.session
            await transitions_of(node).split(TOPIC, 0)
            await until_shared([new], [1, 2, 3, 4, 5])


@pytest.mark.parametrize("round_number", range(5))
async def test_of_registrations_in_one_piece_under_one_id_the_last_is_answered(
    valkey: ValkeyProcess, round_number: int
) -> None:
    """What a connection asks for later counts, however close behind."""
    async with serving(valkey.url) as node, registering(node.pulsar_url) as client:
        pairs = [client.subscription(TOPIC, "s", "c", consumer_id=5) for _ in range(6)]
        await client.send(*(command for _, command in pairs))
        last = pairs[-1][0]
        await eventually(lambda: last.answered, within=30)
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
        await eventually(lambda: last.answered, within=30)
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
        await eventually(lambda: all(consumer.answered for _, consumer, _ in pairs), within=30)


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

        await eventually(attached_here, within=30)
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
            # The one that names the segments: a first one, without them, registers nothing.
            proxy.cut_before_reply(lambda request: attach in request and b"/segments/" in request)
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
        await until_gone(witness, "zombie", within=30)


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
