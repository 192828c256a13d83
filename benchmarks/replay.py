"""A replay as a user runs it on this machine: how late the writes of the generator are while thousands watch."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.server import QUIET, RunningServer, running_server

# As `--max-lateness` has it: later than this, and a run does not count for latency.
LATENESS_TARGET_MS = 20.0
COMMAND = (sys.executable, "-m", "spark")
COMMAND_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True)
class Scale:
    watchers: int
    connections: int
    events_per_s: int
    seconds: int
    namespaces: int

    @property
    def profile(self) -> str:
        """As many namespaces as give each a few watchers, with all that happens made of churn and changes."""
        topics = 4
        per_topic_hour = self.events_per_s * 3_600 / (self.namespaces * topics)
        return (
            f"[shape]\nnamespaces = {self.namespaces}\nchurn = {per_topic_hour / 2:.3f}\n"
            f"changes = {per_topic_hour / 4:.3f}\nsplit_rate = {per_topic_hour / 4:.3f}\n"
            f"[shape.topics]\nmean = {topics}\nspread = 0.0\n[shape.bursts]\nshare = 0.2\n"
        )


FULL = Scale(watchers=2_000, connections=500, events_per_s=1_000, seconds=30, namespaces=600)
QUICK = Scale(watchers=20, connections=5, events_per_s=20, seconds=3, namespaces=6)


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="vela-bench-") as scratch, running_server(QUIET) as server:
        trace = _synthesised(Path(scratch), scale)
        told = _replayed(server, trace, Path(scratch, "result"), scale)
    return [_lateness_figure(told), _latency_figure(told)]


def _synthesised(scratch: Path, scale: Scale) -> Path:
    profile, trace = scratch / "profile.toml", scratch / "trace"
    profile.write_text(scale.profile)
    asked = ["--profile", str(profile), "--duration", f"{scale.seconds}s", "--out", str(trace)]
    _run("synth", *asked, "--events", str(scale.events_per_s * scale.seconds), "--json")
    return trace


def _replayed(server: RunningServer, trace: Path, out: Path, scale: Scale) -> Mapping[str, Any]:
    host, port = server.pulsar_address
    http_host, http_port = server.http_address
    asked = {
        "--target": f"pulsar://{host}:{port}",
        "--admin-url": f"http://{http_host}:{http_port}",
        "--store": server.store_url,
        "--watchers": scale.watchers,
        "--connections": scale.connections,
        "--topic-share": 0.1,
        "--speed": 1,
        "--settle": "30s",
        "--out": out,
    }
    printed = _run("replay", str(trace), *(str(part) for option in asked.items() for part in option), "--json")
    told: Mapping[str, Any] = json.loads(printed)
    if told["converged"] != told["watchers"]:
        raise MeasurementFailed(f"only {told['converged']:,} of {told['watchers']:,} watchers converged")
    if faults := [f"{told[kind]:,} {kind}" for kind in ("missing", "lost", "duplicate", "out_of_order") if told[kind]]:
        raise MeasurementFailed(f"watchers were told wrong things: {', '.join(faults)}")
    return told


def _run(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
    if not done.stdout:
        raise MeasurementFailed(f"{arguments[0]} ended with {done.returncode}: {_last_line(done.stderr)}")
    return done.stdout


def _last_line(text: str) -> str:
    lines: Sequence[str] = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _lateness_figure(told: Mapping[str, Any]) -> Figure:
    lateness = told["lateness_ms"]
    return Figure(
        name="lateness of a replay, p99",
        measured=Quantity(lateness["p99"], "ms"),
        floor=None,
        target=LATENESS_TARGET_MS,
        notes=(
            f"{told['events']:,} events in {told['namespaces']:,} namespaces at {told['events_per_s']:,.0f}/s, seen by "
            f"{told['watchers']:,} watchers on {told['connections']:,} connections; the server and "
            f"{len(told['clocks'])} tasks share {told['environment']['cores']} cores",
            f"p50 {lateness['p50']:.2f} ms, p90 {lateness['p90']:.2f} ms, at most {lateness['max']:.1f} ms",
        ),
    )


def _latency_figure(told: Mapping[str, Any]) -> Figure:
    latency = told["latency_ms"]
    node = told["node"] or {"cpu_mean": 0.0}
    return Figure(
        name="from due to shown in a replay, p99",
        measured=Quantity(latency["p99"], "ms"),
        floor=None,
        target=None,
        notes=(
            f"p50 {latency['p50']:.1f} ms, at most {latency['max']:.1f} ms; counted from when a write was due, so the "
            "lateness is in it",
            f"{told['pushes']:,} pushes, each for {told['coalescing_ratio']:.2f} changes; the server used "
            f"{node['cpu_mean']:.0%} of a core",
        ),
    )
