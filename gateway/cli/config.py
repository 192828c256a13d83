"""`vela config …`: what the server's settings are, and why."""

from __future__ import annotations

import typer

from gateway.cli.options import Json, with_settings
from gateway.cli.terminal import cell, print_json, print_parts, table
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
        print_json([{"name": n, "value": v, "origin": o} for n, v, o in rows])
        return
    made = table("setting", "value", "from")
    for name, value, origin in rows:
        made.add_row(*map(cell, (name, value, origin)), style="dim" if origin == "default" else "bold")
    print_parts(made)
