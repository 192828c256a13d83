"""Messages that wait to be taken, and the permits that keep them from becoming too many. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from protocol.client.entries import Item, ReceivedEntry
from protocol.client.errors import ServerMisbehaved


class ReceiveBudget:
    """Divides the room for messages evenly among the buffers that are open, whose number changes.

    A buffer that is told to shrink does so as its messages are taken: what a server was permitted cannot be taken back.
    """

    __slots__ = ("_members", "_most", "_total")

    def __init__(self, total: int, most: int) -> None:
        self._total = total  # for all together
        self._most = most  # for one of them
        self._members = 0

    def join(self) -> None:
        self._members += 1

    def leave(self) -> None:
        self._members -= 1

    @property
    def share(self) -> int:
        """Of each; never nothing, or one could starve."""
        return max(1, min(self._most, self._total // max(1, self._members)))


class ReceiveBuffer:
    """A server may send as many messages as it was permitted to, and the last entry may be a batch that is more.

    Permits are given back for what was taken or dropped, when that is half of the size; which is fixed, or a share of
    a budget.
    """

    __slots__ = ("_budget", "_free", "_is_open", "_items", "_owed", "_permits", "_size")

    def __init__(self, size: int | ReceiveBudget) -> None:
        self._budget = size if isinstance(size, ReceiveBudget) else None
        self._size = size if isinstance(size, int) else 0
        self._is_open = False
        self._owed = 0  # permits not to be given back, since the share has shrunk
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
        self._is_open = True
        if self._budget is not None:
            self._budget.join()
            self._size = self._budget.share
        self._permits = self._size
        return self._size

    def close(self) -> None:
        if self._is_open and self._budget is not None:
            self._budget.leave()
        self._is_open = False
        self._items.clear()
        self._permits = self._free = self._owed = 0

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
        self._resize()
        if self._free == 0 or self._free < self._size // 2:
            return 0
        given, self._free = self._free, 0
        self._permits += given
        return given

    def _resize(self) -> None:
        if self._budget is None or not self._is_open:
            return
        share = self._budget.share
        self._owed += self._size - share
        self._size = share
        # Either there is something to withhold of what was taken, or there is more room than before.
        settled = min(self._owed, self._free)
        self._owed -= settled
        self._free -= settled

    def _use(self, entry: ReceivedEntry) -> None:
        if self._permits <= 0:
            raise ServerMisbehaved("The server sent messages that it had no permits for: it is at fault.")
        # A server may count only what was not acknowledged before.
        self._permits -= max(1, len(entry.items))
