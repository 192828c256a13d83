"""The contracts of the tables that an analysis writes, and of what passes between its steps."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType


def _columns(**types: type[LongType] | type[IntegerType] | type[DoubleType] | type[StringType]) -> StructType:
    return StructType([StructField(name, kind()) for name, kind in types.items()])


# What the steps read: the timeline without values, and with the bytes that a name takes in a list of names.
MOVES: Final = _columns(
    namespace=StringType,
    at_us=LongType,
    seq=LongType,
    topic=StringType,
    op=StringType,
    incarnation=StringType,
    epoch=LongType,
    inferred=IntegerType,
    entry=LongType,
)

# One row per namespace. Times between changes, bursts and peaks leave out what was found after gaps, whose time is
# not known.
NAMESPACES: Final = _columns(
    namespace=StringType,
    watchers=LongType,
    seeds=LongType,
    creates=LongType,
    deletes=LongType,
    changes=LongType,
    splits=LongType,
    inferred=LongType,
    per_hour=DoubleType,
    gap_us_p50=LongType,
    gap_us_p90=LongType,
    gap_us_p99=LongType,
    gap_us_max=LongType,
    bursts=LongType,
    burst_p50=LongType,
    burst_p99=LongType,
    burst_max=LongType,
    peak_per_second=LongType,
    peak_per_100ms=LongType,
)

# Changes in every second that had some.
RATES: Final = _columns(second=LongType, creates=LongType, changes=LongType, deletes=LongType)

# How often bursts had this size, and how often this time passed between a change and the next one, rounded down.
BURST_SIZES: Final = _columns(size=LongType, bursts=LongType)
GAPS: Final = _columns(gap_us=LongType, count=LongType)

# What one watcher of a namespace would have been sent; `waited_us` by all names together.
COALESCING: Final = _columns(
    namespace=StringType,
    watchers=LongType,
    window_ms=IntegerType,
    diffs=LongType,
    names=LongType,
    added=LongType,
    removed=LongType,
    bytes=LongType,
    waited_us=LongType,
)

# What a node would have sent in every second under the window of the node.
LOAD: Final = _columns(second=LongType, pushes=LongType, bytes=LongType)

# What the fold gives: totals where `second` is null.
TOLD: Final = _columns(
    namespace=StringType,
    window_ms=IntegerType,
    second=LongType,
    diffs=LongType,
    names=LongType,
    added=LongType,
    removed=LongType,
    bytes=LongType,
    waited_us=LongType,
)

# Expected values under the reconnect pattern.
RECONNECTS: Final = _columns(
    namespace=StringType,
    watchers=LongType,
    reconnects=DoubleType,
    skipped=DoubleType,
    saved_bytes=DoubleType,
    sent_bytes=DoubleType,
)
