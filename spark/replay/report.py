"""The report of a replay: one HTML page with its plots, and a summary for the terminal, both from its result alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.table import Table as Grid

from spark.pages import numbers
from spark.pages.charts import Axis, Chart, Curve, line_chart, percentile_curve
from spark.pages.page import Note, Page, Section, State, Table, Tile, Tiles
from spark.replay.results import Result

_PERCENTILES: Final = ("p50", "p90", "p99", "p999", "max")
# A difference to the baseline that is more than the noise of two runs on one machine.
_NOTABLE: Final = 0.1
# What grows for the worse, with its unit; counts of faults are marked whenever they grow.
_COMPARED: Final[tuple[tuple[str, Callable[[Result], float], Callable[[float], str]], ...]] = (
    *((f"latency {name}", lambda run, name=name: run.latency_ms[name], numbers.millis) for name in _PERCENTILES),
    ("lateness p99", lambda run: run.lateness_ms["p99"], numbers.millis),
    ("bytes per watcher", lambda run: run.bytes_per_watcher["mean"], numbers.size),
    ("pushes per watcher", lambda run: run.pushes / run.watchers if run.watchers else 0.0, numbers.plain),
    ("node CPU, mean", lambda run: run.node["cpu_mean"] if run.node else 0.0, numbers.percent),
    ("node memory, largest", lambda run: run.node["memory_max_bytes"] if run.node else 0.0, numbers.size),
    ("wrong", lambda run: run.wrong, numbers.plain),
    ("missing", lambda run: run.missing, numbers.plain),
    ("duplicate", lambda run: run.duplicate, numbers.plain),
    ("out of order", lambda run: run.out_of_order, numbers.plain),
    ("lost", lambda run: run.lost, numbers.plain),
)


def page_of(result: Result, baseline: Result | None = None) -> Page:
    """The report."""
    sections = [
        Section("Result", [Tiles(_tiles(result)), *map(_doubt, result.doubts)]),
        Section("Latency", [_latency_chart(result, baseline), _percentile_table(result)], intro=_LATENCY_INTRO),
        Section("Over time", _time_charts(result)),
        Section("The node", _node_parts(result)),
    ]
    if baseline is not None:
        sections.insert(1, Section("Against the earlier run", [_comparison(result, baseline)]))
    sections.append(Section("How it was measured", _setting_parts(result)))
    return Page(
        title=f"Replay of {result.trace}",
        subtitle=(
            f"{result.events:,} events at {result.speed:g} times the recorded speed, seen by {result.watchers:,} "
            f"watchers on {result.connections:,} connections to {result.target}"
        ),
        sections=sections,
        verdict=Note(*verdict_line(result)),
        footer=f"Run {result.run}, Vela {result.environment.get('vela', '')}",
    )


_LATENCY_INTRO: Final = (
    "From when a write was due until a watcher shows it, or a later state of its topic. The lateness of the generator "
    "is part of it, and is shown beside it."
)


def verdict_line(result: Result) -> tuple[str, State]:
    """One sentence, and how good that is."""
    if result.failed:
        return f"{result.failed:,} of {result.events:,} events were not written: {result.first_error}", "bad"
    if result.converged != result.watchers:
        return f"{result.wrong:,} of {result.watchers:,} watchers did not reach the state of the store.", "bad"
    if not result.succeeded:
        return f"All {result.watchers:,} watchers converged, but were told wrong things: {_faults(result)}.", "bad"
    told = f"All {result.watchers:,} watchers converged"
    if not result.valid:
        return f"{told}, but the latencies of this run do not count.", "warn"
    return f"{told}; 99 % of what they were shown came within {numbers.millis(result.latency_ms['p99'])}.", "good"


def _faults(result: Result) -> str:
    """Those that there are, or all of them if there are none."""
    found = {kind: count for kind, count in result.faults.items() if count} or result.faults
    return ", ".join(f"{count:,} {kind}" for kind, count in found.items())


def print_summary(result: Result, baseline: Result | None, console: Console) -> None:
    """What matters, for the terminal."""
    line, state = verdict_line(result)
    style = {"good": "bold green", "warn": "bold yellow", "bad": "bold red"}.get(state, "bold")
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)
    for doubt in result.doubts:
        console.print(f"Not valid for latency: {doubt}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("")
    for name in _PERCENTILES:
        grid.add_column(name, justify="right")
    for label, values in (("latency", result.latency_ms), ("lateness", result.lateness_ms)):
        grid.add_row(label, *(numbers.millis(values[name]) for name in _PERCENTILES))
    console.print(grid)
    for label, text in _facts(result):
        console.print(f"{label + ':':<14}{text}", markup=False, highlight=False, soft_wrap=True)
    if baseline is not None:
        changed = Grid(title="against the earlier run", title_justify="left", box=None, pad_edge=False)
        for name in ("", "before", "now", "difference"):
            changed.add_column(name, justify="left" if not name else "right")
        for label, before, now, difference, worse in comparison_rows(result, baseline):
            changed.add_row(label, before, now, f"[red]{difference}[/]" if worse else difference)
        console.print(changed)


def comparison_rows(result: Result, baseline: Result) -> list[tuple[str, str, str, str, bool]]:
    """(what, before, now, difference, whether it is notably worse)."""
    rows = []
    for label, value, show in _COMPARED:
        before, now = value(baseline), value(result)
        if before:
            difference = f"{(now - before) / before:+.0%}"
            worse = now > before * (1 + _NOTABLE)
        else:
            difference = "same" if now == before else f"+{show(now)}"
            worse = now > before
        rows.append((label, show(before), show(now), difference, worse))
    return rows


def _facts(result: Result) -> list[tuple[str, str]]:
    counted = ", ".join(f"{count:,} {kind}" for kind, count in {"wrong": result.wrong, **result.faults}.items())
    facts = [
        ("watchers", f"{result.converged:,} of {result.watchers:,} converged; {counted}"),
        ("events", f"{result.events:,} in {numbers.seconds(result.duration_s)}, {result.events_per_s:,.0f}/s"),
        ("shown", f"{result.showings:,}, {result.cancelled:,} cancelled by a write at most "
                  f"{numbers.millis(result.allowance_ms)} later, {result.after_reconnect:,} after a reconnect"),
        ("pushes", f"{result.pushes:,}, each for {result.coalescing_ratio:.2f} changes; "
                   f"{numbers.size(result.bytes_per_watcher['mean'])} a watcher"),
    ]  # fmt: skip
    if result.skipped:
        facts.append(("skipped", f"{result.skipped:,} deletions of topics that were not there"))
    if result.node is not None:
        facts.append(
            (
                "node",
                f"{numbers.percent(result.node['cpu_mean'])} of a core, at most "
                f"{numbers.percent(result.node['cpu_max'])}; {numbers.size(result.node['memory_max_bytes'])}",
            )
        )
    return facts


def _tiles(result: Result) -> list[Tile]:
    faults = sum(result.faults.values())
    return [
        Tile(
            "converged",
            f"{result.converged:,} of {result.watchers:,}",
            "watchers that show what the store holds",
            "good" if result.wrong == 0 else "bad",
        ),
        Tile(
            "faults",
            numbers.plain(faults),
            _faults(result),
            "good" if not faults else "bad",
        ),
        Tile(
            "latency, p99",
            numbers.millis(result.latency_ms["p99"]),
            f"p50 {numbers.millis(result.latency_ms['p50'])}",
            "" if result.valid else "warn",
        ),
        Tile(
            "lateness, p99",
            numbers.millis(result.lateness_ms["p99"]),
            "of the generator",
            "good" if result.valid else "warn",
        ),
        Tile("events", numbers.short(result.events), f"{numbers.plain(round(result.events_per_s))}/s"),
        Tile("coalescing", f"{result.coalescing_ratio:.2f}", "changes for each push"),
        Tile("bytes per watcher", numbers.size(result.bytes_per_watcher["mean"]), f"{result.pushes:,} pushes in all"),
    ]


def _doubt(text: str) -> Note:
    return Note(f"Not valid for latency: {text}", "warn")


def _latency_chart(result: Result, baseline: Result | None) -> Chart:
    curves = [Curve("latency", result.latency_curve), Curve("lateness", result.lateness_curve)]
    if baseline is not None:
        curves.append(Curve("latency of the earlier run", baseline.latency_curve))
    return percentile_curve("Latency and lateness by percentile", curves, Axis("time", numbers.millis))


def _percentile_table(result: Result) -> Table:
    rows = [
        (label, *(numbers.millis(values[name]) for name in _PERCENTILES))
        for label, values in (("latency", result.latency_ms), ("lateness", result.lateness_ms))
    ]
    return Table(("", *_PERCENTILES), rows, numeric=_PERCENTILES)


def _time_charts(result: Result) -> list[Chart]:
    time = Axis("seconds since the start", numbers.plain)
    at = {each.second: each for each in result.seconds}
    seconds = range(max(at, default=-1) + 1)

    def curve(name: str, value: Callable[[int], float]) -> Curve:
        return Curve(name, tuple((float(second), value(second)) for second in seconds))

    ratios = tuple((float(each.second), each.showings / each.pushes) for each in result.seconds if each.pushes)
    return [
        line_chart(
            "Writes and pushes",
            [
                curve("writes/s", lambda second: at[second].writes if second in at else 0),
                curve("pushes/s", lambda second: at[second].pushes if second in at else 0),
            ],
            time,
            Axis("per second"),
        ),
        line_chart(
            "Changes for each push",
            [Curve("changes", ratios)],
            time,
            Axis("changes", numbers.plain),
            note="Without those that cancelled one another within a window.",
        ),
        line_chart(
            "Bytes per watcher",
            [curve("bytes", lambda second: at[second].bytes / max(1, result.watchers) if second in at else 0)],
            time,
            Axis("bytes per second", numbers.size),
        ),
    ]


def _node_parts(result: Result) -> list[Chart | Note]:
    if not result.node_seconds:
        return [Note("Its CPU and memory were not measured: give --admin-url, and they are read from its /metrics.")]
    time = Axis("seconds since the start", numbers.plain)
    cpu = Curve("CPU", tuple((each.second, each.cpu_share) for each in result.node_seconds))
    memory = Curve("memory", tuple((each.second, each.memory_bytes) for each in result.node_seconds))
    return [
        line_chart("CPU of the node", [cpu], time, Axis("share of one core", numbers.percent)),
        line_chart("Resident memory of the node", [memory], time, Axis("bytes", numbers.size)),
    ]


def _comparison(result: Result, baseline: Result) -> Table:
    rows = [
        (label, before, now, difference, "worse" if worse else "")
        for label, before, now, difference, worse in comparison_rows(result, baseline)
    ]
    return Table(
        ("", f"run {baseline.run}", f"run {result.run}", "difference", "notable"),
        rows,
        caption=f"Differences of more than {_NOTABLE:.0%} for the worse are marked.",
        numeric=(f"run {baseline.run}", f"run {result.run}", "difference"),
    )


def _setting_parts(result: Result) -> list[Table | Note]:
    clocks = [
        (str(clock.task), clock.host, f"{clock.offset_ms:+.2f} ms", f"± {clock.offset_error_ms:.2f} ms",
         numbers.seconds(clock.cpu_s))
        for clock in result.clocks
    ]  # fmt: skip
    facts = [
        *_facts(result),
        ("namespaces", f"{result.namespaces:,} with {result.topics:,} topics"),
        ("reconnects", f"{result.reconnects:,}, with {result.snapshots:,} snapshots"),
        *result.environment.items(),
    ]
    return [
        Table(("", ""), facts),
        Table(("task", "host", "clock to the store's", "known to", "CPU"), clocks, numeric=("clock to the store's",)),
    ]
