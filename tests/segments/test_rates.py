"""Rates follow what went through, and fall to nothing when nothing does."""

from __future__ import annotations

from segments.rates import Meter


def test_steady_flow_has_its_rate() -> None:
    meter = Meter(100.0)
    for step in range(600):
        meter.count(100.0 + step / 10, 5, 500)
    messages, size = meter.rates(160.0)
    assert 48 <= messages <= 52
    assert 4_800 <= size <= 5_200


def test_rate_of_a_young_log_is_that_of_its_life() -> None:
    meter = Meter(0.0)
    meter.count(1.0, 40, 4_000)
    assert meter.rates(4.0) == (10.0, 1_000.0)


def test_rate_falls_to_nothing() -> None:
    meter = Meter(0.0)
    meter.count(1.0, 40, 4_000)
    assert meter.rates(40.0) == (0.0, 0.0)
