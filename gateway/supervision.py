"""Background tasks that have to go on whatever happens to them."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from protocol.backoff import Backoff

log = logging.getLogger(__name__)

# Before something that failed is started again.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0


async def supervised(name: str, task: Callable[[], Awaitable[None]], failures: Counter[str] | None = None) -> None:
    """Run a background task for ever; its failure is logged and it is started again, later and later."""
    backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
    while True:
        started_at = trio.current_time()
        try:
            await task()
        except Exception:
            log.exception("%s failed and will be started again", name)
            if failures is not None:
                failures[name] += 1
        if trio.current_time() - started_at > LONGEST_PAUSE:
            backoff.reset()
        await trio.sleep(backoff.next())
