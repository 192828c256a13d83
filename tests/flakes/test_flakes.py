"""`make flakes` as a program, on a suite of its own whose tests fail as they are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flakes.__main__ import commands
from tests.flakes.busy import busy_loops
from tests.flakes.results import Run, parse_runs
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
LIMIT = 90.0


class Suite:
    """Tests in a directory, and the results of running them."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "test_them.py"
        self.results = directory / "results.jsonl"
        (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n  soak\n  integration\n  spark\n")

    def write(self, text: str) -> None:
        self.file.write_text(text)

    def start(self, *options: str) -> subprocess.Popen[str]:
        """One process each, as whoever chooses by marker has it."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.flakes",
                "--results",
                str(self.results),
                "--arguments=-m 'not soak'",
                *options,
            ],
            cwd=self.file.parent,
            env=environment | {"PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
        )

    def run(self, *options: str) -> tuple[int, str]:
        process = self.start(*options)
        said, _ = process.communicate(timeout=LIMIT)
        return process.returncode, said

    def runs(self) -> list[Run]:
        return parse_runs(self.results.read_bytes())


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_the_suite_is_run_as_make_test_runs_it_and_a_marker_replaces_its_halves() -> None:
    first, second = commands(["-k", "x"])
    assert first[-2:] == second[-2:] == ["-k", "x"]
    assert ("not spark" in first[5], second[1].startswith("spark")) == (True, True)
    assert commands(["-m", "integration"]) == [["-m", "integration"]]


@pytest.mark.slow
def test_runs_alternate_and_what_was_red_is_listed_and_run_again(suite: Suite) -> None:
    suite.write("def test_good(): pass\ndef test_bad(): assert not 'always'\n")
    code, said = suite.run("--runs", "2", "--seed", "5")
    assert code == 1, said
    assert [(run.busy, run.seed, len(run.outcomes)) for run in suite.runs()] == [(0, 5, 2), (2, 6, 2)]
    assert "red 1 of 1 times alone, 1 of 1 beside busy loops" in said
    suite.write("def test_good(): pass\ndef test_bad(): pass\n")
    code, said = suite.run("--red", "1")
    assert code == 0, said
    assert [outcome.test.partition("::")[2] for outcome in suite.runs()[-1].outcomes] == ["test_bad"]
    assert "green 1 times since" in said


@pytest.mark.slow
def test_a_module_that_cannot_be_imported_is_red(suite: Suite) -> None:
    suite.write("import what_is_not_there\n")
    code, said = suite.run("--runs", "1")
    assert code == 1
    assert [failure.test for failure in suite.runs()[0].failures] == ["test_them.py"]
    assert "No module named 'what_is_not_there'" in said


def test_nothing_to_run_again_is_no_failure_and_nothing_to_run_is_one(suite: Suite) -> None:
    assert suite.run("--red", "3") == (0, "Nothing that was ever red is there.\n")
    suite.write("")
    assert suite.run("--runs", "1")[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_with_all_that_it_started_and_keeps_earlier_results(
    suite: Suite, tmp_path: Path, number: signal.Signals
) -> None:
    here = tmp_path / "pids"
    suite.write(
        "import os, pathlib, subprocess, time\n"
        "def test_long():\n"
        f"    file = pathlib.Path({str(here)!r})\n"
        "    if not file.exists(): file.touch(); return\n"
        "    ps = ['ps', '-o', 'pid=', '--ppid', str(os.getppid())]\n"
        "    loops = subprocess.run(ps, capture_output=True, text=True)\n"
        "    file.write_text(f'{os.getpid()} {loops.stdout}')\n"
        "    time.sleep(100)\n"
    )
    process = suite.start("--runs", "2")
    wait_until(lambda: here.exists() and here.read_text(), within=LIMIT)
    pids = [int(pid) for pid in here.read_text().split()]
    process.send_signal(number)
    said, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 130, said
    wait_until(lambda: not any(map(is_alive, pids)))
    assert len(pids) >= 4
    assert len(suite.runs()) == 1


def test_busy_loops_run_while_the_block_does_and_no_longer() -> None:
    with busy_loops(2) as pids:
        assert [is_alive(pid) for pid in pids] == [True, True]
    assert [is_alive(pid) for pid in pids] == [False, False]


def test_busy_loops_end_when_whoever_started_them_was_killed() -> None:
    program = (
        "import time\nfrom tests.flakes.busy import busy_loops\n"
        "with busy_loops(1) as [pid]: print(pid, flush=True); time.sleep(100)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not is_alive(pid))
