"""Charts as SVG, drawn by hand: lines, bars and percentile curves. Colours are those of the page, light or dark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from spark.pages import numbers, scales
from spark.pages.scales import Scale

WIDTH: Final = 960
HEIGHT: Final = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 20, 14, 50
# As many as the page has colours for; further series begin with the first colour again.
COLOURS: Final = 6
# More of them cannot be pointed at one by one, and make a page slow.
_HOVER_POINTS: Final = 400
# What a label of a bar may take.
_BAR_LABEL: Final = 14

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """What an axis shows. `show` makes labels of its values, with their unit; `seconds` puts ticks at round times."""

    label: str
    show: Callable[[float], str] = numbers.short
    log: bool = False
    seconds: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """One series; of a percentile curve the points are (share below, value), as (0.99, 12.4)."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the chart at one value of an axis, with a word on what it means."""

    value: float
    label: str
    axis: Literal["x", "y"] = "x"


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture with its title and the names of its curves, for a section of a page."""

    title: str
    svg: str
    legend: tuple[str, ...] = ()
    note: str = ""


def line_chart(
    title: str, curves: Sequence[Curve], x: Axis, y: Axis, marks: Sequence[Mark] = (), note: str = ""
) -> Chart:
    """Curves over a common x, such as rates over time; points in the order of x."""
    every = [point for curve in curves for point in curve.points]
    if not every:
        return _empty(title)
    xs = [point[0] for point in every]
    across = scales.logarithmic(xs) if x.log else scales.tight(xs, seconds=x.seconds)
    ys = [*(point[1] for point in every), *(mark.value for mark in marks if mark.axis == "y")]
    up = scales.logarithmic(ys) if y.log else scales.linear(ys)
    parts = [*_grid(across, up, x, y), *_marks(marks, across, up)]
    for index, curve in enumerate(curves):
        parts += _curve(curve, index, across, up, x, y, filled=len(curves) == 1 and not y.log)
    return Chart(title, _svg(title, parts), _legend(curves), note)


def percentile_curve(title: str, curves: Sequence[Curve], y: Axis, marks: Sequence[Mark] = (), note: str = "") -> Chart:
    """The value at each percentile, stretched towards the slowest: each nine takes as much room as the one before."""
    turned = [
        Curve(curve.name, tuple((1 / (1 - share), value) for share, value in curve.points if share < 1))
        for curve in curves
    ]
    every = [point for curve in turned for point in curve.points]
    if not every:
        return _empty(title)
    farthest = max(10.0, *(point[0] for point in every))
    shares = [share for share in (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999) if 1 / (1 - share) <= farthest]
    across = Scale(1.0, farthest, tuple(1 / (1 - share) for share in shares), log=True)
    ys = [*(point[1] for point in every), *(mark.value for mark in marks if mark.axis == "y")]
    up = scales.logarithmic(ys) if y.log else scales.linear(ys)
    x = Axis("percentile", _share_label)
    parts = [*_grid(across, up, x, y), *_marks(marks, across, up)]
    for index, curve in enumerate(turned):
        parts += _curve(curve, index, across, up, x, y, filled=False)
    return Chart(title, _svg(title, parts), _legend(turned), note)


def bar_chart(
    title: str, groups: Sequence[str], curves: Sequence[tuple[str, Sequence[float]]], x: Axis, y: Axis, note: str = ""
) -> Chart:
    """Bars side by side: for each group one of each series, whose values are in the order of the groups."""
    if not groups:
        return _empty(title)
    up_values = [value for _, values in curves for value in values]
    up = scales.logarithmic(up_values) if y.log else scales.linear(up_values)
    room = (WIDTH - _LEFT - _RIGHT) / len(groups)
    gap = min(room * 0.28, 28.0)
    width = (room - gap) / max(len(curves), 1)
    parts = [*_rows(up, y), _axis_title(x.label)]
    # Where labels would touch, only some are written; pointing at a bar tells the rest.
    every = max(1, -(-len(groups) * _BAR_LABEL * 5 // (WIDTH - _LEFT - _RIGHT)))
    for number, group in enumerate(groups):
        left = _LEFT + number * room + gap / 2
        for index, (name, values) in enumerate(curves):
            value = values[number]
            top = _y(up, value) if value > 0 or not y.log else HEIGHT - _BOTTOM
            height = max(HEIGHT - _BOTTOM - top, 0.0)
            told = f"{group}: {y.show(value)}" if len(curves) == 1 else f"{group}, {name}: {y.show(value)}"
            parts.append(
                f'<rect class="bar c{index % COLOURS + 1}" x="{left + index * width:.1f}" y="{top:.1f}" '
                f'width="{max(width - 1.5, 0.8):.1f}" height="{height:.1f}" rx="2"><title>{escape(told)}</title></rect>'
            )
        if number % every == 0:
            middle = left + (room - gap) / 2
            parts.append(_text(middle, HEIGHT - _BOTTOM + 18, _clipped(group), "middle"))
    return Chart(title, _svg(title, parts), _legend([Curve(name, ()) for name, _ in curves]), note)


def _curve(curve: Curve, index: int, across: Scale, up: Scale, x: Axis, y: Axis, *, filled: bool) -> list[str]:
    if not curve.points:
        return []
    colour = f"c{index % COLOURS + 1}"
    placed = [(_x(across, a), _y(up, b)) for a, b in curve.points]
    path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in placed)
    parts = []
    if filled:
        floor = HEIGHT - _BOTTOM
        parts.append(
            f'<path class="area {colour}" d="{path}L{placed[-1][0]:.1f},{floor}L{placed[0][0]:.1f},{floor}Z"/>'
        )
    parts.append(f'<path class="line {colour}" d="{path}"/>')
    every = -(-len(placed) // _HOVER_POINTS)
    shown = "dot" if len(placed) <= 24 else "hover"
    for (a, b), (left, top) in list(zip(curve.points, placed, strict=True))[::every]:
        told = f"{x.show(a)}: {y.show(b)}" + (f" ({curve.name})" if curve.name else "")
        parts.append(
            f'<circle class="{shown} {colour}" cx="{left:.1f}" cy="{top:.1f}" r="{3 if shown == "dot" else 5}">'
            f"<title>{escape(told)}</title></circle>"
        )
    return parts


def _grid(across: Scale, up: Scale, x: Axis, y: Axis) -> list[str]:
    parts = [*_rows(up, y), _axis_title(x.label)]
    for tick in across.ticks:
        left = _x(across, tick)
        parts.append(f'<path class="tick" d="M{left:.1f},{HEIGHT - _BOTTOM}v5"/>')
        parts.append(_text(left, HEIGHT - _BOTTOM + 18, x.show(tick), "middle"))
    return parts


def _rows(up: Scale, y: Axis) -> list[str]:
    parts = []
    for tick in up.ticks:
        top = _y(up, tick)
        kind = "floor" if tick == up.ticks[0] else "grid"
        parts.append(f'<path class="{kind}" d="M{_LEFT},{top:.1f}H{WIDTH - _RIGHT}"/>')
        parts.append(_text(_LEFT - 10, top + 4, y.show(tick), "end"))
    middle = (_TOP + HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text class="axis" text-anchor="middle" transform="translate(15 {middle:.0f}) rotate(-90)">'
        f"{escape(y.label)}</text>"
    )
    return parts


def _marks(marks: Iterable[Mark], across: Scale, up: Scale) -> list[str]:
    parts = []
    for mark in marks:
        if mark.axis == "x":
            left = _x(across, mark.value)
            parts.append(f'<path class="mark" d="M{left:.1f},{_TOP}V{HEIGHT - _BOTTOM}"/>')
            anchor, shift = ("end", -6) if left > WIDTH * 0.75 else ("start", 6)
            parts.append(_text(left + shift, _TOP + 10, mark.label, anchor))
        else:
            top = _y(up, mark.value)
            parts.append(f'<path class="mark" d="M{_LEFT},{top:.1f}H{WIDTH - _RIGHT}"/>')
            parts.append(_text(WIDTH - _RIGHT - 4, top - 6, mark.label, "end"))
    return parts


def _axis_title(label: str) -> str:
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    return f'<text class="axis" x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(label)}</text>'


def _text(left: float, top: float, text: str, anchor: str) -> str:
    return f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _x(across: Scale, value: float) -> float:
    return _LEFT + across.at(value) * (WIDTH - _LEFT - _RIGHT)


def _y(up: Scale, value: float) -> float:
    return HEIGHT - _BOTTOM - up.at(value) * (HEIGHT - _TOP - _BOTTOM)


def _svg(title: str, parts: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">'
        f"{''.join(parts)}</svg>"
    )


def _legend(curves: Sequence[Curve]) -> tuple[str, ...]:
    return tuple(curve.name for curve in curves) if len(curves) > 1 else ()


def _empty(title: str) -> Chart:
    middle = _text(WIDTH / 2, HEIGHT / 2, "nothing to show", "middle")
    return Chart(title, _svg(title, [middle]))


def _clipped(label: str) -> str:
    return label if len(label) <= _BAR_LABEL else label[: _BAR_LABEL - 1] + "…"


def _share_label(turned: float) -> str:
    share = 100 * (1 - 1 / turned)
    return f"{share:.6f}".rstrip("0").rstrip(".") + " %"
