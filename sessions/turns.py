"""Giving way: long work in small steps, after some of which other tasks run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

import trio

from metadata.tasks import Tasks

log = logging.getLogger(__name__)

T = TypeVar("T")

# Of what a connection held, ended before other tasks run, at 5 to 10 microseconds each.
ENDED_PER_TURN: Final = 128


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


def end_in_turns(nursery: Tasks, held: Iterable[T], end: Callable[[T], None]) -> None:
    """End what a connection held that is gone: a turn's worth at once, the rest by a task that gives way.

    Nobody may be able to reach any of it by another way, because nobody knows how far it has come.
    """
    todo = iter(held)
    for item in islice(todo, ENDED_PER_TURN):
        end(item)
    rest = list(todo)
    if rest:
        nursery.start_soon(_end_rest, iter(rest), end)


async def _end_rest(todo: Iterator[T], end: Callable[[T], None]) -> None:
    turns = Turns(ENDED_PER_TURN)
    for item in todo:
        try:
            end(item)
        except Exception:
            # The nursery is the whole server's, and the others have to end all the same.
            log.exception("ending what a connection held failed")
        await turns.spend()
