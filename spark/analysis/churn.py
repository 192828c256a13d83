"""How much happens in each namespace, and how it comes: counts, times between changes, bursts, peaks."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from spark.analysis import schemas
from spark.analysis.moves import in_order

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Changes of a namespace that follow one another faster than this are a burst.
BURST_GAP_US: Final = 100_000
_SECOND: Final = 1_000_000
_TENTH: Final = 100_000
# Of percentile_approx: one in so many ranks may be off.
_ACCURACY: Final = 10_000
# Times between changes are rounded down to eight binary digits that count: to less than a hundredth.
_DIGITS: Final = 8


def namespaces(moved: DataFrame, population: DataFrame, hours: float) -> DataFrame:
    """`schemas.NAMESPACES`."""
    seen = happened(moved)
    parts = (population, _counts(moved, hours), _splits(moved), _gaps(seen), _bursts(burst_sizes(seen)), _peaks(seen))
    joined = reduce(lambda left, right: left.join(right, "namespace", "left"), parts)
    counted = [name for name in schemas.NAMESPACES.names if not name.startswith("gap_us")]
    return joined.fillna(0, subset=counted).select(
        *(F.col(column.name).cast(column.dataType) for column in schemas.NAMESPACES)
    )


def happened(moved: DataFrame) -> DataFrame:
    """What was seen happening, so that its time is known."""
    return moved.filter((F.col("inferred") == 0) & (F.col("op") != "seed"))


def rates(moved: DataFrame) -> DataFrame:
    """`schemas.RATES`."""
    return (
        happened(moved)
        .groupBy(F.floor(F.col("at_us") / _SECOND).alias("second"))
        .agg(*(_count_of(op).alias(f"{op}s") for op in ("create", "change", "delete")))
        .select(*schemas.RATES.names)
    )


def most_in_a_tenth(moved: DataFrame) -> DataFrame:
    """One row with one column: the most changes in 100 ms, over all namespaces."""
    tenths = happened(moved).groupBy(F.floor(F.col("at_us") / _TENTH)).count()
    return tenths.agg(F.coalesce(F.max("count"), F.lit(0)).alias("most"))


def burst_sizes(seen: DataFrame) -> DataFrame:
    """One row per burst: namespace and size."""
    since = F.col("at_us") - F.lag("at_us").over(in_order())
    begins = F.coalesce(since >= BURST_GAP_US, F.lit(True)).cast("long")
    return (
        seen.select("namespace", "at_us", "seq", begins.alias("begins"))
        .withColumn("burst", F.sum("begins").over(in_order()))
        .groupBy("namespace", "burst")
        .agg(F.count(F.lit(1)).alias("size"))
    )


def all_burst_sizes(moved: DataFrame) -> DataFrame:
    """`schemas.BURST_SIZES`."""
    sizes = burst_sizes(happened(moved)).groupBy("size").agg(F.count(F.lit(1)).alias("bursts"))
    return sizes.select(*schemas.BURST_SIZES.names)


def all_gaps(moved: DataFrame) -> DataFrame:
    """`schemas.GAPS`: between one change and the next of all namespaces."""
    from pyspark.sql import Window

    # Nobody sorts a whole trace in one place: minutes are sorted, and between them only their ends matter.
    timed = happened(moved).select("at_us", F.floor(F.col("at_us") / (60 * _SECOND)).alias("minute"))
    inside = Window.partitionBy("minute").orderBy("at_us")
    within = timed.select((F.col("at_us") - F.lag("at_us").over(inside)).alias("gap_us"))
    ends = timed.groupBy("minute").agg(F.min("at_us").alias("first"), F.max("at_us").alias("last"))
    between = ends.select((F.col("first") - F.lag("last").over(Window.orderBy("minute"))).alias("gap_us"))
    return (
        within.unionByName(between)
        .filter(F.col("gap_us").isNotNull())
        .groupBy(_rounded(F.col("gap_us")).alias("gap_us"))
        .agg(F.count(F.lit(1)).alias("count"))
        .select(*schemas.GAPS.names)
    )


def _counts(moved: DataFrame, hours: float) -> DataFrame:
    changes = F.sum((F.col("op") != "seed").cast("long"))
    return moved.groupBy("namespace").agg(
        *(_count_of(op).alias(f"{op}s") for op in ("seed", "create", "change", "delete")),
        F.sum("inferred").alias("inferred"),
        (changes / hours).alias("per_hour"),
    )


def _splits(moved: DataFrame) -> DataFrame:
    """The epoch of a layout grows by one with each split or merge."""
    by_topic = moved.groupBy("namespace", "topic", "incarnation").agg((F.max("epoch") - F.min("epoch")).alias("steps"))
    return by_topic.groupBy("namespace").agg(F.sum("steps").alias("splits"))


def _gaps(seen: DataFrame) -> DataFrame:
    since = seen.select("namespace", (F.col("at_us") - F.lag("at_us").over(in_order())).alias("gap"))
    shares = {"gap_us_p50": 0.5, "gap_us_p90": 0.9, "gap_us_p99": 0.99}
    return since.groupBy("namespace").agg(
        *(F.percentile_approx("gap", share, _ACCURACY).alias(name) for name, share in shares.items()),
        F.max("gap").alias("gap_us_max"),
    )


def _bursts(sizes: DataFrame) -> DataFrame:
    return sizes.groupBy("namespace").agg(
        F.count(F.lit(1)).alias("bursts"),
        F.percentile_approx("size", 0.5, _ACCURACY).alias("burst_p50"),
        F.percentile_approx("size", 0.99, _ACCURACY).alias("burst_p99"),
        F.max("size").alias("burst_max"),
    )


def _peaks(seen: DataFrame) -> DataFrame:
    tenths = seen.groupBy("namespace", F.floor(F.col("at_us") / _TENTH).alias("tenth")).count()
    seconds = tenths.groupBy("namespace", F.floor(F.col("tenth") / 10).alias("second")).agg(
        F.sum("count").alias("in_second"), F.max("count").alias("in_tenth")
    )
    return seconds.groupBy("namespace").agg(
        F.max("in_second").alias("peak_per_second"), F.max("in_tenth").alias("peak_per_100ms")
    )


def _count_of(op: str) -> Column:
    return F.sum((F.col("op") == op).cast("long"))


def _rounded(value: Column) -> Column:
    surplus = F.greatest(F.length(F.bin(value)) - _DIGITS, F.lit(0))
    return F.call_function("shiftleft", F.call_function("shiftright", value, surplus), surplus)
