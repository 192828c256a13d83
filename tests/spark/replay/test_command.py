"""What `vela trace replay` refuses before it asks anybody, each in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from metadata.traces.errors import TraceError
from spark.cli import app
from spark.errors import JobError
from tests.metadata.traces.made_traces import change, synthesise
from tests.support.ports import HOST, ReservedPort


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["replay", *arguments])
    assert isinstance(result.exception, JobError | TraceError), result.output
    return str(result.exception)


@pytest.mark.parametrize("flags", [[], ["--dry-run"]])
def test_a_trace_that_lost_an_hour_is_refused(tmp_path: Path, flags: list[str]) -> None:
    trace = synthesise(tmp_path / "trace", [change(0), change(1, namespace="a/b")])
    next(trace.rglob("*.parquet")).unlink()
    port = ReservedPort()
    nobody = ("--target", f"pulsar://{HOST}:{port.number}", "--store", f"redis://{HOST}:{port.number}")
    assert "holds 1 events instead of 2" in refused(str(trace), *nobody, *flags)
    port.release()
