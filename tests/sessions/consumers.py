"""Nodes with a topic that consumers register on, and what the store has of these consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from controller.leader import LeaderCounters
from gateway.node import Node
from metadata.registrations import Registrations
from metadata.subscriptions import Consumer, Subscription
from protocol.names import TopicName
from tests.support.consumers import LIMIT, ConsumerConnection, RegisteredConsumer, registering, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.waiting import eventually

TOPIC = TopicName.parse("topic://public/default/orders")
# Long enough that no grace ends, no lease is missed and nothing is found by a regular look, whatever the machine does.
LONG = 600.0


@asynccontextmanager
async def serving(url: str, segments: int = 4, **settings: Any) -> AsyncIterator[Node]:
    """A node with the topic; graces and sweeps last longer than any test unless it says otherwise."""
    async with running_node(url, **({"consumer_grace": LONG, "prune_interval": LONG} | settings)) as node:
        await transitions_of(node).create(TOPIC, segments)
        yield node


@asynccontextmanager
async def near_and_far(
    url: str, far_url: str | None = None, **settings: Any
) -> AsyncIterator[tuple[Node, Node, ConsumerConnection, ConsumerConnection, list[RegisteredConsumer]]]:
    """Two nodes, a connection to each, and a consumer on each that has its share of the topic."""
    async with (
        serving(url, **settings) as node,
        running_node(far_url or url, **settings) as other,
        registering(node.pulsar_url) as near,
        registering(other.pulsar_url) as far,
    ):
        consumers = [await near.subscribed(TOPIC, "s", "near"), await far.subscribed(TOPIC, "s", "far")]
        await until_shared(consumers, range(4))
        yield node, other, near, far, consumers


async def stored(node: Node, subscription: str = "s") -> Subscription:
    state = await Registrations(node.store).state(node.store.commands, TOPIC)
    assert state is not None
    return state.subscriptions[subscription]


async def stored_consumer(node: Node, name: str) -> Consumer:
    found = (await stored(node)).consumers.get(name)
    assert found is not None, f"{name} is not registered"
    return found


async def until_detached(node: Node, name: str) -> None:
    async def detached() -> bool:
        return not (await stored_consumer(node, name)).attachment.node

    await eventually(detached, within=LIMIT)


async def until_gone(node: Node, name: str, within: float = LIMIT) -> None:
    async def gone() -> bool:
        return name not in (await stored(node)).consumers

    await eventually(gone, within)


def counters(node: Node) -> LeaderCounters:
    return node.leaders._around.counters
