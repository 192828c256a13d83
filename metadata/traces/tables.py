"""Events as Arrow tables, which is how complete parts are kept and how Spark sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import pyarrow as pa

from metadata.traces.events import TraceEvent

# What is turned into columns at a time, and so the size of a row group: small enough that readers can skip by time
# and that a part of large records fits into memory, large enough to compress.
BATCH_ROWS: Final = 20_000
BATCH_VALUE_BYTES: Final = 16 * 1024 * 1024

EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("run", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("taken_us", pa.int64(), nullable=False),
        pa.field("arrival_us", pa.int64()),
        pa.field("store_ms", pa.int64()),
        pa.field("store_seq", pa.int64()),
        pa.field("bucket", pa.int32()),
        pa.field("namespace", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("incarnation", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("epoch", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("value", pa.binary()),
        pa.field("detail", pa.string()),
    ]
)


def batches_of(events: Iterable[TraceEvent]) -> Iterator[pa.RecordBatch]:
    rows: list[tuple[object, ...]] = []
    value_bytes = 0
    for event in events:
        rows.append(msgspec.structs.astuple(event))
        value_bytes += len(event.value or b"")
        if len(rows) == BATCH_ROWS or value_bytes >= BATCH_VALUE_BYTES:
            yield _batch(rows)
            rows, value_bytes = [], 0
    if rows:
        yield _batch(rows)


def _batch(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), EVENT_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)
