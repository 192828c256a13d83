"""Key_Shared: every key has one receiver, and its entries come in order.

A key moves when receivers come and go. Its next entry then waits until nothing of it is unacknowledged elsewhere.
An entry that cannot be handed out yet is passed over and waits by its index, so that others go on. One that is delayed
comes when it is due, in whatever order that is; chunks of a message go to who has begun to get it, wherever its key is.
"""

from collections.abc import Sequence

from metadata.log_entries import StoredEntry
from segments.cursors import Cursor
from segments.dispatch.chunks import Chunks, Parts
from segments.dispatch.delayed import Delayed
from segments.dispatch.distribution import LOOK_AHEAD, SLICE_ENTRIES, Distribution
from segments.dispatch.due import DueIndexes
from segments.dispatch.held import Held
from segments.dispatch.key_owners import KeyOwners
from segments.dispatch.receivers import MAX_PERMITS, Delivery, R, Seat
from segments.entry_metadata import traits_of


class ByKey(Distribution[R]):
    """What waits stands in the queue of its owner, or, while somebody else holds its slot, aside.

    Queues are handed out strictly from their front, and fresh entries only past an empty queue: so order within
    a slot follows from order within a queue.
    """

    def __init__(self, cursor: Cursor, read: int, max_unacked: int, owners: KeyOwners[R]) -> None:
        super().__init__(cursor, read)
        self._max_unacked = max_unacked
        self._owners = owners
        self._held: Held[R] = Held()
        # Of every entry that is held or waits: reading the key again would cost more than remembering.
        self._slots: dict[int, int] = {}
        self._holders: dict[int, Seat[R]] = {}
        self._held_of_slot: dict[int, int] = {}
        # Under None what belongs to nobody.
        self._queues: dict[Seat[R] | None, DueIndexes] = {None: DueIndexes()}
        self._aside: dict[int, DueIndexes] = {}
        # Which places those have that wait: where they belong may change before they are looked up again.
        self._places: dict[int, DueIndexes] = {}
        self._chunks: Chunks[R] = Chunks()
        self._messages = Parts()  # of every chunk that is held or waits
        self._delayed = Delayed()
        # Those that are due now, of which nobody knows the slot: their keys are read again.
        self._matured = DueIndexes()
        self._is_passing = False  # over entries that are not due: permits say nothing about how many to fetch
        # Whether what waits may stand at the wrong place. Many come and go together: it is put right once for all of
        # them, before anything is asked for or handed out.
        self._is_disordered = False

    @property
    def delayed(self) -> int:
        return len(self._delayed)

    @property
    def next_due(self) -> int | None:
        return self._delayed.next_due

    @property
    def active(self) -> Seat[R] | None:
        return None

    def join(self, seat: Seat[R]) -> None:
        self._owners.join(seat)
        self._held.seats[seat] = None
        self._queues[seat] = DueIndexes()
        self._is_disordered = True

    def leave(self, seats: Sequence[Seat[R]]) -> None:
        if self._chunks:
            self._chunks.leave(seats)
        for seat in seats:
            self._put_back(self._held.take_all(seat))
            del self._held.seats[seat]
            # What stands in its queue is still known by its place, and finds another one when it is lined up.
            del self._queues[seat]
            self._owners.leave(seat)
        if self._held.seats:
            self._is_disordered = True
        elif self._delayed:
            # Not all over again, or whoever comes would wait for all of the delayed ones to be read; but by their keys.
            self._matured.update(self._all_waiting())
            self._forget_slots()
        else:
            # Reading again from the mark on finds them all, and whoever comes may see other slots.
            self._forget()

    @property
    def weight(self) -> int:
        return len(self._held.seats) + (len(self._places) if self._is_disordered else 0)

    def wanted(self, end: int, now_ms: int) -> list[int] | range | None:
        self._put_in_order()
        total = 0
        due: list[int] = []
        for seat in self._held.seats:
            room = seat.room(self._max_unacked)
            total += room
            if room and (queue := self._queues[seat]):
                due += queue.lowest(self.pace.entries(room))
        if due:
            # The lowest of all are the lowest of each, so no queue is asked for anything but its front.
            return sorted(due)[:SLICE_ENTRIES]
        if not total or len(self._places) >= LOOK_AHEAD:
            return None
        if self._delayed and len(self._matured) < SLICE_ENTRIES:
            self._matured.update(self._delayed.take_due(now_ms, SLICE_ENTRIES))
        count = self.pace.entries(MAX_PERMITS if self._is_passing else total)
        return self._matured.lowest(count) if self._matured else self.ahead(end, count)

    def offer(self, entries: Sequence[StoredEntry], now_ms: int) -> list[Delivery[R]]:
        self._put_in_order()
        self.pace.learn(entries)
        able = {seat for seat in self._held.seats if seat.room(self._max_unacked)}
        deliveries: list[Delivery[R]] = []
        again = {entry.index: entry for entry in entries if entry.index < self.read}
        if again:
            for seat in self._held.seats:
                if seat in able:
                    self._offer_again(seat, again, able, deliveries)
        self._offer_fresh(entries, able, deliveries, now_ms)
        return deliveries

    def _offer_again(
        self, seat: Seat[R], entries: dict[int, StoredEntry], able: set[Seat[R]], deliveries: list[Delivery[R]]
    ) -> None:
        queue = self._queues[seat]
        for index in queue.lowest(len(entries)):
            if index not in entries or seat not in able:
                return
            queue.discard(index)
            del self._places[index]
            self._hand_out(seat, entries[index], able, deliveries)

    def _offer_fresh(
        self, entries: Sequence[StoredEntry], able: set[Seat[R]], deliveries: list[Delivery[R]], now_ms: int
    ) -> None:
        cursor, matured = self.cursor, self._matured
        passed = 0
        self._is_passing = False
        for entry in entries:
            index = entry.index
            if index < self.read:
                if index not in matured:
                    continue
            elif index != self.read or index <= cursor.top:
                self.read = cursor.next_unacked(self.read)
                if index != self.read:
                    continue
            if not able or len(self._places) >= LOOK_AHEAD:
                return
            if index == self.read:
                self.read = index + 1
            else:
                matured.discard(index)
            due_ms, chunked = traits_of(entry)
            if due_ms > now_ms:
                self._delayed.add(index, due_ms)
                passed += 1
                continue
            slot = self._slots[index] = self._owners.slot(entry)
            if chunked is not None:
                self._messages.add(index, chunked)
            seat = self._receiver_of(index)
            if seat in able and not self._queues[seat] and self._holders.get(slot, seat) is seat:
                self._hand_out(seat, entry, able, deliveries)
            else:
                self._wait(index)
        self._is_passing = passed > 0

    def _hand_out(self, seat: Seat[R], entry: StoredEntry, able: set[Seat[R]], deliveries: list[Delivery[R]]) -> None:
        index = entry.index
        left, ack_set = self.part(entry)
        if not left:
            self._held.settle(index)
            del self._slots[index]
            self._messages.discard(index)
            return
        if index in self._messages:
            self._chunks.assign(self._messages[index], index, seat)
        slot = self._slots[index]
        self._holders[slot] = seat
        self._held_of_slot[slot] = self._held_of_slot.get(slot, 0) + 1
        seat.permits -= left
        seat.held[index] = left
        self._held.holders[index] = seat
        seat.messages += left
        deliveries.append(Delivery(seat.receiver, entry, self._held.redeliveries(index), ack_set))
        if seat.permits <= 0 or seat.messages >= self._max_unacked:
            able.discard(seat)

    def _receiver_of(self, index: int) -> Seat[R] | None:
        """The owner of its key. But who has begun to get a message, and holds the key, gets the rest of it: it cannot
        acknowledge what it has before, and the owner would wait for that."""
        slot = self._slots[index]
        if index in self._messages:
            begun = self._chunks.seat(self._messages[index])
            if begun is not None and begun is self._holders.get(slot):
                return begun
        return self._owners.owner(slot)

    def _wait(self, index: int) -> None:
        slot, seat = self._slots[index], self._receiver_of(index)
        if seat is not None and self._holders.get(slot, seat) is not seat:
            place = self._aside.setdefault(slot, DueIndexes())
        else:
            place = self._queues[seat]
        place.add(index)
        self._places[index] = place

    def _release(self, slot: int) -> None:
        """One entry of a slot is held no more. After the last of them, what stood aside may go to its owner."""
        count = self._held_of_slot[slot] - 1
        if count:
            self._held_of_slot[slot] = count
            return
        del self._held_of_slot[slot], self._holders[slot]
        for index in sorted(self._aside.pop(slot, ())):
            self._wait(index)

    def _all_waiting(self) -> list[int]:
        return sorted(self._places)

    def _put_in_order(self) -> None:
        if self._is_disordered:
            self._line_up(self._all_waiting())

    def _line_up(self, waiting: Sequence[int]) -> None:
        """Put all that waits where it belongs now."""
        self._is_disordered = False
        for queue in self._queues.values():
            queue.clear()
        self._aside.clear()
        self._places.clear()
        for index in waiting:
            self._wait(index)

    def settle(self, index: int) -> None:
        holder = self._held.settle(index)
        if index not in self._slots:
            self._matured.discard(index)
            self._delayed.discard(index)
        elif holder is not None:
            self._release(self._slots.pop(index))
        else:
            self._places.pop(index).discard(index)
            del self._slots[index]
        message = self._messages.discard(index)
        if message is not None:
            self._chunks.settle(index)
            if self._chunks.seat(message) is None and self._messages.has_of(message):
                # The rest of it waits for somebody who has nothing of it any more.
                self._is_disordered = True

    def settle_partly(self, index: int) -> None:
        self._held.reduce(index, self.cursor.remaining(index).bit_count())

    def settle_below(self) -> None:
        mark = self.cursor.mark
        for index in self._held.settle_below(mark):
            self._release(self._slots.pop(index))
        self._chunks.settle_below(mark)
        self._messages.drop_below(mark + 1)
        self._matured.drop_below(mark + 1)
        self._delayed.drop_below(mark + 1)
        waiting = self._all_waiting()
        for index in waiting:
            if index <= mark:
                del self._slots[index]
        self._line_up([index for index in waiting if index > mark])
        self.read = max(self.read, mark + 1)

    def take_back(self, seat: Seat[R], indexes: Sequence[int] | None) -> None:
        if indexes is not None and self._chunks:
            indexes = sorted(self._chunks.with_siblings(indexes))
        taken = self._held.take_back(seat, indexes)
        released = self._chunks.release(taken)
        self._put_back(taken)
        if released:
            # What waits of these messages goes where it belongs without them.
            self._is_disordered = True

    def _put_back(self, taken: Sequence[int]) -> None:
        for index in taken:
            self._release(self._slots[index])
        for index in sorted(taken):
            self._wait(index)

    def unacked(self, seat: Seat[R]) -> int:
        return seat.messages

    def restart(self) -> None:
        self._held.clear()
        self._forget()

    def _forget(self) -> None:
        self._forget_slots()
        self._delayed.clear()
        self._matured.clear()
        self.read = self.cursor.mark + 1

    def _forget_slots(self) -> None:
        self._slots.clear()
        self._holders.clear()
        self._held_of_slot.clear()
        self._chunks.clear()
        self._messages.clear()
        self._line_up(())
