"""Large messages that came in chunks, each of which is an entry: who has begun to get one gets all of it.

A client puts a message together from chunks that come in order, and acknowledges them when it has all. Nobody else can
do anything with the rest of it; and if one chunk comes again, so must the others. What is remembered of a message are
its entries that a receiver has or that wait for it, so there are no more of these than receivers may leave
unacknowledged, and a message whose producer died in the middle is forgotten when they are settled.
"""

from collections.abc import Collection, Iterable
from typing import Generic

from segments.dispatch.receivers import R, Seat


class _Message(Generic[R]):
    __slots__ = ("indexes", "name", "seat")

    def __init__(self, name: str, seat: Seat[R]) -> None:
        self.name = name
        self.seat = seat
        self.indexes: set[int] = set()


class Chunks(Generic[R]):
    def __init__(self) -> None:
        self._messages: dict[str, _Message[R]] = {}
        self._of: dict[int, _Message[R]] = {}

    def __len__(self) -> int:
        """How many entries are known to be chunks."""
        return len(self._of)

    def seat(self, name: str) -> Seat[R] | None:
        """Whose a message is, if somebody has begun to get it."""
        message = self._messages.get(name)
        return None if message is None else message.seat

    def seat_at(self, index: int) -> Seat[R] | None:
        """The same, for one of its entries."""
        message = self._of.get(index)
        return None if message is None else message.seat

    def assign(self, name: str, index: int, seat: Seat[R]) -> None:
        """An entry of a message goes to a seat, or waits for it; and so will the rest."""
        message = self._messages.get(name)
        if message is None:
            message = self._messages[name] = _Message(name, seat)
        message.indexes.add(index)
        self._of[index] = message

    def settle(self, index: int) -> None:
        message = self._of.pop(index, None)
        if message is not None:
            message.indexes.discard(index)
            if not message.indexes:
                del self._messages[message.name]

    def settle_below(self, mark: int) -> None:
        for index in [index for index in self._of if index <= mark]:
            self.settle(index)

    def with_siblings(self, indexes: Iterable[int]) -> set[int]:
        """These, and all that belong to the same messages."""
        found = set(indexes)
        for message in {self._of[index] for index in found if index in self._of}:
            found |= message.indexes
        return found

    def release(self, indexes: Iterable[int]) -> list[int]:
        """The messages that these belong to are nobody's any more; all their entries."""
        released: list[int] = []
        for message in {self._of[index] for index in indexes if index in self._of}:
            released += self._drop(message)
        return released

    def leave(self, seats: Collection[Seat[R]]) -> None:
        gone = set(seats)
        for message in [message for message in self._messages.values() if message.seat in gone]:
            self._drop(message)

    def _drop(self, message: _Message[R]) -> Collection[int]:
        del self._messages[message.name]
        for index in message.indexes:
            del self._of[index]
        return message.indexes

    def clear(self) -> None:
        self._messages.clear()
        self._of.clear()


class Parts:
    """Which message each of some entries is a part of, and whether a message has any of them."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, index: int) -> bool:
        return index in self._of

    def __getitem__(self, index: int) -> str:
        return self._of[index]

    def has_of(self, name: str) -> bool:
        return name in self._counts

    def add(self, index: int, name: str) -> None:
        """One that is not here."""
        self._of[index] = name
        self._counts[name] = self._counts.get(name, 0) + 1

    def discard(self, index: int) -> str | None:
        """The message that it was a part of."""
        name = self._of.pop(index, None)
        if name is not None:
            left = self._counts[name] - 1
            if left:
                self._counts[name] = left
            else:
                del self._counts[name]
        return name

    def drop_below(self, index: int) -> None:
        for each in [each for each in self._of if each < index]:
            self.discard(each)

    def clear(self) -> None:
        self._of.clear()
        self._counts.clear()
