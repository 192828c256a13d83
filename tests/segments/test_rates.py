"""Rates follow what went through, and fall to nothing when nothing does."""

from __future__ import annotations

import pytest

from segments.rates import Meter, Pulse


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


def test_what_comes_after_a_long_silence_is_counted_from_there_on() -> None:
    meter = Meter(0.0)
    meter.count(1.0, 40, 4_000)
    assert meter.rates(40.0) == (0.0, 0.0)
    meter.count(40.0, 60, 600)
    assert meter.rates(41.0) == (2.0, 20.0)
    meter.count(500.0, 30, 300)
    assert meter.rates(500.0) == (1.0, 10.0)


def test_a_clock_that_stands_still_loses_nothing() -> None:
    meter = Meter(7.0)
    for _ in range(10):
        meter.count(7.0, 1, 2)
    assert meter.rates(7.0) == (10.0, 20.0)


def test_what_never_counted_has_no_rate() -> None:
    assert Meter(0.0).rates(100.0) == (0.0, 0.0)


@pytest.mark.parametrize("step", [0.2, 1.0, 7.0, 30.0])
def test_pulse_of_a_steady_flow_is_its_rate_however_often_it_is_felt(step: float) -> None:
    pulse, now = Pulse(0.0), 0.0
    while now < 300:
        now += step
        messages, size = pulse.rates(now, round(now * 50), round(now * 5_000))
    assert messages == pytest.approx(50, rel=0.02)
    assert size == pytest.approx(5_000, rel=0.02)


def test_pulse_of_what_has_ended_falls_to_nothing() -> None:
    pulse = Pulse(0.0)
    assert pulse.rates(1.0, 40, 400) == (40.0, 400.0)
    for now in (10.0, 20.0, 30.0, 40.0):
        pulse.rates(now, 40, 400)
    assert pulse.rates(50.0, 40, 400) == (0.0, 0.0)
