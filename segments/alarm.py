"""Wakes a subscription when the next of its delayed messages is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from metadata.tasks import Tasks

# Between two looks at the clock of the wall: it may be set meanwhile.
_LONGEST_WAIT: Final = 10.0


class Alarm:
    """For one time, the earliest that it was set to. A task lives only while it is set."""

    def __init__(self, nursery: Tasks, now_ms: Callable[[], int]) -> None:
        self._nursery = nursery
        self._now_ms = now_ms
        self._waiting: trio.CancelScope | None = None

    def set(self, due_ms: int, ring: Callable[[], None]) -> None:
        """It may ring sooner than this: whoever is woken looks at the clock, and sets it again.

        `ring` is always the same. It is not kept, because whoever is woken keeps the alarm.
        """
        wait = (due_ms - self._now_ms()) / 1000
        deadline = trio.current_time() + min(max(0.0, wait), _LONGEST_WAIT)
        if self._waiting is None:
            self._waiting = trio.CancelScope(deadline=deadline)
            self._nursery.start_soon(self._wait, self._waiting, ring)
        elif deadline < self._waiting.deadline:
            self._waiting.deadline = deadline

    async def _wait(self, scope: trio.CancelScope, ring: Callable[[], None]) -> None:
        with scope:
            await trio.sleep_forever()
        self._waiting = None
        ring()
