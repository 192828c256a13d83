"""Charts: what they show is in them, where it belongs, and what they are given cannot break out of them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from spark.pages import numbers, scales
from spark.pages.charts import Axis, Chart, Curve, Mark, bar_chart, line_chart, percentile_curve

EVIL = '<script>alert("x")</script> & co'


def texts(chart: Chart) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(chart.svg).iter() if element.text]


def test_a_line_chart_has_its_curves_axes_and_hints() -> None:
    curves = [Curve("busiest", ((0, 5), (60, 20))), Curve("mean", ((0, 1), (60, 2)))]
    chart = line_chart("Rates", curves, Axis("time", numbers.seconds, seconds=True), Axis("per second"))
    assert chart.svg.count('class="line') == 2
    assert chart.legend == ("busiest", "mean")
    assert {"time", "per second", "1 min: 20 (busiest)", "10 s", "0"} <= set(texts(chart))


def test_higher_values_stand_higher_and_later_ones_to_the_right() -> None:
    chart = line_chart("Rates", [Curve("", ((0, 1), (10, 8)))], Axis("x"), Axis("y"))
    (left, low), (right, high) = re.findall(r'<circle[^>]*cx="([\d.]+)" cy="([\d.]+)"', chart.svg)
    assert float(left) < float(right)
    assert float(low) > float(high)


def test_each_nine_of_a_percentile_curve_takes_as_much_room_as_the_one_before() -> None:
    chart = percentile_curve("Latency", [Curve("", ((0.9, 1), (0.99, 2), (0.999, 4)))], Axis("ms", numbers.millis))
    first, second, third = (float(x) for x in re.findall(r'<circle[^>]*cx="([\d.]+)"', chart.svg))
    assert second - first == pytest.approx(third - second, abs=0.2)
    assert {"90 %", "99 %", "99.9 %"} <= set(texts(chart))


def test_bars_stand_side_by_side_and_say_what_they_are() -> None:
    chart = bar_chart("Sizes", ["1", "2–3"], [("a", [3, 0]), ("b", [1, 2])], Axis("size"), Axis("bursts"))
    assert chart.svg.count("<rect") == 4
    assert "2–3, b: 2" in texts(chart)


def test_marks_are_drawn_where_their_value_is() -> None:
    marks = [Mark(50, "default"), Mark(20, "limit", axis="y")]
    chart = line_chart("Pushes", [Curve("", ((0, 1), (200, 8)))], Axis("window"), Axis("pushes"), marks)
    assert {"default", "limit"} <= set(texts(chart))
    assert chart.svg.count('class="mark"') == 2


@pytest.mark.parametrize("log", [False, True])
def test_charts_of_one_point_of_zeros_and_of_nothing_can_be_drawn(log: bool) -> None:
    for points in ((), ((0.0, 0.0),), ((5.0, 3.0),), ((1.0, 0.0), (2.0, 0.0))):
        curves = [Curve("a", points)]
        for chart in (
            line_chart("t", curves, Axis("x", log=log), Axis("y", log=log)),
            percentile_curve("t", [Curve("a", [(min(x, 0.5), y) for x, y in points])], Axis("y", log=log)),
            bar_chart("t", [str(x) for x, _ in points], [("a", [y for _, y in points])], Axis("x"), Axis("y", log=log)),
        ):
            assert "nan" not in chart.svg
            ElementTree.fromstring(chart.svg)


def test_what_a_chart_is_given_stays_text() -> None:
    chart = bar_chart(EVIL, [EVIL], [(EVIL, [1]), ("b", [2])], Axis(EVIL), Axis(EVIL))
    assert "<script" not in chart.svg
    ElementTree.fromstring(chart.svg)


def test_long_curves_are_drawn_whole_with_fewer_hints() -> None:
    chart = line_chart("t", [Curve("a", [(float(x), float(x % 7)) for x in range(5_000)])], Axis("x"), Axis("y"))
    assert chart.svg.count("<circle") <= 400
    assert chart.svg.count("L") >= 4_999


@pytest.mark.parametrize(
    ("values", "ticks"),
    [([0, 10], (0, 2, 4, 6, 8, 10)), ([3, 97], (0, 20, 40, 60, 80, 100)), ([0], (0, 0.2, 0.4, 0.6, 0.8, 1.0))],
)
def test_linear_scales_end_at_round_numbers(values: list[float], ticks: tuple[float, ...]) -> None:
    assert scales.linear(values).ticks == pytest.approx(ticks)


def test_logarithmic_scales_go_from_power_to_power() -> None:
    scale = scales.logarithmic([3, 40_000])
    assert scale.ticks == (1, 10, 100, 1_000, 10_000, 100_000)
    assert scale.at(0) == 0
    assert scale.at(100) == pytest.approx(0.4)


def test_times_have_ticks_at_round_times() -> None:
    assert scales.tight([0, 600], seconds=True).ticks == (0, 120, 240, 360, 480, 600)


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (numbers.short, 0, "0"),
        (numbers.short, 999, "999"),
        (numbers.short, 12_345, "12.3 k"),
        (numbers.short, 999_999, "1 M"),
        (numbers.size, 512, "512 B"),
        (numbers.size, 4_383_000, "4.38 MB"),
        (numbers.micros, 0, "0"),
        (numbers.micros, 250, "250 µs"),
        (numbers.millis, 16.5, "16.5 ms"),
        (numbers.seconds, 90, "1.5 min"),
        (numbers.seconds, 86_400, "1 d"),
        (numbers.percent, 1, "100 %"),
        (numbers.percent, 0.9999, "> 99.9 %"),
        (numbers.percent, 0.0001, "< 0.1 %"),
        (numbers.percent, 0.234, "23.4 %"),
        (numbers.plain, 1234.5, "1,234"),
        (numbers.plain, 1.25, "1.25"),
    ],
)
def test_numbers_are_short_and_have_units(show: object, value: float, text: str) -> None:
    assert callable(show)
    assert show(value) == text
