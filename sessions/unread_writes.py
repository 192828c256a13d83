"""Writes of this node that its watches have not taken in yet: who asks after one of them waits for a read of it. Pure.

A moment is a number that only rises, shared by writes, reads and questions, so that any two of them have an order.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_ALWAYS: Final = 0  # before the first moment of all


class _Unread:
    __slots__ = ("newest", "not_before", "oldest")

    def __init__(self, moment: int) -> None:
        self.oldest = moment  # no write is unread that is older than this
        self.newest = moment
        self.not_before = _ALWAYS  # reads that began before it do not count


class UnreadWrites(Generic[K]):
    """What was written, by a key that is read as a whole: a topic, or a bucket."""

    def __init__(self) -> None:
        self._unread: dict[K, _Unread] = {}

    def __bool__(self) -> bool:
        return bool(self._unread)

    def keys(self) -> list[K]:
        return list(self._unread)

    def add(self, key: K, moment: int) -> None:
        """Something was written under this key, and the writer had its answer at this moment."""
        unread = self._unread.get(key)
        if unread is None:
            self._unread[key] = _Unread(moment)
        else:
            unread.newest = moment

    def doubt(self, key: K, moment: int) -> None:
        """Whatever was read of this key until now does not count, for nobody who asks or has asked."""
        self.add(key, moment)
        unread = self._unread[key]
        unread.oldest = _ALWAYS
        unread.not_before = moment

    def read(self, key: K, began: int) -> None:
        """A read that began at this moment was taken in."""
        unread = self._unread.get(key)
        if unread is None or began < unread.not_before:
            return
        if unread.newest < began:
            del self._unread[key]
        else:
            # Written again meanwhile. Those who asked before that have waited long enough.
            unread.oldest = began

    def forget(self, key: K) -> None:
        """Nobody wants to know any more."""
        self._unread.pop(key, None)

    def settled_until(self) -> float:
        """Who asked before this moment finds every write that had its answer by then."""
        return min((unread.oldest for unread in self._unread.values()), default=float("inf"))
