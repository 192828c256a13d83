from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from metadata.traces.errors import TraceError
from metadata.traces.manifest import Manifest, write_manifest
from spark.cli import app
from spark.errors import JobError
from tests.metadata.traces.made_traces import change, synthesise

PROFILE = str(Path(__file__).parents[3] / "profiles" / "steady.toml")


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["synth", *arguments])
    assert isinstance(result.exception, JobError | TraceError), result.output
    return str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Give one of --from"),
        (["--from", "x", "--profile", PROFILE], "Give one of --from"),
        (["--from", "x", "--namespaces", "3"], "--namespaces goes with --profile"),
        (["--profile", PROFILE, "--namespaces-x", "3"], "--namespaces-x goes with --from"),
        (["--from", "x", "--namespaces-x", "0"], "--namespaces-x 0 is out of range"),
        (["--from", "x", "--namespaces-x", "-2"], "out of range"),
        (["--from", "x", "--namespaces-x", "nan"], "out of range"),
        (["--from", "x", "--namespaces-x", "1e12"], "out of range"),
        (["--profile", PROFILE, "--namespaces", "0"], "--namespaces 0 is out of range"),
        (["--profile", PROFILE, "--duration", "24"], "is no duration"),
        (["--profile", PROFILE, "--duration", "0s"], "--duration 0s is out of range"),
        (["--profile", PROFILE, "--duration", "9999d"], "out of range"),
        (["--profile", PROFILE, "--seed", "-1"], "--seed -1 is out of range"),
        (["--profile", PROFILE, "--events", "0"], "--events 0 is out of range"),
        (["--profile", "absent.toml"], "absent.toml cannot be read"),
        (["--from", "absent"], "There is no absent"),
    ],
)
def test_what_cannot_be_done_is_said_before_spark_starts(tmp_path: Path, arguments: list[str], said: str) -> None:
    assert said in refused("--out", str(tmp_path / "out"), *arguments)


def test_a_place_that_is_taken_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "something").touch()
    assert "exists already" in refused("--profile", PROFILE, "--out", str(tmp_path / "out"))
    assert "exists already" in refused("--profile", PROFILE, "--out", str(tmp_path / "out" / "something"))
    assert "make it first" in refused("--profile", PROFILE, "--out", str(tmp_path / "absent" / "out"))


def test_empty_and_unfinished_traces_are_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest("recorded"))
    out = str(tmp_path / "out")
    assert "holds no events" in refused("--from", str(tmp_path), "--out", out)
    (tmp_path / "part-000001.log").touch()
    assert "unfinished part" in refused("--from", str(tmp_path), "--out", out)


def test_a_trace_that_lost_an_hour_is_refused(tmp_path: Path) -> None:
    source = synthesise(tmp_path / "source", [change(0), change(1, namespace="a/b")])
    next(source.rglob("*.parquet")).unlink()
    assert "holds 1 events instead of 2" in refused("--from", str(source), "--out", str(tmp_path / "out"))
