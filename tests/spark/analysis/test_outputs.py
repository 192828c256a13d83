"""Where results go: whole or not at all, and never over something that is not ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.analysis.outputs import SUMMARY, placing
from spark.analysis.summary import FORMAT
from spark.errors import JobError


def place(out: Path, text: str = "new") -> None:
    with placing(out) as scratch:
        (scratch / SUMMARY).write_text(f'{{"format": "{FORMAT}"}}')
        (scratch / "table").write_text(text)


def left_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("make", [False, True])
def test_results_appear_when_they_are_whole(tmp_path: Path, make: bool) -> None:
    out = tmp_path / "out"
    if make:
        out.mkdir()
    place(out)
    assert left_in(out) == [SUMMARY, "table"]
    assert left_in(tmp_path) == ["out"]


def test_an_earlier_analysis_is_replaced(tmp_path: Path) -> None:
    place(tmp_path / "out", "old")
    place(tmp_path / "out", "new")
    assert (tmp_path / "out" / "table").read_text() == "new"
    assert left_in(tmp_path) == ["out"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    place(tmp_path / "out", "old")

    def fail() -> None:
        with placing(tmp_path / "out") as scratch:
            (scratch / "table").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (tmp_path / "out" / "table").read_text() == "old"
    assert left_in(tmp_path) == ["out"]


def test_what_is_not_ours_is_refused_and_untouched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(JobError, match="something else than an earlier analysis"):
        place(out)
    assert left_in(out) == ["thesis.txt"]


def test_a_file_and_a_directory_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match="is a file"):
        place(tmp_path / "file")
    with pytest.raises(JobError, match="There is no directory"):
        place(tmp_path / "no" / "such")
