"""What receivers of Shared and Key_Shared subscriptions hold unacknowledged, and how often each was asked for again."""

from collections.abc import Iterable
from typing import Generic

from segments.dispatch.receivers import R, Seat

# A count is worth keeping as long as its entry is not acknowledged. With more entries than this going round, further
# ones count from zero: they reach the dead-letter topic later, and nothing else depends on it.
COUNTS_KEPT = 100_000


class Held(Generic[R]):
    """Each entry is held by at most one seat."""

    __slots__ = ("_counts", "seats")

    def __init__(self) -> None:
        self.seats: list[Seat[R]] = []
        self._counts: dict[int, int] = {}

    def redeliveries(self, index: int) -> int:
        return self._counts.get(index, 0) if self._counts else 0

    def settle(self, seat: Seat[R] | None, index: int) -> Seat[R] | None:
        """Take an acknowledged entry from whoever holds it, most likely `seat`; nobody may."""
        if self._counts:
            self._counts.pop(index, None)
        if seat is None or index not in seat.held:
            seat = next((other for other in self.seats if index in other.held), None)
        if seat is not None:
            seat.messages -= seat.held.pop(index)
        return seat

    def reduce(self, seat: Seat[R] | None, index: int, left: int) -> None:
        """Some messages of an entry are acknowledged: that many are not."""
        if seat is None or index not in seat.held:
            seat = next((other for other in self.seats if index in other.held), None)
        if seat is not None:
            gone = max(0, seat.held[index] - left)
            seat.held[index] -= gone
            seat.messages -= gone

    def take_back(self, seat: Seat[R], indexes: Iterable[int] | None) -> list[int]:
        """Those of the entries that the seat held, which asks for them again: each has one redelivery more."""
        taken = (
            list(seat.held) if indexes is None else [index for index in dict.fromkeys(indexes) if index in seat.held]
        )
        counts = self._counts
        for index in taken:
            seat.messages -= seat.held.pop(index)
            if index in counts or len(counts) < COUNTS_KEPT:
                counts[index] = counts.get(index, 0) + 1
        return taken

    def take_all(self, seat: Seat[R]) -> list[int]:
        """What a seat held that leaves. Nobody has refused any of it, so nothing is counted."""
        taken = list(seat.held)
        seat.held.clear()
        seat.messages = 0
        return taken

    def settle_below(self, mark: int) -> list[int]:
        """Forget everything up to the mark; what was held of it is returned."""
        self._counts = {index: count for index, count in self._counts.items() if index > mark}
        settled: list[int] = []
        for seat in self.seats:
            gone = [index for index in seat.held if index <= mark]
            for index in gone:
                seat.messages -= seat.held.pop(index)
            settled += gone
        return settled

    def clear(self) -> None:
        self._counts.clear()
        for seat in self.seats:
            seat.held.clear()
            seat.messages = 0
