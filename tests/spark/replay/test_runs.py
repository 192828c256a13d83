"""A whole replay on `local[2]`, in the session that the tests share: a real server, a real store, real tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from spark.profiles import Profile
from spark.replay import runs
from spark.replay.plan import Options
from tests.e2e.vela_process import VelaServer
from tests.spark.replay.replay_process import left_in_store
from tests.spark.replay.small_traces import write_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.spark]


def test_every_watcher_converges_and_the_store_is_left_as_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def shared(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(runs, "spark_session", shared)
    trace = write_trace(tmp_path / "trace", over_ms=3_000)
    with VelaServer.start(tmp_path / "server") as server:
        socket = server.data_dir / "valkey.sock"
        options = Options(
            trace,
            server.pulsar_url,
            f"unix://{socket}",
            watchers=12,
            connections=6,
            topic_share=0.3,
            speed=1.0,
            # Lateness says how busy this machine is; that the numbers are there is what counts.
            max_lateness_s=3_600.0,
            admin_url=server.http_url,
            out=tmp_path / "result",
            keep_observations=True,
        )
        result, _ = runs.replay(options, Profile(), "local[2]", Console(quiet=True), Console(stderr=True))
        assert left_in_store(socket) == []
    assert (result.watchers, result.converged, result.events, result.failed) == (12, 12, 90, 0)
    assert (result.wrong, result.missing, result.duplicate, result.out_of_order) == (0, 0, 0, 0)
    assert result.valid
    assert result.showings > 0
    assert 0 < result.latency_ms["p50"] <= result.latency_ms["max"]
    assert len(result.clocks) == 2
    assert "All 12 watchers converged" in (tmp_path / "result" / "report.html").read_text()
    assert json.loads((tmp_path / "result" / "result.json").read_bytes())["latency_curve"]
    assert list((tmp_path / "result" / "observations").glob("*.parquet"))
