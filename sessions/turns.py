"""Giving way: long work in small steps, after some of which other tasks run."""

from __future__ import annotations

import trio


class Turns:
    """Counts the steps of one task, of whatever size the task finds fair, and lets others run after so many."""

    __slots__ = ("_left", "_per_turn")

    def __init__(self, steps_per_turn: int) -> None:
        self._per_turn = self._left = steps_per_turn

    async def spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left <= 0:
            self._left = self._per_turn
            await trio.lowlevel.checkpoint()
