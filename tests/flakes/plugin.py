"""For pytest: runs tests in an order that a number decides, and writes what became of each to a file.

`pytest -p tests.flakes.plugin --order-seed=7 --outcomes=FILE`, where the equals signs keep pytest from taking the
values for places of tests. Modules are shuffled, and the tests of each, so that what a module's tests share is still
made once.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from tests.flakes.results import COLLECTION, Outcome

T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("flakes")
    group.addoption("--order-seed", type=int, help="shuffle the tests; the same number gives the same order")
    group.addoption("--outcomes", type=Path, help="append to this file what became of each test, as lines of JSON")
    group.addoption("--only-listed", type=Path, help="run those tests only whose ids are the lines of this file")


def pytest_configure(config: pytest.Config) -> None:
    # With xdist the process that distributes the tests hears of all outcomes; the workers write nothing.
    file: Path | None = config.getoption("--outcomes")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Outcomes(file))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    listed: Path | None = config.getoption("--only-listed")
    if listed is not None:
        wanted = set(listed.read_text().splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]
    seed: int | None = config.getoption("--order-seed")
    if seed is not None:
        items[:] = shuffled([(item.nodeid.partition("::")[0], item) for item in items], seed)


def shuffled(items: list[tuple[str, T]], seed: int) -> list[T]:
    """Groups in another order, and the members of each; whoever does this with the same number gets the same."""
    chance = random.Random(seed)
    groups: dict[str, list[T]] = {}
    for group, item in items:
        groups.setdefault(group, []).append(item)
    order = sorted(groups)
    chance.shuffle(order)
    for group in order:
        chance.shuffle(groups[group])
    return [item for group in order for item in groups[group]]


class _Outcomes:
    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(Outcome(report.nodeid, "failed", COLLECTION, _reason(report.longrepr)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line for a test that was run, and one more for each of its parts that failed."""
        if report.failed:
            self._note(Outcome(report.nodeid, "failed", report.when or "run", _reason(report.longrepr)))
        elif report.when == "call" and report.passed:
            self._note(Outcome(report.nodeid, "passed"))

    def _note(self, outcome: Outcome) -> None:
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")


def _reason(representation: object) -> str:
    """The last thing that was said about a failure in one line."""
    crash = getattr(representation, "reprcrash", None)
    said = str(crash.message if crash is not None else representation or "")
    return next((line.strip()[:300] for line in said.splitlines() if line.strip()), "")
