"""`make test` is two runs of pytest; it succeeds if both do, or if one does and the other has nothing to run.

A failure of the first does not keep the second from running: what is red is to be seen at once.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PASSED, FAILED, INTERRUPTED, NOTHING_SELECTED = 0, 1, 2, 5


def make_test(directory: Path, first: int, second: int, arguments: str = "") -> tuple[int, list[str]]:
    """How it ends, and what pytest was asked, if the runs end with these codes."""
    asked, tools = directory / "asked", directory / "bin"
    tools.mkdir()
    asked.touch()
    (tools / "python").touch()
    (directory / ".dev").touch()  # newer than what it is made of, so nothing is installed
    stand_in = tools / "pytest"
    stand_in.write_text(
        f'#!/bin/sh\necho "$*" >> "{asked}"\n[ $(wc -l < "{asked}") -eq 1 ] && exit {first}\nexit {second}\n'
    )
    stand_in.chmod(0o755)
    # Not what the make that has started these tests was told.
    environment = {name: value for name, value in os.environ.items() if name not in ("ARGS", "MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        ["make", "test", f"VENV={directory}", f"ARGS={arguments}"],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        timeout=60,
    )
    return done.returncode, asked.read_text().splitlines()


@pytest.mark.parametrize(
    ("first", "second"), [(PASSED, PASSED), (PASSED, NOTHING_SELECTED), (NOTHING_SELECTED, PASSED)]
)
def test_one_half_may_have_nothing_to_run(tmp_path: Path, first: int, second: int) -> None:
    code, asked = make_test(tmp_path, first, second)
    assert (code, len(asked)) == (0, 2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NOTHING_SELECTED, NOTHING_SELECTED),
        (PASSED, FAILED),
        (FAILED, PASSED),
        (FAILED, FAILED),
        (FAILED, NOTHING_SELECTED),
        (NOTHING_SELECTED, FAILED),
        (PASSED, INTERRUPTED),
    ],
)
def test_what_fails_or_runs_nothing_at_all_is_a_failure(tmp_path: Path, first: int, second: int) -> None:
    code, asked = make_test(tmp_path, first, second)
    assert (code != 0, len(asked)) == (True, 2)


def test_second_half_is_not_run_after_an_interrupt(tmp_path: Path) -> None:
    code, asked = make_test(tmp_path, INTERRUPTED, PASSED)
    assert (code != 0, len(asked)) == (True, 1)


def test_both_halves_get_the_arguments(tmp_path: Path) -> None:
    _, asked = make_test(tmp_path, PASSED, PASSED, "-k 'deletion and not cluster' -x")
    assert [line.endswith("-k deletion and not cluster -x") for line in asked] == [True, True]
