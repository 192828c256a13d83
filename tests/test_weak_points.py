"""The table of weak points in docs/controller.md: none is claimed without a test, and none is left out."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
TABLE = (TESTS.parent / "docs" / "controller.md").read_text()
NUMBERS = range(1, 29)
NOT_HERE = {28: "auto-scaling"}


def test_every_weak_point_has_a_test_that_names_it() -> None:
    texts = [path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__)]
    named = {int(number) for text in texts for number in re.findall(r"\bW(\d+)\b", text)}
    assert set(NUMBERS) - named == NOT_HERE.keys()


def test_every_weak_point_has_its_row() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| W")]
    listed = [int(number) for row in rows for number in re.findall(r"\bW(\d+)\b", row.split("|")[1])]
    assert listed == list(NUMBERS)
    for number, reason in NOT_HERE.items():
        [row] = [row for row in rows if f"W{number} " in row]
        assert "not here" in row
        assert reason in row
