"""Traces as data frames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from metadata.traces.directories import DATA, Trace, open_trace
from metadata.traces.errors import TraceError
from spark import schemas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def open_complete(directory: Path) -> Trace:
    """A trace that Spark can read: checked, complete, and with as many events as its manifest says."""
    trace = open_trace(directory)
    trace.require_complete()
    if not trace.manifest.events:
        raise TraceError(f"{directory} holds no events: record for longer.")
    trace.check_counts()
    return trace


def read_events(session: SparkSession, trace: Trace) -> DataFrame:
    """All events with the columns of `schemas.EVENTS`, in no particular order."""
    reader = session.read.schema(schemas.EVENTS)
    if trace.manifest.kind == "synthetic":
        found = reader.parquet(str(trace.directory / DATA))
    else:
        found = reader.parquet(*map(str, trace.files))
    return found.select(*schemas.EVENTS.names)
