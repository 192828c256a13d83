"""How far a replay is while it runs: what its tasks tell in the store, added up and shown.

On a thread of its own with a loop of its own, because the thread of the command waits for Spark. It also renews the
mark by which others see that the run lives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec
import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table

from metadata import keys
from metadata.errors import StoreError
from metadata.store import TopicStore, open_store
from spark.durations import show_duration
from spark.replay.namespaces import progress_key, renew_mark
from spark.replay.plans import Progress, ReplayPlan

_INTERVAL_S: Final = 1.0
_LINE_EVERY_S: Final = 5.0
_PHASES: Final = ("seeding", "connecting", "replaying", "settling", "done")


@dataclass(frozen=True, slots=True)
class Overview:
    """All tasks together."""

    phase: str
    tasks: int
    done: int
    events: int
    pushes: int
    connected: int
    watchers: int
    behind_ms: float
    failed: int

    @property
    def line(self) -> str:
        failed = f", {self.failed:,} failed" if self.failed else ""
        return (
            f"{self.phase}: {self.done:,} of {self.events:,} events{failed}, {self.pushes:,} pushes, "
            f"{self.connected:,} of {self.watchers:,} watchers, at most {self.behind_ms:.1f} ms late"
        )


def overview(told: Sequence[Progress], plan: ReplayPlan, events: int) -> Overview:
    """The sum over the tasks; the phase is that of the one that is least far."""
    phases = [_PHASES.index(each.phase) for each in told if each.phase in _PHASES]
    waiting = len(told) < plan.tasks
    return Overview(
        phase="starting" if waiting or not phases else _PHASES[min(phases)],
        tasks=len(told),
        done=sum(each.written + each.failed for each in told),
        events=events,
        pushes=sum(each.pushes for each in told),
        connected=sum(each.connected for each in told),
        watchers=plan.watchers,
        behind_ms=max((each.behind_ms for each in told), default=0.0),
        failed=sum(each.failed for each in told),
    )


@contextmanager
def followed(plan: ReplayPlan, events: int, console: Console) -> Iterator[None]:
    """Follow a run while the block runs. What cannot be read from the store now is shown later."""
    stop = threading.Event()
    with _shown(console) as show:
        thread = threading.Thread(target=_follow, args=(plan, events, show, stop), name="replay-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _follow(plan: ReplayPlan, events: int, show: Callable[[Overview], None], stop: threading.Event) -> None:
    async def follow() -> None:
        async with open_store(plan.store_url) as store:
            while not stop.is_set():
                try:
                    await renew_mark(store, plan.run_id)
                    show(overview(await _told(store, plan.run_id), plan, events))
                except StoreError:
                    pass  # the tasks work on the same store and say what is wrong with it
                await trio.to_thread.run_sync(stop.wait, _INTERVAL_S)

    while not stop.is_set():
        try:
            trio.run(follow)
        except StoreError:
            stop.wait(_INTERVAL_S)


async def _told(store: TopicStore, run_id: str) -> list[Progress]:
    key = progress_key(run_id)
    found: Mapping[bytes, bytes] = await store.commands.call(keys.slot_of(key), "HGETALL", key)
    return [msgspec.json.decode(value, type=Progress) for value in found.values()]


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[Overview], None]]:
    """A table that renews itself on a terminal, lines now and then elsewhere."""
    started_at = time.monotonic()
    if console.is_terminal:
        with Live(console=console, transient=True, refresh_per_second=4) as live:
            yield lambda now: live.update(_table(now, time.monotonic() - started_at))
        return
    last_line, last_at = "", 0.0

    def show(now: Overview) -> None:
        nonlocal last_line, last_at
        line, passed = now.line, time.monotonic() - started_at
        if line != last_line and (not last_line or passed - last_at >= _LINE_EVERY_S):
            last_line, last_at = line, passed
            console.print(f"{passed:6.1f} s  {line}", highlight=False, markup=False, soft_wrap=True)

    yield show


def _table(now: Overview, passed: float) -> Table:
    table = Table.grid(padding=(0, 2))
    share = now.done / now.events if now.events else 0.0
    bar = "━" * round(share * 40)
    table.add_row("[bold]replay[/]", f"{now.phase}, {show_duration(passed)}")
    table.add_row("events", f"[cyan]{bar:<40}[/] {now.done:,} of {now.events:,}")
    table.add_row("pushes", f"{now.pushes:,}")
    table.add_row("watchers", f"{now.connected:,} of {now.watchers:,} connected")
    table.add_row("late", f"{now.behind_ms:.1f} ms at most")
    if now.failed:
        table.add_row("[red]failed[/]", f"{now.failed:,} writes")
    return table
