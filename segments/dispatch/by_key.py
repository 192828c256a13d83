"""Key_Shared: every key has one receiver, and its entries come in order.

A key moves when receivers come and go. Its next entry then waits until nothing of it is unacknowledged elsewhere.
An entry that cannot be handed out yet is passed over and waits by its index, so that others go on.
"""

from collections.abc import Sequence

from metadata.log_entries import StoredEntry
from segments.cursors import Cursor
from segments.dispatch.distribution import SLICE_ENTRIES, Distribution
from segments.dispatch.due import DueIndexes
from segments.dispatch.held import Held
from segments.dispatch.key_owners import KeyOwners
from segments.dispatch.receivers import Delivery, R, Seat

# With so many passed over, reading on stops until some are handed out: the rest of the log would follow.
LOOK_AHEAD = 20_000


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
        self._waiting = 0

    @property
    def active(self) -> Seat[R] | None:
        return None

    def join(self, seat: Seat[R]) -> None:
        self._owners.join(seat)
        self._held.seats.append(seat)
        self._queues[seat] = DueIndexes()
        self._line_up(self._all_waiting())

    def leave(self, seat: Seat[R]) -> None:
        self._put_back(self._held.take_all(seat))
        self._owners.leave(seat)
        self._held.seats.remove(seat)
        waiting = self._all_waiting()
        del self._queues[seat]
        if self._held.seats:
            self._line_up(waiting)
        else:
            # Reading again from the mark on finds them all, and whoever comes may see other slots.
            self._forget()

    def wanted(self, end: int) -> list[int] | range | None:
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
        if not total or self._waiting >= LOOK_AHEAD:
            return None
        return self.ahead(end, self.pace.entries(total))

    def offer(self, entries: Sequence[StoredEntry]) -> list[Delivery[R]]:
        self.pace.learn(entries)
        able = {seat for seat in self._held.seats if seat.room(self._max_unacked)}
        deliveries: list[Delivery[R]] = []
        again = {entry.index: entry for entry in entries if entry.index < self.read}
        if again:
            for seat in self._held.seats:
                if seat in able:
                    self._offer_again(seat, again, able, deliveries)
        self._offer_fresh(entries, able, deliveries)
        return deliveries

    def _offer_again(
        self, seat: Seat[R], entries: dict[int, StoredEntry], able: set[Seat[R]], deliveries: list[Delivery[R]]
    ) -> None:
        queue = self._queues[seat]
        for index in queue.lowest(len(entries)):
            if index not in entries or seat not in able:
                return
            queue.discard(index)
            self._waiting -= 1
            self._hand_out(seat, entries[index], able, deliveries)

    def _offer_fresh(self, entries: Sequence[StoredEntry], able: set[Seat[R]], deliveries: list[Delivery[R]]) -> None:
        cursor = self.cursor
        for entry in entries:
            index = entry.index
            if index < self.read:
                continue
            if index != self.read or index <= cursor.top:
                self.read = cursor.next_unacked(self.read)
                if index != self.read:
                    continue
            if not able or self._waiting >= LOOK_AHEAD:
                return
            self.read = index + 1
            slot = self._slots[index] = self._owners.slot(entry)
            seat = self._owners.owner(slot)
            if seat in able and not self._queues[seat] and self._holders.get(slot, seat) is seat:
                self._hand_out(seat, entry, able, deliveries)
            else:
                self._wait(index)

    def _hand_out(self, seat: Seat[R], entry: StoredEntry, able: set[Seat[R]], deliveries: list[Delivery[R]]) -> None:
        index = entry.index
        left, ack_set = self.part(entry)
        if not left:
            self._held.settle(None, index)
            del self._slots[index]
            return
        slot = self._slots[index]
        self._holders[slot] = seat
        self._held_of_slot[slot] = self._held_of_slot.get(slot, 0) + 1
        seat.permits -= left
        seat.held[index] = left
        seat.messages += left
        deliveries.append(Delivery(seat.receiver, entry, self._held.redeliveries(index), ack_set))
        if seat.permits <= 0 or seat.messages >= self._max_unacked:
            able.discard(seat)

    def _place(self, slot: int) -> DueIndexes:
        """Where entries of a slot wait."""
        owner = self._owners.owner(slot)
        if owner is not None and self._holders.get(slot, owner) is not owner:
            return self._aside.setdefault(slot, DueIndexes())
        return self._queues[owner]

    def _wait(self, index: int) -> None:
        self._place(self._slots[index]).add(index)
        self._waiting += 1

    def _release(self, slot: int) -> None:
        """One entry of a slot is held no more. After the last of them, what stood aside may go to its owner."""
        count = self._held_of_slot[slot] - 1
        if count:
            self._held_of_slot[slot] = count
            return
        del self._held_of_slot[slot], self._holders[slot]
        aside = self._aside.pop(slot, None)
        if aside is not None:
            self._place(slot).update(aside)

    def _all_waiting(self) -> list[int]:
        places = [*self._queues.values(), *self._aside.values()]
        return sorted([index for place in places for index in place])

    def _line_up(self, waiting: Sequence[int]) -> None:
        """Put all that waits where it belongs now."""
        for queue in self._queues.values():
            queue.clear()
        self._aside.clear()
        self._waiting = 0
        for index in waiting:
            self._wait(index)

    def settle(self, seat: Seat[R] | None, index: int) -> None:
        holder = self._held.settle(seat, index)
        slot = self._slots.pop(index, None)
        if slot is None:
            return
        if holder is not None:
            self._release(slot)
        else:
            self._place(slot).discard(index)
            self._waiting -= 1

    def settle_partly(self, seat: Seat[R] | None, index: int) -> None:
        self._held.reduce(seat, index, self.cursor.remaining(index).bit_count())

    def settle_below(self) -> None:
        mark = self.cursor.mark
        for index in self._held.settle_below(mark):
            self._release(self._slots.pop(index))
        waiting = self._all_waiting()
        for index in waiting:
            if index <= mark:
                del self._slots[index]
        self._line_up([index for index in waiting if index > mark])
        self.read = max(self.read, mark + 1)

    def take_back(self, seat: Seat[R], indexes: Sequence[int] | None) -> None:
        self._put_back(self._held.take_back(seat, indexes))

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
        self._slots.clear()
        self._holders.clear()
        self._held_of_slot.clear()
        self._line_up(())
        self.read = self.cursor.mark + 1
