"""Ctrl-C and SIGTERM end a job alike: what it has begun is cleaned up, one sentence is said, the exit code tells which.

Python raises an interrupt wherever the main thread happens to be. In the middle of a call to Java that would come out
as a page of errors, so such calls are made on other threads, and the main thread waits for them.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import FrameType
from typing import Any, Final, TypeVar

import typer

T = TypeVar("T")

# As shells tell it: 128 and the number of the signal.
INTERRUPTED: Final = 128 + signal.SIGINT
TERMINATED: Final = 128 + signal.SIGTERM
_SIGNALS_SEEN_S: Final = 0.2
_DEFERRED: Final = (signal.SIGINT, signal.SIGTERM)


def ends_cleanly(otherwise: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command that ends with a sentence and the right code; `otherwise` is said where the interrupt has no text."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*arguments: Any, **options: Any) -> None:
            with _sigterm_as_interrupt() as exit_code:
                try:
                    command(*arguments, **options)
                except KeyboardInterrupt as interrupt:
                    print(f"vela: {str(interrupt) or otherwise}", file=sys.stderr)
                    raise typer.Exit(exit_code()) from None

        return run

    return decorate


def interruptible(work: Callable[[], T], stop: Callable[[], object] = lambda: None) -> T:
    """Do it on another thread. On an interrupt `stop` is called until the work has ended, and then it is raised."""
    with ExitStack() as stack, ThreadPoolExecutor(1, thread_name_prefix="job") as threads:
        with _deferred_signals() as redeliver:
            # An interrupt inside of it would leave a thread that nobody waits for.
            doing = threads.submit(work)
        interrupt: KeyboardInterrupt | None = None
        while True:
            try:
                redeliver()
                # Signals are seen between two waits.
                wait([doing], timeout=_SIGNALS_SEEN_S)
                if doing.done():
                    break
                if interrupt is not None:
                    # Again and again: between two jobs there is none to be stopped, and the next one would begin.
                    stop()
            except KeyboardInterrupt as heard:
                if interrupt is None:
                    stack.enter_context(without_logs())
                interrupt = heard
        if interrupt is not None:
            raise interrupt
        return doing.result()


@contextmanager
def _deferred_signals() -> Iterator[Callable[[], None]]:
    """Signals that arrive in the block only count once what it yields is called."""
    heard: list[int] = []
    handled = [number for number in _DEFERRED if callable(signal.getsignal(number))]
    before = {number: signal.signal(number, lambda number, _: heard.append(number)) for number in handled}

    def redeliver() -> None:
        while heard:
            signal.raise_signal(heard.pop())

    try:
        yield redeliver
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def without_logs() -> Iterator[None]:
    """What libraries have to say about a Java that is gone, in pages, is no news to who has ended it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[Callable[[], int]]:
    """SIGTERM does in the block what Ctrl-C does there; yields what tells the exit code after an interrupt."""
    terminated = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal terminated
        terminated = True
        # Whoever runs a loop has a handler that does not interrupt it in the middle of its own work.
        on_ctrl_c = signal.getsignal(signal.SIGINT)
        if callable(on_ctrl_c):
            on_ctrl_c(signal.SIGINT, frame)
        else:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield lambda: TERMINATED if terminated else INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
