"""Messages that wait to be taken, and the permits that keep them from becoming too many. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from protocol.client.entries import Item, ReceivedEntry
from protocol.client.errors import ServerMisbehaved


class ReceiveBuffer:
    """A server may send as many messages as it was permitted to, and the last entry may be a batch that is more.

    Permits are given back for what was taken or dropped, when that is half of the size.
    """

    __slots__ = ("_free", "_items", "_permits", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[tuple[Item, int]] = deque()  # each with the permits that it gives back
        self._permits = 0  # what the server may still send
        self._free = 0  # what was taken since permits were given back

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return (item for item, _ in self._items)

    def open(self) -> int:
        """Begin anew, with what is returned as the first permits; whatever was waiting is forgotten."""
        self.close()
        self._permits = self._size
        return self._size

    def close(self) -> None:
        self._items.clear()
        self._permits = self._free = 0

    def put(self, entry: ReceivedEntry) -> None:
        """Take in an entry, which must have been permitted."""
        self._use(entry)
        if not entry.items:
            self._free += entry.cost
        # Messages of a batch that are left out cost the server permits as well: the first one that is not gives them.
        surplus = entry.cost - len(entry.items)
        for item in entry.items:
            self._items.append((item, 1 + surplus))
            surplus = 0

    def drop(self, entry: ReceivedEntry) -> None:
        """An entry arrived that nobody wants."""
        self._use(entry)
        self._free += entry.cost

    def clear(self) -> None:
        """Forget what is waiting; what the server may send stays the same."""
        self._free += sum(cost for _, cost in self._items)
        self._items.clear()

    def take(self) -> Item:
        item, cost = self._items.popleft()
        self._free += cost
        return item

    def give_back(self) -> int:
        """How many permits to give the server now; none until it is worth a command."""
        if self._free == 0 or self._free < self._size // 2:
            return 0
        given, self._free = self._free, 0
        self._permits += given
        return given

    def _use(self, entry: ReceivedEntry) -> None:
        if self._permits <= 0:
            raise ServerMisbehaved("The server sent messages that it had no permits for: it is at fault.")
        # A server may count only what was not acknowledged before.
        self._permits -= max(1, len(entry.items))
