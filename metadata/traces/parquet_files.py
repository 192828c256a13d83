"""Complete parts in Parquet: written from events, read in batches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from metadata.traces.errors import TraceError
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.manifest import Part, sync_directory
from metadata.traces.tables import BATCH_ROWS, EVENT_SCHEMA, batches_of

if TYPE_CHECKING:
    # Imported where it is needed: it takes longer than all the rest together, and sealing a part does without.
    import pyarrow.dataset as ds

_COMPRESSION: Final = "zstd"
# Columns that say the same again and again; of others a dictionary is begun and given up.
_REPEATING: Final = ["kind", "namespace", "topic"]


def write_part(path: Path, events: Iterable[TraceEvent]) -> Part | None:
    """Write a part, whole or not at all; None, and no file, if there are no events."""
    scratch = path.with_name(f".{path.name}.new")
    writer: pq.ParquetWriter | None = None
    count = gaps = bases = 0
    first_us = last_us = last_seq = 0
    try:
        for batch in batches_of(events):
            if writer is None:
                # The checksums of pages are what tells a flipped bit from an event.
                writer = pq.ParquetWriter(
                    scratch,
                    EVENT_SCHEMA,
                    compression=_COMPRESSION,
                    use_dictionary=_REPEATING,
                    write_page_checksum=True,
                )
                first_us = batch.column("taken_us")[0].as_py()
            kinds = batch.column("kind")
            gaps += pc.sum(pc.equal(kinds, Kind.GAP)).as_py()
            bases += pc.sum(pc.equal(kinds, Kind.BASE)).as_py()
            count += batch.num_rows
            last_us = batch.column("taken_us")[-1].as_py()
            last_seq = batch.column("seq")[-1].as_py()
            writer.write_batch(batch)
        if writer is None:
            return None
        writer.close()
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        if writer is not None:
            writer.close()
        scratch.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
    return Part(path.name, path.stat().st_size, count, gaps, bases, first_us, last_us, last_seq)


def read_part(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    with _naming(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        _check_columns(path, file.schema_arrow, EVENT_SCHEMA)
        names = EVENT_SCHEMA.names if columns is None else list(columns)
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            yield batch.select(names)


def ends_of_part(path: Path, columns: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first event of a part and the last one, without those between them."""
    with _naming(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        names = list(columns)
        first, last = (file.read_row_group(number, columns=names) for number in (0, file.num_row_groups - 1))
        return first.slice(0, 1).to_pylist()[0], last.slice(last.num_rows - 1).to_pylist()[0]


def count_part(path: Path) -> int:
    """How many events a part holds, by its footer alone."""
    with _naming(path):
        return int(pq.read_metadata(path).num_rows)


def count_hours(data: Path) -> int:
    """How many events the files of a synthetic trace hold, by their footers alone."""
    with _naming(data):
        return int(_hour_files(data).count_rows())


def read_hours(data: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The events of a synthetic trace, hour by hour, each in the order of time."""
    import pyarrow.dataset as ds

    with _naming(data):
        dataset = _hour_files(data)
        hours = sorted({_hour_of(file) for file in dataset.files})
        if dataset.files:
            first = Path(dataset.files[0])
            # The namespace is the name of a folder; a column that is not there would be read as unknown throughout.
            in_files = EVENT_SCHEMA.remove(EVENT_SCHEMA.get_field_index("namespace"))
            _check_columns(first, pq.read_schema(first), in_files)
        names = EVENT_SCHEMA.names if columns is None else list(columns)
        read = list(dict.fromkeys([*names, "taken_us", "seq"]))
        for hour in hours:
            table = dataset.to_table(columns=read, filter=ds.field("hour") == hour)
            table = table.sort_by([("taken_us", "ascending"), ("seq", "ascending")]).select(names)
            yield from table.to_batches(max_chunksize=BATCH_ROWS)


def _hour_files(data: Path) -> ds.Dataset:
    import pyarrow.dataset as ds

    hour_field = pa.field("hour", pa.int64())
    schema = EVENT_SCHEMA.append(hour_field)
    partitioning = ds.partitioning(pa.schema([EVENT_SCHEMA.field("namespace"), hour_field]), flavor="hive")
    dataset = ds.dataset(data, schema=schema, format="parquet", partitioning=partitioning)
    for file in dataset.files:
        _hour_of(file)
    return dataset


def _check_columns(path: Path, found: pa.Schema, wanted: pa.Schema) -> None:
    for field in wanted:
        if field.name not in found.names:
            raise TraceError(f"{path} is no part of a trace: it has no column {field.name}; take it out.")
        if found.field(field.name).type != field.type:
            raise TraceError(
                f"{path} is no part of a trace: its column {field.name} has the type {found.field(field.name).type} "
                f"instead of {field.type}; take it out."
            )


def _hour_of(file: str) -> int:
    folder = Path(file).parent.name
    name, _, number = folder.partition("=")
    if name != "hour" or not number.isdecimal():
        raise TraceError(f"{file} is not in a folder of its hour: the directory mixes traces; take it out.")
    return int(number)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Says which file it is that cannot be read."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise TraceError(f"{path} cannot be read ({reason}): restore it.") from error
