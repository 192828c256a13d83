"""Topics as their writer means them to be, so that watchers can be judged while the store itself cannot be asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import count, islice
from typing import Final

import trio

from controller.transitions import Transitions
from metadata import keys
from protocol.names import TopicName
from tests.faults.namespace_views import NamespaceView
from tests.support.nodes import CONVERGENCE_LIMIT
from tests.support.waiting import eventually

BLUE: Final = {"team": "blue"}
RED: Final = {"team": "red"}
# One group without filters and two with.
FILTERS: Final[tuple[Mapping[str, str], ...]] = ({}, BLUE, RED)

_WRITERS: Final = 50


def topic(local: str, namespace: str = "default") -> TopicName:
    return TopicName.scalable("public", namespace, local)


def numbered(prefix: str, count: int) -> list[TopicName]:
    return [topic(f"{prefix}-{number}") for number in range(count)]


def bucket_of(name: TopicName) -> int:
    return keys.bucket_of(keys.path_of(name))


def slot_of(name: TopicName) -> int:
    return keys.BUCKET_SLOTS[bucket_of(name)]


def in_bucket(bucket: int, wanted: int) -> list[TopicName]:
    """So many topics of one bucket."""
    names = (topic(f"bucket-{bucket}-{number}") for number in count())
    return list(islice((name for name in names if bucket_of(name) == bucket), wanted))


async def for_each(topics: Iterable[TopicName], do: Callable[[TopicName], Awaitable[object]]) -> None:
    """Many at a time: the store's connection puts them into one batch."""
    remaining = iter(topics)

    async def take_next() -> None:
        for name in remaining:
            await do(name)

    async with trio.open_nursery() as nursery:
        for _ in range(_WRITERS):
            nursery.start_soon(take_next)


class Catalogue:
    """Writes topics of `public/default` and remembers them; `anew` are those that were deleted and created again."""

    def __init__(self, changes: Transitions) -> None:
        self.topics: dict[TopicName, Mapping[str, str]] = {}
        self.anew: set[str] = set()
        self._changes = changes

    async def create(self, topics: Iterable[TopicName], properties: Mapping[str, str]) -> None:
        async def create(name: TopicName) -> None:
            await self._changes.create(name, 1, properties)
            self.topics[name] = properties

        await for_each(topics, create)

    async def delete(self, topics: Iterable[TopicName]) -> None:
        async def delete(name: TopicName) -> None:
            await self._changes.delete(name)
            del self.topics[name]

        await for_each(topics, delete)

    async def create_again(self, topics: Sequence[TopicName], properties: Mapping[str, str]) -> None:
        await self.delete(topics)
        await self.create(topics, properties)
        self.anew.update(map(str, topics))

    async def paint(self, topics: Iterable[TopicName], properties: Mapping[str, str]) -> None:
        """Replace the properties of these."""

        async def paint(name: TopicName) -> None:
            await self._changes.update_properties(name, properties)
            self.topics[name] = properties

        await for_each(topics, paint)

    def selected(self, filters: Mapping[str, str]) -> set[str]:
        return {str(name) for name, properties in self.topics.items() if filters.items() <= properties.items()}

    async def until_told(self, views: Sequence[NamespaceView], within: float = CONVERGENCE_LIMIT) -> None:
        """Wait until every view holds what was written; who writes on meanwhile is not waited for."""
        wanted = [(view, self.selected(view.filters)) for view in views]

        def told() -> bool:
            for view, expected in wanted:
                assert view.held == expected, f"{view.filters}: {_difference(view.held, expected)}"
            return True

        await eventually(told, within)

    def mark(self, views: Sequence[NamespaceView]) -> Mark:
        """What is told from here on can be asked for."""
        self.anew.clear()
        return Mark(self, views)


class Mark:
    """A moment at which all these views held what was written."""

    def __init__(self, catalogue: Catalogue, views: Sequence[NamespaceView]) -> None:
        self._catalogue = catalogue
        self._before = [(view, set(view.held or ()), len(view.updates)) for view in views]

    async def until_each_change_was_told_once(self, within: float = CONVERGENCE_LIMIT) -> None:
        """By diffs, and nothing else since. A topic that was made anew shows in what is told, not in what is held."""

        def told() -> bool:
            for view, before, seen in self._before:
                after = self._catalogue.selected(view.filters)
                anew = self._catalogue.anew & before & after
                assert set(view.kinds[seen:]) <= {"diff"}, f"{view.filters}: {view.kinds[seen:]}"
                added = Counter(name for update in view.updates[seen:] for name in update.diff.added)
                removed = Counter(name for update in view.updates[seen:] for name in update.diff.removed)
                _check_told(f"{view.filters} added", added, (after - before) | anew)
                _check_told(f"{view.filters} removed", removed, (before - after) | anew)
            return True

        await eventually(told, within)


def _check_told(what: str, told: Counter[str], expected: set[str]) -> None:
    once = Counter(expected)
    assert told == once, f"{what}: lacks {sorted(once - told)[:5]}, has {sorted(told - once)[:5]} too much"


def _difference(held: set[str] | None, expected: set[str]) -> str:
    if held is None:
        return "nothing was told"
    return f"lacks {sorted(expected - held)[:5]}, has {sorted(held - expected)[:5]} too much"
