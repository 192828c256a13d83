"""Bytes that are kept for clients who are slow, in bodies on their way in or answers on their way out.

They are bounded in all. Over the bound those have to go that hold most of it, and have for longest made no progress,
so that a client pays for its own slowness and not for that of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

# In seconds: those that began within so short a time are told apart by how much they hold.
_MOMENT: Final = 0.1


class Share:
    """What is kept for one client. One that is `pinned` does not have to go: it is our turn, not the client's."""

    __slots__ = ("_give_up", "moved_at", "pinned", "size")

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        self.size = 0
        self.moved_at = trio.current_time()
        self.pinned = False

    def burden(self, now: float) -> float:
        return self.size * (now - self.moved_at + _MOMENT)

    def give_up(self) -> None:
        self._give_up()


class Shares:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._shares: set[Share] = set()
        self.used = 0

    @contextmanager
    def open(self, give_up: Callable[[], None]) -> Iterator[Share]:
        """A share, empty at first; `give_up` is called when its bytes are needed for others and must not raise."""
        share = Share(give_up)
        self._shares.add(share)
        try:
            yield share
        finally:
            self._forget(share)

    def grow(self, share: Share, size: int) -> None:
        if share not in self._shares:
            return  # given up, and its holder has not noticed yet
        share.size += size
        self.used += size
        # Whatever its size, one may hold something: else the bound of all would be one of each.
        while self.used > self._limit and self.used > share.size:
            now = trio.current_time()
            others = [each for each in self._shares if each.size and not each.pinned]
            if not others:
                return
            greediest = max(others, key=lambda each: each.burden(now))
            self._forget(greediest)
            greediest.give_up()

    def shrink(self, share: Share, size: int) -> None:
        if share in self._shares:
            share.size -= size
            self.used -= size

    def _forget(self, share: Share) -> None:
        if share in self._shares:
            self._shares.remove(share)
            self.used -= share.size
            share.size = 0
