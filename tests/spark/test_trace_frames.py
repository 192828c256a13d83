"""Traces as Spark reads and writes them, against what is read and written without it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from metadata.traces.directories import DATA, open_trace
from metadata.traces.errors import TraceError
from metadata.traces.manifest import Manifest, write_manifest
from metadata.traces.tables import EVENT_SCHEMA
from spark import schemas
from spark.traces import open_complete, read_events
from tests.metadata.traces.made_traces import change, changes, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What is allowed in names, and what file systems and Hive's folders make of it.
ODD_NAMESPACES = ("shop/eu", "2024/01", "café/東京", "a%2Fb/c", "x=1/y=2", 'sp ace/q"uote', "_t/.n", "a:b/c*d?", "n/🚀")


def test_the_columns_are_those_of_the_recorder() -> None:
    assert to_arrow_schema(schemas.EVENTS).equals(EVENT_SCHEMA)


def test_all_parts_of_a_recorded_trace_are_read(spark: SparkSession, tmp_path: Path) -> None:
    trace = open_complete(record(tmp_path, changes(0, 3), changes(3, 2)))
    rows = sorted(map(tuple, read_events(spark, trace).collect()))
    assert rows == [msgspec.structs.astuple(event) for event in changes(0, 5)]


def test_what_spark_writes_by_namespace_and_hour_is_read_back_with_and_without_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [
        (*msgspec.structs.astuple(change(seq, namespace=namespace)), seq % 2)
        for seq, namespace in enumerate(ODD_NAMESPACES)
    ]
    frame = spark.createDataFrame(rows, StructType([*schemas.EVENTS.fields, StructField("hour", LongType())]))
    frame.write.partitionBy("namespace", "hour").parquet(str(tmp_path / DATA))
    write_manifest(tmp_path, Manifest(kind="synthetic", events=len(rows)))
    trace = open_trace(tmp_path)
    written = {row[:-1] for row in rows}
    assert {tuple(row.values()) for batch in trace.batches() for row in batch.to_pylist()} == written
    assert set(map(tuple, read_events(spark, trace).collect())) == written


def test_a_trace_that_is_unfinished_or_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="vela trace seal"):
        open_complete(record(tmp_path / "unfinished", changes(0, 1), sealed=0))
    with pytest.raises(TraceError, match="holds no events"):
        open_complete(record(tmp_path / "empty"))
