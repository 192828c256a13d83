"""`python -m tests.flakes.closing FILE`: the failures that pytest has noted with `--outcomes FILE`, a line for each."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.flakes.results import Outcome, parse_outcomes


def failures(outcomes: list[Outcome]) -> list[str]:
    """As they came, each test once."""
    said: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.result == "failed":
            said.setdefault(outcome.test, outcome.reason)
    return [f"FAILED {test} - {reason}" if reason else f"FAILED {test}" for test, reason in said.items()]


if __name__ == "__main__":
    for line in failures(parse_outcomes(Path(sys.argv[1]).read_bytes())):
        print(line)
