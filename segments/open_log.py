"""A log that this node owns: its producers, its subscriptions, and everything between them.

It ends when another node has it, when it is deleted, or when this node lets go of it; then its clients are told to look
it up again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import trio

from metadata import keys
from metadata.complaints import complain
from metadata.cursor_requests import CursorRequest
from metadata.errors import RecordDamaged, StoreError
from metadata.log_entries import StoredEntry
from metadata.log_figures import NOTHING, Traffic
from metadata.log_places import LogPlace
from metadata.log_states import Claim, Opened
from protocol.names import TopicName
from segments import cursor_entries
from segments.around import Around
from segments.consumers import Consumer
from segments.cursor_keeper import CursorKeeper, Told
from segments.cursors import Cursor
from segments.dispatch.key_owners import KeySharing
from segments.dispatch.receivers import Kind
from segments.errors import NotHere, TooMany
from segments.keeping import Keeping, kept_from, needed_from, trim_below, waiting_bytes
from segments.producers import Producer
from segments.rates import Meter
from segments.sending import Sending
from segments.subscription import LogSubscription
from segments.tail import Tail

log = logging.getLogger(__name__)

# Entries in one read: enough for a round trip to be worth it. What they may weigh is bounded by the read itself.
_READ_ENTRIES: Final = 256
_NOBODY: Final[Mapping[str, str | None]] = MappingProxyType({})
# Subscriptions that are handed what was stored before other tasks run.
WOKEN_PER_TURN: Final = 32


class OpenLog:
    def __init__(self, opened: Opened, around: Around, ended: Callable[[OpenLog], None]) -> None:
        """`ended` is called once, when this node does not have the log any more."""
        self.place: LogPlace = opened.claim.place
        self.incarnation = opened.claim.incarnation
        self.ledger = opened.claim.ledger
        self.sealed = opened.state.sealed
        self._sealing = False
        self.first = opened.state.first
        self.is_open = True
        self._around = around
        self._ended = ended
        self.subscriptions: dict[str, LogSubscription] = {}
        self._readers: set[LogSubscription] = set()  # not durable, gone with their consumer
        self._tail = Tail(opened.state.next, around.tails, around.limits.tail_bytes)
        self.sending = Sending(
            opened, around, stored=self._stored, sealed=self.note_sealed, lost=self.lose, backlog=self._waiting_bytes
        )
        self._is_awaited = False  # a subscription that was never here will come, and needs all of it
        self._keeper = CursorKeeper(
            around.logs,
            lambda: self.sending.settled_claim,
            nursery=around.nursery,
            lost=self.lose,
        )
        self._is_waking_rest = self._wake_rest_again = False
        self._saving: set[trio.Event] = set()  # of those who wait for a cursor to be written
        self._moving = trio.Lock()
        self._carried_out: dict[str, str] = {}  # by subscription, the last request to move its cursor
        self.opened_at = trio.current_time()
        self.meter_in, self.meter_out = Meter(self.opened_at), Meter(self.opened_at)
        self._told: Traffic | None = NOTHING  # to the store; None if nobody can tell
        self.damaged: dict[str, str] = {}  # subscriptions whose cursors cannot be read, with the ids that those carry
        for name, stored in opened.cursors.items():
            self._take_stored(name, stored)
        if self.sealed and self.place.segment_id is None:
            # An owner that died may have written that it is drained without having told it: see SegmentLogs.save.
            self._tell_drained()

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def topic(self) -> TopicName:
        return keys.topic_at(self.place.path)

    @property
    def claim(self) -> Claim:
        return self.sending.claim

    @property
    def next(self) -> int:
        return self.sending.next

    @property
    def size(self) -> int:
        return self.sending.size

    @property
    def is_empty(self) -> bool:
        return self.first >= self.next

    @property
    def has_no_clients(self) -> bool:
        """Whether no client has anything open here, or under way."""
        return self.sending.is_idle and not self.sending.producers.all and not self.consumers

    # Producers.

    async def join(self, producer: Producer, client_epoch: int | None) -> bool:
        """Let a producer in; False if it has to wait until it has the log alone."""
        self._check_open()
        if self.sealed:
            raise await self.sending.terminated()
        return await self.sending.join(producer, client_epoch)

    # Subscriptions.

    async def subscribe(
        self,
        name: str,
        kind: Kind,
        consumer: Consumer,
        *,
        start: Callable[[], int],
        durable: bool,
        sharing: KeySharing = KeySharing.AUTO_SPLIT,
        identity: str = "",
    ) -> LogSubscription:
        """Let a consumer in; `start` says where a subscription begins that was never here, and `identity` which one it
        is: what there is of another one of its name has ended before (`end_others`).
        """
        self._check_open()
        limits = self._around.limits
        if durable:
            subscription = await self._durable(name, kind, start, identity)
        else:
            subscription = self._subscription(name, kind, Cursor(start() - 1), durable=False)
        subscription.change_kind(kind, sharing)
        if len(subscription.consumers) >= limits.consumers:
            raise TooMany(f"Subscription {name} of {self.name} has {limits.consumers} consumers, which is the limit.")
        subscription.join(consumer)
        if not durable:
            self._readers.add(subscription)
        return subscription

    async def _durable(self, name: str, kind: Kind, start: Callable[[], int], identity: str) -> LogSubscription:
        """The subscription of this name, made if it is not there."""
        if name in self.damaged:
            await self._look_again(name)
        subscription = self.subscriptions.get(name)
        if subscription is not None and subscription.identity != identity:
            # A later one, or one that nobody has looked at yet.
            raise NotHere(f"Subscription {name} was deleted meanwhile: subscribe again.")
        if subscription is None:
            most = self._around.limits.subscriptions
            if len(self.subscriptions) >= most:
                raise TooMany(f"{self.name} has {most} subscriptions, which is the limit.")
            subscription = self._subscription(name, kind, Cursor(start() - 1), durable=True, identity=identity)
            self.subscriptions[name] = subscription
        if not subscription.is_stored:
            # Also where somebody else has made it just now: whoever is told that it is there may rely on it.
            await self.saved(subscription)
            if self.subscriptions.get(name) is not subscription:
                raise NotHere(f"Subscription {name} was deleted meanwhile: subscribe again.")
        return subscription

    def _take_stored(self, name: str, stored: bytes) -> None:
        """A subscription as the store has it. One that cannot be read is damaged by itself: the others go on."""
        try:
            identity, cursor = cursor_entries.unpack(stored)
        except RecordDamaged as error:
            complain(log, "subscription %s of %s: %s", name, self.name, error)
            self.damaged[name] = cursor_entries.identity_of(stored)
            return
        self.damaged.pop(name, None)
        if cursor.top >= self.next:
            # The store went back, and the log with it: what comes at these places is not what was acknowledged.
            cursor = Cursor(min(cursor.mark, self.next - 1))
        # Of which type its consumers are, the first of them says.
        subscription = self._subscription(name, Kind.EXCLUSIVE, cursor, durable=True, identity=identity)
        subscription.is_stored = True
        self.subscriptions[name] = subscription

    async def _look_again(self, name: str) -> None:
        """Somebody wants a damaged subscription: it may have been restored. Raises RecordDamaged where it was not."""
        stored = await self._around.logs.cursor(self.claim, name)
        self._check_open()
        if name not in self.damaged:
            return  # others were faster
        if stored is None:
            del self.damaged[name]
            return
        self._take_stored(name, stored)
        if name in self.damaged:
            key = self.place.cursors(self.claim.incarnation).decode()
            raise RecordDamaged(
                f"The cursor of subscription {name} in {key} cannot be read: seek to a position, or delete it."
            )

    def unsubscribe(self, consumer: Consumer, subscription: LogSubscription) -> None:
        """A consumer has gone."""
        self.unsubscribe_all([consumer], subscription)

    def unsubscribe_all(self, consumers: Sequence[Consumer], subscription: LogSubscription) -> None:
        """Several have gone together."""
        subscription.leave(*consumers)
        if not subscription.durable:
            self._readers.discard(subscription)

    @property
    def consumers(self) -> list[Consumer]:
        """All that are connected, readers among them."""
        return [consumer for subscription in self._all_subscriptions() for consumer in subscription.consumers]

    async def remove(self, name: str, *, dismissing: bool = False) -> None:
        """Forget a subscription with its position; its consumers come back, unless they are dismissed."""
        if dismissing and (known := self.subscriptions.get(name)) is not None:
            known.dismiss()
        if self._end(name):
            await self._write(name, lambda: None, drained=self.sealed)

    def end_others(self, name: str, identity: str) -> None:
        """The registration of this name has this id: what is here of an earlier one is over.

        What is stored of it does not count, and is written over by the next one.
        """
        known = self.subscriptions.get(name)
        if known is not None and known.identity != identity:
            self._end(name)
        if self.damaged.get(name, identity) != identity:
            del self.damaged[name]

    def _end(self, name: str) -> bool:
        was_damaged = self.damaged.pop(name, None) is not None
        subscription = self.subscriptions.pop(name, None)
        if subscription is not None:
            subscription.forget()
        return subscription is not None or was_damaged

    async def seek(
        self, subscription: LogSubscription, index: int, *, carries_out: CursorRequest | None = None
    ) -> None:
        """Move a subscription; its consumers come back and begin anew."""
        subscription.seek(self.within(index))
        if subscription.durable:
            await self.saved(subscription, carries_out=carries_out)

    async def ensure_subscription(self, name: str, identity: str = "") -> None:
        """A subscription from the beginning on, for a producer whose messages must not be lost before one comes."""
        self._check_open()
        await self._durable(name, Kind.SHARED, lambda: self.first, identity)

    def index_of(self, ledger: int, entry: int) -> int:
        """The index that a client's message id means, itself included; ids of elsewhere mean the nearer end."""
        if ledger == self.ledger:
            return self.first if entry >= 2**63 else self.within(entry)
        # The earliest of all is -1 in a field without a sign, the latest the largest number with one.
        return self.first if ledger >= 2**63 or ledger < self.ledger else self.next

    def within(self, index: int) -> int:
        return min(max(index, self.first), self.next)

    async def carry_out(self, requests: Mapping[str, CursorRequest]) -> None:
        """Move cursors as the store asks for; returns when they and that it was done are written."""
        if not requests:
            return
        # Several may have read the same request.
        async with self._moving:
            for name, request in requests.items():
                if self._carried_out.get(name) != request.op:
                    index = self.next if request.to_ms is None else await self.index_at(request.to_ms)
                    await self.move(name, index, request.identity, carries_out=request)
                    self._carried_out[name] = request.op

    async def move(
        self, name: str, index: int, identity: str | None = None, *, carries_out: CursorRequest | None = None
    ) -> None:
        """Let a subscription go on from an index, also one that was never here."""
        if identity is not None:
            self.end_others(name, identity)
        # Where it was does not count any more, so nobody needs to be able to read it.
        self.damaged.pop(name, None)
        subscription = self.subscriptions.get(name)
        if subscription is None:
            subscription = self.subscriptions[name] = self._subscription(
                name, Kind.EXCLUSIVE, Cursor(self.first - 1), durable=True, identity=identity or ""
            )
        await self.seek(subscription, index, carries_out=carries_out)

    async def index_at(self, timestamp_ms: int) -> int:
        """The first entry that was published at that time or later."""
        return await self._around.logs.index_published(self.claim, timestamp_ms)

    async def saved(self, subscription: LogSubscription, *, carries_out: CursorRequest | None = None) -> None:
        """Write a cursor, and return when it is written."""
        await self._write(
            subscription.name, subscription.encode, drained=subscription.is_drained, carries_out=carries_out
        )
        subscription.is_stored = True

    async def _write(
        self,
        name: str,
        encode: Callable[[], bytes | None],
        *,
        drained: bool,
        carries_out: CursorRequest | None = None,
    ) -> None:
        """Raises NotHere where the log ends before it is known whether it was written."""
        self._check_open()
        done = trio.Event()
        self._saving.add(done)
        try:
            request = None if carries_out is None else carries_out.entry
            self._keeper.mark(name, encode, told=lambda _: done.set(), carried_out=request, drained=drained)
            await done.wait()
        finally:
            self._saving.discard(done)
        self._check_open()

    def cursor_changed(self, subscription: LogSubscription, told: Told | None) -> None:
        self._keeper.mark(subscription.name, subscription.encode, told=told, drained=subscription.is_drained)

    def delivered(self, now: float, messages: int, size: int) -> None:
        """Count what was sent to consumers."""
        self._around.counters.messages_out += messages
        self._around.counters.bytes_out += size
        self.meter_out.count(now, messages, size)

    def cached(self, indexes: Sequence[int]) -> list[StoredEntry] | None:
        return self._tail.get(indexes)

    async def fetch(self, indexes: Sequence[int]) -> list[StoredEntry]:
        if isinstance(indexes, range) and indexes.step == 1:
            return await self._around.logs.read(self.claim, indexes[0], min(len(indexes), _READ_ENTRIES))
        return await self._around.logs.read_some(self.claim, indexes[:_READ_ENTRIES])

    async def last_entry(self) -> StoredEntry | None:
        """None of a log that holds nothing: of what is trimmed, nothing comes."""
        while not self.is_empty:
            last = range(self.next - 1, self.next)
            found = self.cached(last) or await self.fetch(last)
            if found:
                return found[-1]
            if last.stop == self.next and self.first < last.stop:
                return None  # lost, which its subscriptions find out when they come to it
        return None

    async def keep(self, keeping: Keeping, expected: Mapping[str, str | None] = _NOBODY) -> None:
        """Remove what nobody needs and what is not to be kept, and what is over the quota.

        A subscription that is expected, by its name and id, and was never here has everything before it: its consumers
        come when they have done with the segments before this one.
        """
        await self.sending.forget_long_gone()
        quota = self._around.limits.quota
        self._is_awaited = any(not self._has(name, identity) for name, identity in expected.items())
        needed = self._needed()
        if needed <= self.first and not quota.is_exceeded(self.size):
            return
        young = await kept_from(
            keeping,
            first=self.first,
            end=self.next,
            size=self.size,
            now_ms=time.time_ns() // 1_000_000,
            index_at=lambda time_ms: self._around.logs.index_at(self.claim, time_ms),
        )
        await self.trim(
            trim_below(first=self.first, end=self.next, needed=needed, young=young, size=self.size, quota=quota)
        )

    def _needed(self) -> int:
        """The first entry that somebody has not consumed."""
        marks = [subscription.cursor.mark for subscription in self.subscriptions.values()]
        # What a subscription needs that cannot be read, nobody knows.
        return self.first if self._is_awaited or self.damaged else needed_from(marks, self.next)

    def _has(self, name: str, identity: str | None) -> bool:
        known = self.subscriptions.get(name)
        return known is not None and identity in (known.identity, None)

    def _waiting_bytes(self) -> int:
        return waiting_bytes(first=self.first, end=self.next, needed=self._needed(), size=self.size)

    async def trim(self, below: int) -> None:
        """Remove the beginning of the log."""
        below = min(below, self.next)
        if below <= self.first:
            return
        gone = round(self.size * (below - self.first) / (self.next - self.first))
        await self._around.logs.trim(self.claim, below, self.size - gone)
        self.sending.shrink(gone)
        self.first = below
        for subscription in self._all_subscriptions():
            subscription.trim()

    async def tell(self, traffic: Traffic, holds: float) -> None:
        """Tell the store what goes through, unless it knows; rates are believed there for so many seconds."""
        claim = self.sending.settled_claim
        if claim is None or not self.is_open or (traffic == self._told and traffic.is_still):
            return
        self._told = None
        await self._around.logs.tell(claim, traffic.encode(), holds)
        self._told = traffic

    # The end.

    def note_sealed(self) -> None:
        """The layout has the log sealed: nothing more is appended."""
        if self.sealed or not self.is_open:
            return
        if self.sending.is_idle:
            self._seal()
        elif not self._sealing:
            # What is under way may have been stored before that, and then it is not over.
            self._sealing = True
            self._around.nursery.start_soon(self._seal_when_idle)

    async def _seal_when_idle(self) -> None:
        await self.sending.wait_idle()
        self._seal()

    def _seal(self) -> None:
        if self.sealed or not self.is_open:
            return
        self.sealed = True
        self.sending.end_waiting()
        self._tell_drained()
        for subscription in self._all_subscriptions():
            subscription.tell_if_drained()

    def _tell_drained(self) -> None:
        """Write the cursors of those for whom everything is consumed, which the topic's leader hears of."""
        for subscription in self.subscriptions.values():
            if subscription.is_drained:
                self.cursor_changed(subscription, None)

    def lose(self, error: StoreError) -> None:
        """This node does not have the log any more."""
        if self.is_open:
            # Its clients come back and find a damaged log damaged again.
            complain(log, "%s is not ours any more: %s", self.name, error, level=logging.INFO)
            self._around.counters.lost += 1
            self._close_all(None)
            self._keeper.end()

    async def let_go(self, url: str | None = None) -> None:
        """Give the log up in order: what was sent is stored or sent again elsewhere, cursors are written."""
        if not self.is_open:
            return
        self._close_all(url)
        await self.sending.wait_idle()
        await self._keeper.flushed()
        try:
            await self._around.logs.release(self.claim)
        finally:
            self._keeper.end()

    def _close_all(self, url: str | None) -> None:
        self.is_open = False
        self.sending.end(url)
        for subscription in self._all_subscriptions():
            for consumer in subscription.consumers:
                consumer.tell_closed(url)
            subscription.let_go_of_waiting()
        for saving in self._saving:
            saving.set()
        self._tail.clear()
        # They hold the log, and so may the client of any of them for as long as it likes.
        self.subscriptions, self._readers = {}, set()
        self._ended(self)

    # What follows.

    def _stored(self, entries: Sequence[StoredEntry]) -> None:
        if self.is_open:  # else the tail is given up, and would never give back what it takes now
            self._tail.add(entries)
        messages = size = 0
        for entry in entries:
            messages += entry.messages
            size += len(entry.body)
        self._around.counters.messages_in += messages
        self._around.counters.bytes_in += size
        self.meter_in.count(trio.current_time(), messages, size)
        subscriptions = self._all_subscriptions()
        for subscription in subscriptions[:WOKEN_PER_TURN]:
            subscription.wake()
        if len(subscriptions) > WOKEN_PER_TURN:
            self._wake_rest_again = True
            if not self._is_waking_rest:
                self._is_waking_rest = True
                self._around.nursery.start_soon(self._wake_rest)

    async def _wake_rest(self) -> None:
        """Tell the other subscriptions of what was stored, in steps between which others are served."""
        try:
            while self._wake_rest_again:
                self._wake_rest_again = False
                # All of them: who comes first may have changed meanwhile.
                for count, subscription in enumerate(self._all_subscriptions()):
                    if count % WOKEN_PER_TURN == 0:
                        await trio.lowlevel.checkpoint()
                    subscription.wake()
        finally:
            self._is_waking_rest = False

    def _subscription(
        self, name: str, kind: Kind, cursor: Cursor, *, durable: bool, identity: str = ""
    ) -> LogSubscription:
        return LogSubscription(
            name,
            kind,
            cursor,
            self,
            nursery=self._around.nursery,
            durable=durable,
            max_unacked=self._around.limits.max_unacked,
            partition=self.place.partition,
            identity=identity,
        )

    def _all_subscriptions(self) -> list[LogSubscription]:
        return [*self.subscriptions.values(), *self._readers]

    def _check_open(self) -> None:
        if not self.is_open:
            raise NotHere(f"{self.name} is not served here any more: look it up again.")
