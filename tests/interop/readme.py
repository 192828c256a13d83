"""The README's own text: what it says to type, and what it shows as the answer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PROMPT: Final = "$ "
ELLIPSIS: Final = "…"
_BLOCK: Final = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """One command and the lines that are shown below it; an ellipsis stands for some that are not."""

    command: str
    shown: tuple[str, ...]

    @property
    def shown_in_full(self) -> tuple[str, ...]:
        return tuple(line for line in self.shown if line != ELLIPSIS)


def steps(text: str) -> list[Step]:
    """All commands of all blocks of a terminal, in order."""
    found = []
    for block in _BLOCK.findall(text):
        # What stands before the first prompt belongs to a command of an earlier block.
        for part in f"\n{block}".split(f"\n{PROMPT}")[1:]:
            command, _, rest = part.partition("\n")
            while command.endswith("\\"):
                line, _, rest = rest.partition("\n")
                command = command.removesuffix("\\") + line.strip()
            found.append(Step(command, tuple(rest.splitlines())))
    return found


def readme_steps() -> list[Step]:
    return steps((ROOT / "README.md").read_text())
