"""What `vela trace analyze` refuses before Spark is started, each in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from metadata.traces.errors import TraceError
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.manifest import read_manifest
from spark.cli import app
from spark.errors import JobError
from tests.metadata.traces.made_traces import changes, patch_manifest, record
from tests.spark.recorded import recorded


def analyze(*arguments: str) -> Exception:
    """The error that it ends with."""
    result = CliRunner().invoke(app, ["analyze", *arguments])
    assert isinstance(result.exception, JobError | TraceError), result.output
    return result.exception


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--watchers", "0", "--watchers must be from 1"),
        ("--windows", "10,soon", "--windows is a list of milliseconds"),
        ("--windows", "70000", "--windows is a list of milliseconds up to 60,000"),
        ("--windows", ",".join("1" * 21), "--windows takes up to 20"),
        ("--reconnects", "nan", "--reconnects must be from 0"),
        ("--downtime", "5", "--downtime: '5' is no duration"),
        ("--push-cost-us", "0", "--push-cost-us must be above 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, option: str, value: str, said: str) -> None:
    assert said in str(analyze(str(tmp_path), "--out", str(tmp_path / "out"), option, value))


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    assert "is empty" in str(analyze(str(tmp_path), "--out", str(tmp_path / "out")))


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    recorded(tmp_path / "trace", [TraceEvent(1, 1, Kind.GAP, 1)])
    error = analyze(str(tmp_path / "trace"), "--out", str(tmp_path))
    assert "holds something else than an earlier analysis" in str(error)


def test_a_clock_that_goes_back_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    recorded(tmp_path / "trace", [TraceEvent(1, 1, Kind.GAP, 2_000_000), TraceEvent(2, 1, Kind.BASE_END, 1_000_000)])
    error = analyze(str(tmp_path / "trace"), "--out", str(tmp_path / "out"))
    assert "goes back by 1 s at row 2" in str(error)
    assert not (tmp_path / "out").exists()


def test_a_trace_that_lost_a_part_is_refused(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace", changes(0, 2), changes(2, 2))
    (first, _) = read_manifest(trace).parts
    patch_manifest(trace, parts=(first,))
    (trace / "part-000002.parquet").unlink()
    assert "lists parts with 2 events" in str(analyze(str(trace), "--out", str(tmp_path / "out")))
