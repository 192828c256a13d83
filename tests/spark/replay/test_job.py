"""Whole replays on `local[2]`: a real server, a real store, tasks in processes of their own."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.spark.replay.bad_server import Doubling
from tests.spark.replay.replay_process import replaying
from tests.spark.served_recording import CHANGES, record_server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(480)]


def test_what_a_server_recorded_is_replayed_and_the_store_is_left_as_it_was(tmp_path: Path) -> None:
    trace = record_server(tmp_path / "recorded-server", tmp_path / "recorded")
    # Lateness says how busy this machine is; that the numbers are there is what counts.
    flags = ("--master", "local[2]", "--max-lateness", "1h", "--keep-observations")
    with replaying(tmp_path, *flags, trace=trace) as (replay, _):
        outcome = replay.wait()
        assert outcome.code == 0, outcome.err
        told = json.loads(outcome.out)
        assert (told["watchers"], told["converged"], told["events"], told["failed"]) == (12, 12, CHANGES, 0)
        assert (told["wrong"], told["missing"], told["duplicate"], told["out_of_order"]) == (0, 0, 0, 0)
        assert told["lost"] == 0
        assert told["valid"]
        assert told["showings"] > 0
        assert 0 < told["latency_ms"]["p50"] <= told["latency_ms"]["max"]
        assert len(told["clocks"]) == 2
        assert outcome.err == ""
        assert replay.left_in_store() == []
        assert "All 12 watchers converged" in (replay.out / "report.html").read_text()
        assert json.loads((replay.out / "result.json").read_bytes())["latency_curve"]
        assert list((replay.out / "observations").glob("*.parquet"))


def test_server_that_tells_everything_twice_fails_the_run_though_all_watchers_converge(tmp_path: Path) -> None:
    with replaying(tmp_path, "--master", "local[2]", "--max-lateness", "1h", fault=Doubling) as (replay, _):
        outcome = replay.wait()
        assert outcome.code == 1, outcome.err
        told = json.loads(outcome.out)
        assert (told["watchers"], told["converged"], told["wrong"], told["missing"]) == (12, 12, 0, 0)
        # Each name of each diff once more, and nothing else; how many diffs there were depends on how busy it is here.
        assert told["duplicate"] >= 12
        assert (told["lost"], told["out_of_order"]) == (0, 0)
        assert f"told wrong things: {told['duplicate']:,} duplicate." in (replay.out / "report.html").read_text()
        assert replay.left_in_store() == []


def test_target_that_goes_away_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    with replaying(tmp_path, "--master", "local[2]", over_ms=60_000) as (replay, server):
        replay.wait_for_first_write()
        # Its store goes with it, so neither is there any more.
        server.close()
        outcome = replay.wait()
    assert outcome.code == 1
    assert outcome.out == ""
    told = [line for line in outcome.err.splitlines() if line.startswith("vela: ")]
    assert len(told) == 1, outcome.err
    assert "away for more than" in told[0] or "taken no write" in told[0] or "store" in told[0]
    assert "Traceback" not in outcome.err
    assert "\tat " not in outcome.err


def test_interrupted_run_removes_what_it_has_written(tmp_path: Path) -> None:
    with replaying(tmp_path, "--master", "local[2]", over_ms=120_000) as (replay, _):
        replay.wait_for_first_write()
        assert replay.left_in_store() != []
        replay.signal(signal.SIGTERM)
        outcome = replay.wait()
        assert outcome.code == 143, outcome.err
        assert outcome.err == "vela: Interrupted; what the replay had written is removed.\n"
        assert replay.left_in_store() == []
