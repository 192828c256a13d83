"""Consumers of a stream whose connection dies in silence, and what becomes of their segment."""

from __future__ import annotations

import trio

from gateway.node import Node
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.gateway.served import Client, connect_frame
from tests.segments.assignments import Assigned, until_held
from tests.segments.test_sending import SEGMENT, TOPIC, connected
from tests.segments.wire_consumer import WireConsumer, acknowledgement, stored
from tests.support.black_hole import BlackHole
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

LONG = 600.0


async def through(hole: BlackHole, name: str) -> WireConsumer:
    sock = trio.socket.socket()
    await sock.connect(hole.address)
    client = Client(sock)
    await client.send(connect_frame())
    assert (await client.receive()).type == BaseCommand.CONNECTED
    return WireConsumer(client, name=name)


async def named(node: Node, name: str) -> WireConsumer:
    return WireConsumer(await connected(node), name=name)


async def seated(consumer: WireConsumer) -> WireConsumer:
    answer = await consumer.subscribe()
    assert answer.type == BaseCommand.SUCCESS, answer
    await consumer.flow(10)
    return consumer


async def numbers(consumer: WireConsumer, count: int) -> list[int]:
    return [message.message_id.entryId for message in await consumer.messages(count)]


async def acknowledge_all(consumer: WireConsumer, last: api.CommandMessage) -> None:
    """Without an answer, which a black hole would keep."""
    await consumer.client.send(encode(acknowledgement(last, cumulative=True)))


async def until_closed(consumer: WireConsumer) -> None:
    """It is told so when its connection works again, and its late words were read by then."""
    assert (await consumer.client.receive()).type == BaseCommand.CLOSE_CONSUMER
    assert await consumer.client.is_alive()


async def test_consumer_comes_back_under_its_name_while_its_connection_is_a_black_hole(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, handover=LONG) as node, BlackHole.before(node.pulsar_url) as hole:
        await transitions_of(node).create(TOPIC, 1)
        await stored(node, 3)
        Assigned(valkey, TOPIC).to("a", SEGMENT)
        lost = await seated(await through(hole, "a-seg-0"))
        had = await lost.messages(3)
        assert await lost.ack(had[0], request_id=7) is not None
        hole.swallow()
        await acknowledge_all(lost, had[2])

        again = await seated(await through(hole, "a-seg-0"))
        assert await numbers(again, 2) == [1, 2]
        hole.give_back()
        await until_closed(lost)
        assert await again.client.is_alive()
        # What came out of the black hole does not count: nobody has acknowledged these.
        again.client.close()
        assert await numbers(await seated(await through(hole, "a-seg-0")), 2) == [1, 2]


async def test_segment_of_a_consumer_in_a_black_hole_goes_to_the_next_one_who_keeps_it(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, handover=0.2) as node, BlackHole.before(node.pulsar_url) as hole:
        await transitions_of(node).create(TOPIC, 1)
        await stored(node, 3)
        assigned = Assigned(valkey, TOPIC)
        assigned.to("a", SEGMENT)
        lost = await seated(await through(hole, "a-seg-0"))
        had = await lost.messages(3)
        assert await lost.ack(had[0], request_id=7) is not None
        hole.swallow()
        await acknowledge_all(lost, had[2])

        assigned.to("b", SEGMENT)
        following = await seated(await named(node, "b-seg-0"))
        assert await numbers(following, 2) == [1, 2]
        back = await (await through(hole, "a-seg-0")).subscribe()
        assert (back.type, back.error.error) == (BaseCommand.ERROR, api.ConsumerBusy)
        hole.give_back()
        await until_closed(lost)
        following.client.close()
        assert await numbers(await seated(await named(node, "b-seg-0")), 2) == [1, 2]


async def test_consumer_in_a_black_hole_comes_back_at_the_next_owner_of_its_segment(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, handover=LONG) as one, running_node(valkey.url, handover=LONG) as other:
        await eventually(lambda: all(len(node.peers.nodes) == 2 for node in (one, other)))
        await transitions_of(one).create(TOPIC, 1)
        owner, heir = (one, other) if await one.data.hosting.url_of(SEGMENT) == one.pulsar_url else (other, one)
        await stored(owner, 3)
        assigned = Assigned(valkey, TOPIC)
        assigned.to("a", SEGMENT)
        async with BlackHole.before(owner.pulsar_url) as hole:
            lost = await seated(await through(hole, "a-seg-0"))
            had = await lost.messages(3)
            assert await lost.ack(had[0], request_id=7) is not None
            hole.swallow()
            await acknowledge_all(lost, had[2])

            await heir.data.hosting.open(SEGMENT, by_force=True)
            again = await seated(await named(heir, "a-seg-0"))
            assert await numbers(again, 2) == [1, 2]
            hole.give_back()
            await until_closed(lost)
            assert await again.client.is_alive()
            again.client.close()
            living = await seated(await named(heir, "a-seg-0"))
            assert await numbers(living, 2) == [1, 2]
            # The next one waits for the connection that lives, wherever the one before it was.
            assigned.to("b", SEGMENT)
            before = until_held(heir)
            following = await named(heir, "b-seg-0")
            await following.ask_for()
            await before()
            living.client.close()
            assert (await following.client.receive()).type == BaseCommand.SUCCESS
