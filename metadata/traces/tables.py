"""Events as Arrow tables, which is how complete parts are kept and how Spark sees them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec
import pyarrow as pa

from metadata.traces.events import TraceEvent

# Rows that are turned into columns at a time.
BATCH_ROWS: Final = 20_000

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
    remaining = iter(events)
    while rows := [msgspec.structs.astuple(event) for event in islice(remaining, BATCH_ROWS)]:
        columns = [
            pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), EVENT_SCHEMA, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)
