"""What clients leave behind in a server when they have gone: objects that hold each other, which only the collector of
cycles would free, and objects that something still holds.

The server looks for cycles seldom (ADR 0011), so whatever comes and goes with clients must be free of them.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from tests.support.waiting import eventually

# Before anything is counted: they fill caches and pools.
_FIRST_LIVES = 5


@dataclass(frozen=True, slots=True)
class Remains:
    """Objects by type: those that only the collector frees, and how many more than before are in use."""

    garbage: Counter[str]
    growth: Counter[str]


async def remains_of(life: Callable[[], Awaitable[None]], lives: int) -> Remains:
    """What so many lives leave behind without a single collection. A life is over when its tasks are."""
    for _ in range(_FIRST_LIVES):
        await life()
    calm = _tasks()  # of the last one a task may still run, which makes a difference of one life
    gc.collect()
    gc.disable()
    try:
        before = _tracked()
        for _ in range(lives):
            await life()
        await eventually(lambda: _tasks() <= calm)
        growth = _tracked() - before
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return Remains(Counter(map(_type_name, gc.garbage)), growth)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _tasks() -> int:
    """All tasks of the loop."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    count, todo = 0, [root]
    while todo:
        task = todo.pop()
        count += 1
        todo += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return count


def _tracked() -> Counter[str]:
    return Counter(map(_type_name, gc.get_objects()))


def _type_name(it: object) -> str:
    return f"{type(it).__module__}.{type(it).__qualname__}"
