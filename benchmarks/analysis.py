"""Analysis of traces: events per second of `vela trace analyze` on two cores, against plain Python in one process.

Both run as child processes on the same synthetic traces, one after the other, and their results have to be equal. The
time of each is that of the whole command, the start of Spark included; how time grows between the two sizes leaves
that out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Figure, MeasurementFailed, Quantity

_MASTER: Final = "local[2]"
_SIZES: Final = (1_000_000, 10_000_000)
_QUICK_SIZES: Final = (2_000, 6_000)
_NAMESPACES: Final = 500
_QUICK_NAMESPACES: Final = 10
# Ten million take some minutes; what takes ten times as long hangs.
_LIMIT: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class _Run:
    events: int
    spark_s: float
    plain_s: float


def measure(quick: bool) -> list[Figure]:
    sizes, namespaces = (_QUICK_SIZES, _QUICK_NAMESPACES) if quick else (_SIZES, _NAMESPACES)
    with tempfile.TemporaryDirectory(prefix="vela-bench-") as scratch:
        runs = [_compare(Path(scratch), size, namespaces) for size in sizes]
    small, large = runs
    figures = [_figure("analysis of a smaller trace", small), _figure("analysis of a larger trace", large)]
    more = large.events / small.events
    growth = large.spark_s / small.spark_s
    figures.append(
        Figure(
            "analysis, how time grows",
            Quantity(growth, "times"),
            Quantity(large.plain_s / small.plain_s, "times"),
            None,
            notes=(
                f"For {more:.1f} times the events.",
                f"From {small.spark_s:.1f} to {large.spark_s:.1f} s, and in plain Python from {small.plain_s:.1f} to "
                f"{large.plain_s:.1f} s. Each further event costs {_slope(small.spark_s, large.spark_s, runs):.2f} us "
                f"of time, and {_slope(small.plain_s, large.plain_s, runs):.2f} us in plain Python.",
            ),
        )
    )
    return figures


def _figure(name: str, run: _Run) -> Figure:
    return Figure(
        name,
        Quantity(run.events / run.spark_s, "events/s"),
        Quantity(run.events / run.plain_s, "events/s"),
        None,
        notes=(
            f"{run.events:,} events.",
            f"{run.spark_s:.1f} s on {_MASTER}, tables and report included; {run.plain_s:.1f} s in plain Python in one "
            "process, which keeps everything in memory. More than 1 to the floor is faster. Both found the same.",
        ),
    )


def _slope(small: float, large: float, runs: Sequence[_Run]) -> float:
    return (large - small) * 1e6 / (runs[1].events - runs[0].events)


def _compare(scratch: Path, size: int, namespaces: int) -> _Run:
    trace, out, profile = scratch / f"trace-{size}", scratch / f"out-{size}", scratch / "profile.toml"
    profile.write_text("")  # all as it is by default
    _timed(
        "spark", "synth", "--profile", str(profile), "--namespaces", str(namespaces), "--duration", "6h",
        "--events", str(size), "--out", str(trace), "--master", _MASTER,
    )  # fmt: skip
    spark_s, by_spark = _timed("spark", "analyze", str(trace), "--out", str(out), "--master", _MASTER, "--json")
    plain_s, plainly = _timed("spark.analysis.plain", str(trace))
    told = json.loads(by_spark)
    if told != json.loads(plainly):
        raise MeasurementFailed("Spark and plain Python found different things in the same trace")
    return _Run(_events(told), spark_s, plain_s)


def _events(summary: dict[str, Any]) -> int:
    return int(summary["operations"]) + int(summary["churn"]["seeds"])


def _timed(module: str, *arguments: str) -> tuple[float, str]:
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"{module} {arguments[0]} took more than {_LIMIT:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("vela:")] or done.stderr.splitlines()[-1:]
        raise MeasurementFailed(f"{module} {arguments[0]} failed: {' '.join(lines)}")
    return time.perf_counter() - began, done.stdout
