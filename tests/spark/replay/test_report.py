"""The result of a replay as a page, as a summary and as JSON, and beside an earlier one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spark.errors import JobError
from spark.replay.node_metrics import NodeSample, NodeSecond, parse_page, usage
from spark.replay.report import comparison_rows, page_of, print_summary, verdict_line
from spark.replay.results import as_json, read_baseline
from tests.spark.replay.results import PERCENTILES, result


def summary(*runs: Any) -> str:
    now, before = (*runs, None)[:2]
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_summary(now, before, console)
    return console.export_text()


def test_json_begins_with_the_names_that_others_rely_on() -> None:
    printed = json.loads(as_json(result(), whole=False))
    assert list(printed)[:10] == [
        "watchers",
        "events",
        "converged",
        "wrong",
        "missing",
        "duplicate",
        "out_of_order",
        "valid",
        "lateness_ms",
        "latency_ms",
    ]
    assert tuple(printed["latency_ms"]) == tuple(printed["lateness_ms"]) == PERCENTILES
    assert "seconds" not in printed


def test_result_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_bytes(as_json(result(), whole=True))
    assert read_baseline(tmp_path) == read_baseline(tmp_path / "result.json") == result()


def test_baseline_of_a_version_that_knew_no_lost_writes_is_read(tmp_path: Path) -> None:
    told = json.loads(as_json(result(), whole=True))
    del told["lost"], told["allowance_ms"]
    (tmp_path / "result.json").write_text(json.dumps(told))
    assert read_baseline(tmp_path).lost == 0


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"watchers": "many"}'])
def test_baseline_that_is_none_is_refused_in_a_sentence(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(JobError, match="baseline"):
        read_baseline(tmp_path)


@pytest.mark.parametrize(
    ("changed", "said", "state"),
    [
        ({}, "All 2 watchers converged; 99 %", "good"),
        ({"valid": False}, "do not count", "warn"),
        ({"converged": 1, "wrong": 1}, "1 of 2 watchers did not", "bad"),
        ({"duplicate": 3}, "All 2 watchers converged, but were told wrong things: 3 duplicate.", "bad"),
        ({"lost": 1, "out_of_order": 2}, "wrong things: 1 lost, 2 out of order.", "bad"),
        ({"failed": 3, "first_error": "The store is full."}, "3 of 30 events were not written: The store is", "bad"),
    ],
)
def test_verdict_is_one_line(changed: dict[str, Any], said: str, state: str) -> None:
    line, shown = verdict_line(result(**changed))
    assert said in line
    assert shown == state


@pytest.mark.parametrize(
    ("changed", "succeeded"),
    [
        ({}, True),
        ({"valid": False}, True),
        ({"cancelled": 100}, True),
        ({"converged": 1}, False),
        *(({fault: 1}, False) for fault in ("failed", "wrong", "missing", "duplicate", "out_of_order", "lost")),
    ],
)
def test_run_succeeds_if_all_was_written_and_watchers_were_told_all_of_it_rightly(
    changed: dict[str, Any], succeeded: bool
) -> None:
    assert result(**changed).succeeded is succeeded


def test_page_holds_every_part_and_escapes_what_it_shows() -> None:
    html = page_of(result(trace="<sample>", doubts=("too late",)), result(run="aaaaaa")).html()
    for part in (
        "Replay of &lt;sample&gt;",
        "Latency and lateness by percentile",
        "latency of the earlier run",
        "Writes and pushes",
        "Changes for each push",
        "Bytes per watcher",
        "CPU of the node",
        "Resident memory of the node",
        "run aaaaaa",
        "Not valid for latency: too late",
        "local[2]",
    ):
        assert part in html, part
    assert "<sample>" not in html
    assert "http://" not in html.replace("http://www.w3.org", "")


def test_page_says_what_was_not_measured() -> None:
    html = page_of(result(node=None, node_seconds=(), seconds=(), latency_curve=(), lateness_curve=())).html()
    assert "--admin-url" in html


def test_summary_tells_what_counts() -> None:
    told = summary(result(skipped=1, doubts=("It was late.",)))
    for part in ("2 of 2 converged", "4 cancelled", "2.85 changes", "20 % of a core", "1 deletions", "It was late."):
        assert part in told, part


def test_what_got_worse_is_marked_and_what_did_not_is_not() -> None:
    before = result(latency_ms=dict.fromkeys(PERCENTILES, 30.0))
    rows = {label: (difference, worse) for label, _, _, difference, worse in comparison_rows(result(wrong=1), before)}
    assert rows["latency p99"] == ("+33%", True)
    assert rows["lateness p99"] == ("+0%", False)
    assert rows["wrong"] == ("+1", True)
    assert rows["missing"] == ("same", False)
    assert "+33%" in summary(result(), before)


def test_node_is_read_from_its_metrics() -> None:
    page = "# HELP x\nprocess_cpu_seconds_total 12.5\nprocess_resident_memory_bytes 8.1e+07\nother 1\n"
    assert parse_page(page, 3.0) == NodeSample(3.0, 12.5, 8.1e7)
    assert parse_page("nothing here", 3.0) is None


def test_cpu_is_what_was_used_between_two_samples() -> None:
    samples = [
        NodeSample(5.0, 0.5, 4.0),
        NodeSample(8.0, 1.0, 5.0),
        NodeSample(10.0, 1.0, 5.0),
        NodeSample(12.0, 2.0, 6.0),
        NodeSample(12.0, 2.0, 6.0),
    ]
    assert usage(samples, 9.0) == [NodeSecond(1.0, 0.0, 5.0), NodeSecond(3.0, 0.5, 6.0)]
