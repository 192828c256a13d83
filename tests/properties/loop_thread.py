"""A trio loop in a thread of its own, for tests that are synchronous themselves, as Hypothesis' state machines are."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Final, Generic, TypeVar

import trio

T = TypeVar("T")
R = TypeVar("R")

# Nothing that is asked of the loop takes this long unless it hangs.
CALL_LIMIT: Final = 60.0


class LoopThread(Generic[T]):
    """Keeps an async context manager open on the loop; `call` runs functions beside it until `close`."""

    def __init__(self, open_subject: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open_subject = open_subject
        self._started: Future[tuple[T, trio.lowlevel.TrioToken, trio.Event]] = Future()
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="trio-loop", daemon=True)
        self._thread.start()
        self.subject, self._token, self._stop = self._started.result(CALL_LIMIT)

    def call(self, function: Callable[..., Awaitable[R]], *args: object) -> R:
        """Run an async function on the loop and return its result or raise its error here."""

        async def bounded() -> R:
            with trio.fail_after(CALL_LIMIT):
                return await function(*args)

        try:
            return trio.from_thread.run(bounded, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            # The loop is gone, and why is more telling than that it is.
            self._ended.result(CALL_LIMIT)
            raise

    def close(self) -> None:
        """Leave the context manager; raises what went wrong on the loop, if anything did."""
        try:
            self._token.run_sync_soon(self._stop.set)
        except trio.RunFinishedError:
            pass
        self._ended.result(CALL_LIMIT)
        self._thread.join()

    def _run(self) -> None:
        try:
            trio.run(self._hold_open)
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _hold_open(self) -> None:
        stop = trio.Event()
        async with self._open_subject() as subject:
            self._started.set_result((subject, trio.lowlevel.current_trio_token(), stop))
            await stop.wait()
