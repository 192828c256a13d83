"""Real `vela serve` processes that are forked instead of started.

A server takes a second of a core to import itself, which a test that kills dozens of them cannot afford. So they are
forked from a process that has done that once; from there on each is an ordinary server, with its own arguments.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import httpx

from metadata.embedded import die_with_parent
from tests.e2e.vela_process import STOP_LIMIT, Outcome, VelaServer, environment
from tests.support.ports import HOST
from tests.support.waiting import Never, wait_until


class Forge:
    """The process that has imported a server, and forks one whenever it is asked to."""

    def __init__(self) -> None:
        self._turn = Lock()  # servers are waited for in threads
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.forked"],
            env=environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            preexec_fn=die_with_parent() if sys.platform == "linux" else None,
        )

    def fork(self, directory: Path, arguments: Sequence[str], fault: str = "") -> int:
        """The process number of a new `vela` with these arguments; what it says goes to files in the directory."""
        return int(self._ask("fork", str(directory), fault, *arguments))

    def poll(self, pid: int) -> int | None:
        """The exit code of a process that has ended, as `subprocess` gives it."""
        code = self._ask("poll", str(pid))
        return None if code is None else int(code)

    def _ask(self, *words: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())


@cache
def forge() -> Forge:
    """One for all tests of this process; it ends with it."""
    return Forge()


class ForkedServer(VelaServer):
    """A server that was forked instead of started; for its user there is no difference but the time it takes."""

    def __init__(self, directory: Path, *flags: str, fault: str = "") -> None:
        """`fault`: one that it is to have, out of `tests.faults.planted`."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.data_dir = directory / "data"
        self._out, self._err = directory / "stdout", directory / "stderr"
        # Here and not only in the fork: whoever looks at once finds them.
        self._out.touch()
        self._err.touch()
        self._code: int | None = None
        self._asking = Lock()  # an exit code is told once
        self._http = httpx.Client(timeout=30, trust_env=False, verify=False, follow_redirects=True)
        self._pid = forge().fork(directory, ["serve", "--listen", f"{HOST}:0", "--http", f"{HOST}:0", *flags], fault)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def running(self) -> bool:
        with self._asking:
            if self._code is None:
                self._code = forge().poll(self._pid)
            return self._code is None

    def signal(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self._pid, number)

    def wait(self, within: float = STOP_LIMIT) -> Outcome:
        try:
            wait_until(lambda: not self.running, within)
        except Never:
            raise Never(f"still running after {within:g} s; it said:\n{self.err}") from None
        assert self._code is not None
        return Outcome(self._code, self.out, self.err)

    def close(self) -> None:
        self._http.close()
        self.kill()

    def kill(self) -> None:
        """SIGKILL, also where it was paused; returns when it is gone."""
        self.signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)


def _serve_forks() -> None:
    """The forge's own process: one JSON list per line in, one JSON value per line out, until nobody asks."""
    import gc

    import gateway.cli.main
    import gateway.process  # what `serve` imports when it runs
    from tests.faults import planted

    gc.collect()
    gc.freeze()
    bind_to_forge = die_with_parent() if sys.platform == "linux" else None
    for line in sys.stdin:
        match json.loads(line):
            case ["fork", directory, fault, *arguments]:
                pid = os.fork()
                if pid == 0:
                    os.setpgid(0, 0)
                    if bind_to_forge is not None:
                        bind_to_forge()
                    os.chdir(directory)
                    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                    for number, name in ((1, "stdout"), (2, "stderr")):
                        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
                    if fault:
                        planted.FAULTS[fault]()
                    sys.argv = ["vela", *arguments]
                    gateway.cli.main.main()
                    os._exit(0)
                answer: int | None = pid
            case ["poll", number]:
                ended, status = os.waitpid(int(number), os.WNOHANG)
                answer = os.waitstatus_to_exitcode(status) if ended else None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve_forks()
