"""One subscription at one log: fetches what its consumers can take and hands it to them, and takes acknowledgements.

Nothing runs while there is nothing to do. What is in memory is handed out at once; a task lives only while the store is
read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import trio

from metadata.complaints import note_waiting
from metadata.errors import LogFenced, LogMissing, StoreError
from metadata.log_entries import StoredEntry
from metadata.tasks import Tasks
from protocol.backoff import Backoff
from segments import cursor_entries
from segments.alarm import Alarm
from segments.consumers import Consumer
from segments.cursor_keeper import Told
from segments.cursors import Cursor
from segments.dispatch.dispatcher import Dispatcher
from segments.dispatch.distribution import SLICE_ENTRIES
from segments.dispatch.key_owners import KeySharing
from segments.dispatch.receivers import Kind
from segments.errors import NotAllowed
from segments.rates import Meter
from segments.reading_ahead import ReadingAhead

log = logging.getLogger(__name__)

# Rounds between two yields: each is up to a slice of deliveries.
_ROUNDS_PER_TURN: Final = 4
# What it takes to say what is wanted, from which on it is not said after each command: thousands of consumers ask for
# messages, or leave, in one turn of the loop, and then it is said once for all of them.
_MANY: Final = 100
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


class Log(Protocol):
    """The log as its subscriptions see it."""

    @property
    def first(self) -> int: ...

    @property
    def next(self) -> int: ...

    @property
    def sealed(self) -> bool: ...

    @property
    def is_open(self) -> bool:
        """Whether this node still has it."""

    def cached(self, indexes: Sequence[int]) -> list[StoredEntry] | None: ...

    @property
    def opened_at(self) -> float:
        """On the clock of the loop."""

    def delivered(self, now: float, messages: int, size: int) -> None: ...

    def fetch(self, indexes: Sequence[int]) -> Awaitable[list[StoredEntry]]: ...

    def cursor_changed(self, subscription: LogSubscription, told: Told | None) -> None:
        """The cursor of a durable subscription has to be written; `told` is called then."""


class LogSubscription:
    def __init__(
        self,
        name: str,
        kind: Kind,
        cursor: Cursor,
        log_: Log,
        *,
        nursery: Tasks,
        durable: bool,
        max_unacked: int,
        partition: int | None = None,
        identity: str = "",
        now_ms: Callable[[], int] = _wall_clock,
    ) -> None:
        """`identity` is that of the registration at the topic, '' where there is none.

        `now_ms` says what time it is for messages that name the time of their delivery.
        """
        self.name = name
        self.identity = identity
        self.durable = durable
        self.dispatcher: Dispatcher[Consumer] = Dispatcher(
            kind,
            cursor,
            max(cursor.mark + 1, log_.first),
            max_unacked=max_unacked,
            end=log_.next,
            partition=partition,
        )
        self.is_stored = False  # whether the next owner would know it
        self.left = trio.Event()  # when the next consumer leaves
        self.when_left: Callable[[], None] = lambda: None  # the same, each time
        self._log = log_
        self._nursery = nursery
        self._reading = False
        self._is_waking = False
        self._told_active: Consumer | None = None
        self._now_ms = now_ms
        self._asked_ms = 0  # when it was last asked what is wanted
        self._alarm = Alarm(nursery, now_ms)
        self._max_unacked = max_unacked
        self._partition = partition
        self._sharing = KeySharing.AUTO_SPLIT
        # Made with the first traffic: most subscriptions of most logs have none.
        self._meter_out: Meter | None = None  # messages and bytes
        self._meter_back: Meter | None = None  # messages that were sent again, and entries that were acknowledged

    @property
    def kind(self) -> Kind:
        return self.dispatcher.kind

    @property
    def cursor(self) -> Cursor:
        return self.dispatcher.cursor

    @property
    def consumers(self) -> list[Consumer]:
        return self.dispatcher.receivers

    def encode(self) -> bytes:
        """The cursor as it is stored."""
        return cursor_entries.pack(self.identity, self.cursor)

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self.dispatcher.backlog(self._log.next)

    @property
    def delayed(self) -> int:
        """Entries that its consumers will get when they are due, as far as the log has been read."""
        return self.dispatcher.delayed

    def rates(self, now: float) -> tuple[float, float, float, float]:
        """Messages and bytes out, messages sent again, and entries acknowledged, per second."""
        out, back = self._meter_out, self._meter_back
        return (
            *(out.rates(now) if out is not None else (0.0, 0.0)),
            *(back.rates(now) if back is not None else (0.0, 0.0)),
        )

    @property
    def is_ordered(self) -> bool:
        """Whether consumers may acknowledge all up to a message."""
        return self.kind in (Kind.EXCLUSIVE, Kind.FAILOVER)

    @property
    def is_drained(self) -> bool:
        return self._log.sealed and self.cursor.mark >= self._log.next - 1

    def change_kind(self, kind: Kind, sharing: KeySharing) -> None:
        """Another kind of consumers, or another way to share keys, which only an abandoned subscription takes."""
        if kind is self.kind and sharing is self._sharing:
            return
        if self.consumers:
            way = self.kind.value if kind is not self.kind else f"{self.kind.value}, {self._sharing.value}"
            raise NotAllowed(f"Subscription {self.name} has consumers of the type {way}: use that, or another name.")
        self._sharing = sharing
        self._start_over(kind)

    def _start_over(self, kind: Kind) -> None:
        """Nobody is there, and nothing is handed out."""
        self.dispatcher = Dispatcher(
            kind,
            self.cursor,
            self.cursor.mark + 1,
            max_unacked=self._max_unacked,
            key_sharing=self._sharing,
            end=self._log.next,
            partition=self._partition,
        )

    # What consumers do.

    def join(self, consumer: Consumer) -> None:
        """Raises the dispatcher's refusals."""
        self.dispatcher.add(consumer)
        # Who has which hashes is known by now. Thousands of consumers that share the same buckets would each keep them.
        consumer.key_ranges = ()

    def joined(self, consumer: Consumer) -> None:
        """The consumer has its answer: now it may be told more."""
        if self.kind is Kind.FAILOVER and self.has(consumer):
            self._tell_active()
            consumer.tell_active(consumer is self.dispatcher.active)
        if self.is_drained:
            consumer.tell_end()

    def leave(self, *consumers: Consumer) -> None:
        """Some go together: whoever is left is looked at once."""
        self.dispatcher.remove(*consumers)
        self.let_go_of_waiting()
        self._tell_active()
        self.wake()

    def send_away(self) -> None:
        """Tell all consumers to come back. What they hold is not theirs any more: nothing they say of it counts."""
        consumers = self.consumers
        self.dispatcher.remove(*consumers)
        self._told_active = None
        for consumer in consumers:
            consumer.tell_closed()
        self.let_go_of_waiting()

    def unseat(self, consumer: Consumer) -> None:
        """The same for one of them."""
        if self.has(consumer):
            consumer.tell_closed()
            self.leave(consumer)

    def forget(self) -> None:
        """It is not there any more: nothing of it is written, or it would be there again."""
        self.durable = False
        self.send_away()

    def dismiss(self) -> None:
        """It was deleted, and its consumers end with it: by coming back they would make it anew."""
        for consumer in self.consumers:
            consumer.is_dismissed = True
        self.forget()

    def has(self, consumer: Consumer) -> bool:
        """Whether a consumer is here, and was not sent away."""
        return self.dispatcher.has(consumer)

    def let_go_of_waiting(self) -> None:
        """Those who wait for a place may try again."""
        self.left.set()
        self.left = trio.Event()
        self.when_left()

    def flow(self, consumer: Consumer, permits: int) -> None:
        self.dispatcher.flow(consumer, permits)
        self.wake()

    def ack(self, consumer: Consumer, positions: Sequence[tuple[int, Sequence[int]]], told: Told | None) -> None:
        dispatcher = self.dispatcher
        changed = 0
        for index, ack_set in positions:
            changed += dispatcher.ack(consumer, index, ack_set)
        self._after_ack(changed, told)

    def ack_cumulative(self, consumer: Consumer, index: int, ack_set: Sequence[int], told: Told | None) -> None:
        """Where `is_ordered`."""
        before = self.backlog
        changed = self.dispatcher.ack_cumulative(consumer, index, ack_set)
        # A part of a batch counts as one, as it does where single messages are acknowledged.
        self._after_ack(max(1, before - self.backlog) if changed else 0, told)

    def redeliver(self, consumer: Consumer, indexes: Sequence[int] | None) -> None:
        self.dispatcher.redeliver(consumer, indexes)
        self.wake()

    def _after_ack(self, changed: int, told: Told | None) -> None:
        if changed:
            self._count_back(trio.current_time(), 0, changed)
        if self.durable and (changed or told is not None):
            self._log.cursor_changed(self, told)
        elif told is not None:
            told(True)
        if changed:
            self.tell_if_drained()
            # Somebody may have been at the limit of what it may have unacknowledged.
            self.wake()

    # What the log does.

    def trim(self) -> None:
        """The log begins later now."""
        if self.dispatcher.trim(self._log.first):
            if self.durable:
                self._log.cursor_changed(self, None)
            self.wake()

    def seek(self, index: int) -> None:
        """Go on from there, when the consumers have come back."""
        self.send_away()
        self.dispatcher.seek(index)

    def tell_if_drained(self) -> None:
        if self.is_drained:
            for consumer in self.consumers:
                consumer.tell_end()

    def wake(self) -> None:
        """Something is there, or somebody can take more."""
        if self._reading or self._is_waking or not self._log.is_open:
            return
        if self.dispatcher.weight > _MANY:
            self._is_waking = True
            self._nursery.start_soon(self._wake_later)
        else:
            self._wake()

    async def _wake_later(self) -> None:
        self._is_waking = False
        if not self._reading and self._log.is_open:
            self._wake()

    def _wake(self) -> None:
        try:
            self._hand_out_cached()
        except Exception:
            # Who wakes it may be a producer, or another consumer: nothing of this is theirs.
            self._fail()

    def _hand_out_cached(self) -> None:
        rounds = 0
        while wanted := self._wanted():
            found = self._log.cached(wanted)
            rounds += 1
            if found is None or rounds > _ROUNDS_PER_TURN:
                self._reading = True
                self._nursery.start_soon(self._read)
                return
            if not self._hand_out(found, wanted):
                break
        self._await_more()

    def _wanted(self) -> Sequence[int] | None:
        self._asked_ms = self._now_ms()
        return self.dispatcher.wanted(self._log.next, self._asked_ms)

    async def _read(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        pages = ReadingAhead(self._log.fetch, self._nursery, SLICE_ENTRIES)
        try:
            while wanted := self._wanted():
                found = self._log.cached(wanted)
                if found is None:
                    try:
                        found = await pages.get(wanted, self._log.next)
                    except (LogFenced, LogMissing):
                        return  # who owns the log is told by its writes
                    except StoreError as error:
                        note_waiting(log, error, "reading for subscription %s waits for the store", self.name)
                        await trio.sleep(backoff.next())
                        continue
                    backoff.reset()
                    self._pass_over_lost(wanted, found)
                else:
                    await trio.lowlevel.checkpoint()
                if not self._hand_out(found, wanted):
                    return
        except Exception:
            self._fail()
        finally:
            self._reading = False
            self._await_more()

    def _fail(self) -> None:
        """After a fault of ours, of which nobody knows how far it went: all begin anew.

        The clients come back at their own pace, so that a fault that stays is met no more often than that.
        """
        log.exception("subscription %s failed, and its consumers have to come back", self.name)
        consumers = self.consumers
        self._start_over(self.kind)
        self._told_active = None
        for consumer in consumers:
            consumer.tell_closed()
        self.let_go_of_waiting()

    def _pass_over_lost(self, wanted: Sequence[int], found: Sequence[StoredEntry]) -> None:
        """What the log has lost is as good as acknowledged: else nothing would follow it."""
        first = found[0].index if found else wanted[-1] + 1
        if first <= wanted[0]:
            return
        if found and isinstance(wanted, range) and wanted[0] == self.cursor.mark + 1:
            # Read in one go from the mark on: nothing is there before the first that was found, however far that is.
            changed = self.dispatcher.trim(first)
        else:
            # Below and between those that were asked for, others may be in the hands of consumers.
            changed = self.dispatcher.pass_over([index for index in wanted if index < first])
        if changed:
            log.warning("subscription %s passes over entries before %d, which its log has lost", self.name, first)
            if self.durable:
                self._log.cursor_changed(self, None)

    def _hand_out(self, entries: Sequence[StoredEntry], wanted: Sequence[int]) -> bool:
        """Whether that led any further: somebody took something, or something else is wanted now.

        The latter where all of it was acknowledged while it was fetched, or waits for a consumer that has no room
        while others have.
        """
        deliveries = self.dispatcher.offer(entries, self._now_ms())
        messages = size = again = 0
        # Together for each consumer: calls to the kernel cost more than all that is done here.
        parts: dict[Consumer, list[bytes]] = {}
        for consumer, (index, _, count, body, _, _), redeliveries, ack_set in deliveries:
            some = parts.get(consumer)
            if some is None:
                some = parts[consumer] = []
            length = len(body)
            some += (consumer.frames.head(index, redeliveries, ack_set, length), body)
            consumer.messages += count
            consumer.bytes += length
            messages += count
            size += length
            if redeliveries:
                consumer.redelivered += count
                again += count
        for consumer, some in parts.items():
            consumer.peer.send(tuple(some))
        if deliveries:
            now = trio.current_time()
            self._log.delivered(now, messages, size)
            if self._meter_out is None:
                self._meter_out = Meter(self._log.opened_at)
            self._meter_out.count(now, messages, size)
            if again:
                self._count_back(now, again, 0)
        return bool(deliveries) or self._wanted() != wanted

    def _count_back(self, now: float, redelivered: int, acked: int) -> None:
        if self._meter_back is None:
            self._meter_back = Meter(self._log.opened_at)
        self._meter_back.count(now, redelivered, acked)

    def _await_more(self) -> None:
        """Go on when a connection has taken what is queued for it, and when the next message is due."""
        due = self.dispatcher.next_due
        # What was due when it was asked for waits for somebody who can take it.
        if due is not None and due > self._asked_ms and self.consumers:
            self._alarm.set(due, self.wake)
        for consumer in self.consumers:
            if not consumer.is_ready and not consumer.peer.closed and self.dispatcher.permits(consumer) > 0:
                consumer.peer.when_sent(self.wake)

    def _tell_active(self) -> None:
        """Of thousands, two hear of it: who was the active one, and who is."""
        active = self.dispatcher.active if self.kind is Kind.FAILOVER else None
        before, self._told_active = self._told_active, active
        if active is before:
            return
        if before is not None and self.has(before):
            before.tell_active(False)
        if active is not None:
            active.tell_active(True)
