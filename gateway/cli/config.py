"""`vela config …`: what the server's settings are, and why."""

from __future__ import annotations

import json
import sys

import typer

from gateway.cli.options import Json, with_settings
from gateway.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Look at the server's settings.")


@app.callback()
def group() -> None:
    """Keeps `show` a subcommand: Typer would make the only command of a group the group itself."""


@app.command()
@with_settings()
def show(settings: Settings, as_json: Json = False) -> None:
    """Show every setting that `vela serve` would use with these flags, and where its value comes from."""
    rows = [(row.name, value, origin) for row, value, origin in settings.shown()]
    if as_json:
        print(json.dumps([{"name": n, "value": v, "origin": o} for n, v, o in rows], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("setting", "value", "from"):
        table.add_column(heading, overflow="fold")
    for name, value, origin in rows:
        table.add_row(name, value, origin, style="dim" if origin == "default" else "bold")
    console = Console() if sys.stdout.isatty() else Console(width=1_000, no_color=True)
    console.print(table, highlight=False, markup=False)
