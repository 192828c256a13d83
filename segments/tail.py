"""The last entries of a log in memory, so that those who read along need not ask the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from metadata.log_entries import StoredEntry

# What an entry costs beside its bytes.
_OVERHEAD: Final = 200
# Entries forgotten at the front before the list is cut: cutting costs as much as what is left is long.
_SLACK: Final = 256


@dataclass(slots=True)
class Budget:
    """Bytes that the tails of all logs of a node may hold together."""

    limit: int
    used: int = 0


class Tail:
    """Consecutive entries up to the end of the log, the oldest forgotten first."""

    def __init__(self, next_index: int, budget: Budget, most_bytes: int) -> None:
        self._budget = budget
        self._most = most_bytes
        self._entries: list[StoredEntry] = []
        self._gone = 0  # how many at the front of the list do not count any more
        self._bytes = 0
        self._next = next_index

    @property
    def first(self) -> int:
        return self._next - len(self._entries) + self._gone

    def add(self, entries: Sequence[StoredEntry]) -> None:
        """What was appended to the log."""
        added = sum([len(entry.body) for entry in entries]) + _OVERHEAD * len(entries)
        self._entries += entries
        self._next = entries[-1].index + 1
        self._bytes += added
        self._budget.used += added
        over = max(self._bytes - self._most, self._budget.used - self._budget.limit)
        if over > 0:
            self._forget(over)
        if self._gone > _SLACK and 2 * self._gone > len(self._entries):
            del self._entries[: self._gone]
            self._gone = 0

    def get(self, indexes: Sequence[int]) -> list[StoredEntry] | None:
        """These entries, in ascending order; None unless all of them are here."""
        if not indexes or indexes[0] < self.first or indexes[-1] >= self._next:
            return None
        offset = len(self._entries) - self._next
        if isinstance(indexes, range) and indexes.step == 1:
            return self._entries[indexes[0] + offset : indexes[-1] + 1 + offset]
        return [self._entries[index + offset] for index in indexes]

    def clear(self) -> None:
        self._budget.used -= self._bytes
        self._entries.clear()
        self._gone = self._bytes = 0

    def _forget(self, over: int) -> None:
        """Forget the oldest entries, which cost so much at least, or all."""
        entries, at, freed = self._entries, self._gone, 0
        while freed < over and at < len(entries):
            freed += len(entries[at].body) + _OVERHEAD
            # The place stays until the list is cut; the bytes must not.
            entries[at] = _NOTHING
            at += 1
        self._gone = at
        self._bytes -= freed
        self._budget.used -= freed


_NOTHING: Final = StoredEntry(-1, 0, 0, b"")
