"""A report as one HTML page: sections of figures, charts, tables and notes. All text is escaped; nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

from spark.pages import numbers
from spark.pages.charts import COLOURS, Chart
from spark.pages.style import CSS

State = Literal["", "good", "bad", "warn"]
Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure that matters, large. `hint` says what it is measured against; `state` colours it."""

    label: str
    value: str
    hint: str = ""
    state: State = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings. Numbers stand to the right; give text where a unit belongs to them.

    `numeric` names the columns that stand to the right although they hold text.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    numeric: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph: how to read what stands here, or what it leaves out."""

    text: str
    state: State = ""


Part = Tiles | Chart | Table | Note


@dataclass(frozen=True, slots=True)
class Section:
    heading: str
    parts: Sequence[Part]
    intro: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """`verdict` is one line under the title, in the colour of its state; `footer` is for versions and commands."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    verdict: Note | None = None
    footer: str = ""

    def html(self) -> str:
        """The page, to be written to a file as UTF-8."""
        verdict = (
            "" if self.verdict is None else f'<p class="verdict {self.verdict.state}">{_text(self.verdict.text)}</p>'
        )
        body = "\n".join(_section(number, section) for number, section in enumerate(self.sections, start=1))
        links = "".join(
            f'<a href="#part-{number}">{_text(section.heading)}</a>'
            for number, section in enumerate(self.sections, start=1)
        )
        return _PAGE.format(
            title=_text(self.title),
            css=CSS,
            subtitle=_text(self.subtitle),
            verdict=verdict,
            links=links,
            body=body,
            footer=_text(self.footer),
        )


_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<header>
<p class="brand">Vela</p>
<h1>{title}</h1>
<p class="subtitle">{subtitle}</p>
{verdict}
<nav>{links}</nav>
</header>
<main>
{body}
</main>
<footer>{footer}</footer>
</body>
</html>
"""


def _section(number: int, section: Section) -> str:
    intro = f'<p class="intro">{_text(section.intro)}</p>' if section.intro else ""
    parts = "\n".join(map(_part, section.parts))
    return f'<section id="part-{number}"><h2>{_text(section.heading)}</h2>{intro}\n{parts}\n</section>'


def _part(part: Part) -> str:
    match part:
        case Tiles(tiles):
            return f'<div class="tiles">{"".join(map(_tile, tiles))}</div>'
        case Chart():
            return _chart(part)
        case Table():
            return _table(part)
        case Note(text, state):
            return f'<p class="note {state}">{_text(text)}</p>'


def _tile(tile: Tile) -> str:
    hint = f'<span class="hint">{_text(tile.hint)}</span>' if tile.hint else ""
    return (
        f'<div class="tile {tile.state}"><span class="label">{_text(tile.label)}</span>'
        f'<span class="value">{_text(tile.value)}</span>{hint}</div>'
    )


def _chart(chart: Chart) -> str:
    legend = "".join(
        f'<span class="key"><i class="c{index % COLOURS + 1}"></i>{_text(name)}</span>'
        for index, name in enumerate(chart.legend)
    )
    note = f'<p class="under">{_text(chart.note)}</p>' if chart.note else ""
    # The picture was made by charts, which escapes what it is given.
    return (
        f"<figure><figcaption><b>{_text(chart.title)}</b><span>{legend}</span></figcaption>{chart.svg}{note}</figure>"
    )


def _table(table: Table) -> str:
    right = [
        name in table.numeric or _is_numeric([row[index] for row in table.rows])
        for index, name in enumerate(table.columns)
    ]
    classes = [' class="n"' if each else "" for each in right]
    head = "".join(f"<th{kind}>{_text(name)}</th>" for name, kind in zip(table.columns, classes, strict=True))
    rows = "\n".join(
        f"<tr>{''.join(f'<td{kind}>{_cell(cell)}</td>' for cell, kind in zip(row, classes, strict=True))}</tr>"
        for row in table.rows
    )
    caption = f"<caption>{_text(table.caption)}</caption>" if table.caption else ""
    return f'<div class="table"><table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'


def _is_numeric(cells: Sequence[Cell]) -> bool:
    return any(isinstance(cell, int | float) for cell in cells) and not any(isinstance(cell, str) for cell in cells)


def _cell(cell: Cell) -> str:
    if cell is None:
        return '<span class="none">–</span>'
    return _text(cell if isinstance(cell, str) else numbers.plain(cell))


def _text(text: str) -> str:
    return escape(text, quote=True)
