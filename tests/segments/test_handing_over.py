"""A segment goes to the consumer that is assigned it, when the one before has let go of it or has had the time to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
import trio

from controller.migration import Migrations
from controller.transitions import TopicLimits
from gateway.node import Node
from metadata.errors import LogMissing
from protocol.framing import encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.segments.assignments import Assigned, until_held
from tests.segments.test_sending import SEGMENT, TOPIC, connected
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, stored
from tests.support.consumers import LIMIT, registering
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

CLASSIC: Final = TopicName.classic("public", "default", "classic")
LONG: Final = 600.0
# The three kinds of logs that a stream is read from.
LOGS: Final = pytest.mark.parametrize("partitions", [None, 0, 2], ids=["segment", "classic", "partition"])


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    """Nobody has to let go of anything within a test."""
    async with running_node(valkey.url, handover=LONG) as node:
        yield node


async def log_of(node: Node, valkey: ValkeyProcess, partitions: int | None) -> tuple[str, Assigned]:
    """A log that is a segment, or became one by a migration, and the assignments of its topic."""
    if partitions is None:
        await transitions_of(node).create(TOPIC, 1)
        return SEGMENT, Assigned(valkey, TOPIC)
    await Migrations(node.store, await created_classic(node, CLASSIC, partitions), TopicLimits()).migrate(CLASSIC)
    return str(CLASSIC.partition_at(1) if partitions else CLASSIC), Assigned(valkey, CLASSIC.canonical)


async def consumer(node: Node, log: str, name: str) -> WireConsumer:
    return WireConsumer(await connected(node), topic=log, name=name)


async def seated(node: Node, log: str, name: str) -> WireConsumer:
    found = await consumer(node, log, name)
    assert (await found.subscribe()).type == BaseCommand.SUCCESS
    return found


async def held(node: Node, log: str, name: str) -> WireConsumer:
    """One whose SUBSCRIBE is not answered yet."""
    found = await consumer(node, log, name)
    before = until_held(node)
    await found.ask_for()
    await before()
    return found


async def refused(node: Node, log: str, name: str) -> bool:
    answer = await (await consumer(node, log, name)).subscribe()
    return (answer.type, answer.error.error) == (BaseCommand.ERROR, api.ConsumerBusy)


async def is_seated(waiting: WireConsumer) -> bool:
    return (await waiting.client.receive()).type == BaseCommand.SUCCESS


async def is_closed(holder: WireConsumer) -> bool:
    """Whether the next word to it is that it has to come back, apart from that an old log is at its end."""
    return (await next_word(holder)).type == BaseCommand.CLOSE_CONSUMER


async def next_word(to: WireConsumer) -> BaseCommand:
    while (word := await to.client.receive(within=15)).type == BaseCommand.REACHED_END_OF_TOPIC:
        pass
    return word


async def close(holder: WireConsumer) -> None:
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = CONSUMER_ID
    command.close_consumer.request_id = 2
    await holder.client.send(encode(command))
    assert (await next_word(holder)).type == BaseCommand.SUCCESS


@LOGS
async def test_the_next_consumer_is_held_until_the_last_one_has_closed(
    node: Node, valkey: ValkeyProcess, partitions: int | None
) -> None:
    log, assigned = await log_of(node, valkey, partitions)
    assigned.to("a", log)
    first = await seated(node, log, "a")
    assigned.to("b", log)
    second = await held(node, log, "b-seg-1" if partitions else "b-seg-0")
    await close(first)
    assert await is_seated(second)


@LOGS
async def test_who_is_not_assigned_a_segment_is_refused_at_once(
    node: Node, valkey: ValkeyProcess, partitions: int | None
) -> None:
    log, assigned = await log_of(node, valkey, partitions)
    assigned.to("a", log)
    _holder = await seated(node, log, "a")
    assigned.register("b")
    for name in ("stranger", "b", "b-seg-0", "a-seg-9"):
        assert await refused(node, log, name)


async def test_a_segment_of_another_is_refused_also_while_nobody_has_it(node: Node, valkey: ValkeyProcess) -> None:
    """The last one to have it would be there again, each time that it was told to go."""
    log, assigned = await log_of(node, valkey, None)
    assigned.register("a")
    assert await refused(node, log, "a")
    assigned.to("a", log)
    await seated(node, log, "a")


async def test_consumers_that_no_topic_knows_are_let_in_one_at_a_time(node: Node, valkey: ValkeyProcess) -> None:
    log, _ = await log_of(node, valkey, None)
    first = await seated(node, log, "one")
    assert await refused(node, log, "other")
    await close(first)
    await seated(node, log, "other")


async def test_the_next_consumer_of_a_classic_topic_is_refused(node: Node, valkey: ValkeyProcess) -> None:
    await created_classic(node, CLASSIC, 0)
    _holder = await seated(node, str(CLASSIC), "a")
    assert await refused(node, str(CLASSIC), "a")


async def test_who_had_a_classic_log_when_it_was_migrated_has_to_let_go_of_it(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, handover=0.0) as node:
        classic = await created_classic(node, CLASSIC, 0)
        before = await seated(node, str(CLASSIC), "old")
        await Migrations(node.store, classic, TopicLimits()).migrate(CLASSIC, force=True)
        Assigned(valkey, CLASSIC.canonical).to("a", str(CLASSIC))
        after = await consumer(node, str(CLASSIC), "a")
        await after.ask_for()
        assert await is_closed(before)
        assert await is_seated(after)


@LOGS
async def test_a_consumer_comes_back_by_another_connection_while_its_last_one_is_silent(
    node: Node, valkey: ValkeyProcess, partitions: int | None
) -> None:
    log, assigned = await log_of(node, valkey, partitions)
    assigned.to("a", log)
    silent = await seated(node, log, "a")
    await seated(node, log, "a")
    assert await is_closed(silent)


async def test_of_two_connections_of_a_consumer_that_are_held_the_later_one_gets_the_segment(
    node: Node, valkey: ValkeyProcess
) -> None:
    log, assigned = await log_of(node, valkey, None)
    assigned.to("a", log)
    first = await seated(node, log, "a")
    assigned.to("b", log)
    silent = await held(node, log, "b")
    again = await held(node, log, "b-seg-0")
    await close(first)
    assert await is_seated(again)
    answer = await silent.client.receive()
    if answer.type == BaseCommand.SUCCESS:  # it was let in first, and then replaced
        answer = await silent.client.receive()
        assert answer.type == BaseCommand.CLOSE_CONSUMER
    else:
        assert answer.error.error == api.ConsumerBusy
    assert await again.client.is_alive()


@LOGS
async def test_a_silent_holder_is_closed_when_the_time_of_a_hand_over_has_passed(
    valkey: ValkeyProcess, partitions: int | None
) -> None:
    """Whether or not anybody waits for the segment by then."""
    async with running_node(valkey.url, handover=0.2) as node:
        log, assigned = await log_of(node, valkey, partitions)
        assigned.to("a", log)
        silent = await seated(node, log, "a")
        assigned.register("a")
        assert await is_closed(silent)
        assert await refused(node, log, "a")
        assigned.to("b", log)
        await seated(node, log, "b")


async def test_an_evicted_holder_makes_room_for_the_next_one(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, handover=0.2) as node:
        log, assigned = await log_of(node, valkey, None)
        assigned.to("a", log)
        evicted = await seated(node, log, "a")
        assigned.evict("a")
        assigned.to("b", log)
        waiting = await consumer(node, log, "b")
        await waiting.ask_for()
        assert await is_closed(evicted)
        assert await is_seated(waiting)


async def test_a_stranger_makes_room_for_the_consumer_that_is_assigned_the_segment(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, handover=0.2) as node:
        log, assigned = await log_of(node, valkey, None)
        stranger = await seated(node, log, "stranger")
        assigned.to("a", log)
        waiting = await consumer(node, log, "a")
        await waiting.ask_for()
        assert await is_closed(stranger)
        assert await is_seated(waiting)


async def test_a_holder_that_is_assigned_its_segment_again_in_time_keeps_it(node: Node, valkey: ValkeyProcess) -> None:
    log, assigned = await log_of(node, valkey, None)
    assigned.to("a", log)
    holder = await seated(node, log, "a")
    assigned.to("b", log)
    waiting = await held(node, log, "b")
    assigned.to("a", log)
    answer = await waiting.client.receive()
    assert (answer.type, answer.error.error) == (BaseCommand.ERROR, api.ConsumerBusy), "it is not for it any more"
    assert await holder.client.is_alive()
    [seat] = node.data.plane.seats._seats[assigned.path].values()
    assert seat.is_taken
    assert seat.unassigned_since == float("inf")


async def test_what_a_closed_holder_had_is_delivered_to_the_next_one_and_what_it_says_does_not_count(
    valkey: ValkeyProcess,
) -> None:
    async with running_node(valkey.url, handover=0.2) as node:
        log, assigned = await log_of(node, valkey, None)
        await stored(node, 3)
        assigned.to("a", log)
        silent = await seated(node, log, "a")
        await silent.flow(10)
        had = await silent.messages(3)
        await silent.ack(had[0])
        assigned.to("b", log)
        following = await consumer(node, log, "b")
        await following.ask_for()
        assert await is_closed(silent)
        assert await is_seated(following)
        late = await silent.ack(had[2], cumulative=True, request_id=9)
        assert late is not None
        assert late.HasField("error")
        await following.flow(10)
        assert [m.message_id.entryId for m in await following.messages(2)] == [1, 2]


async def test_who_is_held_hears_of_it_when_the_log_goes_to_another_node(node: Node, valkey: ValkeyProcess) -> None:
    log, assigned = await log_of(node, valkey, None)
    assigned.to("a", log)
    first = await seated(node, log, "a")
    assigned.to("b", log)
    waiting = await held(node, log, "b")
    owned = node.data.hosting.get(log)
    assert owned is not None
    owned.lose(LogMissing("It is served by another node."))
    assert await is_closed(first)
    answer = await waiting.client.receive()
    assert (answer.type, answer.error.error) == (BaseCommand.ERROR, api.ServiceNotReady)
    # Wherever it is served next, nobody has it there.
    await seated(node, log, "b")


async def test_who_is_held_stays_so_while_the_store_is_away(valkey: ValkeyProcess) -> None:
    """And nobody has to go meanwhile: who cannot be told of an assignment is not late."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, handover=LONG, session_lease=60.0) as node,
    ):
        log, assigned = await log_of(node, valkey, None)
        assigned.to("a", log)
        first = await seated(node, log, "a")
        assigned.to("b", log)
        waiting = await held(node, log, "b")
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: node.readiness())
        node.data.plane.seats._look_soon(assigned.path)
        await close(first)
        proxy.accept()
        assert (await waiting.client.receive(within=15)).type == BaseCommand.SUCCESS


async def test_a_change_that_nobody_told_of_is_found_when_the_store_is_back(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, handover=0.0, session_lease=60.0) as node,
    ):
        log, assigned = await log_of(node, valkey, None)
        assigned.to("a", log)
        first = await seated(node, log, "a")
        proxy.refuse()
        proxy.cut()
        await eventually(lambda: node.readiness())
        assigned.to("b", log, told=False)
        proxy.accept()
        assert await is_closed(first)


# What leaders of topics see of the logs of other nodes.


async def test_a_leader_sees_who_has_a_segment_at_another_node(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, handover=LONG) as node, running_node(valkey.url, handover=LONG) as other:
        await transitions_of(node).create(TOPIC, 1)
        await eventually(lambda: all(len(it.peers.nodes) == 2 for it in (node, other)))
        owner, leader = node, other
        if await node.data.hosting.url_of(SEGMENT) == other.pulsar_url:
            owner, leader = other, node
        assigned = Assigned(valkey, TOPIC)
        assigned.to("a", SEGMENT)
        holder = await seated(owner, SEGMENT, "a-seg-0")

        async def still_open() -> frozenset[tuple[str, int]]:
            claims = {("a", 0), ("b", 0), ("a", 7)}
            return await leader.data.port.still_open(TOPIC, "s", claims)

        async def is_seen() -> bool:
            return await still_open() == {("a", 0)}

        await eventually(is_seen)
        await close(holder)

        async def is_gone() -> bool:
            return not await still_open()

        await eventually(is_gone)


async def test_what_a_dead_owner_has_told_holds_nobody_up(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        assigned = Assigned(valkey, TOPIC)
        key = assigned.segment_key(SEGMENT)
        valkey.client().hset(key, mapping={"owner": "gone:7", "holder:s": "gone a"})
        assert await node.data.port.still_open(TOPIC, "s", {("a", 0)}) == frozenset()
        valkey.client().hset(key, mapping={"owner": "", "holder:s": f"{node.session.record.session} a"})
        assert await node.data.port.still_open(TOPIC, "s", {("a", 0)}) == frozenset()


async def test_a_hand_over_between_nodes_leads_to_the_next_consumer(valkey: ValkeyProcess) -> None:
    """The leader has none of the logs, and one of the consumers is silent."""
    with trio.fail_after(60):
        await assigned_by_a_leader_elsewhere(valkey)


async def assigned_by_a_leader_elsewhere(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, handover=0.5) as node, running_node(valkey.url, handover=0.5) as other:
        await transitions_of(node).create(TOPIC, 1)
        await eventually(lambda: all(len(it.peers.nodes) == 2 for it in (node, other)))
        owner, leader = node, other
        if await node.data.hosting.url_of(SEGMENT) == other.pulsar_url:
            owner, leader = other, node
        await leader.leaders.lead(TOPIC)
        async with registering(owner.pulsar_url) as client:
            first = await client.subscribed(TOPIC, "s", "z")
            await eventually(lambda: first.ids == {0}, within=LIMIT)
            silent = await seated(owner, SEGMENT, "z-seg-0")
            # Its only segment goes to the one that comes, because the other one leaves without closing it.
            second = await client.subscribed(TOPIC, "s", "a")
            await client.leave(first)
            await eventually(lambda: second.ids == {0}, within=LIMIT)
            assert leader.leaders.leads(TOPIC)
            following = await consumer(owner, SEGMENT, "a-seg-0")
            await following.ask_for()
            assert await is_closed(silent)
            assert await is_seated(following)
