"""The commands of the pipeline. `vela trace` hands its Spark commands over to these, so they appear under that name."""

from __future__ import annotations

import sys

import typer

from spark.analysis.command import analyze
from spark.errors import JobError
from spark.interrupts import ends_cleanly
from spark.options import Master as Master
from spark.replay.command import replay
from spark.synth.command import synth

app = typer.Typer(name="vela trace", no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.callback()
def trace() -> None:
    """Jobs over recorded traces, on Spark."""


# One line for each command; each is in the module of its own.
app.command("synth")(ends_cleanly("Interrupted; nothing is left of what was begun.")(synth))
app.command("analyze")(ends_cleanly("Interrupted; nothing is left of what was begun.")(analyze))
app.command("replay")(ends_cleanly("Interrupted.")(replay))


def main() -> None:
    from metadata.traces.errors import TraceError

    try:
        app(prog_name="vela trace")
    except (JobError, TraceError) as error:
        print(f"vela: {error}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        print(f"vela: {_sentence(error)}", file=sys.stderr)
        sys.exit(1)


def _sentence(error: Exception) -> str:
    """What nobody has worded: a file that cannot be used, or what Spark says first of a page."""
    if isinstance(error, OSError):
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}."
    if type(error).__module__.startswith(("pyspark", "py4j")):
        from spark.replay.job import reason_of

        return reason_of(str(error))
    first = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
    return f"{type(error).__name__}: {first}. This is a defect of Vela; please report it."
