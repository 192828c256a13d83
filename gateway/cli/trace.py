"""`vela trace …`: records what changes, shows recordings, and starts the jobs over them."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.options import Json
from gateway.cli.terminal import print_json, print_parts, shown
from gateway.cli.trace_record import record

app = typer.Typer(no_args_is_help=True, help="Record what changes, look at recordings, and replay them as load.")

_RECORDING, _LOOKING, _JOBS = "Record traces", "Look at traces", "Run jobs over traces, on Spark"

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a trace.", show_default=False)]


app.command(rich_help_panel=_RECORDING)(record)


@app.command(rich_help_panel=_LOOKING)
def info(directory: Directory, as_json: Json = False) -> None:
    """Say what a trace holds: counts, rates, the busiest namespaces, gaps and the time it spans."""
    from gateway.cli import trace_info
    from metadata.traces.directories import open_trace
    from metadata.traces.summary import summarise

    trace = open_trace(directory)
    summary = summarise(trace)
    if as_json:
        print_json(trace_info.as_object(trace, summary))
    else:
        print_parts(*trace_info.parts(trace, summary))


@app.command(rich_help_panel=_LOOKING)
def cat(
    directory: Directory,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAMESPACE", help="Only events of this one, as tenant/namespace.")
    ] = None,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="Only events of topics with this name.")] = None,
    kind: Annotated[str | None, typer.Option(metavar="KIND", help="Only these, as in: created.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="From this time on, as in: 2026-01-31T12:00:00.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Before this time.")] = None,
    limit: Annotated[int | None, typer.Option(min=0, metavar="N", help="At most so many.")] = None,
    values: Annotated[bool, typer.Option("--values", help="The records, too, where they were recorded.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event and line.")] = False,
) -> None:
    """Print the events of a trace, one a line, in order. Times are in UTC."""
    from gateway.cli import trace_cat
    from metadata.traces.directories import open_trace

    choice = trace_cat.Choice(namespace, topic, _kind(kind), _moment("--from", since), _moment("--to", until), limit)
    found = trace_cat.events(open_trace(directory), choice, values=values)
    for line in (trace_cat.json_lines if as_json else trace_cat.lines)(found):
        print(line)


@app.command(rich_help_panel=_LOOKING)
def seal(directory: Directory) -> None:
    """Finish the trace of a recorder that was killed, so that jobs can read it.

    Ends with 1 if a part was damaged: what is whole of it is kept, the rest is set aside.
    """
    from gateway.cli.graph_words import printable
    from metadata.traces.completing import seal_logs
    from metadata.traces.directories import locked, open_trace

    open_trace(directory)  # before the lock leaves a file in what is no trace
    with locked(directory):
        found = seal_logs(directory)
    for part in found.parts:
        print(f"sealed {part.file}: {part.events} event{'' if part.events == 1 else 's'}, {part.bytes} bytes")
    wrong = [*(damage.sentence(directory) for damage in found.damages), *found.failures]
    if not found.parts and not wrong:
        print(f"{shown(str(directory))} is complete; nothing was to be done.")
    for text in wrong:
        print(f"vela: {printable(text)}", file=sys.stderr)
    if wrong:
        raise typer.Exit(1)


def _kind(text: str | None) -> str | None:
    from metadata.traces.events import Kind

    if text is None or text in set(Kind):
        return text
    raise typer.BadParameter(f"{text!r} is none of {', '.join(Kind)}.", param_hint="--kind")


def _moment(option: str, text: str | None) -> int | None:
    """Microseconds; a time without a zone is in UTC, as those that are printed."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time like 2026-01-31T12:00:00.", param_hint=option) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1e6)


_HANDED_OVER = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(rich_help_panel=_JOBS, context_settings=_HANDED_OVER, add_help_option=False)
def synth(context: typer.Context) -> None:
    """Make a trace of any length and width, in the shape of a recording or of a profile."""
    _hand_over("synth", context.args)


@app.command(rich_help_panel=_JOBS, context_settings=_HANDED_OVER, add_help_option=False)
def analyze(context: typer.Context) -> None:
    """Say what a trace means for a deployment: churn, bursts, what watchers would be sent, what a node would need."""
    _hand_over("analyze", context.args)


@app.command(rich_help_panel=_JOBS, context_settings=_HANDED_OVER, add_help_option=False)
def replay(context: typer.Context) -> None:
    """Make the changes of a trace again in a store, and see what watchers of its server are shown."""
    _hand_over("replay", context.args)


def _hand_over(command: str, arguments: list[str]) -> None:
    """Become the job: it gets the signals, and its exit code is the command's. Its help is the one that is shown.

    The server's package never imports Spark's. With -P a folder `spark` of the user's is not taken for it.
    """
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "spark", command, *arguments])
