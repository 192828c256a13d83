"""Histograms are right to three digits, merge without loss, and Spark finds the same buckets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark.replay.percentiles import Histogram, bucket_column, bucket_of, highest_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VALUES = st.integers(0, 10**12)


@given(VALUES)
def test_bucket_holds_its_value_within_a_thousandth(value: int) -> None:
    highest = highest_in(bucket_of(value))
    assert value <= highest <= value * 1.001
    assert bucket_of(highest) == bucket_of(value)
    assert bucket_of(highest + 1) == bucket_of(value) + 1


@given(st.lists(VALUES, min_size=1), st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_percentile_is_a_value_that_the_share_does_not_exceed(values: list[int], share: float) -> None:
    exact = sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]
    assert exact <= Histogram.of(values).at(share) <= exact * 1.001


@given(st.lists(VALUES), st.lists(VALUES))
def test_merged_parts_are_the_whole(first: list[int], second: list[int]) -> None:
    assert Histogram.of(first).merged(Histogram.of(second)) == Histogram.of(first + second)


def test_milliseconds_have_the_usual_percentiles() -> None:
    assert Histogram.of(range(1_000, 1_001_000, 1_000)).milliseconds() == {
        "p50": pytest.approx(500, rel=1e-3),
        "p90": pytest.approx(900, rel=1e-3),
        "p99": pytest.approx(990, rel=1e-3),
        "p999": pytest.approx(999, rel=1e-3),
        "max": 1_000,
    }


def test_nothing_counted_is_zero_everywhere() -> None:
    empty = Histogram.of([])
    assert set(empty.milliseconds().values()) == {0.0}
    assert empty.curve() == []


def test_value_below_zero_counts_as_zero() -> None:
    assert bucket_of(-5) == 0


def test_curve_rises_to_the_maximum_and_no_further_than_there_are_values() -> None:
    curve = Histogram.of(range(1, 101)).curve()
    assert curve == sorted(curve)
    assert curve[-1] == (1.0, 100)
    assert max(share for share, _ in curve[:-1]) == pytest.approx(0.99)


def test_spark_finds_the_same_buckets(spark: SparkSession) -> None:
    powers = [2**exponent + step for exponent in range(45) for step in (-1, 0, 1)]
    values = [-7, 0, 1, *powers]
    frame = spark.createDataFrame([(value,) for value in values], "value long")
    found = frame.select("value", bucket_column(frame["value"]).alias("bucket")).collect()
    assert [(row["value"], row["bucket"]) for row in found] == [(value, bucket_of(value)) for value in values]
