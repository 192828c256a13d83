"""The commands of the pipeline. `vela trace` hands its Spark commands over to these, so they appear under that name."""

from __future__ import annotations

import sys

import typer

from spark.analysis.command import analyze
from spark.errors import JobError
from spark.options import Master as Master
from spark.replay.command import replay
from spark.synth.command import synth

app = typer.Typer(name="vela trace", no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.callback()
def trace() -> None:
    """Jobs over recorded traces, on Spark."""


# One line for each command; each is in the module of its own.
app.command("synth")(synth)
app.command("analyze")(analyze)
app.command("replay")(replay)


def main() -> None:
    from metadata.traces.errors import TraceError

    try:
        app(prog_name="vela trace")
    except (JobError, TraceError) as error:
        print(f"vela: {error}", file=sys.stderr)
        sys.exit(1)
