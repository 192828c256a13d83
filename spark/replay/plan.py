"""From what was asked for and what the trace holds to the plan of a replay; what cannot work is refused."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metadata.traces.directories import Trace
from protocol.client import BadServiceUrl, ServiceAddress
from spark.durations import show_duration
from spark.errors import JobError
from spark.profiles import Profile
from spark.replay.namespaces import prefix_of
from spark.replay.plans import ReplayPlan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Open files of a task beside its connections: the lanes to the store, pipes, what Python has open.
RESERVED_FILES: Final = 128
# Between the last event and the end, beside the settling: connecting, seeding, handing over what was seen.
_AROUND_S: Final = 600


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    trace: Path
    target: str
    store_url: str
    watchers: int = 2_000
    connections: int = 500
    topic_share: float = 0.1
    speed: float = 10.0
    tasks: int | None = None
    until_s: float | None = None
    settle_s: float = 10.0
    window_s: float = 0.05  # the server's coalescing window, by default as the server's default
    max_lateness_s: float = 0.02
    admin_url: str | None = None
    out: Path | None = None
    baseline: Path | None = None
    values: bool = True
    allow_used_store: bool = False
    keep_observations: bool = False

    def check(self) -> None:
        """Refuse what cannot be meant, before anything is started."""
        if self.watchers < 1:
            raise JobError(f"{self.watchers} watchers would see nothing: give --watchers 1 or more.")
        if self.connections < 1:
            raise JobError(f"{self.connections} connections carry no watchers: give --connections 1 or more.")
        if self.connections > self.watchers:
            raise JobError(
                f"{self.connections:,} connections for {self.watchers:,} watchers leave some without any: "
                f"give --connections {self.watchers} or fewer."
            )
        if not 0 <= self.topic_share <= 1:
            raise JobError(f"--topic-share {self.topic_share:g} is no share: give a number from 0 to 1.")
        if not 0.001 <= self.speed <= 100_000:
            raise JobError(f"--speed {self.speed:g} is out of range: give a number from 0.001 to 100000.")
        if self.tasks is not None and self.tasks < 1:
            raise JobError(f"{self.tasks} tasks do nothing: give --tasks 1 or more.")
        if self.window_s > 60:
            raise JobError(f"--coalesce {self.window_s:g}s is more than a server gathers changes for: give up to 1m.")
        if self.until_s is not None and self.until_s <= 0:
            raise JobError("--until leaves nothing to replay: give more than 0s.")
        try:
            ServiceAddress.parse(self.target)
        except BadServiceUrl as error:
            raise JobError(f"--target: {error}") from None


@dataclass(frozen=True, slots=True)
class Extent:
    """What there is to replay, at the speed that was asked for."""

    events: int
    seeds: int
    topics: int
    namespaces: tuple[str, ...]
    duration_s: float
    peak_per_s: int


def cut(timeline: DataFrame, until_s: float | None) -> DataFrame:
    """The changes of the first seconds of a trace, or all."""
    return timeline if until_s is None else timeline.where(timeline["at_us"] <= round(until_s * 1e6))


def extent_of(timeline: DataFrame, speed: float) -> Extent:
    """TIMELINE, measured."""
    from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

    is_change = F.col("op") != "seed"
    by_namespace = (
        timeline.groupBy("namespace")
        .agg(
            F.count_if(is_change).alias("events"),
            F.count_if(~is_change).alias("seeds"),
            F.countDistinct("topic").alias("topics"),
            F.max("at_us").alias("last_us"),
        )
        .orderBy("namespace")
        .collect()
    )
    second = F.floor(F.col("at_us") / F.lit(speed * 1e6))
    [peak] = (
        timeline.where(is_change)
        .groupBy(second)
        .count()
        .agg(F.coalesce(F.max("count"), F.lit(0)).alias("peak"))
        .collect()
    )
    return Extent(
        events=sum(row["events"] for row in by_namespace),
        seeds=sum(row["seeds"] for row in by_namespace),
        topics=sum(row["topics"] for row in by_namespace),
        namespaces=tuple(row["namespace"] for row in by_namespace),
        duration_s=max((row["last_us"] for row in by_namespace), default=0) / speed / 1e6,
        peak_per_s=int(peak["peak"]),
    )


def new_run_id() -> str:
    return os.urandom(3).hex()


def make_plan(options: Options, run_id: str, profile: Profile, extent: Extent, slots: int) -> ReplayPlan:
    """The plan for as many tasks as asked for, or as there are slots; or the reason why there is none."""
    if not extent.namespaces:
        raise JobError(f"{options.trace} holds no topics, so there is nothing to replay: record for longer.")
    tasks = options.tasks if options.tasks is not None else min(slots, options.connections)
    if tasks > slots:
        raise JobError(
            f"{tasks} tasks have to run at the same time, and there are fewer slots than needed, {slots}: "
            f"give --tasks {slots} or a --master with more cores."
        )
    plan = ReplayPlan(
        run_id=run_id,
        target=options.target,
        store_url=options.store_url,
        tasks=tasks,
        namespaces=extent.namespaces,
        prefix=prefix_of(run_id),
        watchers=options.watchers,
        connections=options.connections,
        topic_share=options.topic_share,
        speed=options.speed,
        settle_s=options.settle_s,
        values=options.values,
        reconnect=profile.watchers.reconnect,
    )
    plan.check()
    return plan


def check_descriptors(plan: ReplayPlan, limit: int) -> None:
    """Refuse more connections than a task may have files open."""
    needed = max(plan.connections_of(task) for task in range(plan.tasks)) + RESERVED_FILES
    if needed > limit:
        fits = max(0, limit - RESERVED_FILES) * plan.tasks
        raise JobError(
            f"{plan.connections:,} connections need {needed:,} open files in one task, and {limit:,} are allowed: "
            f"give --connections {fits} or fewer, use more tasks, or raise the limit (ulimit -n)."
        )


def longest_wait_s(trace: Trace, options: Options) -> float:
    """More than any task of this replay waits for the others, known before a session is there."""
    manifest = trace.manifest
    parts = manifest.parts
    # With the quiet between parts; or, if the clock was set between two runs, the parts by themselves.
    whole_us = max((part.last_us for part in parts), default=0) - min((part.first_us for part in parts), default=0)
    traced_us = manifest.duration_us or max(whole_us, sum(part.last_us - part.first_us for part in parts))
    traced_s = traced_us / 1e6 + manifest.runs
    if options.until_s is not None:
        traced_s = min(traced_s, options.until_s)
    return traced_s / options.speed + options.settle_s + _AROUND_S


def description(options: Options, plan: ReplayPlan, extent: Extent) -> list[tuple[str, str]]:
    """What would happen, line by line."""
    per_task = sorted({plan.connections_of(task) for task in range(plan.tasks)})
    connections = " or ".join(f"{count:,}" for count in per_task)
    average = extent.events / extent.duration_s if extent.duration_s else 0.0
    return [
        ("trace", str(options.trace)),
        ("target", plan.target),
        ("events", f"{extent.events:,} changes after {extent.seeds:,} topics that are there at the start"),
        ("topics", f"{extent.topics:,} in {len(extent.namespaces):,} namespaces, written as {plan.prefix}…"),
        ("watchers", f"{plan.watchers:,} on {plan.connections:,} connections"),
        ("tasks", f"{plan.tasks:,}, with {connections} connections each"),
        ("rate", f"{average:,.0f} events/s on average, at most {extent.peak_per_s:,} in a second"),
        ("duration", f"{show_duration(extent.duration_s)} at {plan.speed:g} times the recorded speed"),
    ]
