"""The Spark side of a replay: one barrier stage whose tasks write and watch, once and never again.

A task that ran twice would write everything twice, so nothing is repeated and nothing speculated; a task that fails
ends the run with its own reason.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark import schemas
from spark.errors import JobError
from spark.replay.plans import ReplayPlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# The sentence of an error that was written for people, as it stands in the trace that Spark hands over.
_TOLD: Final = re.compile(r"^(?:spark\.errors\.JobError|metadata\.[\w.]+Error): (.+)$", re.MULTILINE)
_LAST_ERROR: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)): (.+)$", re.MULTILINE)


def settings(longest_wait_s: float) -> dict[str, str]:
    """What a replay asks of Spark."""
    return {
        "spark.task.maxFailures": "1",
        "spark.stage.maxConsecutiveAttempts": "1",
        "spark.speculation": "false",
        "spark.dynamicAllocation.enabled": "false",
        # Nothing to be gained by being near the trace, and three seconds lost by waiting for that.
        "spark.locality.wait": "0s",
        # So that the slots are all there when they are counted.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "1",
        # A task that has gone is noticed otherwise; this one only bounds what nobody has thought of.
        "spark.barrier.sync.timeout": f"{round(longest_wait_s)}s",
    }


def silence(session: SparkSession) -> None:
    """Errors are told in a sentence by whoever catches them; Spark would print each of them several times over."""
    session.sparkContext.setLogLevel("OFF")


def slots_of(session: SparkSession) -> int:
    """How many tasks run at the same time on what is registered now."""
    context: Any = session.sparkContext
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def descriptors_of(session: SparkSession, tasks: int) -> int:
    """How many files the task with the lowest limit may have open."""
    limits = session.sparkContext.parallelize(range(tasks), tasks).map(_descriptor_limit).collect()
    return min(limits)


def run_stage(session: SparkSession, timeline: DataFrame, plan: ReplayPlan, directory: Path) -> None:
    """Replay TIMELINE, and leave the OBSERVATIONS of all tasks in `directory`."""
    # Adaptive execution would make fewer tasks of small partitions, and the barrier would wait for the others.
    session.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        observations = (
            timeline.select(*schemas.TIMELINE.names)
            .repartition(plan.tasks, "namespace", "topic")
            .sortWithinPartitions("at_us", "seq")
            .mapInArrow(task_of(plan), schemas.OBSERVATIONS, barrier=True)
        )
        observations.write.parquet(directory.resolve().as_uri())
    except Exception as error:
        raise JobError(reason_of(str(error))) from None
    finally:
        session.conf.set("spark.sql.adaptive.enabled", "true")


def read_observations(session: SparkSession, directory: Path, tasks: int) -> DataFrame:
    """OBSERVATIONS as they were left, of all tasks."""
    found = session.read.schema(schemas.OBSERVATIONS).parquet(directory.resolve().as_uri())
    told = found.where(found["record"] == "task").count()
    if told != tasks:
        raise JobError(
            f"Only {told} of {tasks} tasks left in {directory} what they saw: "
            "give an --out on a file system that all executors share."
        )
    return found.select(*schemas.OBSERVATIONS.names)


def task_of(plan: ReplayPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What Spark calls in each task of the stage."""

    def run(changes: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext

        from spark.replay.task import run_task

        context = BarrierTaskContext.get()
        yield from run_task(plan, context.partitionId(), changes, context.allGather)

    return run


def reason_of(text: str) -> str:
    """The reason in the text of an error of Spark's: a sentence of ours, or else the innermost error of Python."""
    if told := _TOLD.search(text):
        return told[1].strip()
    if errors := _LAST_ERROR.findall(text):
        kind, message = errors[-1] if "Traceback" in text else errors[0]
        return f"A task failed with {kind}: {message.strip()}"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return f"Spark could not do it: {first[:300]}"


def _descriptor_limit(_: int) -> int:
    """The hard limit, because a task raises its own up to it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if hard == resource.RLIM_INFINITY else hard
