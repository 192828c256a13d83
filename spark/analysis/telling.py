"""The fold of the coalescing rule over every namespace of a trace, in Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from spark.analysis import schemas
from spark.analysis.coalescing import Coalescing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TOLD: Final = pa.schema(
    [
        ("namespace", pa.string()),
        ("window_ms", pa.int32()),
        ("second", pa.int64()),
        ("diffs", pa.int64()),
        ("names", pa.int64()),
        ("added", pa.int64()),
        ("removed", pa.int64()),
        ("bytes", pa.int64()),
        ("waited_us", pa.int64()),
    ]
)
_ROWS_AT_ONCE: Final = 20_000

Row = tuple[str, int, int | None, int, int, int, int, int, int]


def told(moved: DataFrame, windows_ms: Sequence[int], node_window_ms: int) -> DataFrame:
    """`schemas.TOLD`: what one watcher of each namespace is sent.

    The rows come sorted, so the fold streams: it holds one namespace at a time, and of that only what is alive. Changes
    of layouts are nothing to a watcher of a namespace, and stay where they are.
    """
    columns = ("namespace", "at_us", "topic", "op", "incarnation", "entry")
    relevant = moved.filter(F.col("op") != "change").select(*columns)
    return relevant.mapInArrow(_folding(tuple(windows_ms), node_window_ms), schemas.TOLD)


def coalescing(told_rows: DataFrame, population: DataFrame) -> DataFrame:
    """`schemas.COALESCING`."""
    totals = told_rows.filter(F.col("second").isNull())
    return totals.join(F.broadcast(population), "namespace").select(*schemas.COALESCING.names)


def load(told_rows: DataFrame, population: DataFrame) -> DataFrame:
    """`schemas.LOAD`: each diff once for each watcher."""
    each = told_rows.filter(F.col("second").isNotNull()).join(F.broadcast(population), "namespace")
    return (
        each.groupBy("second")
        .agg(
            F.sum(F.col("diffs") * F.col("watchers")).alias("pushes"),
            F.sum(F.col("bytes") * F.col("watchers")).alias("bytes"),
        )
        .select(*schemas.LOAD.names)
    )


def _folding(
    windows_ms: tuple[int, ...], node_window_ms: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def fold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows: list[Row] = []
        for row in fold_rows(batches, windows_ms, node_window_ms):
            rows.append(row)
            if len(rows) >= _ROWS_AT_ONCE:
                yield _batch(rows)
                rows = []
        if rows:
            yield _batch(rows)

    return fold


def fold_rows(batches: Iterator[pa.RecordBatch], windows_ms: Sequence[int], node_window_ms: int) -> Iterator[Row]:
    """Rows sorted by namespace and time in, totals and seconds of each namespace out."""
    current: str | None = None
    folding = Coalescing(windows_ms, node_window_ms)
    for batch in batches:
        columns = (
            batch.column(name).to_pylist() for name in ("namespace", "at_us", "topic", "op", "incarnation", "entry")
        )
        for namespace, at_us, topic, op, incarnation, entry in zip(*columns, strict=True):
            if namespace != current:
                if current is not None:
                    yield from result_rows(current, folding)
                current = namespace
                folding = Coalescing(windows_ms, node_window_ms)
            if op == "seed":
                folding.seed(topic, incarnation)
            else:
                folding.change((at_us, topic, incarnation if op == "create" else None, entry))
    if current is not None:
        yield from result_rows(current, folding)


def result_rows(namespace: str, folding: Coalescing) -> Iterator[Row]:
    folding.end()
    for window in folding.windows:
        ms, sent = window.length_us // 1_000, window.totals
        yield (namespace, ms, None, sent.diffs, sent.names, sent.added, sent.removed, sent.bytes, sent.waited_us)
        for second, (diffs, size) in window.per_second.items():
            yield (namespace, ms, second, diffs, 0, 0, 0, size, 0)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _TOLD, strict=True)], schema=_TOLD
    )
