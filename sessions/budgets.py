"""What connections make a node hold, counted in all, and who loses it when that is too much. Pure: time is an argument.

One rule for everything that a peer can pile up: the greediest goes first, until the rest fits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, Generic, Protocol, TypeVar

# In seconds: those that stopped within so short a time are told apart by how much they hold.
_MOMENT: Final = 0.1


class Holder(Protocol):
    def burden(self, now: float) -> float:
        """What this one costs everybody else: the greediest has most."""

    def give_up(self) -> None:
        """End, and hold nothing from now on."""


H = TypeVar("H", bound=Holder)


def burden(held: int, moved_at: float, now: float) -> float:
    """Of bytes that wait for their peer to move on: whoever moves may have most of them for a moment."""
    return held * (now - moved_at + _MOMENT)


def shed(holders: Collection[H], is_over: Callable[[], bool], now: float) -> None:
    """End the greediest, one after the other, while there is too much. Each leaves `holders` as it gives up."""
    while holders and is_over():
        max(holders, key=lambda holder: holder.burden(now)).give_up()


class Budget(Generic[H]):
    """Bytes of one kind on all connections together, and who holds them."""

    __slots__ = ("_held", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self._held: dict[H, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def held(self, holder: H) -> int:
        return self._held.get(holder, 0)

    def hold(self, holder: H, held: int, now: float) -> None:
        """A holder has so many bytes now; if that is too much for all together, the greediest end, it among them."""
        grown = held - self._held.get(holder, 0)
        self._held[holder] = held
        self.total += grown
        if grown > 0 and self.total > self.limit:
            shed(self._held, self._is_over, now)

    def release(self, holder: H) -> None:
        """A holder has nothing any more; whoever has nothing already is fine."""
        self.total -= self._held.pop(holder, 0)

    def _is_over(self) -> bool:
        return self.total > self.limit


class Holdings:
    """What the watches of one connection take, counted against what those of all may: the largest goes first."""

    __slots__ = ("_budget", "_end", "held")

    def __init__(self, budget: Budget[Holdings], end: Callable[[], None]) -> None:
        """`end` closes the connection, whose watches go a moment later; what they took counts no more by then."""
        self._budget: Budget[Holdings] | None = budget
        self._end = end
        self.held = 0

    def change(self, by: int) -> None:
        self.held += by
        if self._budget is None:
            return
        if self.held > 0:
            self._budget.hold(self, self.held, 0.0)
        else:
            self._budget.release(self)

    def burden(self, now: float) -> float:
        return self.held

    def give_up(self) -> None:
        self.release()
        self._end()

    def release(self) -> None:
        """The connection is gone, and what it held counts no more, whenever that goes."""
        if self._budget is not None:
            self._budget.release(self)
            self._budget = None
