"""Looks for cyclic garbage when enough may have gathered, and measures what every collection takes.

What clients leave is freed by reference counting (ADR 0011). This is the net below it: for what a fault of ours, or a
library, leaves all the same.
"""

from __future__ import annotations

import gc
from time import perf_counter
from typing import Any, Final

import trio

from gateway.histograms import Durations

# Objects that have come and not gone since the last full collection: some tens of megabytes, if all are garbage. Below
# that nothing is looked for, because a collection looks at everything that lives and holds everybody up meanwhile.
_WORTH_A_LOOK: Final = 20_000


class CycleCollector:
    def __init__(self, interval: float) -> None:
        self.pauses = Durations()
        self._interval = interval
        self._began = 0.0

    async def run(self) -> None:
        gc.callbacks.append(self._observe)
        try:
            while True:
                await trio.sleep(self._interval)
                self.collect_if_worth_it()
        finally:
            gc.callbacks.remove(self._observe)

    def collect_if_worth_it(self) -> bool:
        """Whether there was a full collection."""
        if objects_since_full_collection() < _WORTH_A_LOOK:
            return False
        gc.collect()
        return True

    def _observe(self, phase: str, info: dict[str, Any]) -> None:
        """Whoever started the collection: the interpreter starts some by itself."""
        if phase == "start":
            self._began = perf_counter()
        else:
            self.pauses.add(perf_counter() - self._began)


def objects_since_full_collection() -> int:
    """How many objects that can be in cycles have come since and not gone, as far as the interpreter counts them."""
    young, collections, older_collections = gc.get_count()
    young_limit, collections_limit, _ = gc.get_threshold()
    return young + young_limit * (collections + collections_limit * older_collections)
