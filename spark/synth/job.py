"""The making of a synthetic trace: tasks that each generate some namespaces, Parquet, and the comparison of shapes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j has no types
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.types import IntegerType, StructField, StructType

from metadata.traces.directories import DATA
from metadata.traces.events import Kind
from metadata.traces.manifest import Manifest, replace_file, write_manifest
from spark import schemas
from spark.errors import JobError
from spark.session import MORE_MEMORY
from spark.synth.distances import Distance, Shape, distances, verdict
from spark.synth.generator import FIRST_US, bookends, generate
from spark.synth.model import HOUR_US
from spark.synth.plans import Plan
from spark.synth.shape import measure_shape, plain_timeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHAPE: Final = "shape.json"
# A task sorts its events before it writes them: so many fit into the memory of any executor.
_EVENTS_OF_TASK: Final = 250_000

_WITH_HOUR: Final = StructType([*schemas.EVENTS.fields, StructField("hour", IntegerType(), False)])


class Synthesised(msgspec.Struct, frozen=True):
    """What came out."""

    out: str
    seed: int
    namespaces: int
    hours: float
    events: int  # changes, without the topics at the start
    topics_at_start: int
    files: int
    bytes: int
    written_s: float
    compared_s: float
    compared_namespaces: int
    verdict: str
    distances: tuple[Distance, ...]


class Comparison(msgspec.Struct, frozen=True):
    """What is kept beside the events, so that somebody else may look at the curves."""

    verdict: str
    distances: tuple[Distance, ...]
    compared_namespaces: int
    stretch: float
    source: Shape
    result: Shape


def synthesise(session: SparkSession, plan: Plan, out: Path, partitions: int | None = None) -> Synthesised:
    """Write the trace of a plan: all of it, or nothing."""
    with appearing_whole(out) as scratch:
        return fill(session, plan, scratch, out, partitions)


def fill(session: SparkSession, plan: Plan, scratch: Path, out: Path, partitions: int | None = None) -> Synthesised:
    """Write the trace of a plan to a directory that will be known as `out`."""
    around = plan.around
    started = time.monotonic()
    data = scratch / DATA
    rows = events_of(session, plan, partitions or _partitions(session, plan))
    (
        rows.sortWithinPartitions("namespace", "hour", "seq")
        .write.option("compression", "zstd")
        .partitionBy("namespace", "hour")
        .parquet(str(data))
    )
    _sweep(data)
    files = [path.stat().st_size for path in data.rglob("*.parquet")]
    written = time.monotonic()
    found = session.read.schema(schemas.EVENTS).parquet(str(data)).select(*schemas.EVENTS.names)
    counts = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    changes = sum(counts.get(kind, 0) for kind in (Kind.CREATED, Kind.CHANGED, Kind.DELETED))
    if not changes:
        raise JobError("Not one event came out: take a longer duration or more namespaces.")
    result = _shape(found, plan)
    goal = plan.goal()
    compared = tuple(distances(goal, result))
    comparison = Comparison(verdict(compared), compared, plan.compared, around.stretch, goal, result)
    manifest = Manifest(
        "synthetic",
        values=False,
        runs=1,
        events=sum(counts.values()),
        seed=around.seed,
        duration_us=around.duration_us,
        namespaces=around.namespaces,
        first_us=FIRST_US,
    )
    replace_file(scratch / SHAPE, msgspec.json.format(msgspec.json.encode(comparison), indent=1) + b"\n")
    write_manifest(scratch, manifest)
    return Synthesised(
        out=str(out),
        seed=around.seed,
        namespaces=around.namespaces,
        hours=around.duration_us / HOUR_US,
        events=changes,
        topics_at_start=counts.get(Kind.BASE, 0),
        files=len(files),
        bytes=sum(files),
        written_s=round(written - started, 3),
        compared_s=round(time.monotonic() - written, 3),
        compared_namespaces=plan.compared,
        verdict=comparison.verdict,
        distances=compared,
    )


def events_of(session: SparkSession, plan: Plan, partitions: int) -> DataFrame:
    """All events with their hour. What a namespace holds does not depend on the number of partitions."""
    numbers = session.range(0, plan.around.namespaces, 1, partitions)
    return numbers.mapInArrow(_task(plan), _WITH_HOUR)


def _task(plan: Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # Not the whole plan: what it is compared with stays here.
    around, model_of, name_of = plan.around, plan.model_of, plan.name_of

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                if index == 0:
                    yield bookends(around)
                yield from generate(model_of(index), name_of(index), index, around)

    return run


def _partitions(session: SparkSession, plan: Plan) -> int:
    """Several for each core, so that namespaces of all sizes even out, and none with more than a task can sort."""
    needed = max(4 * session.sparkContext.defaultParallelism, round(plan.expected / _EVENTS_OF_TASK))
    return max(1, min(plan.around.namespaces, needed))


def _shape(found: DataFrame, plan: Plan) -> Shape:
    """The shape of what was written, in the namespaces that are compared."""
    if plan.compared < plan.around.namespaces:
        names = [plan.name_of(index) for index in range(plan.compared)]
        found = found.where(F.col("namespace").isin(names) | F.col("namespace").isNull())
    hours = plan.around.duration_us / HOUR_US
    return measure_shape(plain_timeline(found), hours, plan.around.stretch)


def require_free(out: Path) -> None:
    """Refuse a place where something is already, before any work is done."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise JobError(f"{out} exists already: give a directory that does not, or an empty one.")
    if not out.absolute().parent.is_dir():
        raise JobError(f"There is no directory {out.absolute().parent} to put {out.name} in: make it first.")


@contextmanager
def appearing_whole(out: Path) -> Iterator[Path]:
    """A directory beside `out` that takes its place at the end, or is removed with all that is in it.

    Around the session, where that is one of its own: tasks that were just cancelled may still write.
    """
    require_free(out)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.absolute().parent))
    try:
        yield scratch
        scratch.chmod(0o755)
        os.replace(scratch, out.absolute())
    except PySparkException as error:
        raise JobError(f"Spark could not make the trace: {str(error).strip().splitlines()[0]}") from error
    except Py4JError as error:
        raise JobError(f"Spark broke off while it made the trace, for want of memory perhaps: {MORE_MEMORY}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(data: Path) -> None:
    """Remove what Hadoop leaves beside the files: a checksum for each, and a mark that the job is done."""
    for pattern in ("*.crc", "_SUCCESS"):
        for path in data.rglob(pattern):
            path.unlink()
