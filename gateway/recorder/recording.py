"""A recording from its first event to its last sealed part: opens the directory, runs the thread, ends both orderly."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

from gateway.recorder.clock import Clock
from gateway.recorder.intake import Intake
from gateway.recorder.opening import Naming, open_for_recording
from gateway.recorder.part_log import PartLog
from gateway.recorder.recorder import Recorder
from gateway.recorder.writer import PartLimits, Writer
from gateway.settings import Settings
from metadata.store import TopicStore

log = logging.getLogger(__name__)

# A disk that hangs must not keep a server from stopping; sealing has its own, shorter limit.
_END_LIMIT: Final = 60.0
# As the settings have it. Sealing a part takes a second of CPU before its first event.
PART_SIZE: Final = 128 * 1024 * 1024
PART_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is recorded where, and in which pieces."""

    directory: Path
    values: bool = True
    naming: Naming = field(default_factory=Naming)
    limits: PartLimits = field(default_factory=lambda: PartLimits(PART_SIZE, PART_SECONDS))


@asynccontextmanager
async def recording_of(settings: Settings, store: TopicStore) -> AsyncIterator[Recorder | None]:
    """What a server records, None for one that records nothing."""
    if settings.record is None:
        yield None
        return
    plan = Plan(
        settings.record,
        values=settings.record_values,
        naming=Naming(settings.record_anonymise, settings.record_anonymise_key),
        limits=PartLimits(settings.record_part_size, settings.record_part_time),
    )
    async with recording(plan, store) as recorder:
        yield recorder


@asynccontextmanager
async def recording(
    plan: Plan,
    store: TopicStore,
    *,
    intake: Intake | None = None,
    open_log: Callable[[Path], PartLog] = PartLog,
) -> AsyncIterator[Recorder]:
    """A recorder inside the block, to be made an observer of the feed and run; after it the trace is complete."""
    intake = Intake() if intake is None else intake
    trace = await trio.to_thread.run_sync(
        partial(open_for_recording, plan.directory, values=plan.values, naming=plan.naming)
    )
    token = trio.lowlevel.current_trio_token()
    writer = Writer(
        trace,
        intake,
        Clock.start(),
        plan.limits,
        losses=lambda: recorder.losses,
        on_doubt=lambda: token.run_sync_soon(recorder.doubt),
        open_log=open_log,
    )
    recorder = Recorder(store, intake, writer.counters)
    thread = threading.Thread(target=writer.run, name="recorder", daemon=True)
    thread.start()
    log.info("recording to %s", plan.directory)
    try:
        yield recorder
    finally:
        intake.close()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(thread.join, _END_LIMIT)
        if thread.is_alive():
            # It still has the directory, and so the lock, until the process ends.
            log.error("the disk takes nothing: the end of the trace in %s is missing", plan.directory)
        else:
            trace.close()
