"""Rows of a timeline by hand, and what a task hands back as rows that are easy to ask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

# at_us, seq, namespace, topic, op, incarnation, epoch, value
Row = tuple[int, int, str, str, str, str, int | None, bytes | None]

TIMELINE_SCHEMA = pa.schema(
    [
        ("at_us", pa.int64()),
        ("seq", pa.int64()),
        ("namespace", pa.string()),
        ("topic", pa.string()),
        ("op", pa.string()),
        ("incarnation", pa.string()),
        ("epoch", pa.int64()),
        ("size", pa.int64()),
        ("value", pa.binary()),
        ("inferred", pa.bool_()),
    ]
)


def timeline(rows: Sequence[Row], batch: int = 1_000) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), batch):
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "at_us": at_us,
                    "seq": seq,
                    "namespace": namespace,
                    "topic": topic,
                    "op": op,
                    "incarnation": incarnation,
                    "epoch": epoch,
                    "size": None,
                    "value": value,
                    "inferred": False,
                }
                for at_us, seq, namespace, topic, op, incarnation, epoch, value in rows[start : start + batch]
            ],
            TIMELINE_SCHEMA,
        )


def of_kind(batches: Iterable[pa.RecordBatch], record: str) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist() if row["record"] == record]
