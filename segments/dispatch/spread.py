"""Shared: entries go round among the receivers that have room; who has priority is served first."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from metadata.log_entries import StoredEntry
from segments.cursors import Cursor
from segments.dispatch.distribution import Distribution
from segments.dispatch.due import DueIndexes
from segments.dispatch.held import Held
from segments.dispatch.receivers import Delivery, R, Seat


class Spread(Distribution[R]):
    """Levels of equal priority number, each in the order in which its next turns come."""

    def __init__(self, cursor: Cursor, read: int, max_unacked: int) -> None:
        super().__init__(cursor, read)
        self._max_unacked = max_unacked
        self._held: Held[R] = Held()
        self._due = DueIndexes()
        self._levels: dict[int, deque[Seat[R]]] = {}

    @property
    def active(self) -> Seat[R] | None:
        return None

    def join(self, seat: Seat[R]) -> None:
        self._held.seats.append(seat)
        self._levels.setdefault(seat.receiver.priority, deque()).append(seat)
        self._levels = dict(sorted(self._levels.items()))

    def leave(self, seat: Seat[R]) -> None:
        self._due.update(self._held.take_all(seat))
        self._held.seats.remove(seat)
        level = self._levels[seat.receiver.priority]
        level.remove(seat)
        if not level:
            del self._levels[seat.receiver.priority]
        if not self._levels:
            # Reading again from the mark on finds them all, in slices instead of one by one.
            self._forget()

    def wanted(self, end: int) -> list[int] | range | None:
        room = sum([seat.room(self._max_unacked) for seat in self._held.seats])
        if not room:
            return None
        count = self.pace.entries(room)
        return self._due.lowest(count) if self._due else self.ahead(end, count)

    def offer(self, entries: Sequence[StoredEntry]) -> list[Delivery[R]]:
        self.pace.learn(entries)
        with closing(self._turns()) as turns:
            return self._hand_out(entries, turns)

    def _hand_out(self, entries: Sequence[StoredEntry], turns: Iterator[Seat[R]]) -> list[Delivery[R]]:
        cursor, due = self.cursor, self._due
        deliveries: list[Delivery[R]] = []
        for entry in entries:
            index = entry.index
            if index < self.read:
                if index not in due:
                    continue
            elif index != self.read or index <= cursor.top:
                self.read = cursor.next_unacked(self.read)
                if index != self.read:
                    continue
            left, ack_set = self.part(entry)
            if left:
                seat = next(turns, None)
                if seat is None:
                    break
                seat.permits -= left
                seat.held[index] = left
                seat.messages += left
                deliveries.append(Delivery(seat.receiver, entry, self._held.redeliveries(index), ack_set))
            else:
                self._held.settle(None, index)
            if index == self.read:
                self.read = index + 1
            else:
                due.discard(index)
        return deliveries

    def _turns(self) -> Generator[Seat[R], None, None]:
        """Whose turn it is, as long as somebody has room. The next round goes on where this one was left."""
        limit = self._max_unacked
        for level in self._levels.values():
            able = deque([seat for seat in level if seat.room(limit)])
            seat: Seat[R] | None = None
            try:
                while able:
                    seat = able.popleft()
                    yield seat
                    if seat.permits > 0 and seat.messages < limit:
                        able.append(seat)
            finally:
                if seat is not None:
                    level.rotate(-level.index(seat) - 1)

    def settle(self, seat: Seat[R] | None, index: int) -> None:
        if self._held.settle(seat, index) is None:
            self._due.discard(index)

    def settle_partly(self, seat: Seat[R] | None, index: int) -> None:
        self._held.reduce(seat, index, self.cursor.remaining(index).bit_count())

    def settle_below(self) -> None:
        mark = self.cursor.mark
        self._held.settle_below(mark)
        self._due.drop_below(mark + 1)
        self.read = max(self.read, mark + 1)

    def take_back(self, seat: Seat[R], indexes: Sequence[int] | None) -> None:
        self._due.update(self._held.take_back(seat, indexes))

    def unacked(self, seat: Seat[R]) -> int:
        return seat.messages

    def restart(self) -> None:
        self._held.clear()
        self._forget()

    def _forget(self) -> None:
        self._due.clear()
        self.read = self.cursor.mark + 1
