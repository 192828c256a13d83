"""A whole replay on `local[2]`, in the session that the tests share: a real server, a real store, real tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from metadata.embedded import SOCKET_NAME
from spark.errors import JobError
from spark.profiles import Profile
from spark.replay import runs
from spark.replay.plan import Options
from spark.replay.results import Result
from tests.e2e.vela_process import VelaServer
from tests.spark.replay.replay_process import left_in_store
from tests.spark.replay.small_traces import write_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def shared(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(runs, "spark_session", shared)


def replay(directory: Path, **asked: Any) -> Result:
    """Of a small trace with twelve watchers; nothing of it is left in the store, however it ends."""
    trace = write_trace(directory / "trace", over_ms=3_000)
    with VelaServer.start(directory / "server") as server:
        socket = server.data_dir / SOCKET_NAME
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
            out=directory / "result",
            **asked,
        )
        try:
            result, _ = runs.replay(options, Profile(), "local[2]", Console(quiet=True), Console(stderr=True))
        finally:
            assert left_in_store(socket) == []
    return result


def test_every_watcher_converges_and_the_store_is_left_as_it_was(tmp_path: Path) -> None:
    result = replay(tmp_path, keep_observations=True)
    assert (result.watchers, result.converged, result.events, result.failed) == (12, 12, 90, 0)
    assert (result.wrong, result.missing, result.duplicate, result.out_of_order, result.lost) == (0, 0, 0, 0, 0)
    assert result.valid
    assert result.showings > 0
    assert 0 < result.latency_ms["p50"] <= result.latency_ms["max"]
    assert len(result.clocks) == 2
    assert "All 12 watchers converged" in (tmp_path / "result" / "report.html").read_text()
    assert json.loads((tmp_path / "result" / "result.json").read_bytes())["latency_curve"]
    assert list((tmp_path / "result" / "observations").glob("*.parquet"))


@pytest.mark.integration
def test_more_tasks_than_slots_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError) as refused:
        replay(tmp_path, tasks=3)
    assert str(refused.value) == (
        "3 tasks have to run at the same time, and there are fewer slots than needed, 2: "
        "give --tasks 2 or a --master with more cores."
    )
    assert not (tmp_path / "result").exists()
