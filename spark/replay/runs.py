"""One replay from the trace to its result: checked, planned, run, judged, reported, removed from the store again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from rich.console import Console

from metadata.errors import StoreError
from metadata.store import open_store
from metadata.traces.directories import Trace
from spark.clocks import check_clock
from spark.errors import Interrupted, JobError
from spark.profiles import Profile
from spark.replay import job, plan, preflight
from spark.replay.namespaces import living, remove_run, runs_in
from spark.replay.node_metrics import check_metrics, sampled, usage
from spark.replay.plan import Options
from spark.replay.progress import followed
from spark.replay.report import page_of
from spark.replay.results import REPORT, RESULT, Result, as_json, environment_of, make_result, read_baseline
from spark.session import run_in, spark_session
from spark.traces import open_complete, read_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark.replay.plans import ReplayPlan

OBSERVATIONS: Final = "observations"


def dry_run(options: Options, profile: Profile, master: str | None) -> list[tuple[str, str]]:
    """What would happen, line by line. Everything is checked that can be without changing anything."""
    options.check()
    trace = open_complete(options.trace)
    _check_services(options)
    check_clock(trace)
    with spark_session("vela trace replay", master, job.settings(plan.longest_wait_s(trace, options))) as session:
        job.silence(session)
        _, planned, extent = run_in(session, lambda: _plan(session, trace, options, profile, plan.new_run_id()))
        return plan.description(options, planned, extent)


def replay(
    options: Options, profile: Profile, master: str | None, console: Console, errors: Console
) -> tuple[Result, Result | None]:
    """Run it; the result and that of the baseline. What is worth a look lies in `options.out` afterwards."""
    options.check()
    baseline = None if options.baseline is None else read_baseline(options.baseline)
    trace = open_complete(options.trace)
    _check_services(options)
    run_id = plan.new_run_id()
    out = options.out or Path(f"replay-{run_id}")
    check_clock(trace)
    settings = job.settings(plan.longest_wait_s(trace, options))
    with (
        _prepared(out) as observations,
        # Around the session: once that has ended, no task writes any more.
        removed_after(run_id, options.store_url, errors),
        _dropped_after(observations, keep=options.keep_observations),
        spark_session("vela trace replay", master, settings) as session,
    ):
        job.silence(session)
        result = run_in(session, lambda: _replayed(session, trace, options, profile, run_id, observations, console))
        (out / RESULT).write_bytes(as_json(result, whole=True))
        (out / REPORT).write_text(page_of(result, baseline).html(), encoding="utf-8")
    return result, baseline


async def clean(store_url: str) -> tuple[list[str], list[str]]:
    """Remove what killed runs have left; (the runs removed, the runs that live)."""
    dead: list[str] = []
    alive: set[str] = set()
    try:
        async with open_store(store_url) as store:
            runs = sorted(await runs_in(store))
            alive = await living(store, runs)
            dead = [run_id for run_id in runs if run_id not in alive]
            for run_id in dead:
                await remove_run(store, run_id)
    except* StoreError as group:
        raise JobError(f"The store cannot be cleaned: {_innermost(group)}") from None
    return dead, sorted(alive)


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def removed_after(run_id: str, store_url: str, errors: Console) -> Iterator[None]:
    """Remove from the store what a run has written, however it ends; where that fails, tell it with what ended it."""
    ended: BaseException | None = None
    try:
        yield
    except BaseException as error:
        ended = error
    try:
        trio.run(_remove, run_id, store_url)
        left = None
    except BaseException as error:
        left = _leftover(run_id, error)
        if _holds(error, KeyboardInterrupt):
            ended = KeyboardInterrupt()
    if isinstance(ended, KeyboardInterrupt):
        raise Interrupted(f"Interrupted; {left or 'what the replay had written is removed.'}") from None
    if left is not None and isinstance(ended, JobError):
        raise JobError(f"{ended} Also, {left}") from ended
    if left is not None:
        errors.print(f"vela: Mind that {left}", markup=False, highlight=False, soft_wrap=True)
    if ended is not None:
        raise ended


async def _remove(run_id: str, store_url: str) -> None:
    async with open_store(store_url) as store:
        await remove_run(store, run_id)


def _leftover(run_id: str, error: BaseException) -> str:
    """What is to be done after a removal that ended with this."""
    if _holds(error, KeyboardInterrupt):
        reason = "its removal was interrupted"
    elif _holds(error, StoreError):
        reason = str(_innermost(error)).rstrip(".")
    else:
        raise error
    return (
        f"what run {run_id} has written may still be in the store ({reason}): "
        "remove it, a minute from now, with: vela trace replay --clean --store URL"
    )


def _holds(error: BaseException, kind: type[BaseException]) -> bool:
    return isinstance(error, kind) or (isinstance(error, BaseExceptionGroup) and error.subgroup(kind) is not None)


@contextmanager
def _dropped_after(observations: Path, *, keep: bool) -> Iterator[None]:
    try:
        yield
    finally:
        if not keep:
            shutil.rmtree(observations, ignore_errors=True)


def _replayed(
    session: SparkSession,
    trace: Trace,
    options: Options,
    profile: Profile,
    run_id: str,
    observations: Path,
    console: Console,
) -> Result:
    timeline, planned, extent = _plan(session, trace, options, profile, run_id)
    trio.run(preflight.check_belonging, planned)
    with followed(planned, extent.events, console), sampled(options.admin_url) as samples:
        job.run_stage(session, timeline, planned, observations)
    # Imported here: without PySpark it could not even say that it needs that.
    from spark.replay.verdict import judge

    with console.status("counting"):
        verdict = judge(job.read_observations(session, observations, planned.tasks), options.window_s)
    master = str(session.sparkContext.master)
    node_seconds = usage(samples, verdict.started_us / 1e6)
    return make_result(verdict, options, planned, extent, node_seconds, environment_of(master, planned.tasks))


def _plan(
    session: SparkSession, trace: Trace, options: Options, profile: Profile, run_id: str
) -> tuple[DataFrame, ReplayPlan, plan.Extent]:
    from spark.timeline import timeline

    # Read three times, and made with several shuffles.
    changes = plan.cut(timeline(read_events(session, trace)), options.until_s).persist()
    extent = plan.extent_of(changes, options.speed)
    planned = plan.make_plan(options, run_id, profile, extent, job.slots_of(session))
    plan.check_descriptors(planned, job.descriptors_of(session, planned.tasks))
    return changes, planned, extent


def _check_services(options: Options) -> None:
    trio.run(preflight.check_target, options.target)
    trio.run(_check_store, options)
    if options.admin_url is not None:
        check_metrics(options.admin_url)


async def _check_store(options: Options) -> None:
    await preflight.check_store(options.store_url, allow_used=options.allow_used_store)


def check_place(out: Path) -> None:
    """Refuse what is neither free nor the result of an earlier replay, which is replaced."""
    if out.exists() and not out.is_dir():
        raise JobError(f"{out} is a file: give a directory for the results.")
    if out.is_dir() and any(out.iterdir()) and not (out / RESULT).is_file():
        raise JobError(f"{out} holds something else than an earlier replay: give another directory with --out.")


@contextmanager
def _prepared(out: Path) -> Iterator[Path]:
    """The directory of a run, and where in it the tasks leave what they saw; gone again if nothing came of it."""
    check_place(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        # Spark writes to a directory that is not there only; an earlier run with this --out may have kept it.
        shutil.rmtree(out / OBSERVATIONS, ignore_errors=True)
    except OSError as error:
        raise JobError(f"--out {out} cannot be made a directory: {error.strerror}.") from None
    try:
        yield out / OBSERVATIONS
    finally:
        if not any(out.iterdir()):
            out.rmdir()
