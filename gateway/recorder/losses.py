"""What a trace lacks for want of room, as its manifest tells it."""

from __future__ import annotations

from typing import NamedTuple


class Losses(NamedTuple):
    """Counted over all runs of a trace."""

    changes: int = 0  # each time a gap tells where
    values: int = 0  # records of changes that are there

    def and_also(self, other: Losses) -> Losses:
        return Losses(self.changes + other.changes, self.values + other.values)
