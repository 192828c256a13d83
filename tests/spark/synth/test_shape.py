from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark import schemas
from spark.errors import JobError
from spark.synth.distances import median
from spark.synth.model import OPS, step_rows
from spark.synth.shape import measure_models, measure_shape, steps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Seconds each, most of them to compile what Spark runs.
pytestmark = pytest.mark.slow

SECOND = 1_000_000
Op = tuple[float, str, str, int | None]  # seconds, op, topic, epoch


def timeline_of(spark: SparkSession, namespaces: dict[str, list[Op]], inferred: tuple[int, ...] = ()) -> DataFrame:
    rows = []
    for namespace, ops in namespaces.items():
        for seq, (at, op, topic, epoch) in enumerate(ops):
            size = None if epoch is None else 300 + 100 * epoch
            rows.append((round(at * SECOND), seq, namespace, topic, op, "i", epoch, size, None, seq in inferred))
    return spark.createDataFrame(rows, schemas.TIMELINE)


def test_bursts_gaps_lifetimes_and_topics_are_measured(spark: SparkSession) -> None:
    # Two bursts of three, ten seconds apart, with a millisecond inside; then a single change.
    ops: list[Op] = [
        (0, "seed", "old", 0),
        (10, "create", "new", 0),
        (10.001, "change", "new", 1),
        (10.002, "change", "new", 1),
        (20, "delete", "new", None),
        (20.001, "create", "new", 0),
        (20.002, "change", "old", 0),
        (30, "delete", "old", None),
    ]
    shape, [model] = measure_models(timeline_of(spark, {"a/b": ops}), hours=0.01)
    assert shape.events == 7
    assert shape.mix == pytest.approx((2 / 7, 3 / 7, 2 / 7))
    assert sorted(set(shape.burst_sizes)) == [1, 3]
    assert model.per_hour == pytest.approx(700)
    assert set(model.inside) == {1_000}
    assert set(model.between) == {9_998_000}
    assert model.again == pytest.approx(2 / 3)
    assert model.resized == pytest.approx(1 / 3)
    assert model.recreated == pytest.approx(1 / 2)
    assert model.lasting == pytest.approx(1 / 2)
    assert set(model.lifetimes) == {10_000_000}
    assert model.topics == 2  # 1.6 on average
    after_create = model.steps[step_rows().index(("create", True))]
    assert after_create[OPS.index("change")] == 2


@pytest.mark.integration
def test_what_was_found_after_a_gap_says_nothing_about_time(spark: SparkSession) -> None:
    ops: list[Op] = [
        (0, "seed", "a", 0),
        (1, "change", "a", 0),
        (50, "create", "b", 0),
        (50, "create", "c", 0),
        (99, "change", "a", 0),
    ]
    timeline = timeline_of(spark, {"a/b": ops}, inferred=(2, 3))
    gaps = [row["gap_us"] for row in steps(timeline, 1.0).collect()]
    assert gaps == [None, None, None, None, 98 * SECOND]
    assert measure_shape(timeline, hours=1).events == 2


@pytest.mark.integration
def test_a_quiet_namespace_keeps_its_rate_and_takes_the_gaps_of_all(spark: SparkSession) -> None:
    busy: list[Op] = [(0, "seed", "a", 0), *[(10.0 * number, "change", "a", 0) for number in range(1, 61)]]
    quiet: list[Op] = [(0, "seed", "a", 0), (7, "change", "a", 0)]
    still: list[Op] = [(0, "seed", "a", 0), (0, "seed", "b", 0)]
    _, found = measure_models(timeline_of(spark, {"t/busy": busy, "t/quiet": quiet, "t/still": still}), hours=1)
    models = {model.name: model for model in found}
    assert models["t/quiet"].per_hour == 1
    assert median(models["t/quiet"].between) == 10 * SECOND
    assert (models["t/still"].per_hour, models["t/still"].topics) == (0, 2)


@pytest.mark.integration
def test_a_trace_in_which_nothing_happens_is_refused(spark: SparkSession) -> None:
    with pytest.raises(JobError, match="Nothing happens"):
        measure_shape(timeline_of(spark, {"a/b": [(0, "seed", "a", 0)]}), hours=1)
