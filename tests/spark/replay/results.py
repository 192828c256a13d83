"""Results of replays, for what is made of them."""

from __future__ import annotations

from typing import Any

import msgspec

from spark.replay.node_metrics import NodeSecond
from spark.replay.results import Result
from spark.replay.verdict import Second, TaskClock

PERCENTILES = ("p50", "p90", "p99", "p999", "max")


def result(**changed: Any) -> Result:
    """A run in which all went well."""
    usual = Result(
        watchers=2,
        events=30,
        converged=2,
        wrong=0,
        missing=0,
        duplicate=0,
        out_of_order=0,
        valid=True,
        lateness_ms=dict.fromkeys(PERCENTILES, 1.5),
        latency_ms=dict.fromkeys(PERCENTILES, 40.0),
        failed=0,
        skipped=0,
        showings=50,
        cancelled=4,
        after_reconnect=3,
        pushes=20,
        snapshots=1,
        reconnects=2,
        bytes=4_000,
        bytes_per_watcher={"mean": 2_000.0, "p50": 2_000, "p99": 2_000, "max": 2_000},
        coalescing_ratio=2.85,
        events_per_s=10.0,
        duration_s=3.0,
        doubts=(),
        first_error=None,
        run="3f9a2c",
        trace="sample",
        target="pulsar://127.0.0.1:6650",
        speed=1.0,
        connections=2,
        namespaces=1,
        topics=5,
        clocks=(TaskClock(0, "here", 0.04, 0.08, 1.2),),
        node={"cpu_mean": 0.2, "cpu_max": 0.5, "memory_max_bytes": 8e7},
        environment={"vela": "0.1.0", "master": "local[2]"},
        seconds=(Second(0, 10, 8, 1_600, 20), Second(2, 20, 12, 2_400, 30)),
        node_seconds=(NodeSecond(0.5, 0.2, 7e7), NodeSecond(1.5, 0.5, 8e7)),
        latency_curve=((0.0, 10.0), (0.5, 40.0), (1.0, 90.0)),
        lateness_curve=((0.0, 0.1), (0.5, 1.5), (1.0, 3.0)),
    )
    return msgspec.structs.replace(usual, **changed)
