"""A cell between one who tells and one who listens: who comes late finds only the newest value."""

from __future__ import annotations

from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Latest(Generic[T]):
    """Holds at most one value, so a listener that is slow or gone costs no memory."""

    __slots__ = ("_end", "_values", "_waiting")

    def __init__(self) -> None:
        self._values: list[T] = []
        self._end: Exception | None = None
        self._waiting: trio.Event | None = None

    def put(self, value: T) -> None:
        """Replace what nobody has taken yet; without effect after the end."""
        if self._end is None:
            self._values[:] = [value]
            self._wake()

    def end(self, reason: Exception | None = None) -> None:
        """Let `take` raise `reason` (EndOfChannel by default) once the last value is taken; the first end counts."""
        if self._end is None:
            self._end = reason or trio.EndOfChannel()
            self._wake()

    def clear(self) -> None:
        self._values.clear()

    async def take(self) -> T:
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
        return self._values.pop()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.set()
