"""Turns of the event loop that took too long, by what they were spent on.

Everybody waits while one command is worked on. Which one it was cannot be told afterwards, so it is timed where
commands are dispatched and where the work that they start goes on; one line in the log names it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from time import perf_counter, thread_time
from types import coroutine
from typing import Any, Final, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_LIMIT: Final = 0.1
# Between two lines about the same kind of work: whoever causes one slow turn causes many.
_SILENCE: Final = 10.0
# Of what a client sent, in a line.
_LONGEST_DETAIL: Final = 200


class SlowTurns:
    """All of one node. `clock` gives seconds that only grow, `cpu_clock` those that this thread has worked."""

    __slots__ = ("_cpu_at_beat", "_cpu_clock", "_said", "_unsaid", "clock", "counts", "limit")

    def __init__(
        self,
        limit: float = DEFAULT_LIMIT,
        clock: Callable[[], float] = perf_counter,
        cpu_clock: Callable[[], float] = thread_time,
    ) -> None:
        self.limit = limit
        self.clock = clock
        self._cpu_clock = cpu_clock
        self._cpu_at_beat = cpu_clock()
        self.counts: Counter[str] = Counter()  # by the kind of work
        self._said: dict[str, float] = {}  # when there was a line about a kind of work
        self._unsaid: Counter[str] = Counter()  # how many there were since that were passed over

    def beat(self) -> None:
        """To be called every now and then between two turns: the clock of the CPU is too dear for each of them."""
        self._cpu_at_beat = self._cpu_clock()

    def note(self, kind: str, whose: str, seconds: float) -> None:
        """One turn took longer than the limit. Kinds are few; `whose` says which client it was for, or what it wanted.

        One line for each kind in a while: a client that causes thousands must not fill the log as well.
        """
        self.counts[kind] += 1
        now = self.clock()
        if now - self._said.get(kind, float("-inf")) < _SILENCE:
            self._unsaid[kind] += 1
            return
        self._said[kind] = now
        before = self._unsaid.pop(kind, 0)
        more = f"; {before} more since the last line about {kind}" if before else ""
        # On a machine that is too busy turns are long for which the command can do nothing.
        worked = min(seconds, self._cpu_clock() - self._cpu_at_beat)
        log.warning(
            "one turn of the event loop took %.0f ms, at most %.0f of them on the CPU, for %s %s%s",
            seconds * 1000,
            worked * 1000,
            kind,
            whose[:_LONGEST_DETAIL],
            more,
        )

    async def timed(self, kind: str, whose: str, work: Awaitable[T]) -> T:
        """Do the work, and time each of its turns."""
        return await _stepped(self, kind, whose, work.__await__())


@coroutine
def _stepped(turns: SlowTurns, kind: str, whose: str, work: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """What `yield from work` does, with a look at the clock before and after each step."""
    value: Any = None
    error: BaseException | None = None
    while True:
        began = turns.clock()
        try:
            wish = work.send(value) if error is None else work.throw(error)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # which the generator's type knows, and not the exception's
        finally:
            # An exception that stayed here would hold this frame, and this frame it.
            value = error = None
            if (spent := turns.clock() - began) > turns.limit:
                turns.note(kind, whose, spent)
        try:
            value = yield wish
        except BaseException as thrown:
            error = thrown
