"""How long to wait before the next attempt at something that failed."""

from __future__ import annotations

import random
from collections.abc import Callable

# What Pulsar's own clients use.
FIRST_DELAY = 0.1
LONGEST_DELAY = 30.0


class Backoff:
    """Delays that double from one attempt to the next, each shortened by up to a half.

    The spread is wide because a restarted server meets all of its clients at once.
    """

    __slots__ = ("_delay", "_first", "_longest", "_random")

    def __init__(
        self,
        first: float = FIRST_DELAY,
        longest: float = LONGEST_DELAY,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._first = self._delay = first
        self._longest = longest
        self._random = random

    @property
    def fresh(self) -> bool:
        """Whether nothing has failed yet, or not since the last success."""
        return self._delay == self._first

    def next(self) -> float:
        delay = self._delay
        self._delay = min(delay * 2, self._longest)
        return delay * (1 - self._random() / 2)

    def reset(self) -> None:
        self._delay = self._first
