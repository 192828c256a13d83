"""How commands print what they were answered: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from shutil import get_terminal_size
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

# The last millisecond that `datetime` can show.
LATEST_MS = 253_402_300_799_999
# A pipe has no width; a table must not be folded to a guessed one.
_PIPE_WIDTH = 1_000_000
_ROOM_FOR_WHOLE = 72


def is_narrow(columns: int) -> bool:
    """Whether a terminal has fewer columns than these; a pipe has as many as it takes."""
    return sys.stdout.isatty() and get_terminal_size().columns < columns


def table(*headings: str, right: Collection[str] = (), whole: Collection[str] = ()) -> Table:
    """An empty table. What does not fit is folded and never cut: half a name is of no use.

    Columns named in `whole` leave it to the others to be folded.
    """
    from rich.table import Table

    # With less room than all such columns of a table may need, they would be cut.
    cramped = is_narrow(_ROOM_FOR_WHOLE)

    made = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        made.add_column(
            heading,
            justify="right" if heading in right else "left",
            overflow="fold",
            no_wrap=heading in whole and not cramped,
        )
    return made


def shown(text: str) -> str:
    """Text that others have chosen, in a sentence of ours: it moves no cursor."""
    from gateway.cli.graph_words import printable

    return printable(text)


def cell(text: str, style: str = "") -> Text:
    """Text that others have chosen: it moves no cursor, and what looks like markup in it is none."""
    from rich.text import Text

    from gateway.cli.graph_words import printable

    return Text(printable(text), style)


def print_parts(*parts: RenderableType) -> None:
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH, no_color=True)
    for part in parts:
        console.print(part, highlight=False)


def print_json(content: bytes | object) -> None:
    """A value, or the JSON of an answer with all that this version does not know of."""
    value = json.loads(content) if isinstance(content, bytes) else content
    print(json.dumps(value, indent=2, ensure_ascii=False))


def moment(at_ms: int) -> str:
    """A time of the server's, nothing where it is not known."""
    if not 0 < at_ms <= LATEST_MS:
        return ""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def amount(size: float) -> str:
    """Bytes, to three digits."""
    unit = "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if size < 1_024:
            break
        size, unit = size / 1_024, larger
    return f"{size:.3g} {unit}" if size < 1_000 else f"{size:,.0f} {unit}"


def per_second(rate: float) -> str:
    """So many in a second, to a tenth where there are few."""
    if rate < 0.05:
        return "0" if rate <= 0 else "<0.1"
    return f"{rate:.1f}" if rate < 10 else f"{rate:,.0f}"
