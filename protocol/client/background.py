"""Tasks that live as long as the body of a context manager."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background() -> AsyncIterator[trio.Nursery]:
    """A nursery that is cancelled when its body ends.

    An exception of the body comes out as it is, not in a group: the caller wrote a plain `async with` and does
    not know that there are tasks behind it.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except Exception as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # or the exception would hold this frame, and the frame the exception
