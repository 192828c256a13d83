"""A log line for what may happen many times a second: once a minute, with how often it happened in between."""

from __future__ import annotations

import logging
from typing import Final

import trio

INTERVAL: Final = 60.0


class SeldomLine:
    """One kind of line. What follows it within the interval is counted, and told by the next one."""

    def __init__(self, log: logging.Logger, level: int) -> None:
        self._log = log
        self._level = level
        self._quiet_until = float("-inf")
        self._untold = 0

    def say(self, text: str) -> None:
        if trio.current_time() < self._quiet_until:
            self._untold += 1
        else:
            self._tell(text)

    def over(self, text: str) -> None:
        """Once it is over and the interval, too, tell what is still to be told; cheap where that is nothing."""
        if self._untold and trio.current_time() >= self._quiet_until:
            self._tell(text)

    def _tell(self, text: str) -> None:
        followed = f" ({self._untold} more since the last line about it)" if self._untold else ""
        self._log.log(self._level, "%s%s", text, followed)
        self._quiet_until = trio.current_time() + INTERVAL
        self._untold = 0
