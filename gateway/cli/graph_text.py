"""The DAG drawn with box characters: time runs to the right, the hash ring runs down, one row per range.

A segment stands in the row where its range starts. Segments that exist at the same time never overlap, so neither do
their rows, and the lines of a split or merge stay inside the rows of the range that it is about.
"""

from collections import defaultdict
from collections.abc import Iterator

from gateway.cli.graph_words import fate, printable, share, summary
from layout.layouts import Layout
from layout.segments import Segment

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_BOX = {
    _LEFT | _RIGHT: "─",
    _UP | _DOWN: "│",
    _DOWN | _RIGHT: "┌",
    _DOWN | _LEFT: "┐",
    _UP | _RIGHT: "└",
    _UP | _LEFT: "┘",
    _UP | _DOWN | _RIGHT: "├",
    _UP | _DOWN | _LEFT: "┤",
    _DOWN | _LEFT | _RIGHT: "┬",
    _UP | _LEFT | _RIGHT: "┴",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
}
# The junction between two columns: a blank, a line, the corner, a line, a blank.
_GAP = 5
# Stands before the first column when older ones were left out.
_CUT = "┄ "
# Two blanks, "0000-ffff", two blanks, "0.00153 %".
_RANGE_WIDTH = 22
# The drawing shows them all; the list below it is for reading.
_SEALED_LISTED = 32

_ACTIVE, _SEALED, _LINE, _TITLE = "1;32", "2", "2", "1"


class _TangledError(Exception):
    """Two things would be drawn in one place; only a record that another writer broke does that."""


def draw_text(layout: Layout, topic: str = "", *, width: int = 100, color: bool = False) -> str:
    """The drawing, at most `width` wide as far as one generation of segments allows, with or without colours."""
    canvas = _Canvas()
    if topic:
        canvas.line(printable(topic), _TITLE)
    canvas.line(summary(layout), "")
    canvas.line("", "")
    try:
        drawing, hidden = _dag(layout, width)
    except _TangledError:
        drawing, hidden = _plain_list(layout), 0
    canvas.extend(drawing)
    canvas.line("", "")
    if hidden:
        canvas.line(f"{hidden} older generations do not fit: widen the terminal, or draw an SVG.", _LINE)
    canvas.line("● active   ○ sealed   share of the hash ring on the right", _LINE)
    sealed = [segment for segment in layout.segments.values() if not segment.is_active]
    if sealed:
        canvas.line("", "")
        canvas.extend(_sealed_list(layout, sealed))
    return canvas.text(color)


class _Canvas:
    """Rows of characters, each with its style."""

    def __init__(self) -> None:
        self.rows: list[list[tuple[str, str]]] = []

    def line(self, text: str, style: str) -> None:
        self.rows.append([(c, style) for c in text])

    def extend(self, other: "_Canvas") -> None:
        self.rows += other.rows

    def put(self, row: int, x: int, text: str, style: str) -> None:
        while len(self.rows) <= row:
            self.rows.append([])
        cells = self.rows[row]
        cells += [(" ", "")] * (x + len(text) - len(cells))
        for position, character in enumerate(text, start=x):
            if cells[position][0] != " ":
                raise _TangledError
            cells[position] = (character, style)

    def text(self, color: bool) -> str:
        return "".join(f"{''.join(_inked(cells, color)).rstrip()}\n" for cells in self.rows)


def _inked(cells: list[tuple[str, str]], color: bool) -> Iterator[str]:
    before = ""
    for character, style in cells:
        if color and style != before:
            yield f"\x1b[0;{style}m" if style else "\x1b[0m"
            before = style
        yield character
    if before:
        yield "\x1b[0m"


def _dag(layout: Layout, width: int) -> tuple[_Canvas, int]:
    """The drawing, and how many of the oldest columns were left out to keep to the width."""
    births = _births(layout)
    columns = max(births.values(), default=0) + 1
    ends = {key: _end(segment, births, columns) for key, segment in layout.segments.items()}
    label_width = len(f"● {max(layout.segments, default=0)}")
    room = width - _RANGE_WIDTH - len(_CUT)
    first = max(0, columns - max(1, (room + _GAP) // (label_width + _GAP)))
    shown = [segment for key, segment in layout.segments.items() if ends[key] > first]
    rows = {start: row for row, start in enumerate(sorted({segment.range.start for segment in shown}))}
    margin = len(_CUT) if first else 0
    canvas = _Canvas()

    def x_of(column: int) -> int:
        return margin + (column - first) * (label_width + _GAP)

    edge = x_of(columns - 1) + label_width
    junctions: dict[int, tuple[set[int], set[int]]] = defaultdict(lambda: (set(), set()))
    for segment in shown:
        key, row = segment.segment_id, rows[segment.range.start]
        x = x_of(max(births[key], first))
        if births[key] <= first and layout.parents(key):
            canvas.put(row, 0, _CUT, _LINE)
        label = f"{'●' if segment.is_active else '○'} {key}"
        canvas.put(row, x, label, _ACTIVE if segment.is_active else _SEALED)
        after = x + len(label) + 1
        if segment.is_active:
            canvas.put(row, after, "┄" * (edge - after), _LINE)
            canvas.put(row, edge, f"  {segment.range}  {share(segment):>9}", "")
        elif children := layout.children(key):
            corner = x_of(ends[key]) - 3
            canvas.put(row, after, "─" * (corner - after), _LINE)
            lefts, rights = junctions[_event(segment)]
            lefts.add(row)
            rights.update(rows[child.range.start] for child in children)
            for child in children:
                if births[child.segment_id] != ends[key]:
                    raise _TangledError
    for segment in shown:
        event = _event(segment)
        if event in junctions:
            lefts, rights = junctions.pop(event)
            _draw_junction(canvas, x_of(ends[segment.segment_id]) - 3, lefts, rights)
    return canvas, first


def _births(layout: Layout) -> dict[int, int]:
    """Each segment's column: one after the last of its parents. A parent has the lower id, so it comes first."""
    births: dict[int, int] = {}
    for key in sorted(layout.segments):
        births[key] = 1 + max((births.get(p, -1) for p in layout.segments[key].parent_ids), default=-1)
    return births


def _end(segment: Segment, births: dict[int, int], columns: int) -> int:
    """The column before which a segment ends: that of its children, or the edge of the drawing."""
    if segment.is_active:
        return columns
    return min(
        (births[child] for child in segment.child_ids if child in births), default=births[segment.segment_id] + 1
    )


def _event(segment: Segment) -> int:
    """One split or merge: all the segments it sealed have the same children."""
    return min(segment.child_ids, default=-1)


def _draw_junction(canvas: _Canvas, x: int, lefts: set[int], rights: set[int]) -> None:
    top, bottom = min(lefts | rights), max(lefts | rights)
    for row in range(top, bottom + 1):
        arms = (
            (_UP if row > top else 0)
            | (_DOWN if row < bottom else 0)
            | (_LEFT if row in lefts else 0)
            | (_RIGHT if row in rights else 0)
        )
        canvas.put(row, x, _BOX[arms], _LINE)
        if row in rights:
            canvas.put(row, x + 1, "─", _LINE)


def _plain_list(layout: Layout) -> _Canvas:
    canvas = _Canvas()
    for segment in layout.active:
        canvas.line(f"● {segment.segment_id}  {segment.range}  {share(segment):>9}", _ACTIVE)
    return canvas


def _sealed_list(layout: Layout, sealed: list[Segment]) -> _Canvas:
    canvas = _Canvas()
    newest = sorted(sealed, key=lambda segment: segment.segment_id)[-_SEALED_LISTED:]
    if len(newest) < len(sealed):
        canvas.line(f"… {len(sealed) - len(newest)} older sealed segments", _LINE)
    width = len(str(newest[-1].segment_id))
    for segment in newest:
        epochs = f"epoch {segment.created_at_epoch} to {segment.sealed_at_epoch}"
        line = f"○ {segment.segment_id:<{width}}  {segment.range}  {epochs}, {fate(segment, layout)}"
        canvas.line(line, _SEALED)
    return canvas
