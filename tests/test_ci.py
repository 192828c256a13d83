"""`.ci/run` runs everything, whatever fails, and says last what did."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
# Notes a failure where pytest would, and ends as it is told for the target that it is called with.
MAKE = """#!/bin/sh
echo "$1" >> asked
case "$1" in
  test) echo '{"test":"tests/a.py::test_a","result":"failed","reason":"assert 1 == 2"}' >> "${PYTEST_ADDOPTS##*=}" ;;
esac
echo "the closing line of $1"
eval "exit \\$$1"
"""


def run_ci(directory: Path, **codes: int) -> tuple[int, list[str], list[str]]:
    """Its exit code, what was made, and its last words."""
    (directory / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", directory / ".ci" / "run")
    tools = directory / "tools"
    tools.mkdir()
    (directory / ".venv" / "bin").mkdir(parents=True)
    for path, text in (
        (tools / "make", MAKE),
        (directory / ".ci" / "redis", "#!/bin/sh\n"),
        (directory / ".venv" / "bin" / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n'),
    ):
        path.write_text(text)
        path.chmod(0o755)
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    environment |= {name: str(codes.get(name, 0)) for name in ("lint", "test", "integration")}
    done = subprocess.run([".ci/run"], cwd=directory, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, (directory / "asked").read_text().split(), done.stdout.splitlines()


def test_everything_is_run_and_the_last_lines_are_what_failed(tmp_path: Path) -> None:
    code, made, said = run_ci(tmp_path, lint=2, test=2)
    assert (code, made) == (1, ["lint", "test", "integration"])
    assert said[-4:] == ["What failed:", "make lint", "make test", "FAILED tests/a.py::test_a - assert 1 == 2"]


def test_a_green_run_ends_with_what_the_tests_say(tmp_path: Path) -> None:
    code, made, said = run_ci(tmp_path)
    assert (code, made) == (0, ["lint", "test", "integration"])
    assert said[-1] == "the closing line of integration"


@pytest.mark.parametrize("number", [130, 143])
def test_whoever_interrupts_one_part_means_all(tmp_path: Path, number: int) -> None:
    code, made, _ = run_ci(tmp_path, lint=number)
    assert (code, made) == (number, ["lint"])
