"""Nurseries wrap whatever ends them in a group; callers of a context manager want the exception itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwrapped() -> Iterator[None]:
    """Raise the only exception of a group instead of the group; a real group of several passes as it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        only: BaseException = group
        while isinstance(only, BaseExceptionGroup) and len(only.exceptions) == 1:
            only = only.exceptions[0]
        raise only from only.__cause__
