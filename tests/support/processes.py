"""One real Valkey or Redis server process which a test can stop, kill, pause and bring back on its port and data."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from metadata.embedded import die_with_parent, server_binary
from tests.support.ports import HOST, ReservedPort
from tests.support.waiting import Never, wait_until

# A server is ended by the kernel when the thread that forked it ends. This one lives as long as the test process, so
# servers may be started from any thread (trio's worker threads end when idle).
_forks = ThreadPoolExecutor(1, thread_name_prefix="valkey-forks")

START_LIMIT = 30.0
CONFIG_NAME = "server.conf"
EMPTY = '""'

DEFAULTS: dict[str, str | int] = {
    "bind": HOST,
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
    "repl-diskless-sync-delay": 0,
    "repl-ping-replica-period": 1,
    "enable-debug-command": "local",
}


class ValkeyProcess:
    """A server on a TCP port of 127.0.0.1 and on a unix socket, in a directory of its own. `start` it first.

    Options are configuration directives with underscores: `maxmemory="4mb"`, `cluster_enabled="yes"`. The program is
    the Valkey that comes with Vela, unless another is named; directives have the names that Redis knows as well.
    """

    mode: ClassVar[tuple[str, ...]] = ()

    def __init__(self, program: Path | None = None, /, **options: str | int) -> None:
        self._program = program
        self.directory = Path(tempfile.mkdtemp(prefix="vela-test-"))
        self._port = ReservedPort()
        self.port = self._port.number
        self._process: subprocess.Popen[bytes] | None = None
        self._client: redis.Redis | None = None
        self._baseline: dict[Any, Any] = {}
        self.disturbed = False
        # A file and not arguments, because a fail-over by Sentinel writes the new role into it.
        (self.directory / CONFIG_NAME).write_text(self._configuration(options))

    def _configuration(self, options: dict[str, str | int]) -> str:
        settings = DEFAULTS | {"port": self.port, "unixsocket": "server.sock", "unixsocketperm": 700}
        settings |= {name.replace("_", "-"): value for name, value in options.items()}
        return "".join(f"{name} {value if value != '' else EMPTY}\n" for name, value in settings.items())

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.directory}/server.sock?db=0"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text(errors="replace")

    def start(self) -> Self:
        """Start (again) and wait until this very process answers and has loaded its data."""
        self.spawn()
        self.wait_ready()
        return self

    def spawn(self) -> None:
        if self.running:
            raise RuntimeError("the server is running")
        self._process = _forks.submit(self._popen).result()

    def wait_ready(self) -> None:
        try:
            wait_until(self._answers, within=START_LIMIT)
        except Never as error:
            raise Never(f"no answer from the server on port {self.port}; its log:\n{self.log}") from error
        if not self._baseline:
            self._baseline = self._read_configuration()

    def stop(self) -> None:
        """End it in order: data is flushed, clients are closed."""
        self._signal(signal.SIGTERM)
        self._reap()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._signal(signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        """Connections stay open and are even accepted, but nothing is answered, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Bring it back on the same port with the data of its append-only file; stops it first if it runs."""
        if self.running:
            self.stop()
        self.start()

    def client(self) -> redis.Redis:
        """A plain client for assertions. It never repeats a command by itself."""
        if self._client is None:
            self._client = redis.Redis(
                host=HOST, port=self.port, protocol=3, socket_timeout=10, retry=Retry(NoBackoff(), 0)
            )
        return self._client

    def command(self, *parts: str | bytes | int) -> Any:
        return self.client().execute_command(*parts)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    def info(self, section: str) -> dict[str, Any]:
        """Asked again if the connection was cut: Sentinel closes all connections of a server that changes its role."""
        try:
            return self.client().info(section)
        except redis.exceptions.ConnectionError:
            return self.client().info(section)

    def forget_connections(self) -> None:
        if self._client is not None:
            self._client.connection_pool.disconnect()

    def reset(self) -> None:
        """Empty it and put its configuration back to what it was at the first start."""
        client = self.client()
        now = self._read_configuration()
        for name, value in self._baseline.items():
            if now[name] != value:
                client.config_set(name, value)
        client.flushall()
        client.script_flush()
        client.config_resetstat()

    def close(self) -> None:
        """End it at once and remove its directory."""
        if self._process is not None:
            self.kill()
        self._port.release()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _popen(self) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self._program or server_binary()), CONFIG_NAME, *self.mode],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=die_with_parent() if sys.platform == "linux" else None,
            )

    def _read_configuration(self) -> dict[Any, Any]:
        return self.client().config_get("*")

    def _answers(self) -> bool:
        if not self.running:
            raise Never(f"the server on port {self.port} ended at its start; its log:\n{self.log}")
        with contextlib.suppress(redis.exceptions.ConnectionError):
            self.client().ping()
            return bool(self.info("server")["process_id"] == self.pid)
        return False

    def _signal(self, number: signal.Signals) -> None:
        self.disturbed = True
        if self.running:
            assert self._process is not None
            self._process.send_signal(number)

    def _reap(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self.forget_connections()


class SentinelProcess(ValkeyProcess):
    """The same binary as a Sentinel, with the given lines of configuration."""

    mode = ("--sentinel",)

    def __init__(self, lines: str, program: Path | None = None) -> None:
        self._lines = lines
        super().__init__(program)

    def _configuration(self, options: dict[str, str | int]) -> str:
        return f"port {self.port}\nbind {HOST}\n{self._lines}"

    def _read_configuration(self) -> dict[Any, Any]:
        return {}


def is_alive(pid: int) -> bool:
    """False for a process that has ended, also while nobody has collected its exit status yet."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        # It ended in between, or this system has no /proc.
        return not Path("/proc").exists()
    return state != "Z"
