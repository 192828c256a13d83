"""The page of an analysis."""

from __future__ import annotations

from collections.abc import Sequence

from spark.analysis.findings import Bin, Findings, at_share
from spark.analysis.summary import Summary, WindowSummary
from spark.pages import numbers
from spark.pages.charts import Axis, Chart, Curve, Mark, bar_chart, line_chart, percentile_curve
from spark.pages.page import Note, Page, Section, Table, Tile, Tiles

# Evenly spaced where each nine takes as much room as the one before, as far as there may be something to see.
_SHARES = tuple(1 - 10 ** (-step / 8) for step in range(33))
# Sizes of bursts are shown by powers of two.
_MOST_BARS = 24
_RULE = (
    "The rule is the gateway's own: the first change after quiet is told at once, later ones when the window since the "
    "last push has passed, as the difference between what was told and what is true then. Changes of layouts are "
    "nothing to a watcher of a namespace. Reading changes back takes a node some milliseconds, which gathers more than "
    "the smallest windows do here."
)
_ESTIMATES = (
    "CPU and memory are estimates: {push:g} µs for a push and {topic:g} µs for a changed topic, 4.28 KB for a "
    "connection and 0.36 KB for a further watch, as published with the benchmarks of Vela. Measure on your machine, "
    "and give --push-cost-us."
)


def page(summary: Summary, found: Findings) -> Page:
    return Page(
        title="What this trace means for a deployment",
        subtitle=f"{summary.trace}: {summary.operations:,} changes in {summary.namespaces:,} namespaces over "
        f"{numbers.seconds(summary.duration_s)}, and {summary.watchers:,} watchers.",
        sections=(
            _at_a_glance(summary),
            _churn(summary, found),
            _arrivals(summary, found),
            _coalescing(summary),
            _reconnects(summary),
            _node(summary, found),
        ),
        footer="Made by vela trace analyze. The tables beside this file hold every figure, by namespace.",
    )


def _at_a_glance(summary: Summary) -> Section:
    chosen, first = _chosen(summary), summary.coalescing[0]
    saved = numbers.percent(1 - chosen.pushes / first.pushes) if first.pushes else "–"
    back = summary.reconnects
    return Section(
        "At a glance",
        (
            Tiles(
                (
                    Tile("Changes per hour", numbers.short(summary.churn.per_hour), f"{summary.operations:,} in all"),
                    Tile("Busiest second", f"{summary.peak_per_second:,}", f"{summary.peak_per_100ms:,} within 100 ms"),
                    Tile(
                        "Pushes saved",
                        saved,
                        f"by a window of {summary.node.window_ms} ms against {first.window_ms} ms",
                    ),
                    Tile(
                        "Without a snapshot",
                        "–" if back.skipped_share is None else numbers.percent(back.skipped_share),
                        f"of the reconnects after {numbers.seconds(back.downtime_s)} away",
                    ),
                    Tile(
                        "CPU of one node",
                        numbers.percent(summary.node.peak_cpu),
                        "of a core at the peak, an estimate",
                    ),
                )
            ),
        ),
    )


def _churn(summary: Summary, found: Findings) -> Section:
    churn = summary.churn
    found_later = (
        (Note(f"{churn.inferred:,} changes were found after gaps of the recording: they count, but not for times."),)
        if churn.inferred
        else ()
    )
    return Section(
        "Churn",
        (
            Tiles(
                (
                    Tile("Created", f"{churn.creates:,}"),
                    Tile("Deleted", f"{churn.deletes:,}"),
                    Tile("Changed", f"{churn.changes:,}"),
                    Tile("Splits and merges", f"{churn.splits:,}", "steps of epochs"),
                    Tile("There from the start", f"{churn.seeds:,}"),
                )
            ),
            _over_time("Changes over time", found.rates, found.extent.bin_s, "changes per second"),
            Table(
                (
                    "busiest namespaces",
                    "watchers",
                    "created",
                    "deleted",
                    "changed",
                    "splits",
                    "per hour",
                    "gap p50",
                    "largest burst",
                    "most in 1 s",
                ),
                tuple(
                    (
                        each.namespace,
                        each.watchers,
                        each.creates,
                        each.deletes,
                        each.changes,
                        each.splits,
                        numbers.short(each.per_hour),
                        None if each.gap_us_p50 is None else numbers.micros(each.gap_us_p50),
                        each.burst_max,
                        each.peak_per_second,
                    )
                    for each in found.busiest
                ),
                numeric=("per hour", "gap p50"),
            ),
            *found_later,
        ),
        intro="What happened to topics, and where.",
    )


def _arrivals(summary: Summary, found: Findings) -> Section:
    curve = tuple((share, float(value)) for share in _SHARES if (value := at_share(found.gaps_us, share)) is not None)
    return Section(
        "How changes come",
        (
            percentile_curve(
                "Time between one change and the next",
                [Curve("all namespaces", curve)],
                Axis("time", numbers.micros, log=True),
            ),
            _burst_chart(found.burst_sizes),
        ),
        intro="Bursts are what a window gathers. A burst is a run of changes of one namespace less than 100 ms apart.",
    )


def _coalescing(summary: Summary) -> Section:
    rows = summary.coalescing
    return Section(
        "What watchers would be sent",
        (
            line_chart(
                "Pushes by window",
                [Curve("pushes", tuple((float(row.window_ms), float(row.pushes)) for row in rows))],
                Axis("window", numbers.millis),
                Axis("pushes to all watchers"),
                marks=(Mark(float(summary.node.window_ms), "default"),),
            ),
            Table(
                ("window", "diffs", "pushes", "bytes", "per watcher", "names per diff", "mean wait", "pushes left"),
                tuple(
                    (
                        f"{row.window_ms} ms",
                        row.diffs,
                        row.pushes,
                        numbers.size(row.bytes),
                        numbers.size(row.bytes_per_watcher),
                        numbers.plain(row.names_per_diff),
                        numbers.millis(row.mean_wait_ms),
                        numbers.percent(row.pushes / rows[0].pushes) if rows[0].pushes else None,
                    )
                    for row in rows
                ),
                numeric=("window", "bytes", "per watcher", "names per diff", "mean wait", "pushes left"),
            ),
            Note(_RULE),
        ),
        intro=f"{summary.watchers:,} watchers, spread evenly over {summary.namespaces:,} namespaces, without filters.",
    )


def _reconnects(summary: Summary) -> Section:
    back = summary.reconnects
    if back.skipped_share is None:
        return Section("Reconnects", (Note("No reconnects were asked for."),))
    return Section(
        "Reconnects",
        (
            Tiles(
                (
                    Tile(
                        "Reconnects",
                        numbers.short(back.reconnects),
                        f"{back.per_watcher_per_hour:g} per watcher and hour",
                    ),
                    Tile(
                        "Without a snapshot", numbers.percent(back.skipped_share), "the hash says that nothing changed"
                    ),
                    Tile("Snapshots saved", numbers.size(back.saved_bytes)),
                    Tile("Snapshots sent", numbers.size(back.sent_bytes)),
                )
            ),
            Note(
                "Expected values for reconnects that are spread evenly over time. A set that changed and changed back "
                "while a watcher was away needs no snapshot either, and is not counted as saved."
            ),
        ),
        intro=f"A watcher that was away for {numbers.seconds(back.downtime_s)} brings the hash of the set it knows.",
    )


def _node(summary: Summary, found: Findings) -> Section:
    node = summary.node
    return Section(
        "What one node would need",
        (
            Tiles(
                (
                    Tile(
                        "Pushes per second",
                        numbers.short(node.peak_pushes_per_s),
                        f"busiest second; {numbers.short(node.pushes_per_s)} on average",
                    ),
                    Tile(
                        "Sent per second",
                        numbers.size(node.peak_bytes_per_s),
                        f"busiest second; {numbers.size(node.bytes_per_s)} on average",
                    ),
                    Tile(
                        "CPU",
                        f"{numbers.percent(node.peak_cpu)}",
                        f"of a core in the busiest second; {numbers.percent(node.cpu)} on average",
                        state="warn" if node.peak_cpu > 0.7 else "",
                    ),
                    Tile(
                        "Memory for watchers",
                        numbers.size(node.memory_bytes_own_connections),
                        f"each on its own connection; {numbers.size(node.memory_bytes_shared_connections)} if shared",
                    ),
                )
            ),
            _over_time("Pushes over time", found.pushes, found.extent.bin_s, "pushes per second"),
            Note(_ESTIMATES.format(push=node.push_cost_us, topic=node.topic_cost_us)),
        ),
        intro=f"All watchers on one node, with a window of {node.window_ms} ms.",
    )


def _over_time(title: str, bins: Sequence[Bin], seconds: int, label: str) -> Chart:
    """Quiet times are zero, so they are drawn."""
    known = {each.second: each for each in bins}
    last = max(known, default=0)
    steps = range(0, last + seconds, seconds)
    mean = tuple((float(at), known[at].total / seconds if at in known else 0.0) for at in steps)
    most = tuple((float(at), float(known[at].most) if at in known else 0.0) for at in steps)
    curves = [Curve("mean", mean)] if seconds == 1 else [Curve("busiest second", most), Curve("mean", mean)]
    note = "" if seconds == 1 else f"Each point stands for {numbers.seconds(seconds)}."
    return line_chart(title, curves, Axis("time", numbers.seconds, seconds=True), Axis(label), note=note)


def _burst_chart(sizes: Sequence[tuple[int, int]]) -> Chart:
    by_power: dict[int, int] = {}
    for size, count in sizes:
        power = size.bit_length() - 1
        by_power[power] = by_power.get(power, 0) + count
    powers = range(max(by_power, default=-1) + 1)[:_MOST_BARS]
    labels = ["1" if power == 0 else f"{1 << power}–{(2 << power) - 1}" for power in powers]
    counts = [float(by_power.get(power, 0)) for power in powers]
    return bar_chart(
        "Sizes of bursts", labels, [("bursts", counts)], Axis("changes in a burst"), Axis("bursts", log=True)
    )


def _chosen(summary: Summary) -> WindowSummary:
    return next(row for row in summary.coalescing if row.window_ms == summary.node.window_ms)
