"""What a trace holds, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gateway.cli.terminal import amount, cell, table
from metadata.traces.directories import DATA, Trace
from metadata.traces.order import OrderFaults
from metadata.traces.summary import Gap, NamespaceChurn, Summary

BUSIEST = 10
# In a terminal; programs get all that were kept.
GAPS_SHOWN = 10


def as_object(trace: Trace, summary: Summary) -> Mapping[str, Any]:
    """Everything under names that stay; times in UTC."""
    manifest = trace.manifest
    return {
        "directory": str(trace.directory),
        "kind": manifest.kind,
        "format_version": manifest.version,
        "complete": not trace.logs,
        "values": manifest.values,
        "anonymised": manifest.anonymised,
        "runs": manifest.runs,
        "parts": len(manifest.parts),
        "unfinished_logs": len(trace.logs),
        "bytes": bytes_on_disk(trace),
        "first": timestamp(summary.first_us),
        "last": timestamp(summary.last_us),
        "duration_s": summary.duration_us / 1e6,
        "events": summary.events,
        "events_by_kind": dict(summary.by_kind),
        "changes": summary.changes,
        "dropped": manifest.dropped,
        "values_missing": manifest.values_missing,
        "damaged": msgspec.to_builtins(manifest.damaged),
        "changes_per_s": {
            "mean": summary.mean_per_s,
            "peak": summary.peak_per_s,
            "peak_at": timestamp(summary.peak_at_us),
        },
        "namespaces": len(summary.churn),
        "topics": summary.topics,
        "busiest_namespaces": [asdict(each) | {"share": _share(each, summary)} for each in summary.churn[:BUSIEST]],
        "gaps": sum(summary.gaps_by_cause.values()),
        "gaps_by_cause": dict(summary.gaps_by_cause),
        "first_gaps": [
            {"time": timestamp(gap.at_us), "run": gap.run, "cause": gap.cause, "buckets": gap.buckets}
            for gap in summary.gaps
        ],
        "order": asdict(summary.faults),
    }


def bytes_on_disk(trace: Trace) -> int:
    files = [path for path in (trace.directory / DATA).rglob("*") if path.is_file()]
    logs = [log for log in trace.logs if log.exists()]
    return sum(path.stat().st_size for path in (*trace.files, *files, *logs))


def parts(trace: Trace, summary: Summary) -> Iterator[RenderableType]:
    """What is printed, from top to bottom."""
    yield _heading(trace)
    yield _facts(trace, summary)
    if any(each.changes for each in summary.churn):
        yield Text()
        yield _busiest(summary)
    if summary.gaps:
        yield Text()
        yield _gaps(summary)


def timestamp(at_us: int | None) -> str | None:
    """A time of a trace, to the microsecond; None where there is none, or none that a calendar has."""
    if at_us is None:
        return None
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)
    except OverflowError:
        return None
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _heading(trace: Trace) -> Text:
    manifest = trace.manifest
    text = cell(str(trace.directory), "bold")
    text.append(f"\n{manifest.kind}, {'with' if manifest.values else 'without'} values", "dim")
    text.append(", names anonymised" if manifest.anonymised else "", "dim")
    if manifest.seed is not None:
        text.append(f", seed {manifest.seed}", "dim")
    if trace.logs:
        text.append(f"\nunfinished: {len(trace.logs)} part{_s(len(trace.logs))} still to be sealed", "yellow")
    return text.append("\n")


def _facts(trace: Trace, summary: Summary) -> Table:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, show_header=False)
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, fact in _told(trace, summary):
        made.add_row(name, fact)
    return made


def _told(trace: Trace, summary: Summary) -> Iterator[tuple[str, RenderableType]]:
    manifest = trace.manifest
    if summary.first_us is not None and summary.last_us is not None:
        yield "time", f"{_second(summary.first_us)} to {_second(summary.last_us)}"
        runs = f" in {manifest.runs} runs" if manifest.runs > 1 else ""
        yield "duration", f"{timedelta(seconds=round(summary.duration_us / 1e6))}{runs}"
    yield "events", f"{summary.events:,}"
    for kind, count in sorted(summary.by_kind.items(), key=lambda each: -each[1]):
        yield "", cell(f"{count:>12,} {kind}")
    if summary.mean_per_s is not None and summary.peak_at_us is not None:
        peak = f"at most {summary.peak_per_s:,} in one second, at {_second(summary.peak_at_us)}"
        yield "changes", f"{summary.mean_per_s:,.3g} a second on average, {peak}"
    yield (
        "names",
        f"{summary.topics:,} topic{_s(summary.topics)} in {len(summary.churn):,} namespace{_s(len(summary.churn))}",
    )
    files = f"{len(manifest.parts)} part{_s(len(manifest.parts))}, " if manifest.kind == "recorded" else ""
    yield "on disk", f"{files}{amount(bytes_on_disk(trace))}"
    if manifest.dropped:
        yield "dropped", Text(f"{manifest.dropped:,} changes that the recorder could not keep", "yellow")
    if manifest.values_missing:
        yield "values", Text(f"{manifest.values_missing:,} that the recorder could not keep are missing", "yellow")
    for damage in manifest.damaged:
        kept = f"{damage.kept:,} event{_s(damage.kept)} kept"
        yield "damaged", cell(f"{damage.file} from byte {damage.at:,} on; {kept} of it", "yellow")
    for warning in _faults(summary.faults):
        yield "order", Text(warning, "yellow")


def _faults(faults: OrderFaults) -> Iterator[str]:
    if faults.seq_breaks:
        places = f"{faults.seq_breaks:,} place{_s(faults.seq_breaks)}"
        yield f"events are missing or moved in {places}, first at seq {faults.first_break}"
    if faults.time_reversals:
        largest = faults.largest_time_reversal_us / 1e6
        yield f"the recorder's time goes back {_times(faults.time_reversals)}, by up to {largest:.3g} s"
    if faults.store_reversals:
        largest = faults.largest_store_reversal_ms / 1e3
        yield f"the store's time goes back {_times(faults.store_reversals)}, by up to {largest:.3g} s"
    if faults.clock_jumps:
        largest = faults.largest_clock_jump_ms / 1e3
        yield f"the clocks of store and recorder jump {_times(faults.clock_jumps)}, by up to {largest:.3g} s"


def _busiest(summary: Summary) -> Table:
    numbers = ("changes", "share", "topics")
    made = table("busiest namespaces", *numbers, right=numbers, whole=numbers)
    for each in summary.churn[:BUSIEST]:
        if each.changes:
            made.add_row(cell(each.namespace), f"{each.changes:,}", f"{_share(each, summary):.1%}", f"{each.topics:,}")
    return made


def _gaps(summary: Summary) -> Table:
    made = table("gaps", "run", "cause", "buckets", right=("run", "buckets"), whole=("run", "cause"))
    for gap in summary.gaps[:GAPS_SHOWN]:
        made.add_row(_second(gap.at_us), str(gap.run), cell(gap.cause), _buckets(gap))
    left = sum(summary.gaps_by_cause.values()) - GAPS_SHOWN
    if left > 0:
        made.add_row(f"and {left:,} more", "", "", "", style="dim")
    return made


def _buckets(gap: Gap) -> str:
    return "all" if gap.buckets is None else str(gap.buckets)


def _share(each: NamespaceChurn, summary: Summary) -> float:
    return each.changes / summary.changes if summary.changes else 0.0


def _second(at_us: int) -> str:
    exact = timestamp(at_us)
    return "a time outside the calendar" if exact is None else f"{exact[:19].replace('T', ' ')}Z"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
