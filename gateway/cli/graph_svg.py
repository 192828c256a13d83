"""The DAG as one SVG file: the hash ring runs to the right, time runs down.

Every segment is a box as wide as its range and as tall as the time it was active, so a split reads as a box over two
and a merge as two over one. No scripts, no fonts and no links: the file stands on its own, in light and in dark.
"""

import math
from collections.abc import Iterator
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

from gateway.cli.graph_words import fate, printable, share, summary
from layout.layouts import Layout
from layout.ranges import LAST_HASH, RING_SIZE
from layout.segments import Segment

_RIGHT, _TOP, _BOTTOM = 24, 104, 20
# The narrowest active segment gets about 18 pixels, enough for an upright number, while the picture stays this wide.
_MIN_RING, _MAX_RING, _NARROWEST = 960, 2400, 18
# Time between two changes, and how much of it is the ribbon from parents to children.
_ROW, _LOW_ROW, _RIBBON = 56, 32, 14
_MANY_ROWS = 60
# A monospaced character is 0.6 em wide; a little more for fonts that are not quite that.
_FONT_SIZE, _TITLE_SIZE = 12, 16
_ADVANCE = 0.62
_TICKS = 8

_STYLE = """\
text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:12px;fill:#57606a}
.page{fill:#ffffff}.title{font-size:16px;font-weight:600;fill:#1f2328}.grid{stroke:#d8dee4;stroke-width:1}
.box{stroke-width:1}.active .box{fill:#1a7f6b;stroke:#14604f}.sealed .box{fill:#eef1f4;stroke:#afb8c1}
.active text{fill:#ffffff}.ribbon{fill:#afb8c1;fill-opacity:.45}
@media (prefers-color-scheme:dark){text{fill:#9198a1}.page{fill:#0d1117}.title{fill:#e6edf3}.grid{stroke:#262c36}
.active .box{fill:#3fb59b;stroke:#7ad3bf}.sealed .box{fill:#1c2229;stroke:#4a525c}.active text{fill:#04211b}
.ribbon{fill:#6e7781;fill-opacity:.4}}"""


def to_svg(layout: Layout, topic: str = "") -> str:
    """The picture as a complete SVG document."""
    plan = _Plan(layout)
    name = printable(topic) or "segments"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{plan.width}" height="{plan.height}" '
        f'viewBox="0 0 {plan.width} {plan.height}" role="img">',
        f"<title>{escape(name)}</title>",
        f"<style>{escape(_STYLE)}</style>",
        f'<rect class="page" width="{plan.width}" height="{plan.height}"/>',
        *_heading(layout, name, plan),
        *_axes(plan),
        *_ribbons(layout, plan),
    ]
    for segment in layout.segments.values():
        lines += _box(segment, layout, plan)
    return "\n".join([*lines, "</svg>"]) + "\n"


class _Plan:
    """Where everything goes: hashes to x, epochs to y."""

    def __init__(self, layout: Layout) -> None:
        narrowest = min((segment.range.size for segment in layout.active), default=RING_SIZE)
        self.ring = min(max(_MIN_RING, _NARROWEST * RING_SIZE // narrowest), _MAX_RING)
        # Only epochs at which something changed take room; prunes left nothing to see.
        self.epochs = sorted(
            {segment.created_at_epoch for segment in layout.segments.values()}
            | {segment.sealed_at_epoch for segment in layout.segments.values() if not segment.is_active}
        )
        # Old partitions of a migrated topic were never active in this layout: they get rows of their own above it.
        self.before = [key for key, segment in layout.segments.items() if _was_never_active(segment)]
        self.rows = {epoch: row for row, epoch in enumerate(self.epochs, start=len(self.before))}
        self.count = len(self.before) + len(self.epochs)
        self.row = _ROW if self.count <= _MANY_ROWS else _LOW_ROW
        self.labels = ["before"] * len(self.before) + [f"epoch {epoch}" for epoch in self.epochs]
        self.left = max(96, math.ceil(24 + max((_text_width(label, _FONT_SIZE) for label in self.labels), default=0)))
        self.width = self.left + self.ring + _RIGHT
        self.height = _TOP + self.count * self.row + _BOTTOM

    def x(self, boundary: int) -> float:
        return round(self.left + boundary * self.ring / RING_SIZE, 2)

    def y(self, row: int) -> int:
        return _TOP + row * self.row

    def span(self, segment: Segment) -> tuple[int, int]:
        """The first row of a segment's box and the row after its last."""
        if _was_never_active(segment):
            row = self.before.index(segment.segment_id)
            return row, row + 1
        last = self.count if segment.is_active else self.rows[segment.sealed_at_epoch]
        return self.rows[segment.created_at_epoch], last


def _was_never_active(segment: Segment) -> bool:
    return not segment.is_active and segment.sealed_at_epoch <= segment.created_at_epoch


def _heading(layout: Layout, name: str, plan: _Plan) -> Iterator[str]:
    title = _cut(name, plan.ring, _TITLE_SIZE)
    yield f'<text class="title" x="{plan.left}" y="34">{escape(title)}</text>'
    yield f'<text x="{plan.left}" y="56">{escape(summary(layout))}</text>'
    for state, x in (("active", plan.width - _RIGHT - 176), ("sealed", plan.width - _RIGHT - 80)):
        yield f'<g class="{state}"><rect class="box" rx="3" x="{x}" y="46" width="14" height="12"/></g>'
        yield f'<text x="{x + 22}" y="56">{state}</text>'


def _axes(plan: _Plan) -> Iterator[str]:
    bottom = plan.y(plan.count)
    for tick in range(_TICKS + 1):
        boundary = tick * RING_SIZE // _TICKS
        x = plan.x(boundary)
        yield f'<line class="grid" x1="{x}" y1="{_TOP - 8}" x2="{x}" y2="{bottom}"/>'
        yield f'<text x="{x}" y="{_TOP - 16}" text-anchor="middle">{min(boundary, LAST_HASH):04x}</text>'
    for row, label in enumerate(plan.labels):
        y = plan.y(row)
        middle = y + _RIBBON / 2 + (plan.row - _RIBBON) / 2 + 4
        yield f'<line class="grid" x1="{plan.left - 8}" y1="{y}" x2="{plan.width - _RIGHT}" y2="{y}"/>'
        yield f'<text x="{plan.left - 12}" y="{middle:g}" text-anchor="end">{escape(label)}</text>'


def _ribbons(layout: Layout, plan: _Plan) -> Iterator[str]:
    """A band from each parent down to each child, as wide as the hashes that they share."""
    for child in layout.segments.values():
        top_of_child = plan.y(plan.span(child)[0]) + _RIBBON / 2
        for parent in layout.parents(child.segment_id):
            bottom_of_parent = plan.y(plan.span(parent)[1]) - _RIBBON / 2
            left = plan.x(max(parent.range.start, child.range.start))
            right = plan.x(min(parent.range.end, child.range.end) + 1)
            inset = min(6.0, (right - left) / 4)
            yield (
                f'<rect class="ribbon" x="{left + inset:g}" y="{bottom_of_parent:g}" '
                f'width="{max(right - left - 2 * inset, 0):g}" height="{max(top_of_child - bottom_of_parent, 0):g}"/>'
            )


def _box(segment: Segment, layout: Layout, plan: _Plan) -> Iterator[str]:
    first, after = plan.span(segment)
    left, right = plan.x(segment.range.start), plan.x(segment.range.end + 1)
    inset = min(1.0, (right - left) / 8)
    x, width = left + inset, right - left - 2 * inset
    y, height = plan.y(first) + _RIBBON / 2, (after - first) * plan.row - _RIBBON
    state = "active" if segment.is_active else "sealed"
    yield f'<g class="{state}" id="segment-{segment.segment_id}"><title>{escape(_tooltip(segment, layout))}</title>'
    yield f'<rect class="box" rx="3" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'
    yield from _caption(segment, x + width / 2, y + height / 2, width, height)
    yield "</g>"


def _caption(segment: Segment, x: float, y: float, width: float, height: float) -> Iterator[str]:
    """The longest caption that fits, upright if only that does; in a box too small for any, the tooltip must do."""
    number = str(segment.segment_id)
    for caption in (f"{number}  {segment.range}  {share(segment)}", f"{number}  {segment.range}", number):
        length = _text_width(caption, _FONT_SIZE) + 6
        baseline = 'text-anchor="middle" dominant-baseline="central" xml:space="preserve"'
        if length <= width and height >= _FONT_SIZE:
            yield f'<text x="{x:g}" y="{y:g}" {baseline}>{escape(caption)}</text>'
            return
        if length <= height and width >= _FONT_SIZE + 2:
            yield f'<text transform="translate({x:g} {y:g}) rotate(-90)" {baseline}>{escape(caption)}</text>'
            return


def _tooltip(segment: Segment, layout: Layout) -> str:
    head = f"segment {segment.segment_id}, {segment.range}, {share(segment)}"
    if segment.is_active:
        return f"{head}, active since epoch {segment.created_at_epoch}"
    return f"{head}, epoch {segment.created_at_epoch} to {segment.sealed_at_epoch}, {fate(segment, layout)}"


def _text_width(text: str, size: int) -> float:
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text) * size * _ADVANCE


def _cut(text: str, width: float, size: int) -> str:
    if _text_width(text, size) <= width:
        return text
    while text and _text_width(text, size) > width - 2 * size * _ADVANCE:
        text = text[:-1]
    return f"{text}…"
