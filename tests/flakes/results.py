"""What became of tests in many runs, added up: which were ever red, how often, when, and how to see it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

ALONE: Final = 0
# The part of a test's life in which its module is imported.
COLLECTION: Final = "collection"


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """One test in one run. A test can fail twice: in itself and while it is taken down."""

    test: str
    result: Literal["passed", "failed"]
    part: str = "call"
    reason: str = ""


class Run(msgspec.Struct, frozen=True):
    """One run of pytest, with what is needed to do it again."""

    at: str
    commit: str
    seed: int
    busy: int  # loops that ran beside it
    command: list[str]
    exit_code: int | None  # None if it was ended because it took too long
    seconds: float
    outcomes: list[Outcome]

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.result == "failed"]

    @property
    def is_clean(self) -> bool:
        """Nothing failed. That there was nothing to run is no failure: one half may have nothing to do."""
        return self.exit_code in (0, 5) and not self.failures


def parse_runs(text: bytes) -> list[Run]:
    """The runs in a file of results. A last line that was not finished is none."""
    runs = []
    for line in text.splitlines():
        try:
            runs.append(msgspec.json.decode(line, type=Run))
        except msgspec.DecodeError:
            continue
    return runs


def parse_outcomes(text: bytes) -> list[Outcome]:
    return [msgspec.json.decode(line, type=Outcome) for line in text.splitlines()]


@dataclass
class Tally:
    """One test in all runs."""

    test: str
    alone: list[bool] = field(default_factory=list)  # in order, whether it was red
    beside: list[bool] = field(default_factory=list)
    green_since: int = 0
    last_red: Run | None = None
    reason: str = ""

    @property
    def red(self) -> int:
        return sum(self.alone) + sum(self.beside)

    def add(self, run: Run, failure: Outcome | None) -> None:
        (self.alone if run.busy == ALONE else self.beside).append(failure is not None)
        if failure is None:
            self.green_since += 1
        else:
            self.green_since, self.last_red, self.reason = 0, run, failure.reason


def ever_red(runs: Iterable[Run]) -> list[Tally]:
    """The tests that were red at least once, the most often red first."""
    tallies: dict[str, Tally] = {}
    for run in runs:
        failures: dict[str, Outcome] = {}
        for outcome in run.failures:
            failures.setdefault(outcome.test, outcome)
        for test in dict.fromkeys(outcome.test for outcome in run.outcomes):
            tallies.setdefault(test, Tally(test)).add(run, failures.get(test))
    return sorted((tally for tally in tallies.values() if tally.red), key=lambda tally: (-tally.red, tally.test))


def count_of_tests(runs: Iterable[Run]) -> int:
    return len({outcome.test for run in runs for outcome in run.outcomes})


def summary_of(run: Run) -> str:
    """One run in one line."""
    passed = len({outcome.test for outcome in run.outcomes} - {failure.test for failure in run.failures})
    beside = "alone" if run.busy == ALONE else f"beside {run.busy} busy loops"
    end = (
        ""
        if run.exit_code in (0, 1, 5)
        else " (took too long)"
        if run.exit_code is None
        else f" (ended {run.exit_code})"
    )
    failed = len({failure.test for failure in run.failures})
    return f"{beside}, seed {run.seed}: {passed} passed, {failed} failed in {run.seconds:.0f} s{end}"


def report(runs: Sequence[Run], file: str) -> str:
    """Everything that was ever red in these runs, for people."""
    red = ever_red(runs)
    unfinished = [run for run in runs if not run.is_clean and not run.failures]
    lines = [f"{file}: {len(runs)} runs of {count_of_tests(runs)} tests, {len(red)} of them ever red."]
    for tally in red:
        assert tally.last_red is not None, "what was red was so in some run"
        lines += [
            "",
            tally.test,
            f"  red {sum(tally.alone)} of {len(tally.alone)} times alone, {sum(tally.beside)} of {len(tally.beside)} "
            f"beside busy loops; green {tally.green_since} times since",
            f"  last at {tally.last_red.commit}: {tally.reason}",
            f"  the same order again: {shlex.join(tally.last_red.command)}",
            f'  this test alone: make flakes RUNS=50 ARGS="{shlex.quote(tally.test)}"',
        ]
    for run in unfinished:
        lines += ["", f"A run did not come to its end: {summary_of(run)}", f"  {shlex.join(run.command)}"]
    return "\n".join(lines)
