"""The topics of a namespace as a client keeps them: what the server says, and how much of it was passed on.

Pure: updates go in, and one event that makes up for all of them comes out whenever somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import TypeAlias

from protocol.hashing import topic_set_hash

# Below this many names the share of the set is not looked at: a small namespace would get snapshots only.
SMALL_CHANGE = 1_000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All topics there are; whatever was known before is void."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Change:
    """What came and what went; a topic that was deleted and created again stands in both."""

    added: tuple[str, ...]
    removed: tuple[str, ...]


NamespaceEvent: TypeAlias = Snapshot | Change


class TopicSet:
    """Two sets of names, held as one and the difference to the other.

    `told` is what follows from the events taken so far. What the server says is ahead of it by what is pending: names
    added and removed, or a whole new set. Both are bounded by the sets themselves, however long nobody asks.
    """

    __slots__ = ("_added", "_removed", "_replacement", "_small_change", "is_known", "told")

    def __init__(self, small_change: int = SMALL_CHANGE) -> None:
        self.told: set[str] = set()
        self.is_known = False  # by a first snapshot
        self._small_change = small_change
        # Dictionaries for their order: names are passed on as they came.
        self._added: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        self._replacement: set[str] | None = None

    @property
    def has_news(self) -> bool:
        return self._replacement is not None or bool(self._added or self._removed)

    @property
    def hash(self) -> str:
        """Of the set that the server last told."""
        return topic_set_hash(self._current())

    def replace(self, topics: Iterable[str]) -> None:
        """Take in a snapshot. One that holds nothing new is no news: reconnecting often ends so."""
        said = set(topics)
        if not self.is_known or said != self._current():
            self._replacement = said
            self._added.clear()
            self._removed.clear()
        self.is_known = True

    def change(self, added: Iterable[str], removed: Iterable[str]) -> None:
        """Take in a difference. The names removed go first, so one that is also added was created again."""
        if not self.is_known:
            return  # a difference to nothing; the snapshot that follows has it
        if self._replacement is not None:
            self._replacement.difference_update(removed)
            self._replacement.update(added)
            return
        merged = self.has_news
        for name in removed:
            self._remove(name)
        for name in added:
            self._add(name)
        pending = len(self._added) + len(self._removed)
        if merged and pending > max(self._small_change, len(self.told) // 2):
            # Nobody keeps up, and by now the whole set is hardly more to take in than the difference.
            self._replacement = set(self._current())
            self._added.clear()
            self._removed.clear()

    def take(self) -> NamespaceEvent | None:
        """All that is pending as one event, which then counts as told; None if there is nothing."""
        if self._replacement is not None:
            self.told, self._replacement = self._replacement, None
            return Snapshot(frozenset(self.told))
        if not self._added and not self._removed:
            return None
        change = Change(tuple(self._added), tuple(self._removed))
        self.told.difference_update(self._removed)
        self.told.update(self._added)
        self._added.clear()
        self._removed.clear()
        return change

    def _remove(self, name: str) -> None:
        if name in self._added:
            # It came and went unseen, or its deletion is noted already.
            del self._added[name]
        elif name in self.told:
            self._removed[name] = None

    def _add(self, name: str) -> None:
        if name not in self.told or name in self._removed:
            self._added[name] = None

    def _current(self) -> Set[str]:
        if self._replacement is not None:
            return self._replacement
        if not self.has_news:
            return self.told
        return (self.told - self._removed.keys()) | self._added.keys()
