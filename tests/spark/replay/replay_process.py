"""`vela trace replay` as a process of its own, on a real server with a store of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import redis

from metadata import keys
from metadata.embedded import SOCKET_NAME
from tests.e2e.vela_process import Outcome, VelaServer, environment
from tests.spark.replay.bad_server import Meddler, bad_server_beside
from tests.spark.replay.small_traces import write_trace
from tests.spark.small_spark import small_spark
from tests.support.waiting import wait_until

# Generous, because Spark starts slowly where others use the cores, too.
LIMIT_S = 400.0


class Replay:
    """A replay in the background. Its driver is ended with the block, whatever it is doing."""

    def __init__(
        self, directory: Path, server: VelaServer, trace: Path, *flags: str, target: str, **variables: str
    ) -> None:
        self._socket = server.data_dir / SOCKET_NAME
        self.out = directory / "result"
        asked = ["--target", target, "--store", f"unix://{self._socket}", "--out", str(self.out), *flags]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "spark", "replay", str(trace), *asked],
            cwd=Path(__file__).parents[3],
            env=environment(small_spark(directory / "spark-conf") | variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> Outcome:
        out, err = self._process.communicate(timeout=LIMIT_S)
        return Outcome(self._process.returncode, out, err)

    def wait_for_first_write(self) -> None:
        """Until a task has told that it writes."""
        with redis.Redis(unix_socket_path=str(self._socket)) as store:
            wait_until(lambda: any(b'"replaying"' in told for key in store.scan_iter("/replay/??????")
                                   for told in store.hvals(key)), LIMIT_S)  # fmt: skip

    def left_in_store(self) -> list[str]:
        return left_in_store(self._socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def left_in_store(socket: Path) -> list[str]:
    """The namespaces and keys of replays, without the segments that wait for the server to collect them."""
    with redis.Redis(unix_socket_path=str(socket)) as store:
        namespaces = [name.decode() for name in store.hkeys(keys.NAMESPACES.decode())]
        found = [key.decode() for key in store.scan_iter("*replay*")]
    left = [name for name in namespaces if "replay" in name] + found
    return [name for name in left if not name.startswith("/segments/")]


@contextmanager
def replaying(
    directory: Path, *flags: str, trace: Path | None = None, over_ms: int = 3_000, fault: type[Meddler] = Meddler
) -> Iterator[tuple[Replay, VelaServer]]:
    """A replay with twelve watchers, on a server that serves nobody else; of a small trace unless one is given.

    What the watchers are told passes through a proxy if the server is to have a fault.
    """
    if trace is None:
        trace = write_trace(directory / "trace", over_ms=over_ms)
    usual = ("--speed", "1", "--watchers", "12", "--connections", "6", "--topic-share", "0.3", "--json")
    with ExitStack() as stack:
        server = stack.enter_context(VelaServer.start(directory / "server"))
        target = server.pulsar_url
        if fault is not Meddler:
            target = stack.enter_context(bad_server_beside(target, fault))
        yield stack.enter_context(Replay(directory, server, trace, *usual, *flags, target=target)), server
