"""Two nodes with a topic that both could lead, and who leads it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from controller.leader import TopicLeader
from gateway.node import Node
from metadata import keys
from metadata.records import Leader
from metadata.registrations import Registrations
from metadata.subscriptions import Subscription
from protocol.names import TopicName
from tests.support.consumers import LIMIT
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

T = TypeVar("T")

TOPIC = TopicName.parse("topic://public/default/orders")
PATH = keys.path_of(TOPIC)
# No regular look finds anything within a test.
LONG = 600.0
SETTINGS: dict[str, Any] = {"consumer_grace": LONG, "prune_interval": LONG, "message_age": 0.0, "session_lease": 4.0}


async def leader_of(node: Node, topic: TopicName = TOPIC) -> Leader | None:
    stored = await node.store.get(topic)
    assert stored is not None
    return stored.leader


async def subscription_of(node: Node, name: str = "s") -> Subscription:
    state = await Registrations(node.store).state(node.store.commands, TOPIC)
    assert state is not None
    return state.subscriptions[name]


async def until_led_by(node: Node, topic: TopicName = TOPIC, within: float = LIMIT) -> None:
    """The node leads, says so, and the store says so."""

    async def led() -> bool:
        leader = await leader_of(node, topic)
        return leader is not None and leader.session == node.session.record.session and node.leaders.leads(topic)

    await eventually(led, within)


async def outcome(act: Callable[[], Awaitable[T]]) -> T | Exception:
    try:
        return await act()
    except Exception as error:
        return error


async def do_nothing(leader: TopicLeader) -> Leader:
    return leader.leader


@asynccontextmanager
async def pair(valkey: ValkeyProcess, segments: int = 4, **settings: Any) -> AsyncIterator[tuple[Node, Node]]:
    async with (
        running_node(valkey.url, **(SETTINGS | settings)) as first,
        running_node(valkey.url, **(SETTINGS | settings)) as second,
    ):
        await transitions_of(first).create(TOPIC, segments)
        yield first, second


@asynccontextmanager
async def cut_off_pair(
    valkey: ValkeyProcess, segments: int = 4, **settings: Any
) -> AsyncIterator[tuple[Node, Node, FaultProxy]]:
    """The first node, which leads the topic, reaches the store through a proxy."""
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, **(SETTINGS | settings)) as first,
        running_node(valkey.url, **(SETTINGS | settings)) as second,
    ):
        await transitions_of(second).create(TOPIC, segments)
        await first.leaders.lead(TOPIC)
        yield first, second, proxy
