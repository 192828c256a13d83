"""Where one who tells leaves values for one who listens: only the newest, or all in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Mailbox(ABC, Generic[T]):
    """What both kinds share: waiting for a value, and an end that comes after the last one."""

    # A list, because there may be a hundred thousand of these: an empty deque takes ten times the memory.
    __slots__ = ("_end", "_values", "_waiting")

    def __init__(self) -> None:
        self._values: list[T] = []
        self._end: Exception | None = None
        self._waiting: trio.Event | None = None

    def __len__(self) -> int:
        """How many values nobody has taken yet."""
        return len(self._values)

    def put(self, value: T) -> None:
        """Leave a value; without effect after the end."""
        if self._end is None:
            self._keep(value)
            self._wake()

    def end(self, reason: Exception | None = None) -> None:
        """Let `take` raise `reason` (EndOfChannel by default) once the last value is taken; the first end counts."""
        if self._end is None:
            self._end = reason or trio.EndOfChannel()
            self._wake()

    def clear(self) -> None:
        self._values.clear()

    async def take(self) -> T:
        await self._wait()
        return self._values.pop(0)

    async def take_all(self) -> list[T]:
        """At least one value."""
        await self._wait()
        values, self._values = self._values, []
        return values

    @abstractmethod
    def _keep(self, value: T) -> None:
        """Add it to what waits, or put it in the place of that."""

    async def _wait(self) -> None:
        await trio.lowlevel.checkpoint()
        while not self._values:
            if self._end is not None:
                # Every listener of a lost connection is given the same error: none inherits another's traceback.
                raise self._end.with_traceback(None)
            if self._waiting is not None:
                raise trio.BusyResourceError("another task is already waiting for the next value")
            self._waiting = trio.Event()
            try:
                await self._waiting.wait()
            finally:
                self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.set()


class Latest(Mailbox[T]):
    """Holds at most one value, so a listener that is slow or gone costs no memory: who comes late finds the newest."""

    __slots__ = ()

    def _keep(self, value: T) -> None:
        self._values[:] = [value]


class InOrder(Mailbox[T]):
    """Holds every value until it is taken; whoever tells looks at the length and sets the bound."""

    __slots__ = ()

    def _keep(self, value: T) -> None:
        self._values.append(value)
