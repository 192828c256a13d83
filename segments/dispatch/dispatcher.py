"""The dispatcher of one subscription on one log: permits and acknowledgements come in, deliveries go out.

The caller asks what is `wanted`, fetches it, and `offer`s it. Anything may happen between the two: what has been
acknowledged, handed out or sought away meanwhile is passed over, and what nobody takes stays wanted. Times are
those of the wall, in milliseconds, because that is what messages name.
"""

from collections.abc import Sequence
from typing import Generic

from metadata.log_entries import StoredEntry
from segments.cursors import Cursor
from segments.dispatch.by_key import ByKey
from segments.dispatch.distribution import Distribution
from segments.dispatch.in_order import InOrder
from segments.dispatch.key_owners import AskedFor, EntryBuckets, KeyOwners, KeySharing, SplitByServer
from segments.dispatch.receivers import MAX_PERMITS, Delivery, Kind, R, Seat
from segments.dispatch.spread import Spread


class Dispatcher(Generic[R]):
    """Who gets what of a log, for receivers of one kind.

    `read_from` is where reading starts; what lies below it is not for this subscription and is settled. `end` is
    where the log ends as far as is known, and is raised by `wanted`: acknowledgements of what lies beyond are
    ignored, or a client could settle messages that do not exist yet. `partition` is the number of a log that is
    one of several which the same receivers share.
    """

    def __init__(
        self,
        kind: Kind,
        cursor: Cursor,
        read_from: int,
        *,
        max_unacked: int = 50_000,
        key_sharing: KeySharing = KeySharing.AUTO_SPLIT,
        end: int = 0,
        partition: int | None = None,
    ) -> None:
        self.kind = kind
        self.cursor = cursor
        cursor.ack_cumulative(read_from - 1)
        self._seats: dict[R, Seat[R]] = {}
        self._end = max(cursor.mark + 1, end)
        self._distribution = self._for_kind(max_unacked, key_sharing, partition)

    def _for_kind(self, max_unacked: int, key_sharing: KeySharing, partition: int | None) -> Distribution[R]:
        cursor, read = self.cursor, self.cursor.mark + 1
        match self.kind:
            case Kind.EXCLUSIVE | Kind.FAILOVER:
                return InOrder(cursor, read, exclusive=self.kind is Kind.EXCLUSIVE, partition=partition)
            case Kind.SHARED:
                return Spread(cursor, read, max_unacked)
            case Kind.KEY_SHARED:
                return ByKey(cursor, read, max_unacked, _key_owners(key_sharing))

    @property
    def receivers(self) -> list[R]:
        """In the order in which they joined."""
        return list(self._seats)

    def has(self, receiver: R) -> bool:
        return receiver in self._seats

    @property
    def active(self) -> R | None:
        """Exclusive and Failover: the one that gets messages. Of the others, none in particular."""
        seat = self._distribution.active
        return None if seat is None else seat.receiver

    @property
    def read_position(self) -> int:
        """The first entry that has not been handed out, unless it is acknowledged."""
        return self._distribution.read

    def add(self, receiver: R) -> bool:
        """Let a receiver in, without permits; whether the active one changed.

        Raises ConsumerBusy if an Exclusive one is there, ConsumerAssignError if its hash ranges do not fit.
        """
        before = self.active
        seat = Seat(receiver)
        self._distribution.join(seat)
        self._seats[receiver] = seat
        return self.active is not before

    def remove(self, *receivers: R) -> bool:
        """Those of them that are here go together. What they have unacknowledged becomes due again, uncounted; whether
        the active one changed.
        """
        seats = [seat for receiver in receivers if (seat := self._seats.pop(receiver, None)) is not None]
        if not seats:
            return False
        before = self.active
        self._distribution.leave(seats)
        return self.active is not before

    @property
    def weight(self) -> int:
        """About how many steps it takes to say what is wanted."""
        return self._distribution.weight

    def flow(self, receiver: R, permits: int) -> None:
        seat = self._seats.get(receiver)
        if seat is not None and permits > 0:
            seat.permits = min(seat.permits + permits, MAX_PERMITS)

    def permits(self, receiver: R) -> int:
        """Below zero by what the last batch was too large."""
        seat = self._seats.get(receiver)
        return 0 if seat is None else seat.permits

    @property
    def delayed(self) -> int:
        """Shared and Key_Shared: entries that were passed over because they are not due."""
        return self._distribution.delayed

    @property
    def next_due(self) -> int | None:
        """When the next of these may be due, and something may be `wanted` that was not."""
        return self._distribution.next_due

    def wanted(self, end: int, now_ms: int) -> list[int] | range | None:
        """Entries below `end` to fetch next: those to be delivered again first, then onwards from the read position.

        Never both in one answer. None if nobody can take anything, empty if there is nothing to deliver.
        """
        if end > self._end:
            self._end = end
        return self._distribution.wanted(end, now_ms)

    def offer(self, entries: Sequence[StoredEntry], now_ms: int) -> list[Delivery[R]]:
        """Hand out what is still wanted of these. They cost permits from here on: every delivery must be sent."""
        return self._distribution.offer(entries, now_ms)

    def ack(self, receiver: R, index: int, ack_set: Sequence[int] = ()) -> bool:
        """Settle an entry, or the messages of it whose bit is zero; whether the cursor changed.

        Who says it does not matter: a client may settle what it got before it was connected anew.
        """
        if not 0 <= index < self._end:
            return False
        cursor = self.cursor
        if not (cursor.ack_batch(index, ack_set) if ack_set else cursor.ack(index)):
            return False
        if ack_set and not cursor.is_acked(index):
            self._distribution.settle_partly(index)
        else:
            self._distribution.settle(index)
        return True

    def ack_cumulative(self, receiver: R, index: int, ack_set: Sequence[int] = ()) -> bool:
        """Settle everything up to an entry; the caller refuses this for Shared and Key_Shared."""
        if not 0 <= index < self._end or not self.cursor.ack_cumulative(index, ack_set):
            return False
        self._distribution.settle_below()
        return True

    def redeliver(self, receiver: R, indexes: Sequence[int] | None) -> None:
        """Make due again what a receiver has: all (None) or these, and whatever of them it does not have is ignored.

        Exclusive and Failover: always all, because single entries would not be in order.
        """
        seat = self._seats.get(receiver)
        if seat is not None:
            self._distribution.take_back(seat, indexes)

    def seek(self, index: int) -> None:
        """Start anew from `index`, with nothing outstanding. Permits stay."""
        self.cursor.move_to(max(0, index))
        self._end = max(self._end, index)
        self._distribution.restart()

    def trim(self, first: int) -> bool:
        """The log starts at `first` now: what was below is settled; whether the cursor changed."""
        if not self.cursor.ack_cumulative(first - 1):
            return False
        self._distribution.settle_below()
        return True

    def pass_over(self, indexes: Sequence[int]) -> bool:
        """The log does not have these any more: they are settled, and nothing else is; whether the cursor changed."""
        gone = [index for index in indexes if self.cursor.ack(index)]
        for index in gone:
            self._distribution.settle(index)
        return bool(gone)

    def unacked(self, receiver: R) -> int:
        """What a receiver has: messages for Shared and Key_Shared, entries for the others."""
        seat = self._seats.get(receiver)
        return 0 if seat is None else self._distribution.unacked(seat)

    def backlog(self, end: int) -> int:
        """How many entries below `end` are not acknowledged."""
        return self.cursor.unacked_between(0, end)


def _key_owners(key_sharing: KeySharing) -> KeyOwners[R]:
    match key_sharing:
        case KeySharing.AUTO_SPLIT:
            return SplitByServer()
        case KeySharing.STICKY:
            return AskedFor()
        case KeySharing.ENTRY_BUCKETS:
            return EntryBuckets()
