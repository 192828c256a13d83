"""Which write each watcher was shown, and when: the observations of a replay, matched.

A watcher of a namespace is told that a topic came or went, one of a topic is told its epoch; neither is told which
write that was. Times decide: what was added is the latest creation that had been sent when it arrived.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

# One row for each write and each watcher that was shown it, or a later state of its topic.
SHOWN: Final = StructType(
    [
        StructField("namespace", StringType()),
        StructField("topic", StringType()),
        StructField("op", StringType()),
        StructField("due_us", LongType()),
        StructField("sent_us", LongType()),
        StructField("watcher", IntegerType()),
        StructField("arrival_us", LongType()),  # first
        StructField("after_reconnect", BooleanType()),
        StructField("by_itself", BooleanType()),  # not only by a later layout, which stands for all before it
    ]
)

_WRITE: Final = ("due_us", "sent_us", "op")
MEMBERSHIP: Final = ("create", "delete")  # what the watchers of a namespace are told


def writes_done(observations: DataFrame) -> DataFrame:
    """The writes that the store took."""
    return observations.where((F.col("record") == "write") & F.col("error").isNull()).select(
        "namespace", "topic", "op", "due_us", "sent_us", "done_us", "incarnation", "epoch"
    )


def shown_writes(observations: DataFrame, tolerance_us: int = 0) -> DataFrame:
    """SHOWN: of the watchers of namespaces and of those of topics.

    A write may seem to be sent up to `tolerance_us` after it was shown, because two clocks do not agree exactly.
    """
    in_namespaces = _shown_in_namespaces(observations, tolerance_us)
    return in_namespaces.unionByName(_shown_in_topics(observations, tolerance_us))


def _shown_in_namespaces(observations: DataFrame, tolerance_us: int) -> DataFrame:
    """Each topic that came or went in a push, assigned to the last such write sent before."""
    pushes = observations.where((F.col("record") == "push") & F.col("topic").isNull())
    told = _told(pushes, "added", "create").unionByName(_told(pushes, "removed", "delete"))
    writes = writes_done(observations).where(F.col("op").isin(*MEMBERSHIP))
    rows = told.select(
        "namespace", "topic", "op", F.col("arrival_us").alias("time"), "watcher", "arrival_us", "after_reconnect"
    ).unionByName(
        writes.select(
            "namespace",
            "topic",
            "op",
            (F.col("sent_us") - tolerance_us).alias("time"),
            F.struct(*_WRITE).alias("write"),
        ),
        allowMissingColumns=True,
    )
    # A write goes before what arrives at the same microsecond.
    in_time = Window.partitionBy("namespace", "topic", "op").orderBy("time", F.col("watcher").isNotNull())
    assigned = rows.withColumn("write", F.last("write", ignorenulls=True).over(in_time))
    shown = assigned.where(F.col("watcher").isNotNull() & F.col("write").isNotNull())
    return _first_showing(shown.withColumn("by_itself", F.lit(True)))


def _told(pushes: DataFrame, column: str, op: str) -> DataFrame:
    return pushes.select(
        "namespace", F.explode(column).alias("topic"), F.lit(op).alias("op"), "watcher", "arrival_us", "after_reconnect"
    )


def _shown_in_topics(observations: DataFrame, tolerance_us: int) -> DataFrame:
    """Each write of a watched topic with the first push of that state or of a later one.

    Epochs begin anew with each creation, and a push does not say to which it belongs: to the last one that had been
    sent when it arrived. The end of a topic is a push without an epoch.
    """
    watchers = observations.where((F.col("record") == "watcher") & (F.col("watches") == "topic"))
    layouts = writes_done(observations).where(F.col("op") != "touch")
    writes = layouts.join(watchers.select("namespace", "topic", "watcher"), ["namespace", "topic"])
    pushes = observations.where((F.col("record") == "push") & F.col("topic").isNotNull())
    rows = writes.select(
        "namespace",
        "topic",
        "watcher",
        (F.col("sent_us") - tolerance_us).alias("time"),
        _rank(F.col("op") == "delete").alias("state"),
        F.struct(*_WRITE).alias("write"),
    ).unionByName(
        pushes.select(
            "namespace",
            "topic",
            "watcher",
            F.col("arrival_us").alias("time"),
            _rank(F.col("epoch").isNull()).alias("state"),
            F.struct("arrival_us", "after_reconnect").alias("push"),
        ),
        allowMissingColumns=True,
    )
    watched = ("namespace", "topic", "watcher")
    in_time = Window.partitionBy(*watched).orderBy("time", F.col("push").isNotNull())
    creations = F.count_if(F.col("write.op") == "create").over(in_time)
    at_least = Window.partitionBy(*watched, "creations").orderBy(F.desc("state"))
    exactly = Window.partitionBy(*watched, "creations", "state")
    matched = (
        rows.withColumn("creations", creations)
        .withColumn("by_itself", F.max(F.col("push").isNotNull()).over(exactly))
        .withColumn("push", F.min("push").over(at_least))
        .where(F.col("write").isNotNull() & F.col("push").isNotNull())
    )
    return _first_showing(matched.select(*watched, "write", "push.arrival_us", "push.after_reconnect", "by_itself"))


def _rank(end: Column) -> Column:
    """Orders the states of a topic between its creation and its end, which is above all epochs."""
    return F.when(end, F.lit(2**62)).otherwise(F.col("epoch"))


def _first_showing(assigned: DataFrame) -> DataFrame:
    first = F.min(F.struct("arrival_us", "after_reconnect")).alias("first")
    return (
        assigned.groupBy("namespace", "topic", "write", "watcher")
        .agg(first, F.max("by_itself").alias("by_itself"))
        .select(
            "namespace",
            "topic",
            F.col("write.op").alias("op"),
            F.col("write.due_us").alias("due_us"),
            F.col("write.sent_us").alias("sent_us"),
            "watcher",
            F.col("first.arrival_us").alias("arrival_us"),
            F.col("first.after_reconnect").alias("after_reconnect"),
            "by_itself",
        )
        .select(*SHOWN.names)
    )
