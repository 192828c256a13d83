"""Exceptions that the code under test met and did not expect: it logs them with their traceback, and goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Tracebacks(logging.Handler):
    def __init__(self, complaints: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._complaints = complaints

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._complaints.append(logging.Formatter().format(record))


@contextmanager
def complaining_about_tracebacks(complaints: list[str]) -> Iterator[None]:
    """Trouble with the store is expected and logged; an exception that nobody expected is logged with its traceback.

    Nothing is passed on: thousands of worlds would fill the log that pytest keeps in memory.
    """
    handler = _Tracebacks(complaints)
    loggers = [logging.getLogger(name) for name in ("gateway", "sessions", "controller", "metadata")]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.propagate = True
