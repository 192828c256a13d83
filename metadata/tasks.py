"""Tasks of a node, each of which costs only what it serves when it fails.

A nursery ends with the first exception of any of its tasks, and the one of a node with the node. So no part of a server
holds a nursery that is not its own: it is given `Tasks`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVarTuple, Unpack

import trio

log = logging.getLogger(__name__)

Arguments = TypeVarTuple("Arguments")


class Tasks(Protocol):
    """Where a part of a node starts what has to go on after a call. In tests also a nursery, which fails with them."""

    def start_soon(self, task: Callable[[Unpack[Arguments]], Awaitable[object]], /, *args: *Arguments) -> None: ...


class GuardedTasks:
    """Tasks whose failures are logged and counted, and end nothing but themselves."""

    def __init__(self, nursery: trio.Nursery, failures: Counter[str] | None = None) -> None:
        """`failures` counts by the names of tasks, for several of these together if they share it."""
        self.failures: Counter[str] = Counter() if failures is None else failures
        self._nursery = nursery

    def start_soon(self, task: Callable[[Unpack[Arguments]], Awaitable[object]], /, *args: *Arguments) -> None:
        self._nursery.start_soon(self._guard, task, args, name=task)

    async def _guard(self, task: Callable[..., Awaitable[object]], args: tuple[object, ...]) -> None:
        try:
            await task(*args)
        except Exception:
            # Whatever is expected to happen is caught where it does: this is a fault of ours, and wants its traceback.
            name = name_of(task)
            self.failures[name] += 1
            log.exception("task %s failed, and with it what it did for its client or topic", name)


def name_of(task: Callable[..., object]) -> str:
    """As metrics and the log have it: without the module, whose name says little to an operator."""
    return getattr(task, "__qualname__", type(task).__name__)
