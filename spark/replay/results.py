"""The result of a replay as it is printed, kept in a file and compared with an earlier one."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata as packages
from pathlib import Path
from typing import Any, Final

import msgspec

from spark.errors import JobError
from spark.replay.node_metrics import NodeSecond
from spark.replay.plan import Extent, Options
from spark.replay.plans import ReplayPlan
from spark.replay.verdict import Second, TaskClock, Verdict

RESULT: Final = "result.json"
REPORT: Final = "report.html"
_PACKAGES: Final = ("vela", "pyspark", "pyarrow", "trio", "redis")


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints. The first ten names are relied on by others."""

    watchers: int
    events: int
    converged: int
    wrong: int
    missing: int
    duplicate: int
    out_of_order: int
    valid: bool
    lateness_ms: Mapping[str, float]
    latency_ms: Mapping[str, float]
    lost: int = 0  # results of earlier versions lack these two
    allowance_ms: float = 0.0
    failed: int
    skipped: int
    showings: int
    cancelled: int
    after_reconnect: int
    pushes: int
    snapshots: int
    reconnects: int
    bytes: int
    bytes_per_watcher: Mapping[str, float]
    coalescing_ratio: float
    events_per_s: float
    duration_s: float
    doubts: tuple[str, ...]
    first_error: str | None
    run: str
    trace: str
    target: str
    speed: float
    connections: int
    namespaces: int
    topics: int
    clocks: tuple[TaskClock, ...]
    node: Mapping[str, float] | None
    environment: Mapping[str, str]
    seconds: tuple[Second, ...]
    node_seconds: tuple[NodeSecond, ...]
    latency_curve: tuple[tuple[float, float], ...]
    lateness_curve: tuple[tuple[float, float], ...]

    @property
    def faults(self) -> Mapping[str, int]:
        """What the server did wrong, by kind; a sound one has nothing but zeros."""
        return {
            "missing": self.missing,
            "lost": self.lost,
            "duplicate": self.duplicate,
            "out of order": self.out_of_order,
        }

    @property
    def succeeded(self) -> bool:
        """Every event was written, every watcher converged, and none of them was told anything wrong on the way."""
        return self.converged == self.watchers and not any((self.wrong, self.failed, *self.faults.values()))


def make_result(
    verdict: Verdict,
    options: Options,
    plan: ReplayPlan,
    extent: Extent,
    node_seconds: list[NodeSecond],
    environment: Mapping[str, str],
) -> Result:
    doubts = tuple(verdict.doubts(options.max_lateness_s))
    spread = verdict.bytes_per_watcher
    return Result(
        watchers=verdict.watchers,
        events=verdict.events,
        converged=verdict.converged,
        wrong=verdict.wrong,
        missing=verdict.missing,
        duplicate=verdict.duplicate,
        out_of_order=verdict.out_of_order,
        lost=verdict.lost,
        allowance_ms=verdict.allowance_us / 1e3,
        valid=not doubts,
        lateness_ms=verdict.lateness.milliseconds(),
        latency_ms=verdict.latency.milliseconds(),
        failed=verdict.failed,
        skipped=verdict.skipped,
        showings=verdict.showings,
        cancelled=verdict.cancelled,
        after_reconnect=verdict.after_reconnect,
        pushes=verdict.pushes,
        snapshots=verdict.snapshots,
        reconnects=verdict.reconnects,
        bytes=verdict.bytes,
        bytes_per_watcher={
            "mean": verdict.bytes / verdict.watchers if verdict.watchers else 0.0,
            "p50": spread.at(0.5),
            "p99": spread.at(0.99),
            "max": spread.largest,
        },
        coalescing_ratio=verdict.coalescing_ratio,
        events_per_s=verdict.events / extent.duration_s if extent.duration_s else 0.0,
        duration_s=verdict.duration_s,
        doubts=doubts,
        first_error=verdict.first_error,
        run=plan.run_id,
        trace=str(options.trace),
        target=plan.target,
        speed=plan.speed,
        connections=plan.connections,
        namespaces=len(extent.namespaces),
        topics=extent.topics,
        clocks=verdict.tasks,
        node=_node(node_seconds),
        environment=environment,
        seconds=verdict.seconds,
        node_seconds=tuple(node_seconds),
        latency_curve=_in_ms(verdict.latency.curve()),
        lateness_curve=_in_ms(verdict.lateness.curve()),
    )


def environment_of(master: str, tasks: int) -> dict[str, str]:
    """Where a run was driven from: what somebody who compares two runs wants to know."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "master": master,
        "tasks": str(tasks),
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{memory:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def read_baseline(path: Path) -> Result:
    """The result of an earlier run, from its directory or its file."""
    file = path / RESULT if path.is_dir() else path
    try:
        return msgspec.json.decode(file.read_bytes(), type=Result)
    except OSError as error:
        raise JobError(f"The baseline {file} cannot be read ({error.strerror}): give the --out of a run.") from None
    except msgspec.DecodeError as error:
        raise JobError(f"The baseline {file} is not the result of a replay: {error}.") from None


def as_json(result: Result, *, whole: bool) -> bytes:
    """Whole for the file; without the curves for the terminal."""
    built: dict[str, Any] = msgspec.to_builtins(result)
    if not whole:
        for name in ("seconds", "node_seconds", "latency_curve", "lateness_curve"):
            del built[name]
    return msgspec.json.format(msgspec.json.encode(built), indent=2)


def _node(seconds: list[NodeSecond]) -> dict[str, float] | None:
    if not seconds:
        return None
    shares = [each.cpu_share for each in seconds]
    return {
        "cpu_mean": sum(shares) / len(shares),
        "cpu_max": max(shares),
        "memory_max_bytes": max(each.memory_bytes for each in seconds),
    }


def _in_ms(curve: list[tuple[float, int]]) -> tuple[tuple[float, float], ...]:
    return tuple((share, value / 1_000) for share, value in curve)


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # another system than Linux
    return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return packages.version(name)
    except packages.PackageNotFoundError:
        return "not installed"
