"""Exclusive and Failover: one receiver at a time gets everything, in order.

What is outstanding needs no list: it is whatever lies between the cursor's mark and the read position and is not
acknowledged. So these receivers may leave any number of messages unacknowledged, which those that acknowledge
cumulatively at long intervals do. Redelivery goes back to the mark, and counts nothing. When a message asks to be
delivered does not matter here: it would hold up all behind it.
"""

from collections.abc import Sequence

from metadata.log_entries import StoredEntry
from segments.cursors import Cursor
from segments.dispatch.distribution import Distribution, messages_of
from segments.dispatch.errors import ConsumerBusy
from segments.dispatch.receivers import MAX_PERMITS, Delivery, R, Seat


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
        self._seats: list[Seat[R]] = []
        self._active: Seat[R] | None = None

    @property
    def active(self) -> Seat[R] | None:
        return self._active

    def join(self, seat: Seat[R]) -> None:
        if self._exclusive and self._seats:
            name = self._seats[0].receiver.name
            raise ConsumerBusy(f"Exclusive consumer {name!r} is connected: close it first, or subscribe as Failover.")
        self._seats.append(seat)
        self._choose()

    def leave(self, seat: Seat[R]) -> None:
        self._seats.remove(seat)
        self._choose()

    def _choose(self) -> None:
        before, self._active = self._active, self._chosen()
        if before is not None and self._active is not before:
            self._rewind()

    def _chosen(self) -> Seat[R] | None:
        if not self._seats:
            return None
        highest = min(seat.receiver.priority for seat in self._seats)
        equals = [seat for seat in self._seats if seat.receiver.priority == highest]
        if self._partition is None:
            return equals[0]
        equals.sort(key=lambda seat: seat.receiver.name)
        return equals[self._partition % len(equals)]

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

    def settle(self, seat: Seat[R] | None, index: int) -> None:
        """Nothing to do: the cursor says it all."""

    def settle_partly(self, seat: Seat[R] | None, index: int) -> None:
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
