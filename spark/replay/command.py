"""`vela trace replay`: a trace made again as load on a server, and the verdict over what its watchers saw."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark.durations import parse_duration
from spark.errors import JobError
from spark.options import Master
from spark.profiles import Profile, load_profile

if TYPE_CHECKING:
    from spark.replay.plan import Options


def replay(
    trace: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="The trace, recorded or synthetic.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="URL", help="The server to watch, as in pulsar://127.0.0.1:6650.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="VELA_STORE", metavar="URL", help="The store of that server, to write into."),
    ] = None,
    watchers: Annotated[int, typer.Option("--watchers", metavar="N", help="Watchers in all.")] = 2_000,
    connections: Annotated[int, typer.Option("--connections", metavar="N", help="Connections that they share.")] = 500,
    topic_share: Annotated[
        float | None,
        typer.Option(
            "--topic-share",
            metavar="SHARE",
            help="How many of them watch the segments of one topic instead of a namespace.",
            show_default="0.1, or as the profile says",
        ),
    ] = None,
    speed: Annotated[float, typer.Option("--speed", metavar="X", help="Times the recorded speed.")] = 10.0,
    master: Master = None,
    tasks: Annotated[
        int | None,
        typer.Option("--tasks", metavar="N", help="Tasks that share the load.", show_default="one for each slot"),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", metavar="FILE", help="How connections drop and come back, in TOML.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Only so much of the trace, as in 5m.", show_default="all"),
    ] = None,
    settle: Annotated[
        str, typer.Option("--settle", metavar="TIME", help="How long watchers may take to catch up at the end.")
    ] = "10s",
    coalesce: Annotated[
        str,
        typer.Option(
            "--coalesce", metavar="TIME", help="For how long the server gathers changes, as its own --coalesce."
        ),
    ] = "50ms",
    max_lateness: Annotated[
        str, typer.Option("--max-lateness", metavar="TIME", help="A run whose writes were later (p99) is not valid.")
    ] = "20ms",
    admin_url: Annotated[
        str | None, typer.Option("--admin-url", metavar="URL", help="Where the server tells its CPU and memory.")
    ] = None,
    values: Annotated[
        bool, typer.Option("--values/--no-values", help="Write the recorded values, or made ones of the same epochs.")
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="For result and report.", show_default="./replay-ID"),
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", metavar="DIR", help="An earlier run to compare with.")
    ] = None,
    keep_observations: Annotated[
        bool, typer.Option("--keep-observations", help="Keep every write and push as Parquet in the --out directory.")
    ] = False,
    allow_used_store: Annotated[
        bool, typer.Option("--allow-used-store", help="Replay into a store that holds other topics, beside them.")
    ] = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="Remove from the store what killed replays have left; no trace is needed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make the changes of a trace again in a store, and see what watchers of its server are shown.

    The namespaces of a run get a prefix, and are removed after it. Ends with 0 if every watcher converged and none was
    told anything wrong on the way, else with 1.
    """
    from spark.replay.plan import Options

    if store is None:
        raise JobError("Give --store with the URL of the store that the server works on.")
    if clean:
        _clean(store)
        return
    if trace is None or target is None:
        raise JobError("Give a trace and a server, as in: vela trace replay DIR --target URL --store URL")
    shape = Profile() if profile is None else load_profile(profile)
    if topic_share is None:
        topic_share = 0.1 if profile is None else shape.watchers.topic_share
    options = Options(
        trace=trace,
        target=target,
        store_url=store,
        watchers=watchers,
        connections=connections,
        topic_share=topic_share,
        speed=speed,
        tasks=tasks,
        until_s=None if until is None else _seconds("--until", until),
        settle_s=_seconds("--settle", settle),
        window_s=_seconds("--coalesce", coalesce),
        max_lateness_s=_seconds("--max-lateness", max_lateness),
        admin_url=admin_url,
        out=out,
        baseline=baseline,
        values=values,
        keep_observations=keep_observations,
        allow_used_store=allow_used_store,
    )
    if dry:
        _dry_run(options, shape, master, as_json)
    else:
        _replay(options, shape, master, as_json)


def _replay(options: Options, profile: Profile, master: str | None, as_json: bool) -> None:
    from rich.console import Console

    from spark.replay import results, runs
    from spark.replay.report import print_summary

    errors = Console(stderr=True)
    # Programs that read the JSON want nothing else, unless somebody looks on.
    progress = Console(stderr=True, quiet=as_json and not errors.is_terminal)
    result, baseline = runs.replay(options, profile, master, progress, errors)
    if as_json:
        sys.stdout.write(results.as_json(result, whole=False).decode() + "\n")
    else:
        console = Console()
        print_summary(result, baseline, console)
        out = options.out or Path(f"replay-{result.run}")
        console.print(f"report:       {out / results.REPORT}", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if result.succeeded else 1)


def _dry_run(options: Options, profile: Profile, master: str | None, as_json: bool) -> None:
    import msgspec

    from spark.replay import runs

    lines = runs.dry_run(options, profile, master)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(dict(lines)), indent=2).decode() + "\n")
        return
    for label, text in lines:
        print(f"{label + ':':<14}{text}")
    print("Nothing was changed; without --dry-run this would run now.")


def _clean(store: str) -> None:
    import trio

    from spark.replay import runs

    removed, alive = trio.run(runs.clean, store)
    for run_id in removed:
        print(f"removed what replay {run_id} had left")
    for run_id in alive:
        print(f"replay {run_id} was running within the last minute: left alone")
    if not removed and not alive:
        print("no replay has left anything")


def _seconds(option: str, text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise JobError(f"{option}: {error}") from None
