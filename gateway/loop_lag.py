"""How late the event loop is: what a task waits that has something to do while others run."""

from __future__ import annotations

from typing import Final

import trio

from gateway.histograms import Durations
from protocol.turns import SlowTurns

# Short enough that no stall of a tenth of a second is missed, long enough to cost nothing: 20 wake-ups in a second.
_INTERVAL: Final = 0.05


class LoopLag:
    def __init__(self, turns: SlowTurns) -> None:
        self.durations = Durations()
        self._turns = turns

    async def run(self) -> None:
        while True:
            self._turns.beat()
            due = trio.current_time() + _INTERVAL
            await trio.sleep_until(due)
            self.durations.add(max(0.0, trio.current_time() - due))
