"""Waiting for something to become true, with a deadline instead of a sleep that hopes."""

import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

import trio

T = TypeVar("T")

POLL_INTERVAL = 0.005
# For what takes milliseconds on a quiet machine: nobody waits for it in vain unless the test fails.
PATIENCE = 30.0


class Never(AssertionError):
    """What was waited for did not happen in time."""


@overload
async def eventually(predicate: Callable[[], Awaitable[T]], within: float = ...) -> T: ...
@overload
async def eventually(predicate: Callable[[], T], within: float = ...) -> T: ...
async def eventually(predicate: Callable[[], Any], within: float = PATIENCE) -> Any:
    """Poll until `predicate` (plain or async) returns something true, and return that.

    An `AssertionError` in it means "not yet", so it may be written as assertions that return True.
    """
    deadline = trio.current_time() + within
    while True:
        doubt: AssertionError | None = None
        try:
            outcome = predicate()
            value = await outcome if inspect.isawaitable(outcome) else outcome
        except AssertionError as error:
            doubt, value = error, None
        if value:
            return value
        if trio.current_time() > deadline:
            raise doubt or Never(f"not within {within:g} s: {_describe(predicate)} (last: {value!r})")
        await trio.sleep(POLL_INTERVAL)


def wait_until(predicate: Callable[[], T], within: float = PATIENCE) -> T:
    """The blocking form of `eventually`, for code that drives server processes."""
    deadline = time.monotonic() + within
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise Never(f"not within {within:g} s: {_describe(predicate)} (last: {value!r})")
        time.sleep(POLL_INTERVAL)
    return value


def _describe(predicate: Callable[[], object]) -> str:
    try:
        return " ".join(inspect.getsource(predicate).split())
    except (OSError, TypeError):
        return repr(predicate)
