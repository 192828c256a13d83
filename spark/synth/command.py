"""`vela trace synth`: a trace of any length and width, in the shape of a recording or of a profile."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from spark.durations import parse_duration, show_duration
from spark.errors import JobError
from spark.options import Master
from spark.profiles import load_profile
from spark.session import run_in, spark_session

if TYPE_CHECKING:
    from rich.table import Table

    from spark.synth.job import Synthesised
    from spark.synth.plans import Wanted

_SHORTEST_S: Final = 1
_LONGEST_S: Final = 366 * 86_400
_MOST_TIMES: Final = 1_000_000
_MOST_NAMESPACES: Final = 10_000_000
_MOST_EVENTS: Final = 10**12


def synth(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where to put it: a directory that is not there.")],
    source: Annotated[Path | None, typer.Option("--from", metavar="DIR", help="The trace to learn from.")] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="The profile to follow, in TOML.")
    ] = None,
    times: Annotated[
        float | None,
        typer.Option(
            "--namespaces-x", metavar="N", help="With --from: that many times as many namespaces.", show_default="1"
        ),
    ] = None,
    namespaces: Annotated[
        int | None,
        typer.Option(
            "--namespaces",
            metavar="N",
            help="With --profile: so many namespaces.",
            show_default="as the profile says",
        ),
    ] = None,
    duration: Annotated[str, typer.Option("--duration", metavar="TIME", help="How long, as in 90m or 24h.")] = "1h",
    events: Annotated[
        int | None,
        typer.Option(
            "--events",
            metavar="N",
            help="About so many: all of it happens faster or slower.",
            show_default="as the rates say",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed gives the same trace.")] = 1,
    master: Master = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make a trace of any length and width, in the shape of a recording or of a profile."""
    wanted = _wanted(duration, seed, events)
    if (source is None) == (profile is None):
        raise JobError("Give one of --from, with a trace to learn from, and --profile, with a file to follow.")
    if source is not None:
        if namespaces is not None:
            raise JobError("--namespaces goes with --profile; with --from say --namespaces-x.")
        made = _from_trace(source, _checked_times(times), wanted, out, master)
    else:
        assert profile is not None
        if times is not None:
            raise JobError("--namespaces-x goes with --from; with --profile say --namespaces.")
        made = _from_profile(profile, namespaces, wanted, out, master)
    if as_json:
        sys.stdout.write(msgspec.json.encode(made).decode() + "\n")
    else:
        _show(made)


def _wanted(duration: str, seed: int, events: int | None) -> Wanted:
    from spark.synth.plans import Wanted

    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise JobError(f"--duration: {error}") from None
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise JobError(f"--duration {duration} is out of range: say something from 1s to 366d.")
    if not 0 <= seed < 2**63:
        raise JobError(f"--seed {seed} is out of range: say a number from 0 to {2**63 - 1}.")
    if events is not None and not 1 <= events <= _MOST_EVENTS:
        raise JobError(f"--events {events} is out of range: say a number from 1 to {_MOST_EVENTS}.")
    return Wanted(round(seconds * 1_000_000), seed, events)


def _checked_times(times: float | None) -> float:
    if times is not None and not (math.isfinite(times) and 0 < times <= _MOST_TIMES):
        raise JobError(f"--namespaces-x {times:g} is out of range: say a number above 0, {_MOST_TIMES} at most.")
    return 1.0 if times is None else times


def _from_trace(source: Path, times: float, wanted: Wanted, out: Path, master: str | None) -> Synthesised:
    from spark.clocks import check_clock
    from spark.synth.job import appearing_whole, fill
    from spark.synth.plans import plan_from_trace
    from spark.traces import open_complete

    trace = open_complete(source)
    check_clock(trace)
    with appearing_whole(out) as scratch, spark_session("vela trace synth", master) as session:
        return run_in(session, lambda: fill(session, plan_from_trace(session, trace, times, wanted), scratch, out))


def _from_profile(profile: Path, namespaces: int | None, wanted: Wanted, out: Path, master: str | None) -> Synthesised:
    from spark.synth.job import appearing_whole, fill
    from spark.synth.plans import plan_from_profile

    load = load_profile(profile).shape
    if namespaces is not None:
        if not 1 <= namespaces <= _MOST_NAMESPACES:
            raise JobError(f"--namespaces {namespaces} is out of range: say a number from 1 to {_MOST_NAMESPACES}.")
        load = msgspec.structs.replace(load, namespaces=namespaces)
    plan = plan_from_profile(load, wanted)
    with appearing_whole(out) as scratch, spark_session("vela trace synth", master) as session:
        return run_in(session, lambda: fill(session, plan, scratch, out))


def _show(made: Synthesised) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    seconds = max(made.written_s, 0.001)
    console.print(
        f"{made.events:,} events in {made.namespaces:,} namespaces over {show_duration(made.hours * 3_600)}, "
        f"from {made.topics_at_start:,} topics on: {made.bytes / 1e6:,.1f} MB in {made.files:,} files, "
        f"{show_duration(made.written_s)} ({made.events / seconds:,.0f} events/s)",
        highlight=False,
    )
    console.print(_table(made))
    part = "" if made.compared_namespaces == made.namespaces else f", by {made.compared_namespaces:,} namespaces"
    console.print(f"[bold]{escape(made.verdict)}[/bold]{part}; {escape(made.out)} has the trace", highlight=False)


def _table(made: Synthesised) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("distribution", "source", "result", "", "distance", "by"):
        table.add_column(heading, justify="right" if heading in ("source", "result", "distance") else "left")
    for each in made.distances:
        table.add_row(
            each.of,
            f"{each.source:,.4g}",
            f"{each.result:,.4g}",
            each.unit,
            f"{each.distance:.3f}",
            each.measure if each.close else f"{each.measure}  far",
        )
    return table
