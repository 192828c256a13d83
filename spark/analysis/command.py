"""`vela trace analyze`: tables, a page and a summary of what a trace says about a deployment."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from spark.analysis.findings import Question
from spark.analysis.outputs import REPORT, SUMMARY, placing
from spark.analysis.summary import PUSH_COST_US, Summary, summarise
from spark.durations import parse_duration
from spark.errors import JobError
from spark.options import Master
from spark.pages import numbers
from spark.session import run_in, spark_session

if TYPE_CHECKING:
    from rich.table import Table

DEFAULT_WINDOWS: Final = "0,10,25,50,100,200"
# The default of `vela serve --coalesce`.
NODE_WINDOW_MS: Final = 50
_LONGEST_WINDOW_MS: Final = 60_000
_MOST_WINDOWS: Final = 20
_MOST_WATCHERS: Final = 100_000_000


def analyze(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The trace.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to put the tables and the report.")],
    watchers: Annotated[
        int, typer.Option("--watchers", metavar="N", help="Watchers of namespaces, spread evenly over these.")
    ] = 1_000,
    windows: Annotated[
        str, typer.Option("--windows", metavar="MS,…", help="Windows of --coalesce to compare, in milliseconds.")
    ] = DEFAULT_WINDOWS,
    reconnects: Annotated[
        float, typer.Option("--reconnects", metavar="N", help="How often a watcher reconnects, per hour.")
    ] = 1.0,
    downtime: Annotated[
        str, typer.Option("--downtime", metavar="TIME", help="How long it is away each time, as in 500ms or 5s.")
    ] = "5s",
    push_cost_us: Annotated[
        float, typer.Option("--push-cost-us", metavar="US", help="CPU time that a node spends on one push.")
    ] = PUSH_COST_US,
    master: Master = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Say what a trace means for a deployment: churn, bursts, what watchers would be sent, what a node would need."""
    asked = _question(watchers, windows, reconnects, downtime, push_cost_us)
    summary = run(directory, out, asked, master)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())
    else:
        from rich.console import Console

        console = Console()
        console.print(_figures(summary))
        console.print(_windows(summary))
        console.print(f"The tables are in {out}, and the report is {out / REPORT}", markup=False, soft_wrap=True)


def run(directory: Path, out: Path, asked: Question, master: str | None) -> Summary:
    """Analyse a trace and put everything into `out`."""
    from spark.clocks import check_clock
    from spark.traces import open_complete

    trace = open_complete(directory)
    check_clock(trace)
    with placing(out) as scratch, spark_session("vela trace analyze", master) as session:
        from spark.analysis.job import analyse
        from spark.analysis.report import page

        found = run_in(session, lambda: analyse(session, trace, asked, scratch))
        summary = summarise(str(directory), asked, found)
        (scratch / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
        (scratch / REPORT).write_text(page(summary, found).html(), encoding="utf-8")
    return summary


def _question(watchers: int, windows: str, reconnects: float, downtime: str, push_cost_us: float) -> Question:
    if not 1 <= watchers <= _MOST_WATCHERS:
        raise JobError(f"--watchers must be from 1 to {_MOST_WATCHERS:,}.")
    if not (math.isfinite(reconnects) and 0 <= reconnects <= 3_600):
        raise JobError("--reconnects must be from 0 to 3600 per hour.")
    if not (math.isfinite(push_cost_us) and 0 < push_cost_us <= 1e6):
        raise JobError("--push-cost-us must be above 0 and at most 1000000.")
    try:
        away = parse_duration(downtime)
    except ValueError as error:
        raise JobError(f"--downtime: {error}") from None
    return Question(
        watchers=watchers,
        # What a node would need is told for the window that it has unless somebody changes it.
        windows_ms=tuple(sorted({*_window_list(windows), NODE_WINDOW_MS})),
        node_window_ms=NODE_WINDOW_MS,
        reconnects_per_hour=reconnects,
        downtime_us=round(away * 1e6),
        push_cost_us=push_cost_us,
    )


def _window_list(text: str) -> list[int]:
    pieces = [piece.strip().removesuffix("ms").strip() for piece in text.split(",")]
    if not all(piece.isascii() and piece.isdecimal() and int(piece) <= _LONGEST_WINDOW_MS for piece in pieces):
        raise JobError(f"--windows is a list of milliseconds up to {_LONGEST_WINDOW_MS:,}, as in {DEFAULT_WINDOWS}.")
    if len(pieces) > _MOST_WINDOWS:
        raise JobError(f"--windows takes up to {_MOST_WINDOWS}.")
    return [int(piece) for piece in pieces]


def _figures(summary: Summary) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    churn, node, back = summary.churn, summary.node, summary.reconnects
    skipped = "-" if back.skipped_share is None else numbers.percent(back.skipped_share)
    for label, text in (
        ("trace", f"{summary.trace}: {summary.namespaces:,} namespaces, {numbers.seconds(summary.duration_s)}"),
        (
            "changes",
            f"{summary.operations:,} ({churn.creates:,} created, {churn.deletes:,} deleted, {churn.changes:,} changed, "
            f"{churn.splits:,} splits and merges)",
        ),
        ("rates", f"{numbers.short(churn.per_hour)}/h, at most {summary.peak_per_second:,}/s"),
        ("bursts", f"{summary.bursts:,}, of {summary.burst_sizes.p50} (p50) to {summary.burst_sizes.max} changes"),
        ("reconnects", f"{skipped} need no snapshot, which saves {numbers.size(back.saved_bytes)}"),
        (
            "one node",
            f"{numbers.short(node.pushes_per_s)} pushes/s, at most {numbers.short(node.peak_pushes_per_s)}; "
            f"{numbers.percent(node.cpu)} of a core, at most {numbers.percent(node.peak_cpu)}; "
            f"{numbers.size(node.memory_bytes_own_connections)} (estimates)",
        ),
    ):
        table.add_row(f"[bold]{label}[/]", text)
    return table


def _windows(summary: Summary) -> Table:
    from rich.table import Table

    table = Table(title=f"What {summary.watchers:,} watchers would be sent", title_justify="left")
    for heading in ("window", "pushes", "bytes", "per watcher", "names per diff", "mean wait"):
        table.add_column(heading, justify="right")
    for row in summary.coalescing:
        table.add_row(
            f"{row.window_ms} ms",
            f"{row.pushes:,}",
            numbers.size(row.bytes),
            numbers.size(row.bytes_per_watcher),
            numbers.plain(row.names_per_diff),
            numbers.millis(row.mean_wait_ms),
        )
    return table
