"""Traces from events by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from metadata.traces.directories import Trace, open_trace
from metadata.traces.events import TraceEvent
from metadata.traces.manifest import Manifest, write_manifest
from metadata.traces.parquet_files import write_part


def recorded(directory: Path, events: Sequence[TraceEvent]) -> Trace:
    """A complete trace of one part."""
    part = write_part(directory / "part-000001.parquet", events)
    assert part is not None, "a trace needs events"
    runs = max(event.run for event in events)
    write_manifest(directory, Manifest(kind="recorded", runs=runs, parts=(part,), events=part.events))
    return open_trace(directory)
