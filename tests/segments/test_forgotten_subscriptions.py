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


async def consumed_everywhere(nodes: Sequence[Node], names: Sequence[str]) -> None:
    """Messages are in these logs, which both nodes have their share of, and the subscription has consumed them."""
    async with open_pool(nodes[0].pulsar_url) as pool:
        for name in names:
            async with open_producer(pool, name) as producer:
                await send_numbers(producer, range(3))
    for node in nodes:
        assert node.data.hosting.logs, "each has its share"
        for owned in node.data.hosting.logs:
            await owned.move("s", owned.next)


@pytest.mark.parametrize("kind", ["migrated", "owned", "given up"])
async def test_subscription_that_was_deleted_is_forgotten_at_all_logs(
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
            await consumed_everywhere(nodes, [str(partition) for partition in partitions])
            await Migrations(a.store, classic, TopicLimits()).migrate(CLASSIC)
        else:
            await transitions_of(a).create(TOPIC, LOGS)
            await registrations.create_subscription(TOPIC, "s", SubscriptionType.QUEUE, 0)
            await consumed_everywhere(nodes, [place_of(TOPIC, it).name for it in await segments_of(a.store)])
        if kind == "given up":
            for node in nodes:
                for owned in node.data.hosting.logs:
                    await node.data.hosting.let_go(owned)
        segments = await segments_of(a.store)
        await registrations.delete_subscription(TOPIC, "s")
        await a.data.port.forget(TOPIC, "s", segments)
        await registrations.create_subscription(TOPIC, "s", SubscriptionType.QUEUE, 1, from_start=True)
        logs = SegmentLogs(a.store)
        places = [place_of(TOPIC, segment) for segment in segments]
        assert len(places) >= LOGS
        assert [place.name for place in places if "s" in await cursors_at(logs, place)] == []
        for node in nodes:
            # Of classic logs, whoever has lost one learns of it when it is used.
            for owned in [owned for owned in node.data.hosting.logs if owned.place.segment_id is not None]:
                assert "s" not in owned.subscriptions


async def cursors_at(logs: SegmentLogs, place: LogPlace) -> dict[str, bytes]:
    state = await logs.state(place)
    assert state is not None
    return await logs.cursors(place, state)
