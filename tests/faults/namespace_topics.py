"""Topics of one namespace with properties to filter by, and short ways to make and change them."""

from __future__ import annotations

from collections.abc import Mapping

import trio
import trio.testing

from controller.transitions import Transitions
from layout import records
from metadata.store import TopicStore
from protocol.names import TopicName

PREFIX = "topic://public/default/"
BLUE, RED = {"team": "blue"}, {"team": "red"}


def topic(name: str, namespace: str = "default") -> TopicName:
    return TopicName.scalable("public", namespace, name)


async def create(changes: Transitions, *names: str, properties: Mapping[str, str] | None = None) -> None:
    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(changes.create, topic(name), 1, properties or {})


async def set_properties(store: TopicStore, name: str, properties: Mapping[str, str]) -> None:
    stored = await store.get(topic(name))
    assert stored is not None
    record = records.decode(stored.value).with_properties(properties)
    await store.replace(topic(name), stored.version, records.encode(record))


async def settled() -> None:
    """Everything that can happen without a word from outside has happened."""
    await trio.testing.wait_all_tasks_blocked(0.1)


def names(count: int, start: int = 0) -> list[str]:
    return [f"topic-{number}" for number in range(start, start + count)]
