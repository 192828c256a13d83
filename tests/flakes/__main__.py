"""`make flakes`: the suite in random order, in turns alone and beside busy loops; what was ever red is listed.

Results are added to a file, which the list at the end is made from. The exit code is about this call: 0 if all of its
runs were clean.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from tests.flakes.busy import busy_loops
from tests.flakes.results import ALONE, COLLECTION, Run, ever_red, parse_outcomes, parse_runs, report, summary_of

RESULTS: Final = Path(".flakes/results.jsonl")
BUSY: Final = 2
# The two halves of `make test`.
HALVES: Final = (
    ("-n", "3", "--dist", "worksteal", "-m", "not soak and not integration and not spark"),
    ("-m", "spark and not soak and not integration"),
)
# Of one run of pytest. The whole suite takes ten minutes, and a few times that beside busy loops.
RUN_LIMIT: Final = 3_600.0
END_LIMIT: Final = 30.0
INTERRUPTED: Final = 130


def commands(arguments: Sequence[str]) -> list[list[str]]:
    """What pytest is asked in one run. Who chooses by marker gets one process, as `make integration` has."""
    if any(argument.startswith("-m") for argument in arguments):
        return [list(arguments)]
    return [[*half, *arguments] for half in HALVES]


def run_pytest(arguments: list[str], seed: int, busy: int, outcomes: Path, limit: float) -> tuple[int | None, float]:
    """The exit code, None if it was ended after `limit` seconds; and how long it took."""
    started = time.monotonic()
    with busy_loops(busy):
        process = subprocess.Popen([*pytest_command(arguments, seed), f"--outcomes={outcomes}"])
        try:
            return process.wait(limit), time.monotonic() - started
        except subprocess.TimeoutExpired:
            return None, time.monotonic() - started
        finally:
            # An interrupt from the keyboard has reached it as well.
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(END_LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def pytest_command(arguments: list[str], seed: int) -> list[str]:
    shuffling = ["-p", "tests.flakes.plugin", f"--order-seed={seed}"]
    return [sys.executable, "-m", "pytest", "-q", *shuffling, *arguments]


def main(argv: Sequence[str], run: Callable[..., tuple[int | None, float]] = run_pytest) -> int:
    options = _parser().parse_args(argv)
    results: Path = options.results
    results.parent.mkdir(parents=True, exist_ok=True)
    results.touch()
    arguments, count = shlex.split(options.arguments), options.runs
    if options.red is not None:
        count = options.red
        arguments = [*arguments, *_red_again(results)]
        if not any(argument.startswith("--only-listed") for argument in arguments):
            print("Nothing that was ever red is there.")
            return 0
    first = len(parse_runs(results.read_bytes()))
    interrupted = False
    try:
        for number in range(count):
            busy = BUSY if number % 2 else ALONE
            seed = random.randrange(1_000_000) if options.seed is None else options.seed + number
            for each in commands(arguments):
                done = _one_run(each, seed, busy, run)
                with results.open("ab") as file:
                    file.write(msgspec.json.encode(done) + b"\n")
                if done.exit_code != 5:
                    print(f"run {number + 1} of {count}, {summary_of(done)}", flush=True)
    except KeyboardInterrupt:
        interrupted = True
    runs = parse_runs(results.read_bytes())
    print(f"\n{report(runs, str(results))}")
    # Without the halves that had nothing to run.
    these = [each for each in runs[first:] if each.exit_code != 5]
    print(f"\nOf this call: {len(these)} runs, {sum(each.is_clean for each in these)} clean.")
    if interrupted:
        return INTERRUPTED
    something_ran = any(each.outcomes for each in these)
    return 0 if something_ran and all(each.is_clean for each in these) else 1


def _one_run(arguments: list[str], seed: int, busy: int, run: Callable[..., tuple[int | None, float]]) -> Run:
    with tempfile.TemporaryDirectory() as directory:
        outcomes = Path(directory) / "outcomes"
        outcomes.touch()
        code, seconds = run(arguments, seed, busy, outcomes, RUN_LIMIT)
        became = parse_outcomes(outcomes.read_bytes())
        # It says the same about modules that cannot be imported, and about being interrupted.
        if code == 2 and not any(outcome.part == COLLECTION for outcome in became):
            raise KeyboardInterrupt
        return Run(
            at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            commit=_commit(),
            seed=seed,
            busy=busy,
            command=pytest_command(arguments, seed),
            exit_code=code,
            seconds=round(seconds, 1),
            outcomes=became,
        )


def _red_again(results: Path) -> list[str]:
    """What selects the tests that were ever red, as far as their modules are still there."""
    tests = [tally.test for tally in ever_red(parse_runs(results.read_bytes()))]
    modules = sorted({module for test in tests if (module := test.partition("::")[0]) and Path(module).exists()})
    if not modules:
        return []
    listed = results.with_name("red.txt")
    listed.write_text("".join(f"{test}\n" for test in tests))
    return [f"--only-listed={listed}", *modules]


def _commit() -> str:
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make flakes", description=__doc__)
    parser.add_argument("--runs", type=int, default=6, help="how many, in turns alone and beside busy loops")
    parser.add_argument("--red", type=int, help="so many runs of what was ever red, and of nothing else")
    parser.add_argument("--seed", type=int, help="of the first run; the next one is one more")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--arguments", default="", help="for pytest, in one string")
    return parser


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    # Each of the many processes that tests start would compile all of Vela otherwise.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.exit(main(sys.argv[1:]))
