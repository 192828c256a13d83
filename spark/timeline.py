"""From the events of a trace to what happened to its topics, in one time without jumps.

A trace says more than that: bases tell again what is known, and race with the changes around them; after a gap only
comparing tells what was missed; and nothing is known about the time between two runs of the recorder. Whoever
analyses or replays a trace wants none of this, and reads the table made here, `schemas.TIMELINE`:

- Times are those of arrival, or of taking in where the bell was lost. Each run begins a second after the one before.
  Within a topic time never goes back in the order of the log.
- What the first base found are seeds, at time 0.
- A later base is compared with what was known: the differences are operations, marked as inferred, at the time of the
  base; what it lacks was deleted, if the base was complete.
- A base says nothing about a topic that had an entry since the gap, because the entries tell it all. Entries that a
  base has told already say nothing.

All windows are partitioned by topic. Runs, gaps and bases are few, and are joined as small tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from metadata.traces.events import Kind
from spark import schemas
from spark.clocks import BETWEEN_RUNS_US

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

_ENTRIES: Final = (Kind.CREATED, Kind.CHANGED, Kind.DELETED)
_MARKS: Final = (Kind.GAP, Kind.BASE_END)

_TOPIC: Final = ("namespace", "topic")


def timeline(events: DataFrame) -> DataFrame:
    """The events of a trace, `schemas.EVENTS`, as `schemas.TIMELINE`; `seq` is unique and in order within a topic."""
    timed = _on_one_clock(events.select(*schemas.EVENTS.names))
    told = timed.filter(F.col("kind").isin(*_ENTRIES, Kind.BASE)).withColumn("version", _or_zero("version"))
    placed = _in_periods(told, timed.filter(F.col("kind").isin(*_MARKS)))
    return _operations(_without_echoes(placed)).select(*(F.col(c.name).cast(c.dataType) for c in schemas.TIMELINE))


def _on_one_clock(events: DataFrame) -> DataFrame:
    """With `at_us`: the runs end to end, from the first event on."""
    own = F.coalesce("arrival_us", "taken_us")
    spans = events.groupBy("run").agg(F.min(own).alias("first"), F.max(own).alias("last"))
    earlier = Window.orderBy("run").rowsBetween(Window.unboundedPreceding, -1)  # a row per run
    began = F.coalesce(F.sum(F.col("last") - F.col("first") + BETWEEN_RUNS_US).over(earlier), F.lit(0))
    runs = spans.select("run", (F.col("first") - began).alias("zero"))
    return events.join(F.broadcast(runs), "run").withColumn("at_us", own - F.col("zero"))


def _in_periods(told: DataFrame, marks: DataFrame) -> DataFrame:
    """With `bases`, the gaps that concern a topic and the ends of the bases after them, and its `period` among them.

    A base whose end is not there, because the next gap or the end of the run came first, tells of no absence.
    """
    marks = marks.select("seq", "bucket", "kind", "at_us")
    everywhere = marks.filter(F.col("bucket").isNull())
    somewhere = marks.filter(F.col("bucket").isNotNull())
    # A bucket without gaps of its own has those of all buckets; the others have theirs and those, in order.
    one_bucket = somewhere.select(F.col("bucket").alias("of")).distinct()
    own = somewhere.withColumn("of", F.col("bucket")).unionByName(one_bucket.join(everywhere))
    by_bucket = _bases(own).groupBy("of").agg(_in_order().alias("own_bases"))
    of_all = _bases(everywhere.withColumn("of", F.lit(-1))).agg(_in_order().alias("common_bases"))
    joined = told.join(F.broadcast(by_bucket), told["bucket"] == by_bucket["of"], "left").join(F.broadcast(of_all))
    seq = F.col("seq")
    bases = F.coalesce("own_bases", "common_bases")
    return joined.withColumn("bases", bases).withColumn(
        "period", F.size(F.filter("bases", lambda base: base["gap_seq"] < seq))
    )


def _bases(marks: DataFrame) -> DataFrame:
    """One row per gap, with the end of its base if that is the next thing that was said of its buckets."""
    said = Window.partitionBy("of").orderBy("seq")
    ends = F.col("next")["kind"] == Kind.BASE_END
    return (
        marks.withColumn("next", F.lead(F.struct("kind", "seq", "at_us")).over(said))
        .filter(F.col("kind") == Kind.GAP)
        .select(
            "of",
            F.col("seq").alias("gap_seq"),
            F.when(ends, F.col("next")["seq"]).alias("end_seq"),
            F.when(ends, F.col("next")["at_us"]).alias("end_us"),
        )
    )


def _in_order() -> Column:
    return F.array_sort(F.collect_list(F.struct("gap_seq", "end_seq", "end_us")))


def _without_echoes(placed: DataFrame) -> DataFrame:
    """Without what was said already: of a base and the entries around it, only what is new remains."""
    before = _by_topic().rowsBetween(Window.unboundedPreceding, -1)
    in_period = Window.partitionBy(*_TOPIC, "period").orderBy("seq")
    before_in_period = in_period.rowsBetween(Window.unboundedPreceding, -1)
    kind, incarnation = F.col("kind"), F.col("incarnation")
    is_base, is_entry = kind == Kind.BASE, kind != Kind.BASE
    after_entry = F.coalesce(F.max(is_entry).over(before_in_period), F.lit(False))
    base = F.last(F.when(is_base, F.struct("incarnation", "version")), ignorenulls=True).over(before_in_period)
    echoes = (
        kind.isin(Kind.CREATED, Kind.CHANGED)
        & (F.col("base")["incarnation"] == incarnation)
        & (F.col("version") <= F.col("base")["version"])
    )
    # An incarnation cannot follow while the one that the base found is not deleted: what tells of it is older.
    base_gone = F.max((kind == Kind.DELETED) & (F.col("base")["incarnation"] == incarnation)).over(before_in_period)
    older = (F.col("base")["incarnation"] != incarnation) & ~F.coalesce("base_gone", F.lit(False))
    known = F.last(F.when(kind != Kind.DELETED, incarnation), ignorenulls=True).over(before)
    return (
        placed.withColumn("after_entry", after_entry)
        .filter(is_entry | ~F.col("after_entry"))
        .withColumn("base", base)
        .withColumn("base_gone", base_gone)
        .filter(~F.coalesce(echoes, F.lit(False)) & ~F.coalesce(older, F.lit(False)))
        .withColumn("known", known)
        .filter((kind != Kind.DELETED) | F.coalesce(F.col("known") == incarnation, F.lit(False)))
    )


def _operations(told: DataFrame) -> DataFrame:
    """Each statement against the one before: what has happened to the topic."""
    by_topic = _by_topic()
    until_now = by_topic.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    kind, incarnation, seq = F.col("kind"), F.col("incarnation"), F.col("seq")
    last, gone = F.col("last"), F.col("gone")
    first_period = F.col("period") <= 1
    was_there = F.coalesce(last["kind"] != Kind.DELETED, F.lit(False))
    is_there = kind != Kind.DELETED
    seeds = last.isNull() & first_period & kind.isin(Kind.BASE, Kind.CHANGED)
    there = F.coalesce(was_there & gone.isNull(), F.lit(False))
    same = there & (last["incarnation"] == incarnation)
    state = F.struct("epoch", "size", "value")
    nothing = F.struct(
        F.lit(None).cast("long").alias("epoch"),
        F.lit(None).cast("long").alias("size"),
        F.lit(None).cast("binary").alias("value"),
    )

    def operation(op: Column, at: Column, order: Column, of: Column, what: Column, inferred: Column) -> Column:
        return F.struct(
            at.alias("at_us"),
            order.alias("order"),
            op.alias("op"),
            of.alias("of"),
            what.alias("state"),
            inferred.alias("inferred"),
        )

    at = F.col("at_us")
    yes = F.lit(True)
    deletion = F.lit("delete")
    absent = operation(
        deletion,
        F.least(at, F.greatest(gone["end_us"], last["at_us"])),
        gone["end_seq"] * 2,
        last["incarnation"],
        nothing,
        yes,
    )
    replaced = operation(deletion, at, seq * 2, last["incarnation"], nothing, yes)
    deleted = operation(deletion, at, seq * 2 + 1, incarnation, nothing, F.lit(False))
    found_op = F.when(seeds, F.lit("seed")).when(same, F.lit("change")).otherwise(F.lit("create"))
    seen = (kind == Kind.CREATED) | ((kind == Kind.CHANGED) & same)
    found = operation(found_op, at, seq * 2 + 1, incarnation, state, ~seeds & ~seen)
    absent_since = operation(
        deletion, F.greatest(F.col("gone_after")["end_us"], at), F.col("gone_after")["end_seq"] * 2, incarnation,
        nothing, yes,
    )  # fmt: skip
    steps = F.array(
        F.when(was_there & gone.isNotNull(), absent),
        F.when(there & is_there & ~same, replaced),
        F.when(there & ~is_there, deleted),
        F.when(is_there & ~F.coalesce(same & (last["version"] == F.col("version")), F.lit(False)), found),
        F.when(is_there & F.col("gone_after").isNotNull(), absent_since),
    )
    lasting = F.lit(2**63 - 1).cast("long")
    return (
        told.withColumn("last", F.lag(F.struct("seq", "kind", "incarnation", "version")).over(by_topic))
        .withColumn("is_last", F.lead("seq").over(by_topic).isNull())
        .withColumn("gone", _absence(F.col("last")["seq"], seq))
        .withColumn("gone_after", F.when(F.col("is_last"), _absence(seq, lasting)))
        .withColumn("at_us", F.when(seeds, F.lit(0).cast("long")).otherwise(F.col("at_us")))
        .withColumn("at_us", F.max(F.greatest("at_us", gone["end_us"])).over(until_now))
        .withColumn("last", last.withField("at_us", F.lag("at_us").over(by_topic)))
        .withColumn("step", F.explode(F.filter(steps, lambda step: step.isNotNull())))
        .select(
            F.col("step")["at_us"].alias("at_us"),
            F.col("step")["order"].alias("seq"),
            *_TOPIC,
            F.col("step")["op"].alias("op"),
            F.col("step")["of"].alias("incarnation"),
            *(F.col("step")["state"][name].alias(name) for name in ("epoch", "size", "value")),
            F.col("step")["inferred"].alias("inferred"),
        )
    )


def _absence(since: Column, until: Column) -> Column:
    """The first complete base between two statements about a topic: it did not find the topic."""
    missed = F.filter(
        "bases",
        lambda base: (base["gap_seq"] > since) & base["end_seq"].isNotNull() & (base["end_seq"] < until),
    )
    return F.get(missed, 0)


def _by_topic() -> WindowSpec:
    """`period` grows with `seq`: with both in the order, the windows within a period need no other sorting."""
    return Window.partitionBy(*_TOPIC).orderBy("period", "seq")


def _or_zero(column: str) -> Column:
    return F.coalesce(F.col(column), F.lit(0))
