"""Exclusive and Failover: one receiver at a time gets everything, in order.

What is outstanding needs no list: it is whatever lies between the cursor's mark and the read position and is not
acknowledged. So these receivers may leave any number of messages unacknowledged, which those that acknowledge
cumulatively at long intervals do. Redelivery goes back to the mark, and counts nothing. When a message asks to be
delivered does not matter here: it would hold up all behind it.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from metadata.log_entries import StoredEntry
from segments.cursors import Cursor
from segments.dispatch.distribution import Distribution, messages_of
from segments.dispatch.errors import ConsumerBusy
from segments.dispatch.receivers import MAX_PERMITS, Delivery, R, Seat

# Of a receiver: its priority, its name where that decides among equals, and its number in the order of joining.
_Rank = tuple[int, str, int]


class InOrder(Distribution[R]):
    """Of several receivers one with the lowest priority number is active.

    Of equals it is the one that came first. Joining order, not names: then who joins never takes the place of an equal,
    so that nothing is delivered twice for it. The partitions of a topic are spread over equals instead, by their
    numbers and the names of the receivers, so that all partitions come to the same order without asking each other.
    """

    def __init__(self, cursor: Cursor, read: int, *, exclusive: bool, partition: int | None = None) -> None:
        super().__init__(cursor, read)
        self._exclusive = exclusive
        self._partition = partition
        # By priority, among equals in the order that decides; and where each stands.
        self._order: list[_Rank] = []
        self._seats: dict[_Rank, Seat[R]] = {}
        self._ranks: dict[Seat[R], _Rank] = {}
        self._joined = 0
        self._active: Seat[R] | None = None

    @property
    def active(self) -> Seat[R] | None:
        return self._active

    def join(self, seat: Seat[R]) -> None:
        if self._exclusive and self._active is not None:
            name = self._active.receiver.name
            raise ConsumerBusy(f"Exclusive consumer {name!r} is connected: close it first, or subscribe as Failover.")
        self._joined += 1
        receiver = seat.receiver
        rank = (receiver.priority, "" if self._partition is None else receiver.name, self._joined)
        insort(self._order, rank)
        self._seats[rank] = seat
        self._ranks[seat] = rank
        self._choose()

    def leave(self, seats: Sequence[Seat[R]]) -> None:
        for seat in seats:
            rank = self._ranks.pop(seat)
            del self._seats[rank]
            if len(seats) == 1:
                del self._order[bisect_left(self._order, rank)]
        if len(seats) > 1:
            self._order = [rank for rank in self._order if rank in self._seats]
        self._choose()

    @property
    def weight(self) -> int:
        return len(self._order)

    def _choose(self) -> None:
        before, self._active = self._active, self._chosen()
        if before is not None and self._active is not before:
            self._rewind()

    def _chosen(self) -> Seat[R] | None:
        if not self._order:
            return None
        first = self._order[0]
        if self._partition is None:
            return self._seats[first]
        equals = bisect_left(self._order, (first[0] + 1,))
        return self._seats[self._order[self._partition % equals]]

    def _rewind(self) -> None:
        self.read = self.cursor.mark + 1

    def wanted(self, end: int, now_ms: int) -> list[int] | range | None:
        room = self._active.room(MAX_PERMITS) if self._active is not None else 0
        return self.ahead(end, self.pace.entries(room)) if room else None

    def offer(self, entries: Sequence[StoredEntry], now_ms: int) -> list[Delivery[R]]:
        self.pace.learn(entries)
        seat = self.active
        if seat is None or not seat.room(MAX_PERMITS):
            return []
        receiver, cursor = seat.receiver, self.cursor
        all_whole = not cursor.has_partials
        deliveries: list[Delivery[R]] = []
        for entry in entries:
            index = entry.index
            if index != self.read or index <= cursor.top:
                self.read = cursor.next_unacked(self.read)
                if index < self.read:
                    continue
                if index > self.read:
                    break
            left, ack_set = (messages_of(entry), ()) if all_whole else self.part(entry)
            if left:
                if seat.permits <= 0:
                    break
                seat.permits -= left
                deliveries.append(Delivery(receiver, entry, 0, ack_set))
            self.read = index + 1
        return deliveries

    def settle(self, index: int) -> None:
        """Nothing to do: the cursor says it all."""

    def settle_partly(self, index: int) -> None:
        """As above."""

    def settle_below(self) -> None:
        self.read = max(self.read, self.cursor.mark + 1)

    def take_back(self, seat: Seat[R], indexes: Sequence[int] | None) -> None:
        # Single entries cannot come again without those behind them: that would not be in order.
        if seat is self.active and (indexes is None or indexes):
            self._rewind()

    def unacked(self, seat: Seat[R]) -> int:
        if seat is not self.active:
            return 0
        return self.cursor.unacked_between(self.cursor.mark + 1, self.read)

    def restart(self) -> None:
        self._rewind()
