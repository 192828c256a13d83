from __future__ import annotations

from random import Random

import msgspec
import pytest

from spark.synth.distances import Shape, distances, earth_movers, kolmogorov_smirnov, mean, verdict
from spark.synth.model import quantiles_of, smooth_cells, stepped_cells


def exponential(mean_value: float, seed: int, count: int = 5_000) -> tuple[float, ...]:
    rng = Random(seed)
    return quantiles_of([rng.expovariate(1 / mean_value) for _ in range(count)])


def test_samples_of_one_distribution_are_close() -> None:
    assert kolmogorov_smirnov(exponential(100, 1), exponential(100, 2)) < 0.05
    assert earth_movers(exponential(100, 1), exponential(100, 2)) < 0.1


def test_samples_of_different_distributions_are_far() -> None:
    assert kolmogorov_smirnov(exponential(100, 1), exponential(300, 2)) > 0.3
    assert earth_movers(exponential(100, 1), exponential(300, 2)) > 1
    assert kolmogorov_smirnov(quantiles_of([1.0]), quantiles_of([2.0])) == 1


def test_ties_count_as_what_they_are() -> None:
    mostly_single = quantiles_of([1.0] * 80 + [5.0] * 20)
    half_single = quantiles_of([1.0] * 50 + [5.0] * 50)
    assert kolmogorov_smirnov(mostly_single, mostly_single) == 0
    assert kolmogorov_smirnov(mostly_single, half_single) == pytest.approx(0.3, abs=0.011)


def test_nothing_against_something_is_as_far_as_can_be() -> None:
    assert kolmogorov_smirnov((), quantiles_of([1.0])) == 1
    assert kolmogorov_smirnov((), ()) == 0
    assert earth_movers((), quantiles_of([1.0])) == 1


def test_the_mean_of_quantiles_is_about_that_of_the_values() -> None:
    assert mean(quantiles_of([3.0])) == pytest.approx(3)
    assert mean(exponential(100, 1)) == pytest.approx(100, rel=0.05)


def test_cells_are_distributed_as_their_quantiles() -> None:
    wanted = exponential(1_000, 1)
    assert kolmogorov_smirnov(wanted, quantiles_of(smooth_cells(wanted))) < 0.02
    sizes = quantiles_of([1.0] * 7 + [2.0] * 2 + [9.0])
    assert set(stepped_cells(sizes)) == {1, 2, 9}
    assert kolmogorov_smirnov(sizes, quantiles_of(stepped_cells(sizes))) < 0.02


def test_the_verdict_names_what_differs() -> None:
    one = Shape(
        events=1_000,
        namespaces=10,
        gaps=exponential(100, 1),
        burst_sizes=quantiles_of([1.0, 2.0]),
        mix=(0.2, 0.6, 0.2),
        per_hour=quantiles_of([50.0]),
        topics=quantiles_of([5.0]),
        sizes=quantiles_of([300.0]),
    )
    assert verdict(distances(one, one)) == "the same shape"
    changed = msgspec.structs.replace(one, mix=(0.5, 0.0, 0.5), topics=quantiles_of([9.0]))
    assert verdict(distances(one, changed)) == "differs in mix of changes, topics/namespace"
    assert [each.distance for each in distances(one, changed) if not each.close] == pytest.approx([0.6, 0.8])
