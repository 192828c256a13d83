"""Entries that wait to be handed out, lowest first: cheap to add at the end, to take from the front, and to drop
anywhere."""

from bisect import insort
from collections.abc import Iterable, Iterator

# Fewer dropped ones than this are not worth a clean-up.
_SLACK = 64
# So many at least are sorted in together; one by one, each moves all that stand behind it.
_FEW = 16


class DueIndexes:
    """A set of indexes that knows its order. What was dropped leaves the ordered list later, all at once."""

    __slots__ = ("_members", "_ordered")

    def __init__(self) -> None:
        self._members: set[int] = set()
        self._ordered: list[int] = []

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, index: int) -> bool:
        return index in self._members

    def __iter__(self) -> Iterator[int]:
        return iter(self._members)

    def add(self, index: int) -> None:
        if index in self._members:
            return
        self._members.add(index)
        if not self._ordered or index > self._ordered[-1]:
            self._ordered.append(index)
        else:
            insort(self._ordered, index)

    def update(self, indexes: Iterable[int]) -> None:
        new = sorted(set(indexes) - self._members)
        if len(new) < _FEW:
            for index in new:
                self.add(index)
            return
        self._members.update(new)
        # Two sorted runs, which is what the sort is fastest at.
        self._ordered += new
        self._ordered.sort()

    def discard(self, index: int) -> None:
        self._members.discard(index)
        if len(self._ordered) > 2 * len(self._members) + _SLACK:
            self._ordered = sorted(self._members)

    def lowest(self, count: int) -> list[int]:
        """The `count` lowest, in order."""
        members, ordered = self._members, self._ordered
        found: list[int] = []
        gone = 0
        last = -1
        for index in ordered:
            if len(found) == count:
                break
            # Dropped and added again, it may stand here twice.
            if index in members and index != last:
                found.append(index)
                last = index
            elif not found:
                gone += 1
        if gone:
            del ordered[:gone]
        return found

    def drop_below(self, index: int) -> None:
        self._members = {member for member in self._members if member >= index}
        self._ordered = sorted(self._members)

    def clear(self) -> None:
        self._members.clear()
        self._ordered.clear()
