"""Segments that a subscription has not reached yet keep their messages for it, whatever others have consumed."""

from __future__ import annotations

from typing import Final

import trio

from gateway.node import Node
from protocol import client
from protocol.names import TopicName
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

TOPIC: Final = TopicName.scalable("public", "default", "orders")
LIMIT: Final = 30.0


async def take(consumer: client.TopicConsumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    with trio.fail_after(LIMIT):
        while len(found) < count:
            message = await consumer.receive()
            await consumer.ack(message)
            found.append(message.value)
    return found


def kept(node: Node) -> list[int]:
    """How many messages each log of the node still has."""
    return sorted(log.next - log.first for log in node.data.hosting.logs)


async def test_children_keep_messages_for_who_still_has_the_parent(valkey: ValkeyProcess) -> None:
    # Nothing is kept for its age, and nothing is trimmed unless the test says so.
    async with (
        running_node(valkey.url, message_age=0.0, retention=0.0, rebalance_interval=3_600.0) as node,
        client.open_pool(node.pulsar_url) as pool,
    ):
        transitions = transitions_of(node)
        await transitions.create(TOPIC, 1)
        async with (
            client.open_stream_consumer(pool, str(TOPIC), "late", initial_position="earliest") as late,
            client.open_consumer(pool, str(TOPIC), "early", initial_position="earliest") as early,
            client.open_producer(pool, str(TOPIC)) as producer,
        ):
            await producer.send(client.Message(b"parent", key="k"))
            held = await late.receive()
            await transitions.split(TOPIC, 0)
            children = [b"%d" % number for number in range(20)]
            for value in children:
                await producer.send(client.Message(value, key=value.decode()))
            assert sorted(await take(early, 21)) == sorted([b"parent", *children])
            await node.data.upkeep.trim()
            assert sum(kept(node)) == 21

            await late.ack(held)
            assert sorted(await take(late, 20)) == sorted(children)

            async def trimmed() -> bool:
                await node.data.upkeep.trim()
                return sum(kept(node)) == 0

            await eventually(trimmed, LIMIT)
