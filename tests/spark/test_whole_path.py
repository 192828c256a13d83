"""From a real recording to a verdict, by the commands that a user types: record, info, synth, analyze, replay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metadata.embedded import SOCKET_NAME
from tests.e2e.vela_process import VelaServer, run_vela
from tests.spark.replay.replay_process import LIMIT_S, left_in_store
from tests.spark.served_recording import CREATED, DELETED, NAMESPACES, record_server
from tests.spark.small_spark import small_spark

# Three starts of Spark.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

Trace = Callable[..., dict[str, Any]]


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Runs `vela trace`, and gives what it says to programs."""
    variables = small_spark(tmp_path / "spark-conf")

    def run(command: str, *arguments: str | Path) -> dict[str, Any]:
        asked = ("trace", command, *map(str, arguments), "--json")
        outcome = run_vela(*asked, cwd=tmp_path, variables=variables, within=LIMIT_S)
        assert (outcome.code, outcome.err) == (0, ""), outcome
        told = json.loads(outcome.out)
        assert isinstance(told, dict)
        return told

    return run


def test_what_a_server_recorded_is_looked_at_widened_analysed_and_replayed(tmp_path: Path, trace: Trace) -> None:
    recorded, made, analysis = (tmp_path / name for name in ("recorded", "made", "analysis"))
    record_server(tmp_path / "recorded-server", recorded)

    info = trace("info", recorded)
    assert (info["kind"], info["complete"], info["dropped"]) == ("recorded", True, 0)
    assert info["namespaces"] == len(NAMESPACES)
    kinds = info["events_by_kind"]
    assert (kinds["created"], kinds["changed"], kinds["deleted"]) == (CREATED, CREATED, DELETED)

    local = ("--master", "local[2]")
    synthetic = trace("synth", "--from", recorded, "--namespaces-x", "2", "--duration", "4s", "--out", made, *local)
    assert synthetic["namespaces"] == 2 * len(NAMESPACES)
    assert synthetic["events"] > 0
    assert trace("info", made)["changes"] == synthetic["events"]

    summary = trace("analyze", made, "--watchers", "12", "--out", analysis, *local)
    assert (summary["namespaces"], summary["operations"]) == (synthetic["namespaces"], synthetic["events"])
    assert summary["churn"]["seeds"] == synthetic["topics_at_start"]
    assert "What one node would need" in (analysis / "report.html").read_text()

    with VelaServer.start(tmp_path / "server") as server:
        socket = server.data_dir / SOCKET_NAME
        at = ("--target", server.pulsar_url, "--store", f"unix://{socket}", "--admin-url", server.http_url)
        # Lateness says how busy this machine is; that everybody is told the truth is what counts.
        asked = ("--watchers", "12", "--connections", "6", "--speed", "1", "--max-lateness", "1h", *local)
        verdict = trace("replay", made, *at, *asked, "--out", tmp_path / "replay")
        assert left_in_store(socket) == []
    assert (verdict["events"], verdict["failed"], verdict["skipped"]) == (synthetic["events"], 0, 0)
    assert (verdict["watchers"], verdict["converged"]) == (12, 12)
    assert (verdict["wrong"], verdict["missing"], verdict["duplicate"], verdict["out_of_order"]) == (0, 0, 0, 0)
    assert verdict["lost"] == 0
    assert verdict["showings"] > 0
