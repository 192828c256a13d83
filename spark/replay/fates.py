"""What became of each write for each watcher that it concerns: shown, cancelled by another write, missing, or lost.

A watcher need not be shown everything: what is undone or replaced before the server gets to tell it is told by its
outcome alone. That takes a second write of the same topic within the time that the server may gather changes, or
within a time in which the watcher had no watch. Whatever else was not shown was lost, however right the end is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from spark.replay.latency import MEMBERSHIP, writes_done

# What a server that is busy may take to look, beyond its window, before anything is said against it.
GRACE_US: Final = 1_000_000
_SAME_WRITE: Final = ("namespace", "topic", "watcher", "op", "sent_us")


@dataclass(frozen=True, slots=True)
class Fates:
    """How many writes, times the watchers that each concerns, were not shown by themselves, and why."""

    cancelled: int
    lost: int
    allowance_us: int  # as far apart as two writes may be that became one


def count_fates(observations: DataFrame, shown: DataFrame, window_us: int) -> Fates:
    """`shown` are the writes of these observations that were shown, `window_us` is the server's coalescing window.

    The server may take as long as it took for anything that it has shown: one that is slow throughout gathers more.
    """
    concerned = concerned_watchers(observations, shown).persist()
    try:
        [slowest] = concerned.agg(F.max(_latency()).alias("us")).collect()
        allowance_us = window_us + max(GRACE_US, slowest["us"] or 0)
        hidden = concerned.where(F.col("arrival_us").isNull()).count()
        [row] = (
            unexplained(observations, concerned, allowance_us)
            .agg(F.count_if(F.col("lost")).alias("lost"), F.count_if(F.col("hidden")).alias("not_cancelled"))
            .collect()
        )
    finally:
        concerned.unpersist()
    return Fates(hidden - row["not_cancelled"], row["lost"], allowance_us)


def concerned_watchers(observations: DataFrame, shown: DataFrame) -> DataFrame:
    """A row for each write and each watcher that it concerns, with its neighbours among the writes of its topic.

    A namespace's watchers are concerned by creations and deletions, a topic's by changes until it is deleted for the
    first time: that ends their watch.
    """
    writes = writes_done(observations)
    watchers = observations.where(F.col("record") == "watcher")
    memberships = _with_neighbours(writes.where(F.col("op").isin(*MEMBERSHIP))).join(
        watchers.where(F.col("watches") == "namespace").select("namespace", "watcher", "missing"), "namespace"
    )
    ended = F.min(F.when(F.col("op") == "delete", F.col("sent_us"))).over(Window.partitionBy("namespace", "topic"))
    layouts = (
        _with_neighbours(writes.where(F.col("op") != "touch").withColumn("ended_us", ended))
        .where((F.col("op") == "change") & (F.col("sent_us") < F.coalesce("ended_us", F.lit(2**62))))
        .drop("ended_us")
        .join(
            watchers.where(F.col("watches") == "topic").select("namespace", "topic", "watcher", "missing"),
            ["namespace", "topic"],
        )
    )
    arrivals = shown.select(*_SAME_WRITE, "arrival_us", "after_reconnect", "by_itself")
    joined = memberships.unionByName(layouts).join(arrivals, list(_SAME_WRITE), "left")
    before = Window.partitionBy("namespace", "topic", "watcher").orderBy("sent_us")
    return joined.withColumn("is_shown", F.coalesce("by_itself", F.lit(False))).withColumn(
        "before_shown", F.coalesce(F.lag("is_shown").over(before), F.lit(True))
    )


def unexplained(observations: DataFrame, concerned: DataFrame, allowance_us: int) -> DataFrame:
    """The rows of `concerned` that were not shown without any reason, as `namespace, topic, watcher, op, sent_us`.

    `hidden` are those that no later layout stood for either; `lost` all but the last writes of topics, where the
    watcher is known to miss the final state.
    """
    at_last = F.col("next_us").isNull() & (F.col("missing") > 0)
    left = (
        _unexcused(concerned, allowance_us)
        .withColumn("hidden", F.col("arrival_us").isNull())
        .withColumn("lost", ~at_last)
        .join(_absences(observations, allowance_us), "watcher", "left")
    )
    # One absence is enough to explain it; without any, the comparison is with nothing and says nothing.
    away = F.max(F.coalesce(_while_away(allowance_us), F.lit(False))).alias("away")
    return left.groupBy(*_SAME_WRITE, "hidden", "lost").agg(away).where(~F.col("away")).drop("away")


def _with_neighbours(writes: DataFrame) -> DataFrame:
    in_time = Window.partitionBy("namespace", "topic").orderBy("sent_us", "done_us")
    return writes.select(
        "namespace",
        "topic",
        "op",
        "sent_us",
        "done_us",
        *(name for name in writes.columns if name == "ended_us"),
        F.lead("sent_us").over(in_time).alias("next_us"),
        F.lag("done_us").over(in_time).alias("before_us"),
    )


def _latency() -> Column:
    """Of what was shown as it was: by itself, before the next write of its topic, and not after a reconnect."""
    undisturbed = F.col("next_us").isNull() | (F.col("next_us") > F.col("arrival_us"))
    plain = F.col("is_shown") & ~F.col("after_reconnect") & undisturbed
    return F.when(plain, F.col("arrival_us") - F.col("sent_us"))


def _unexcused(concerned: DataFrame, allowance_us: int) -> DataFrame:
    """What was not shown, and has no other write near enough: the next, or an unseen one that it undid."""
    near_next = F.col("next_us") <= F.col("done_us") + allowance_us
    near_before = ~F.col("before_shown") & (F.col("sent_us") <= F.col("before_us") + allowance_us)
    excused = F.coalesce(near_next, F.lit(False)) | F.coalesce(near_before, F.lit(False))
    return concerned.where(~F.col("is_shown") & ~excused)


def _while_away(allowance_us: int) -> Column:
    """Whether a write and its neighbour, as above, came in one absence of the watcher, or on its edges."""
    since, until = F.col("left_us") - allowance_us, F.col("back_us") + allowance_us
    with_next = (since <= F.col("done_us")) & (F.col("next_us") <= until)
    with_before = ~F.col("before_shown") & (since <= F.col("before_us")) & (F.col("sent_us") <= until)
    return F.coalesce(with_next, F.lit(False)) | F.coalesce(with_before, F.lit(False))


def _absences(observations: DataFrame, allowance_us: int) -> DataFrame:
    """When watchers had no watch; absences so close together that nothing need have come between them are one."""
    in_time = Window.partitionBy("watcher").orderBy("left_us")
    earlier = in_time.rowsBetween(Window.unboundedPreceding, -1)
    begins = F.coalesce(F.col("left_us") > F.max("back_us").over(earlier) + allowance_us, F.lit(True))
    absences = observations.where(F.col("record") == "absence").select("watcher", "left_us", "back_us")
    return (
        absences.withColumn("begins", begins.cast("int"))
        .withColumn("number", F.sum("begins").over(in_time))
        .groupBy("watcher", "number")
        .agg(F.min("left_us").alias("left_us"), F.max("back_us").alias("back_us"))
        .drop("number")
    )
