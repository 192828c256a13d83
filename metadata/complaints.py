"""What is wrong in the store is said once: whoever needs what is damaged looks again and again, and finds it so.

The same text is said again after an hour, for those who read only the end of a log. What concerns the whole store is
said by the change feed: a line for each of ten thousand logs would hide it.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from metadata.errors import StoreError, StoreLost, StoreUnavailable, WritesRefused

# Texts that are remembered; more kinds of damage at a time are said more often than once.
_MOST: Final = 1_000
_SILENCE: Final = 3_600.0

_said: dict[tuple[str, str], float] = {}  # the oldest first


def complain(log: logging.Logger, message: str, *args: object, level: int = logging.ERROR) -> None:
    """Log this, unless the very same was said within the last hour."""
    if not log.isEnabledFor(level):
        return
    key = (log.name, message % args)
    now = time.monotonic()
    said_at = _said.get(key)
    if said_at is not None and now - said_at < _SILENCE:
        return
    _said.pop(key, None)
    if len(_said) >= _MOST:
        del _said[next(iter(_said))]
    _said[key] = now
    log.log(level, message, *args)


def note_waiting(log: logging.Logger, error: StoreError, message: str, *args: object) -> None:
    """Log that something is tried again because of this error, which goes behind the message."""
    is_of_all = isinstance(error, StoreLost | StoreUnavailable | WritesRefused)
    if is_of_all:
        log.debug(message + ": %s", *args, error)
    else:
        complain(log, message + ": %s", *args, error, level=logging.INFO)


def forget_complaints() -> None:
    """Everything is said again."""
    _said.clear()
