"""What the set hash saves when watchers reconnect: no snapshot where the set is what it was.

Reconnects are spread evenly over time, so the share of those whose downtime saw no change follows from the times
between changes alone: of a quiet time, all but its first stretch as long as the downtime. A set that changed and came
back to the same names in between would be skipped, too, and is counted as changed: the savings are the least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from spark.analysis import schemas
from spark.analysis.columns import snapshot_bytes
from spark.analysis.moves import in_order

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HOUR_US: Final = 3_600_000_000


def reconnects(
    moved: DataFrame, population: DataFrame, per_hour: float, downtime_us: int, duration_us: int
) -> DataFrame:
    """`schemas.RECONNECTS`: expected numbers over the whole trace."""
    members = moved.filter(F.col("op") != "change")
    sign = F.when(F.col("op") == "delete", -1).otherwise(1)
    # Each change ends a quiet time with the set as it was; the last one of a namespace also begins one.
    size = F.sum(sign * F.col("entry")).over(in_order())
    quiet = (
        members.select(
            "namespace", "at_us", "seq", "op", "entry", size.alias("after"), (sign * F.col("entry")).alias("d")
        )
        .withColumn("before_us", F.col("at_us") - F.coalesce(F.lag("at_us").over(in_order()), F.lit(0)))
        .withColumn("before_op", F.coalesce(F.lag("op").over(in_order()), F.lit("seed")))
        .withColumn("is_last", F.lead("at_us").over(in_order()).isNull())
    )
    before = _stretch(F.col("before_us"), F.col("before_op"), snapshot_bytes(F.col("after") - F.col("d")), downtime_us)
    rest = F.lit(duration_us) - F.col("at_us")
    after = F.when(F.col("is_last"), _stretch(rest, F.col("op"), snapshot_bytes(F.col("after")), downtime_us))
    stretches = quiet.select(
        "namespace", F.explode(F.filter(F.array(before, after), lambda x: x.isNotNull())).alias("s")
    )
    times = stretches.groupBy("namespace").agg(
        F.sum("s.same_us").alias("same_us"),
        F.sum("s.other_us").alias("other_us"),
        F.sum("s.saved").alias("saved"),
        F.sum("s.sent").alias("sent"),
    )
    rate = F.col("watchers") * F.lit(per_hour) / _HOUR_US
    return (
        population.join(times, "namespace")
        .select(
            "namespace",
            "watchers",
            (rate * (F.col("same_us") + F.col("other_us"))).alias("reconnects"),
            (rate * F.col("same_us")).alias("skipped"),
            (rate * F.col("saved")).alias("saved_bytes"),
            (rate * F.col("sent")).alias("sent_bytes"),
        )
        .select(*schemas.RECONNECTS.names)
    )


def _stretch(length: Column, began_with: Column, snapshot: Column, downtime_us: int) -> Column:
    """A time without changes. Of one that had begun before the trace the first stretch does not count."""
    same = F.greatest(length - downtime_us, F.lit(0)).cast("double")
    other = F.when(began_with == "seed", 0.0).otherwise(F.least(length, F.lit(downtime_us)).cast("double"))
    return F.struct(
        same.alias("same_us"),
        other.alias("other_us"),
        (same * snapshot).alias("saved"),
        (other * snapshot).alias("sent"),
    )
