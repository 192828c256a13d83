"""How late the event loop is: what a task waits that has something to do while others run."""

from __future__ import annotations

from typing import Final

import trio

from gateway.histograms import Durations
from protocol.turns import SlowTurns

# By default 20 wake-ups in a second: a hundred of them would be seen in the CPU time of an idle node.
_SHORTEST_INTERVAL: Final = 0.01


class LoopLag:
    def __init__(self, turns: SlowTurns) -> None:
        self.durations = Durations()
        self._turns = turns
        # So that no turn is missed that is too slow.
        self._interval = max(_SHORTEST_INTERVAL, turns.limit / 2)

    async def run(self) -> None:
        while True:
            self._turns.beat()
            due = trio.current_time() + self._interval
            await trio.sleep_until(due)
            self.durations.add(max(0.0, trio.current_time() - due))
