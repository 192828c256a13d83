"""A real `vela serve` in a directory of its own, with its embedded store or on another server's, that ends with its
block.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote, urlsplit

import httpx

from benchmarks.figures import MeasurementFailed
from layout.layouts import Layout

READY_LIMIT = 30.0
STOP_LIMIT = 15.0
METRIC_LIMIT = 30.0
_METRIC_INTERVAL = 0.005
COMMAND = (sys.executable, "-m", "gateway.cli.main", "serve")
# Pings would wake idle connections in the middle of a measurement.
QUIET = {"VELA_KEEP_ALIVE": "1h", "VELA_LOG_LEVEL": "warning"}


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that is ready, `ready_after` seconds after its process was started."""

    pid: int
    ready_after: float
    pulsar_address: tuple[str, int]
    http_address: tuple[str, int]
    store_socket: Path
    admin: httpx.Client

    @property
    def store_url(self) -> str:
        """For further servers on the same store."""
        return f"unix://{quote(os.fspath(self.store_socket))}"

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self.pid, signal.SIGKILL)

    def leader_of(self, name: str) -> str:
        """The session of the node that leads a topic, empty where none does."""
        leader = self._request("GET", f"{_path(name)}/stats").json()["leader"]
        return "" if leader is None else str(leader["session"])

    def create_topic(self, name: str, segments: int) -> None:
        self._request("PUT", f"{_path(name)}?numInitialSegments={segments}")

    def change_topic(self, name: str, change: str) -> None:
        """Apply `split/ID` or `merge/ID/ID`."""
        self._request("POST", f"{_path(name)}/{change}")

    def metric(self, name: str) -> float:
        """The value of a metric; `name` is written as on the page, labels included."""
        page = self._request("GET", "/metrics").text
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
        if found is None:
            raise MeasurementFailed(f"the server has no metric {name}")
        return float(found[1])

    def await_metric(self, name: str, value: float) -> None:
        """Return once a metric has this value."""
        deadline = time.monotonic() + METRIC_LIMIT
        while (there := self.metric(name)) != value:
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"{name} is {there:g}, and not {value:g} after {METRIC_LIMIT:g} s")
            time.sleep(_METRIC_INTERVAL)

    def _request(self, method: str, path: str) -> httpx.Response:
        response = self.admin.request(method, path)
        if response.is_error:
            raise MeasurementFailed(f"{method} {path} was answered with {response.status_code}: {response.text}")
        return response


def topic_url(name: str) -> str:
    return f"topic://public/default/{name}"


def segment_urls(name: str, segments: int) -> list[str]:
    """What the segments of a topic are called that was created with so many and not changed."""
    layout = Layout.create(segments, now_ms=0)
    return [f"segment://public/default/{name}/{segment.descriptor}" for segment in layout.segments.values()]


def _path(name: str) -> str:
    return f"/admin/v2/scalable/public/default/{name}"


@contextmanager
def running_server(settings: Mapping[str, str] = QUIET) -> Iterator[RunningServer]:
    """Start on free ports of the loopback; `settings` are environment variables, the caller's own do not count."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VELA_")}
    with TemporaryDirectory(prefix="vela-bench-") as scratch, open(Path(scratch, "server.log"), "w+b") as log:
        data = Path(scratch, "data")
        arguments = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data-dir", str(data))
        started_at = time.monotonic()
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env={**environ, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            pulsar_url, http_url = _await_ready(process, started_at + READY_LIMIT, Path(log.name))
            ready_after = time.monotonic() - started_at
            with httpx.Client(base_url=http_url, timeout=30.0, trust_env=False) as admin:
                yield RunningServer(
                    pid=process.pid,
                    ready_after=ready_after,
                    pulsar_address=_address(pulsar_url),
                    http_address=_address(http_url),
                    store_socket=data / "valkey.sock",
                    admin=admin,
                )
        finally:
            _stop(process)


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def _await_ready(process: subprocess.Popen[bytes], deadline: float, log: Path) -> tuple[str, str]:
    assert process.stdout is not None
    # The line comes in one write, so what is readable is all of it.
    readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
    line = process.stdout.readline().decode() if readable else ""
    words = line.split()
    if len(words) != 3 or words[0] != "ready":
        why = log.read_text(errors="replace").strip() or f"it said {line!r}"
        raise MeasurementFailed(f"the server did not become ready: {why}")
    return words[1], words[2]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
