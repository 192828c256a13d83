"""A measured figure beside its floor and its target, and how figures are printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


class MeasurementFailed(Exception):
    """A figure could not be taken; the text says why."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its unit."""

    value: float
    unit: str

    def __str__(self) -> str:
        return f"{self.value:.2f} {self.unit}" if self.value < 100 else f"{self.value:,.0f} {self.unit}"


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured, and the least that it could be on this machine in this run.

    `target` is the most that it may be: a ratio to the floor when `target_is_ratio`, else in the unit of `measured`.
    Without one the figure is there to be known.
    """

    name: str
    measured: Quantity
    floor: Quantity | None
    target: float | None
    target_is_ratio: bool = False
    notes: tuple[str, ...] = ()

    @property
    def ratio_to_floor(self) -> float | None:
        """None also where the floor is too small to be seen, as the memory of a few connections can be."""
        return self.measured.value / self.floor.value if self.floor is not None and self.floor.value else None

    @property
    def ratio_to_target(self) -> float | None:
        if self.target is None:
            return None
        if not self.target_is_ratio:
            return self.measured.value / self.target
        assert self.ratio_to_floor is not None, "a ratio needs its floor"
        return self.ratio_to_floor / self.target

    @property
    def within_target(self) -> bool | None:
        return None if self.ratio_to_target is None else self.ratio_to_target <= 1

    @property
    def target_text(self) -> str:
        if self.target is None:
            return "-"
        return f"{self.target:g} x floor" if self.target_is_ratio else str(Quantity(self.target, self.measured.unit))


_VERDICTS = {True: "[green]within target[/]", False: "[bold red]over target[/]", None: "-"}


def _ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def print_table(figures: Sequence[Figure], console: Console) -> None:
    """One row per figure, and below the table what each says about how it was taken."""
    table = Table()
    table.add_column("figure", min_width=20)
    for column in ("measured", "floor", "to floor", "target", "to target"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for figure in figures:
        table.add_row(
            figure.name,
            str(figure.measured),
            "-" if figure.floor is None else str(figure.floor),
            _ratio_text(figure.ratio_to_floor),
            figure.target_text,
            _ratio_text(figure.ratio_to_target),
            _VERDICTS[figure.within_target],
        )
    console.print(table)
    for figure in figures:
        console.print(f"[bold]{figure.name}[/]")
        for note in figure.notes:
            console.print(Padding(Text(note), (0, 0, 0, 2)))


def as_json(figures: Sequence[Figure]) -> str:
    """The same for programs."""
    return json.dumps(
        [
            asdict(figure)
            | {
                "ratio_to_floor": figure.ratio_to_floor,
                "ratio_to_target": figure.ratio_to_target,
                "within_target": figure.within_target,
            }
            for figure in figures
        ],
        indent=2,
    )
