"""Complete parts in Parquet: written from events, read in batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from metadata.traces.errors import TraceError
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.manifest import Part
from metadata.traces.tables import EVENT_SCHEMA, batches_of

# Small enough that readers can skip by namespace and time, large enough to compress.
_ROW_GROUP: Final = 100_000
_COMPRESSION: Final = "zstd"


def write_part(path: Path, events: Iterable[TraceEvent]) -> Part | None:
    """Write a part, whole or not at all; None, and no file, if there are no events."""
    scratch = path.with_name(f".{path.name}.new")
    count = gaps = bases = 0
    first_us = last_us = 0
    writer: pq.ParquetWriter | None = None
    try:
        for batch in batches_of(events):
            if writer is None:
                writer = pq.ParquetWriter(scratch, EVENT_SCHEMA, compression=_COMPRESSION)
                first_us = batch.column("taken_us")[0].as_py()
            kinds = batch.column("kind")
            gaps += pc.sum(pc.equal(kinds, Kind.GAP)).as_py()
            bases += pc.sum(pc.equal(kinds, Kind.BASE)).as_py()
            count += batch.num_rows
            last_us = batch.column("taken_us")[-1].as_py()
            writer.write_batch(batch, row_group_size=_ROW_GROUP)
    finally:
        if writer is not None:
            writer.close()
    if writer is None:
        return None
    with scratch.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(scratch, path)
    return Part(path.name, path.stat().st_size, count, gaps, bases, first_us, last_us)


def read_part(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    with _named(path):
        file = pq.ParquetFile(path)
        if missing := [name for name in EVENT_SCHEMA.names if name not in file.schema_arrow.names]:
            raise TraceError(f"{path} is no part of a trace: it has no column {missing[0]}.")
        yield from file.iter_batches(columns=None if columns is None else list(columns))


def read_hours(data: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The events of a synthetic trace, hour by hour, each in the order of time."""
    with _named(data):
        schema = EVENT_SCHEMA.append(pa.field("hour", pa.int64()))
        partitioning = ds.partitioning(
            pa.schema([EVENT_SCHEMA.field("namespace"), schema.field("hour")]), flavor="hive"
        )
        dataset = ds.dataset(data, schema=schema, format="parquet", partitioning=partitioning)
        hours = sorted({_hour_of(file) for file in dataset.files})
        names = EVENT_SCHEMA.names if columns is None else list(columns)
        for hour in hours:
            read = list(dict.fromkeys([*names, "taken_us", "seq"]))
            table = dataset.to_table(columns=read, filter=ds.field("hour") == hour)
            table = table.sort_by([("taken_us", "ascending"), ("seq", "ascending")]).select(names)
            yield from table.to_batches()


def _hour_of(file: str) -> int:
    folder = Path(file).parent.name
    name, _, number = folder.partition("=")
    if name != "hour" or not number.isdecimal():
        raise TraceError(f"{file} is not in a folder of its hour: the directory mixes traces; take it out.")
    return int(number)


class _named:  # noqa: N801  # reads as a statement
    """Says which file it is that cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, pa.ArrowException | OSError) and not isinstance(error, TraceError):
            raise TraceError(f"{self._path} cannot be read: {str(error).splitlines()[0]}") from error
