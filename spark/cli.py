"""The commands of the pipeline. `vela trace` hands its Spark commands over to these, so they appear under that name."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from spark.errors import JobError

app = typer.Typer(name="vela trace", no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)

Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="The Spark master.", show_default="local[*], or what spark-submit says"
    ),
]


@app.callback()
def trace() -> None:
    """Jobs over recorded traces, on Spark."""


# One line for each command, in the module of its own: app.command("synth")(spark.synth.command.synth) and so on.


def main() -> None:
    from metadata.traces.errors import TraceError

    try:
        app()
    except (JobError, TraceError) as error:
        print(f"vela: {error}", file=sys.stderr)
        sys.exit(1)
