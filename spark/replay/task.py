"""One task of a replay: writes its topics, watches with its watchers, and hands back what it saw.

Everything runs on one trio loop. Only what blocks is on threads: reading the changes ahead, and meeting the other
tasks. They meet four times: when the topics of the beginning are there, to agree on the start, when all is written,
and when all has settled.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import trio

from metadata import keys
from metadata.errors import StoreError
from metadata.lanes import Timeouts
from metadata.store import TopicStore, open_store
from metadata.unwrap import unwrapped
from protocol.errors import ProtocolError
from spark.errors import JobError
from spark.replay.clock import StoreClock, measure_offset, wall_clock
from spark.replay.expecting import Expected, read_namespaces, read_topics
from spark.replay.observing import Observations
from spark.replay.plans import Progress, ReplayPlan
from spark.replay.watching import Watching
from spark.replay.writing import Change, Writer

Meet = Callable[[str], Sequence[str]]

# Rows that are turned into Python at a time: so many take well below a millisecond.
_SLICE: Final = 200
# Slices that are read ahead: enough for seconds of a busy trace, and little memory.
_AHEAD: Final = 64
_BETWEEN_WRITING_OUT_S: Final = 0.02
_PROGRESS_INTERVAL_S: Final = 1.0
_PROGRESS_KEPT_S: Final = 3_600
# Files that a task needs besides its connections: the store's lanes, pipes and libraries of Python and Spark.
_OTHER_FILES: Final = 64
_NAMESPACES_AT_ONCE: Final = 16


def run_task(plan: ReplayPlan, index: int, changes: Iterator[pa.RecordBatch], meet: Meet) -> Iterator[pa.RecordBatch]:
    """Do the part of one task. `changes` are its rows of the timeline in order, seeds first.

    `meet` takes a message and returns those of all tasks, once all have called it; a task that returns has called it as
    often as the others. Raises JobError with the reason if its part cannot be done.
    """
    check_open_files(plan.connections_of(index))
    with Observations(index) as observations:
        try:
            with unwrapped():
                trio.run(_run, plan, index, changes, meet, observations)
        except BaseExceptionGroup as group:
            raise _first_reason(group) from group
        except (StoreError, ProtocolError) as error:
            raise _reason(error) from error
        yield from observations.batches()


def check_open_files(connections: int) -> None:
    """Allow as many open files as the system lets us; a JobError says how many connections fit if not all do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else _OTHER_FILES
    needed = in_use + connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and needed > soft:
        limit = needed if hard == resource.RLIM_INFINITY else min(hard, max(needed, soft))
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        if needed > limit:
            fitting = max(0, limit - in_use - _OTHER_FILES)
            raise JobError(
                f"{connections} connections of one task need {needed} open files, and the limit here is {limit}: "
                f"use at most {fitting} connections for each task, or raise the limit (ulimit -n)."
            )


def _first_reason(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Several parts may fail for one reason; a reason that was written for people comes first."""
    told: BaseException = group.subgroup((JobError, StoreError, ProtocolError)) or group
    while isinstance(told, BaseExceptionGroup):
        told = told.exceptions[0]
    return _reason(told)


def _reason(error: BaseException) -> BaseException:
    if isinstance(error, StoreError):
        return JobError(f"The store cannot be used for the replay: {error}")
    return JobError(str(error)) if isinstance(error, ProtocolError) else error


async def _run(
    plan: ReplayPlan, index: int, batches: Iterator[pa.RecordBatch], meet: Meet, observations: Observations
) -> None:
    timeouts = Timeouts(connect=min(3.0, plan.patience_s), silence=min(5.0, plan.patience_s), patience=plan.patience_s)
    async with open_store(plan.store_url, timeouts=timeouts) as store:
        task_us = wall_clock()
        clock = StoreClock(await measure_offset(store, task_us), task_us)
        task = _Task(plan, index, store, clock, meet, observations)
        async with trio.open_nursery() as nursery:
            changes = _Changes()
            nursery.start_soon(changes.read, batches)
            nursery.start_soon(task.tell_progress)
            nursery.start_soon(task.write_out)
            await task.prepare(nursery, changes)
            await task.replay(changes)
            await task.settle()
            nursery.cancel_scope.cancel()


class _Task:
    """The steps of a task, and what they share."""

    def __init__(
        self,
        plan: ReplayPlan,
        index: int,
        store: TopicStore,
        clock: StoreClock,
        meet: Meet,
        observations: Observations,
    ) -> None:
        self._plan = plan
        self._index = index
        self._store = store
        self._clock = clock
        self._meet_all = meet
        self._observations = observations
        self._writer = Writer(store, plan, clock, observations)
        self._watching = Watching(plan, index, clock, observations)
        self._watched = dict.fromkeys(
            plan.namespace_in_store(plan.namespaces[number % len(plan.namespaces)])
            for number in plan.watchers_of(index)
        )
        self._phase = "seeding"
        self._start_us = 0
        self._cpu_before = time.process_time_ns()

    async def prepare(self, nursery: trio.Nursery, changes: _Changes) -> None:
        """Make what is there from the beginning, watch it, and agree on the start."""
        if self._index == 0:
            await self._provide_namespaces()
        await self._writer.seed(changes.seeds())
        await self._meet("seeded")
        self._phase = "connecting"
        namespaces = await read_namespaces(self._store, self._watched)
        self._watching.assign(namespaces)
        topics = await read_topics(self._store, self._watching.views)
        await self._watching.open(nursery, Expected(namespaces, topics))
        ready = await self._meet(str(self._clock.now_us()))
        self._start_us = max(map(int, ready)) + round(self._plan.lead_s * 1e6)

    async def replay(self, changes: _Changes) -> None:
        self._phase = "replaying"
        self._watching.start(self._start_us)
        # What was made so far stays. Looking through it for garbage would take longer than a write may be late.
        gc.collect()
        gc.freeze()
        try:
            await self._writer.replay(changes.rest(), self._start_us)
        finally:
            gc.unfreeze()
        await self._meet("written")

    async def settle(self) -> None:
        """Wait for the watchers, and judge each of them by what the store holds."""
        self._phase = "settling"
        plan, watching = self._plan, self._watching
        watching.calm()
        namespaces = await read_namespaces(self._store, self._watched)
        expected = Expected(namespaces, await read_topics(self._store, watching.views))
        await watching.settle(expected, plan.settle_s)
        settled_us = self._clock.now_us()
        # Judged here, while all watch: what comes in later is no matter of this replay.
        watchers = watching.rows(expected)
        offset = self._clock.offset.until(await measure_offset(self._store, self._clock.task_us))
        await self._meet("settled")
        await self._observations.write_out(all_of_it=True)
        self._observations.add_rows("watcher", watchers)
        self._observations.add_rows("absence", watching.absence_rows(settled_us))
        self._observations.add_rows(
            "task",
            [
                {
                    "host": socket.gethostname(),
                    "offset_us": offset.us,
                    "offset_error_us": offset.error_us,
                    "started_us": self._start_us,
                    "settled_us": settled_us,
                    "cpu_us": (time.process_time_ns() - self._cpu_before) // 1_000,
                    "error": self._remark(),
                }
            ],
        )
        self._phase = "done"
        await self._tell()

    async def tell_progress(self) -> None:
        while True:
            await self._tell()
            await trio.sleep(_PROGRESS_INTERVAL_S)

    async def write_out(self) -> None:
        while True:
            await trio.sleep(_BETWEEN_WRITING_OUT_S)
            await self._observations.write_out()

    async def _provide_namespaces(self) -> None:
        limit = trio.CapacityLimiter(_NAMESPACES_AT_ONCE)

        async def provide(namespace: str) -> None:
            async with limit:
                await self._store.ensure_namespace(self._plan.namespace_in_store(namespace))

        async with trio.open_nursery() as nursery:
            for namespace in self._plan.namespaces:
                nursery.start_soon(provide, namespace)

    async def _meet(self, message: str) -> Sequence[str]:
        # Abandoned where another part of this task fails: then this one raises, and the others are not kept waiting.
        return await trio.to_thread.run_sync(self._meet_all, message, abandon_on_cancel=True)

    async def _tell(self) -> None:
        counts = self._writer.counts
        progress = Progress(
            phase=self._phase,
            seeded=counts.seeded,
            written=counts.written,
            failed=counts.failed,
            pushes=self._watching.pushes,
            connected=sum(view.is_known for view in self._watching.views),
            behind_ms=counts.behind_us / 1_000,
        )
        key = self._plan.progress_key.encode()
        slot = keys.slot_of(key)
        try:
            await self._store.leases.gather(
                [
                    (slot, ("HSET", key, self._index, msgspec.json.encode(progress))),
                    (slot, ("EXPIRE", key, _PROGRESS_KEPT_S)),
                ]
            )
        except StoreError:
            pass  # nobody sees this one; whether the store is gone is for the writes to say

    def _remark(self) -> str | None:
        unreadable = self._writer.counts.unreadable
        return f"{unreadable} recorded values are no records: made ones were written instead." if unreadable else None


class _Changes:
    """The rows of the timeline, read by a thread and turned into Python there, in slices."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[list[Change]](_AHEAD)
        self._left: list[Change] = []

    async def read(self, batches: Iterator[pa.RecordBatch]) -> None:
        async with self._send:
            await trio.to_thread.run_sync(self._read, batches, abandon_on_cancel=True)

    async def seeds(self) -> AsyncIterator[Sequence[Change]]:
        """What is there from the beginning: all before the first change."""
        async for some in self._receive:
            seeds = next((count for count, change in enumerate(some) if change.op != "seed"), len(some))
            yield some[:seeds]
            if seeds < len(some):
                self._left = some[seeds:]
                return

    async def rest(self) -> AsyncIterator[Sequence[Change]]:
        yield self._left
        self._left = []
        async for some in self._receive:
            yield some

    def _read(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            columns: Any = batch.select(list(Change._fields))
            for start in range(0, batch.num_rows, _SLICE):
                some = (column.to_pylist() for column in columns.slice(start, _SLICE).columns)
                try:
                    trio.from_thread.run(self._send.send, [Change(*row) for row in zip(*some, strict=True)])
                except (trio.RunFinishedError, trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # the task has failed meanwhile
