"""The real `vela` as a user runs it: a process with a directory and an environment of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import redis
from prometheus_client.parser import text_string_to_metric_families

from metadata.embedded import SOCKET_NAME, die_with_parent
from tests.support.ports import HOST
from tests.support.waiting import Never, wait_until

VELA: Final = str(Path(sys.executable).with_name("vela"))
SCALABLE: Final = "/admin/v2/scalable/public/default"
# Generous, because the machine that runs the tests is busy with other tests.
START_LIMIT: Final = 30.0
STOP_LIMIT: Final = 30.0

READY = re.compile(r"ready (?P<pulsar>pulsar(?:\+ssl)?://[^ ]+:\d+) (?P<http>http://[^ ]+:\d+)\n")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line that a failure is told in; log lines of a server before it do not count."""
        said = [line for line in self.err.splitlines() if not re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line)]
        assert len(said) == 1, self.err
        assert "defect" not in said[0], said[0]
        return said[0]


def run_vela(
    *arguments: str, cwd: Path | None = None, variables: Mapping[str, str] | None = None, within: float = START_LIMIT
) -> Outcome:
    """Run a command to its end."""
    done = subprocess.run(
        [VELA, *arguments],
        env=environment(variables or {}),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without settings of the developer's."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("VELA_")}
    return inherited | {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"} | dict(variables)


class RunningCommand:
    """A `vela` command in the background; what it wrote so far can be read at any time.

    Start it from the main thread: the kernel ends it when the thread that forked it ends.
    """

    def __init__(self, directory: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._out, self._err = directory / "stdout", directory / "stderr"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [VELA, *arguments],
                cwd=directory,
                env=environment(variables),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # A Ctrl-C for the test run is none for it.
                process_group=0,
                preexec_fn=die_with_parent() if sys.platform == "linux" else None,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def lines(self) -> list[str]:
        """The whole lines of its output."""
        return self.out.split("\n")[:-1]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, within: float = STOP_LIMIT) -> Outcome:
        try:
            code = self._process.wait(within)
        except subprocess.TimeoutExpired:
            raise Never(f"still running after {within:g} s; it said:\n{self.err}") from None
        return Outcome(code, self.out, self.err)

    def close(self) -> None:
        """End it at once, whatever it is doing."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class VelaServer(RunningCommand):
    """`vela serve` on free ports, with its embedded store in `directory/data` unless `--store` is given.

    `start` waits for it; who has to do something meanwhile makes one and waits for `is_ready`.
    """

    def __init__(self, directory: Path, *flags: str, **variables: str) -> None:
        self.data_dir = directory / "data"
        defaults = {"--listen": f"{HOST}:0", "--http": f"{HOST}:0", "--data-dir": str(self.data_dir)}
        chosen = [part for flag, value in defaults.items() if flag not in flags for part in (flag, value)]
        super().__init__(directory, ["serve", *chosen, *flags], variables)
        # Not through a proxy of the environment: nothing else reaches the loopback of this machine.
        self._http = httpx.Client(timeout=30, trust_env=False, verify=False, follow_redirects=True)

    @classmethod
    def start(cls, directory: Path, *flags: str, **variables: str) -> Self:
        server = cls(directory, *flags, **variables)
        try:
            wait_until(lambda: server.is_ready, START_LIMIT)
        except BaseException:
            server.close()
            raise
        return server

    @property
    def is_ready(self) -> bool:
        if not self.running:
            raise Never(f"the server ended at its start; it said:\n{self.err}")
        return "\n" in self.out

    @property
    def pulsar_url(self) -> str:
        return self._address("pulsar")

    @property
    def http_url(self) -> str:
        return self._address("http")

    @property
    def port(self) -> int:
        return int(self.pulsar_url.rpartition(":")[2])

    @property
    def http_port(self) -> int:
        return int(self.http_url.rpartition(":")[2])

    @property
    def for_clients(self) -> dict[str, str]:
        """The variables that make the client-side commands talk to this server."""
        return {"VELA_ADMIN_URL": self.http_url, "VELA_SERVICE_URL": self.pulsar_url}

    @property
    def store_pid(self) -> int:
        """The process number of the embedded store."""
        with redis.Redis(unix_socket_path=str(self.data_dir / SOCKET_NAME)) as client:
            return int(client.info("server")["process_id"])

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request, with Pulsar's habit of saying JSON even without a body."""
        headers = {"content-type": "application/json"} | dict(options.pop("headers", {}))
        return self._http.request(method, f"{self.http_url}{path}", headers=headers, **options)

    def create(self, topic: str, segments: int = 1) -> None:
        path = f"{SCALABLE}/{topic}?numInitialSegments={segments}"
        assert self.request("PUT", path).status_code == 204

    def split(self, topic: str, segment: int) -> None:
        answer = self.request("POST", f"{SCALABLE}/{topic}/split/{segment}")
        assert answer.status_code == 204, answer.text

    def epoch(self, topic: str) -> int:
        return int(self.request("GET", f"{SCALABLE}/{topic}").json()["epoch"])

    def metric(self, name: str, **labels: str) -> float:
        """The sample of this name and these labels; a counter that has not counted yet is 0."""
        for family in text_string_to_metric_families(self.request("GET", "/metrics").text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return float(sample.value)
        return 0.0

    def stop(self) -> Outcome:
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        self._http.close()
        super().close()

    def _address(self, scheme: str) -> str:
        ready = READY.fullmatch(self.out)
        assert ready is not None, f"not ready: {self.out!r}, {self.err}"
        return ready[scheme]
