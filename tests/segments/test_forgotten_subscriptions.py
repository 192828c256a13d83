"""A subscription that was deleted leaves nothing behind, wherever its logs are: one of the same name begins anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest

from controller.migration import Migrations
from controller.transitions import TopicLimits
from gateway.node import Node
from layout import records
from layout.segments import Segment
from metadata.log_places import LogPlace
from metadata.registrations import RegistrationLimits, Registrations
from metadata.segment_logs import SegmentLogs
from metadata.store import TopicStore
from metadata.subscriptions import SubscriptionType
from protocol.client.pool import open_pool
from protocol.client.producing import open_producer
from protocol.names import NamespaceName, TopicName
from segments.port import place_of
from tests.segments.test_messages import send_numbers
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

CLASSIC = TopicName.classic("acme", "eu", "orders")
TOPIC = CLASSIC.canonical
LOGS = 8


async def segments_of(store: TopicStore) -> tuple[Segment, ...]:
    stored = await store.get(TOPIC)
    assert stored is not None
    return tuple(records.decode_layout(stored.value).segments.values())


async def consumed_everywhere(nodes: Sequence[Node], names: Sequence[str], identity: str) -> None:
    """Messages are in these logs, which both nodes have their share of, and the subscription has consumed them."""
    async with open_pool(nodes[0].pulsar_url) as pool:
        for name in names:
            async with open_producer(pool, name) as producer:
                await send_numbers(producer, range(3))
    for node in nodes:
        assert node.data.hosting.logs, "each has its share"
        for owned in node.data.hosting.logs:
            await owned.move("s", owned.next, identity)


@pytest.mark.parametrize("kind", ["migrated", "owned", "given up"])
async def test_subscription_that_was_deleted_has_everything_before_it_when_it_is_made_again(
    valkey: ValkeyProcess, kind: Literal["migrated", "owned", "given up"]
) -> None:
    async with (
        running_node(valkey.url, rebalance_interval=3600.0) as a,
        running_node(valkey.url, rebalance_interval=3600.0) as b,
    ):
        nodes = (a, b)
        await eventually(lambda: all(len(node.peers.nodes) == 2 for node in nodes))
        await a.store.create_namespace(NamespaceName("acme", "eu"), b"{}")
        registrations = Registrations(a.store, RegistrationLimits())
        if kind == "migrated":
            classic = await created_classic(a, CLASSIC, LOGS)
            partitions = [CLASSIC.partition_at(number) for number in range(LOGS)]
            await consumed_everywhere(nodes, [str(partition) for partition in partitions], "")
            await Migrations(a.store, classic, TopicLimits()).migrate(CLASSIC)
        else:
            await transitions_of(a).create(TOPIC, LOGS)
            made = await registrations.create_subscription(TOPIC, "s", SubscriptionType.QUEUE, 0)
            names = [place_of(TOPIC, it).name for it in await segments_of(a.store)]
            await consumed_everywhere(nodes, names, made.id)
        if kind == "given up":
            for node in nodes:
                for owned in node.data.hosting.logs:
                    await node.data.hosting.let_go(owned)
        assert await unread_of(a, registrations) == 0
        await registrations.delete_subscription(TOPIC, "s")
        # At once, whoever has heard of it by then.
        await registrations.create_subscription(TOPIC, "s", SubscriptionType.QUEUE, 1, from_start=True)
        assert await unread_of(a, registrations) == await unread_of(b, registrations) == 3 * LOGS
        assert (
            await a.data.port.drained(TOPIC, "s", [it for it in await segments_of(a.store) if not it.is_active])
            == set()
        )


async def unread_of(node: Node, registrations: Registrations) -> int:
    """What the subscription has still to consume, as this node sees it."""
    registration = await registrations.find(TOPIC, "s")
    assert registration is not None
    segments = await segments_of(node.store)
    return sum([await node.data.port.backlog(TOPIC, "s", segment, registration) for segment in segments])


async def test_living_owners_forget_a_deleted_subscription_also_at_logs_of_migrated_partitions(
    valkey: ValkeyProcess,
) -> None:
    async with (
        running_node(valkey.url, rebalance_interval=3600.0) as a,
        running_node(valkey.url, rebalance_interval=3600.0) as b,
    ):
        nodes = (a, b)
        await eventually(lambda: all(len(node.peers.nodes) == 2 for node in nodes))
        await a.store.create_namespace(NamespaceName("acme", "eu"), b"{}")
        classic = await created_classic(a, CLASSIC, LOGS)
        partitions = [CLASSIC.partition_at(number) for number in range(LOGS)]
        await consumed_everywhere(nodes, [str(partition) for partition in partitions], "")
        await Migrations(a.store, classic, TopicLimits()).migrate(CLASSIC)
        await eventually(lambda: all(owned.sealed for node in nodes for owned in node.data.hosting.logs))
        await Registrations(a.store).delete_subscription(TOPIC, "s")
        logs, segments = SegmentLogs(a.store), await segments_of(a.store)
        await eventually(
            lambda: not any("s" in owned.subscriptions for node in nodes for owned in node.data.hosting.logs)
        )
        places = [place_of(TOPIC, segment) for segment in segments]

        async def is_forgotten_everywhere() -> bool:
            return all([await is_forgotten(logs, place) for place in places])

        await eventually(is_forgotten_everywhere)


async def is_forgotten(logs: SegmentLogs, place: LogPlace) -> bool:
    state = await logs.state(place)
    assert state is not None
    return "s" not in await logs.cursors(place, state)
