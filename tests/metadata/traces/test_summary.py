"""What is counted in a trace."""

from pathlib import Path

from metadata.traces.directories import open_trace
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.summary import Gap, NamespaceChurn, summarise
from tests.metadata.traces.made_traces import NOON_US, change, record, start, synthesise


def test_changes_are_counted_by_namespace_and_bases_only_as_topics(tmp_path: Path) -> None:
    events = [
        *start(0, ["a", "b"]),
        change(4, "a", kind=Kind.CREATED, namespace="busy/one"),
        change(5, "a", namespace="busy/one"),
        change(6, "a"),
    ]
    found = summarise(open_trace(record(tmp_path, events)))
    assert found.churn == (NamespaceChurn("busy/one", 2, 1), NamespaceChurn("shop/eu", 1, 2))
    assert (found.events, found.changes, found.topics) == (7, 3, 3)
    assert found.by_kind == {"gap": 1, "base": 2, "base_end": 1, "created": 1, "changed": 2}


def test_parts_and_unfinished_logs_are_counted_together(tmp_path: Path) -> None:
    directory = record(tmp_path, [change(0), change(1)], [change(2), change(3)], sealed=1)
    assert summarise(open_trace(directory)).changes == 4


def test_the_rate_is_over_the_time_that_was_recorded_and_the_peak_over_one_second(tmp_path: Path) -> None:
    second, later = 1_000_000, NOON_US + 3_600_000_000
    times = [(1, NOON_US), (1, NOON_US + 1), (1, NOON_US + 4 * second), (2, later), (2, later + 1), (2, later + second)]
    times += [(2, later + second + place) for place in (1, 2, 3)]
    events = [change(seq, run=run, taken_us=at) for seq, (run, at) in enumerate(times)]
    found = summarise(open_trace(record(tmp_path, events[:7], events[7:], runs=2)))
    assert found.duration_us == 5 * second + 3
    assert found.mean_per_s is not None
    assert round(found.mean_per_s, 3) == 1.8
    assert (found.peak_per_s, found.peak_at_us) == (4, later + second)
    assert (found.first_us, found.last_us) == (NOON_US, later + second + 3)


def test_the_gaps_of_many_buckets_at_once_are_one(tmp_path: Path) -> None:
    def gap(seq: int, cause: str, bucket: int | None) -> TraceEvent:
        return TraceEvent(seq=seq, run=1, kind=Kind.GAP, taken_us=NOON_US + seq, detail=cause, bucket=bucket)

    events = [
        gap(0, "start", None),
        *(gap(seq, "connection", seq) for seq in (1, 2, 3)),
        gap(4, "log", 3),
        change(5),
        gap(6, "log", 3),
        gap(7, "log", None),
    ]
    found = summarise(open_trace(record(tmp_path, events[:3], events[3:])))
    assert [(gap.cause, gap.buckets) for gap in found.gaps] == [
        ("start", None),
        ("connection", 3),
        ("log", 1),
        ("log", 1),
        ("log", None),
    ]
    assert found.gaps[0] == Gap(NOON_US, 1, "start", None)
    assert found.gaps_by_cause == {"start": 1, "connection": 1, "log": 3}


def test_a_trace_without_events_has_no_times(tmp_path: Path) -> None:
    found = summarise(open_trace(record(tmp_path)))
    assert (found.events, found.first_us, found.duration_us, found.mean_per_s, found.peak_at_us) == (
        0,
        None,
        0,
        None,
        None,
    )


def test_synthetic_events_need_not_be_numbered_through(tmp_path: Path) -> None:
    found = summarise(open_trace(synthesise(tmp_path, [change(3), change(9, namespace="other/one")])))
    assert found.faults.in_order
    assert len(found.churn) == 2
