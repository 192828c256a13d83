"""The shape of a trace, measured with Spark: what new namespaces are modelled on, and what traces are compared by.

All that is measured becomes one long table of values, `OF_NAMESPACES`, which is summed up as a whole. A column for each
would be a plan that takes Spark longer to compile than to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from metadata.traces.events import Kind
from spark import schemas
from spark.errors import JobError
from spark.synth.distances import Shape
from spark.synth.model import (
    BURST_SHARE,
    LONGEST_BURST_GAP_US,
    NOTHING,
    OPS,
    PROBABILITIES,
    TOGETHER_US,
    NamespaceModel,
    Quantiles,
    Steps,
    quantiles_of,
    step_rows,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Fewer say nothing about how gaps and bursts are distributed.
FEWEST_EVENTS: Final = 100
# A namespace with fewer takes its distributions from all of them together, and keeps its own rate.
_FEWEST_OF_NAMESPACE: Final = 30
# Of percentile_approx: the error of a rank is at most one in so many.
_ACCURACY: Final = 2_000

# One measured value: `what` was measured, in which namespace.
OF_NAMESPACES: Final = ("namespace", "what", "value")

_COMPARED: Final = ("gap", "burst size", "size")
_MODELLED: Final = (
    *_COMPARED,
    "inside",
    "between",
    "topics",
    "lifetime",
    "created size",
    "changed size",
    "epoch",
)

_OP_OF_KIND: Final = {
    Kind.BASE: "seed",
    Kind.CREATED: "create",
    Kind.CHANGED: "change",
    Kind.DELETED: "delete",
}
_HAPPENED: Final = "op != 'seed' and not inferred"


@dataclass(frozen=True, slots=True)
class _Values:
    """All values of one kind in a namespace, or in all of them."""

    count: int = 0
    mean: float = 0.0
    quantiles: Quantiles = ()


_NONE: Final = _Values()
_Found = Mapping[str, _Values]


def plain_timeline(events: DataFrame) -> DataFrame:
    """The timeline of a trace with no gap but the one at its start, as synthetic ones are; cheaper than the general."""
    kinds = F.create_map(*(F.lit(each) for pair in _OP_OF_KIND.items() for each in map(str, pair)))
    first = events.agg(F.min("taken_us")).first()
    assert first is not None  # an aggregate without groups is one row
    at = F.when(F.col("kind") == str(Kind.BASE), 0).otherwise(F.coalesce("arrival_us", "taken_us") - first[0])
    return (
        events.where(F.col("kind").isin(*map(str, _OP_OF_KIND)))
        .withColumns({"at_us": at, "op": kinds[F.col("kind")], "inferred": F.lit(False)})
        .select(*schemas.TIMELINE.names)
    )


def lags(events: DataFrame) -> tuple[Quantiles, int]:
    """How long notifications took since the store's time, and the recorder since the notification."""
    found = (
        events.where("arrival_us is not null and store_ms is not null")
        .agg(
            _quantiles(F.col("arrival_us") - F.col("store_ms") * 1_000).alias("lags"),
            F.percentile_approx(F.col("taken_us") - F.col("arrival_us"), 0.5, _ACCURACY).alias("delay"),
        )
        .first()
    )
    if found is None or found["lags"] is None:
        return (), 0
    return tuple(map(float, found["lags"])), int(found["delay"])


def measure_shape(timeline: DataFrame, hours: float, stretch: float = 1.0) -> Shape:
    """`stretch`: all gaps are that much longer than in the trace that this one is compared with."""
    stepped = steps(timeline, stretch)
    found = _summed_up([values_of_steps(stepped), burst_sizes(stepped)], _COMPARED, of_namespaces=False)
    return _shape(found, hours, stretch)


def measure_models(timeline: DataFrame, hours: float) -> tuple[Shape, tuple[NamespaceModel, ...]]:
    """The shape, and a model of each namespace in the order of their names."""
    stepped = steps(timeline, 1.0)
    tables = [values_of_steps(stepped), burst_sizes(stepped), values_of_lives(timeline)]
    found = _summed_up(tables, _MODELLED, of_namespaces=True)
    shape = _shape(found, hours, 1.0)
    pooled = found[None]
    return shape, tuple(_model(name, found[name], pooled, hours) for name in _names(found))


def steps(timeline: DataFrame, stretch: float) -> DataFrame:
    """Each op with what happened before it in its namespace, and the burst that it belongs to.

    A window keeps all rows of a namespace, so there are two and no more, over short rows, and small partitions that
    nobody puts together again: more than that was too much for a Java with the usual memory.
    """
    ordered = Window.partitionBy("namespace").orderBy("at_us", "seq")
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    until_now = ordered.rowsBetween(Window.unboundedPreceding, 0)
    # What a gap swallowed was found later, all at once: those times are not when it happened.
    happened = F.expr(_HAPPENED)
    earlier = F.last(F.when(happened, F.struct("at_us", "op", "topic")), ignorenulls=True).over(before)
    change = F.when(F.col("op") == "delete", -1).when(F.col("op") == "change", 0).otherwise(1)
    # The gaps from the first to the last event add up to the time between these.
    widest = timeline.where(happened).groupBy("namespace").agg(
        F.least(
            F.expr("(max(at_us) - min(at_us)) / nullif(count(1) - 1, 0)") * BURST_SHARE,
            F.lit(LONGEST_BURST_GAP_US * stretch),
        ).alias("widest_us")
    )  # fmt: skip
    slots = 4 * timeline.sparkSession.sparkContext.defaultParallelism
    least = TOGETHER_US * stretch
    return (
        timeline.select("at_us", "seq", "namespace", "topic", "op", "epoch", "size", "inferred")
        .repartition(slots, "namespace")
        .join(F.broadcast(widest), "namespace", "left")
        .withColumns({"earlier": earlier, "topics": F.sum(change).over(until_now), "happened": happened})
        .withColumn("gap_us", F.when(happened, F.col("at_us") - F.col("earlier.at_us")))
        .withColumn("inside", F.coalesce(F.col("gap_us") <= F.col("widest_us"), F.lit(False)))
        .withColumn("burst", F.sum((F.col("happened") & ~F.col("inside")).cast("int")).over(until_now))
        .select(
            "namespace",
            F.length("topic").alias("name_length"),
            "op",
            "epoch",
            "size",
            "happened",
            F.when(F.col("gap_us") < least, least).otherwise(F.col("gap_us")).alias("gap_us"),
            F.col("earlier.op").alias("previous_op"),
            (F.col("topic") == F.col("earlier.topic")).alias("again"),
            "topics",
            "inside",
            "burst",
        )
    )


def values_of_steps(stepped: DataFrame) -> DataFrame:
    happened, op, inside, gap = F.col("happened"), F.col("op"), F.col("inside"), F.col("gap_us")
    change, create = happened & (op == "change"), happened & (op == "create")
    within = F.when(inside, "inside").otherwise("between")
    step = F.concat(op, F.lit(" after "), F.coalesce("previous_op", F.lit(NOTHING)), F.lit(" "), within)
    return _long(
        stepped,
        {
            "seed": F.when(op == "seed", 1),
            "epoch": F.when(op == "seed", F.col("epoch")),
            "name length": F.col("name_length"),
            "gap": gap,
            "inside": F.when(inside, gap),
            "between": F.when(~inside, gap),
            "topics": F.when(happened, F.col("topics")),
            "again": F.when(change, F.col("again").cast("int")),
            "size": F.when(create | change, F.col("size")),
            "created size": F.when(create, F.col("size")),
            "changed size": F.when(change, F.col("size")),
        },
        F.struct(step.alias("what"), F.when(happened, 1).cast("double").alias("value")),
    )


def burst_sizes(stepped: DataFrame) -> DataFrame:
    sizes = stepped.where("happened").groupBy("namespace", "burst").agg(F.count("op").alias("size"))
    return _long(sizes, {"burst size": F.col("size")})


def values_of_lives(timeline: DataFrame) -> DataFrame:
    """What the history of each topic tells: how long it lived, whether its name was there before."""
    ordered = Window.partitionBy("namespace", "topic").orderBy("at_us", "seq")
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    born = F.last(F.when(F.col("op") == "create", F.col("at_us")), ignorenulls=True).over(before)
    lived = timeline.withColumns(
        {
            "known": (F.lag("op").over(ordered).isNotNull()).cast("int"),
            "age_us": F.col("at_us") - born,
            "grown": (F.col("epoch") > F.lag("epoch").over(ordered)).cast("int"),
        }
    ).where(_HAPPENED)
    op = F.col("op")
    return _long(
        lived,
        {
            "lifetime": F.when(op == "delete", F.col("age_us")),
            "lasting": F.when(op == "delete", F.col("age_us").isNull().cast("int")),
            "recreated": F.when(op == "create", F.col("known")),
            "resized": F.when(op == "change", F.col("grown")),
        },
    )


def _long(frame: DataFrame, columns: Mapping[str, Column], *more: Column) -> DataFrame:
    pairs = [
        F.struct(F.lit(what).alias("what"), value.cast("double").alias("value")) for what, value in columns.items()
    ]
    return (
        frame.select("namespace", F.explode(F.array(*pairs, *more)).alias("pair"))
        .where("pair.value is not null")
        .select("namespace", "pair.what", "pair.value")
    )


def _quantiles(column: Column) -> Column:
    return F.percentile_approx(column, PROBABILITIES, _ACCURACY)


def _summed_up(
    tables: Sequence[DataFrame], distributions: Sequence[str], *, of_namespaces: bool
) -> dict[str | None, dict[str, _Values]]:
    """By namespace, and under None all of them together; quantiles only of these distributions.

    They are what costs memory, a megabyte each while it is summed up: so nobody asks for those of namespaces who only
    compares, and for none of what is merely counted.
    """
    values = reduce(lambda one, other: one.unionByName(other), tables).select(*OF_NAMESPACES)
    drawn = F.when(F.col("what").isin(*distributions), F.col("value"))
    own = F.struct("namespace", (drawn if of_namespaces else F.lit(None).cast("double")).alias("drawn"))
    all_of_them = F.struct(F.lit(None).cast("string").alias("namespace"), drawn.alias("drawn"))
    rows = (
        values.select("what", "value", F.explode(F.array(own, all_of_them)).alias("of"))
        .groupBy("of.namespace", "what")
        .agg(
            F.count("value").alias("count"),
            F.avg("value").alias("mean"),
            _quantiles(F.col("of.drawn")).alias("quantiles"),
        )
        .collect()
    )
    found: dict[str | None, dict[str, _Values]] = {None: {}}
    for row in rows:
        summed = _Values(row["count"], row["mean"], tuple(row["quantiles"] or ()))
        found.setdefault(row["namespace"], {})[row["what"]] = summed
    return found


def _names(found: Mapping[str | None, _Found]) -> list[str]:
    return sorted(name for name in found if name is not None)


def _shape(found: Mapping[str | None, _Found], hours: float, stretch: float) -> Shape:
    pooled = found[None]
    events = pooled.get("topics", _NONE).count
    if not events:
        raise JobError("Nothing happens in this trace: record for longer, or while topics change.")
    create, change, delete = (sum(row[op] for row in _steps(pooled)) / events for op in range(len(OPS)))
    spaces = [found[name] for name in _names(found)]
    return Shape(
        events=events,
        namespaces=len(spaces),
        gaps=tuple(gap / stretch for gap in pooled.get("gap", _NONE).quantiles),
        burst_sizes=pooled["burst size"].quantiles,
        mix=(create, change, delete),
        per_hour=quantiles_of([space.get("topics", _NONE).count / hours * stretch for space in spaces]),
        topics=quantiles_of([_topics(space) for space in spaces]),
        sizes=pooled.get("size", _NONE).quantiles,
    )


def _topics(space: _Found) -> float:
    """How many topics there are on average; where nothing happens, those that were there."""
    return space["topics"].mean if "topics" in space else space.get("seed", _NONE).count


def _model(name: str, own: _Found, pooled: _Found, hours: float) -> NamespaceModel:
    """A namespace as it was, with what is too rare in it taken from all of them."""
    ample = own if own.get("topics", _NONE).count >= _FEWEST_OF_NAMESPACE else pooled

    def known(what: str) -> _Values:
        return ample.get(what) or pooled.get(what, _NONE)

    topics = round(_topics(own))
    spread = own.get("topics", _NONE).quantiles
    fewest, most = (int(spread[PROBABILITIES.index(p)]) if spread else topics for p in (0.05, 0.95))
    return NamespaceModel(
        name=name,
        per_hour=own.get("topics", _NONE).count / hours,
        inside=known("inside").quantiles,
        between=known("between").quantiles,
        burst_sizes=known("burst size").quantiles,
        steps=_steps(ample),
        topics=topics,
        fewest=max(0, min(fewest, topics - 1)),
        most=max(most, topics + 1),
        again=known("again").mean,
        resized=known("resized").mean,
        recreated=known("recreated").mean,
        lifetimes=known("lifetime").quantiles,
        lasting=known("lasting").mean,
        created_sizes=known("created size").quantiles,
        changed_sizes=known("changed size").quantiles,
        epochs=known("epoch").quantiles,
        name_length=round(own["name length"].mean),
    )


def _steps(found: _Found) -> Steps:
    counted = []
    for previous, inside in step_rows():
        where = "inside" if inside else "between"
        create, change, delete = (float(found.get(f"{op} after {previous} {where}", _NONE).count) for op in OPS)
        counted.append((create, change, delete))
    return tuple(counted)
