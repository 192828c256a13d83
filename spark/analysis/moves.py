"""The timeline as the steps of an analysis read it: lean, and every namespace in one piece and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from spark.analysis import schemas
from spark.analysis.columns import varint_length

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, WindowSpec


def moves(timeline: DataFrame) -> DataFrame:
    """`schemas.MOVES`, partitioned by namespace and sorted within: what is kept for all steps to read."""
    name = F.octet_length(F.concat(F.lit("topic://"), "namespace", F.lit("/"), "topic"))
    return (
        timeline.withColumn("entry", 1 + varint_length(name) + name)
        .withColumn("inferred", F.col("inferred").cast("int"))
        .select(*(F.col(column.name).cast(column.dataType) for column in schemas.MOVES))
        .repartition("namespace")
        .sortWithinPartitions("namespace", "at_us", "seq")
    )


def in_order() -> WindowSpec:
    """The changes of a namespace one after the other, as they lie there."""
    return Window.partitionBy("namespace").orderBy("at_us", "seq")


def population(moved: DataFrame, watchers: int) -> DataFrame:
    """How many watch each namespace: the first watcher the first one, the next the next, and so on around."""
    named = moved.select("namespace").distinct()
    # One row per namespace, so these windows may be global.
    number = F.row_number().over(Window.orderBy("namespace")) - 1
    count = F.count(F.lit(1)).over(Window.partitionBy())
    share = F.floor(F.lit(watchers) / F.col("count")) + (F.col("number") < F.lit(watchers) % F.col("count")).cast(
        "long"
    )
    return named.withColumn("number", number).withColumn("count", count).select("namespace", share.alias("watchers"))
