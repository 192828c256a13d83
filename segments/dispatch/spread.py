"""Shared: entries go round among the receivers that have room; who has priority is served first."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from metadata.log_entries import StoredEntry
from segments.cursors import Cursor
from segments.dispatch.chunks import Chunks
from segments.dispatch.delayed import Delayed
from segments.dispatch.distribution import LOOK_AHEAD, SLICE_ENTRIES, Distribution
from segments.dispatch.due import DueIndexes
from segments.dispatch.held import Held
from segments.dispatch.receivers import MAX_PERMITS, Delivery, R, Seat
from segments.entry_metadata import traits_of


class Spread(Distribution[R]):
    """Levels of equal priority number, each in the order in which its next turns come."""

    def __init__(self, cursor: Cursor, read: int, max_unacked: int) -> None:
        super().__init__(cursor, read)
        self._max_unacked = max_unacked
        self._held: Held[R] = Held()
        self._due = DueIndexes()
        self._levels: dict[int, dict[Seat[R], None]] = {}
        self._chunks: Chunks[R] = Chunks()
        # Chunks of messages that a seat has begun to get, while it has no room.
        self._waiting: dict[Seat[R], DueIndexes] = {}
        self._delayed = Delayed()
        self._is_passing = False  # over entries that are not due: permits say nothing about how many to fetch

    @property
    def active(self) -> Seat[R] | None:
        return None

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    @property
    def next_due(self) -> int | None:
        return self._delayed.next_due

    def join(self, seat: Seat[R]) -> None:
        self._held.seats[seat] = None
        level = self._levels.get(seat.receiver.priority)
        if level is None:
            self._levels[seat.receiver.priority] = {seat: None}
            self._levels = dict(sorted(self._levels.items()))
        else:
            level[seat] = None

    def leave(self, seats: Sequence[Seat[R]]) -> None:
        if self._chunks:
            self._chunks.leave(seats)
        due: list[int] = []
        for seat in seats:
            due += self._held.take_all(seat)
            due += self._waiting.pop(seat, ())
            del self._held.seats[seat]
            level = self._levels[seat.receiver.priority]
            del level[seat]
            if not level:
                del self._levels[seat.receiver.priority]
        self._due.update(due)
        if not self._levels and not self._delayed:
            # Reading again from the mark on finds them all, in slices instead of one by one. Not with delayed ones:
            # whoever comes back would wait for all of them to be read again.
            self._forget()

    @property
    def weight(self) -> int:
        return len(self._held.seats)

    def wanted(self, end: int, now_ms: int) -> list[int] | range | None:
        room = sum([seat.room(self._max_unacked) for seat in self._held.seats])
        if not room:
            return None
        if self._delayed and len(self._due) < SLICE_ENTRIES:
            self._due.update(self._delayed.take_due(now_ms, SLICE_ENTRIES))
        count = self.pace.entries(room)
        due = self._due.lowest(count) if self._due else []
        waiting = 0
        for seat, queue in self._waiting.items():
            waiting += len(queue)
            if queue and (able := seat.room(self._max_unacked)):
                due += queue.lowest(self.pace.entries(able))
        if due:
            return sorted(due)[:SLICE_ENTRIES] if waiting else due
        if waiting >= LOOK_AHEAD:
            return []
        return self.ahead(end, self.pace.entries(MAX_PERMITS) if self._is_passing else count)

    def offer(self, entries: Sequence[StoredEntry], now_ms: int) -> list[Delivery[R]]:
        self.pace.learn(entries)
        with closing(self._turns()) as turns:
            return self._hand_out(entries, turns, now_ms)

    def _hand_out(self, entries: Sequence[StoredEntry], turns: Iterator[Seat[R]], now_ms: int) -> list[Delivery[R]]:
        cursor, due, holders = self.cursor, self._due, self._held.holders
        deliveries: list[Delivery[R]] = []
        self._is_passing = False
        passed = 0
        for entry in entries:
            index = entry.index
            if index < self.read:
                if index not in due and not self._waits(index):
                    continue
            elif index != self.read or index <= cursor.top:
                self.read = cursor.next_unacked(self.read)
                if index != self.read:
                    continue
            left, ack_set = self.part(entry)
            if left:
                due_ms, chunked = traits_of(entry)
                if due_ms > now_ms:
                    self._delayed.add(index, due_ms)
                    passed += 1
                else:
                    seat = next(turns, None) if chunked is None else self._taker(chunked, index, turns)
                    if seat is not None:
                        seat.permits -= left
                        seat.held[index] = left
                        holders[index] = seat
                        seat.messages += left
                        deliveries.append(Delivery(seat.receiver, entry, self._held.redeliveries(index), ack_set))
                    elif not self._waits(index):
                        break
            else:
                self.settle(index)
            if index == self.read:
                self.read = index + 1
            else:
                due.discard(index)
        else:
            self._is_passing = passed > 0
        return deliveries

    def _taker(self, chunked: str, index: int, turns: Iterator[Seat[R]]) -> Seat[R] | None:
        """Who gets a chunk; None if nobody does now. It may wait for somebody then."""
        seat = self._chunks.seat(chunked)
        if seat is None:
            # Those before it come first, and may have come back since this one was fetched.
            if self._due and self._due.lowest(1)[0] < index:
                return None
            seat = next(turns, None)
            if seat is not None:
                self._chunks.assign(chunked, index, seat)
            return seat
        queue = self._waiting.setdefault(seat, DueIndexes())
        is_next = not queue or queue.lowest(1)[0] == index
        if is_next and seat.room(self._max_unacked):
            queue.discard(index)
            self._chunks.assign(chunked, index, seat)
            return seat
        if sum(map(len, self._waiting.values())) < LOOK_AHEAD:
            queue.add(index)
            self._chunks.assign(chunked, index, seat)
        return None

    def _waits(self, index: int) -> bool:
        """For the one that has begun to get its message."""
        seat = self._chunks.seat_at(index)
        return seat is not None and index in self._waiting.get(seat, ())

    def _turns(self) -> Generator[Seat[R], None, None]:
        """Whose turn it is, as long as somebody has room. The next round goes on where this one was left."""
        limit = self._max_unacked
        for priority, level in self._levels.items():
            able = deque([seat for seat in level if seat.room(limit)])
            last: Seat[R] | None = None
            try:
                while able:
                    seat = able.popleft()
                    # It may have been given the rest of a message meanwhile.
                    if seat.permits > 0 and seat.messages < limit:
                        last = seat
                        yield seat
                        able.append(seat)
            finally:
                if last is not None and len(level) > 1:
                    order = list(level)
                    served = order.index(last) + 1
                    self._levels[priority] = dict.fromkeys(order[served:] + order[:served])

    def settle(self, index: int) -> None:
        if self._held.settle(index) is None:
            self._due.discard(index)
            self._delayed.discard(index)
            holder = self._chunks.seat_at(index)
            if holder is not None and holder in self._waiting:
                self._waiting[holder].discard(index)
        self._chunks.settle(index)

    def settle_partly(self, index: int) -> None:
        self._held.reduce(index, self.cursor.remaining(index).bit_count())

    def settle_below(self) -> None:
        mark = self.cursor.mark
        self._held.settle_below(mark)
        self._delayed.drop_below(mark + 1)
        for indexes in (self._due, *self._waiting.values()):
            indexes.drop_below(mark + 1)
        self._chunks.settle_below(mark)
        self.read = max(self.read, mark + 1)

    def take_back(self, seat: Seat[R], indexes: Sequence[int] | None) -> None:
        if indexes is not None and self._chunks:
            indexes = sorted(self._chunks.with_siblings(indexes))
        taken = self._held.take_back(seat, indexes)
        self._due.update(taken)
        queue = self._waiting.get(seat)
        for index in self._chunks.release(taken):
            if queue is not None and index in queue:
                queue.discard(index)
                self._due.add(index)

    def unacked(self, seat: Seat[R]) -> int:
        return seat.messages

    def restart(self) -> None:
        self._held.clear()
        self._forget()

    def _forget(self) -> None:
        self._due.clear()
        self._delayed.clear()
        self._chunks.clear()
        self._waiting.clear()
        self.read = self.cursor.mark + 1
