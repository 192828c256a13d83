"""What receivers of Shared and Key_Shared subscriptions hold unacknowledged, and how often each was asked for again."""

from collections.abc import Iterable
from typing import Generic

from segments.dispatch.receivers import R, Seat

# A count is worth keeping as long as its entry is not acknowledged. With more entries than this going round, further
# ones count from zero: they reach the dead-letter topic later, and nothing else depends on it.
COUNTS_KEPT = 100_000


class Held(Generic[R]):
    """Each entry is held by at most one seat."""

    __slots__ = ("_counts", "holders", "seats")

    def __init__(self) -> None:
        self.seats: dict[Seat[R], None] = {}  # in the order in which they came
        # Who holds an entry: acknowledgements may come from somebody else, and there may be thousands of seats. Whoever
        # hands out writes here and into `Seat.held`.
        self.holders: dict[int, Seat[R]] = {}
        self._counts: dict[int, int] = {}

    def redeliveries(self, index: int) -> int:
        return self._counts.get(index, 0) if self._counts else 0

    def settle(self, index: int) -> Seat[R] | None:
        """Take an acknowledged entry from whoever holds it; nobody may."""
        if self._counts:
            self._counts.pop(index, None)
        seat = self.holders.pop(index, None)
        if seat is not None:
            seat.messages -= seat.held.pop(index)
        return seat

    def reduce(self, index: int, left: int) -> None:
        """Some messages of an entry are acknowledged: that many are not."""
        seat = self.holders.get(index)
        if seat is not None:
            gone = max(0, seat.held[index] - left)
            seat.held[index] -= gone
            seat.messages -= gone

    def take_back(self, seat: Seat[R], indexes: Iterable[int] | None) -> list[int]:
        """Those of the entries that the seat held, which asks for them again: each has one redelivery more."""
        taken = (
            list(seat.held) if indexes is None else [index for index in dict.fromkeys(indexes) if index in seat.held]
        )
        counts, holders = self._counts, self.holders
        for index in taken:
            seat.messages -= seat.held.pop(index)
            del holders[index]
            if index in counts or len(counts) < COUNTS_KEPT:
                counts[index] = counts.get(index, 0) + 1
        return taken

    def take_all(self, seat: Seat[R]) -> list[int]:
        """What a seat held that leaves. Nobody has refused any of it, so nothing is counted."""
        taken = list(seat.held)
        for index in taken:
            del self.holders[index]
        seat.held.clear()
        seat.messages = 0
        return taken

    def settle_below(self, mark: int) -> list[int]:
        """Forget everything up to the mark; what was held of it is returned."""
        self._counts = {index: count for index, count in self._counts.items() if index > mark}
        settled = [index for index in self.holders if index <= mark]
        for index in settled:
            seat = self.holders.pop(index)
            seat.messages -= seat.held.pop(index)
        return settled

    def clear(self) -> None:
        self._counts.clear()
        self.holders.clear()
        for seat in self.seats:
            seat.held.clear()
            seat.messages = 0
