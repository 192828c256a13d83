"""A log that this node owns: its producers, its subscriptions, and everything between them.

It ends when another node has it, when it is deleted, or when this node lets go of it; then its clients are told to look
it up again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from metadata import keys
from metadata.errors import StoreError
from metadata.log_entries import StoredEntry
from metadata.log_places import LogPlace
from metadata.log_states import Claim, Opened
from metadata.segment_logs import SegmentLogs
from protocol import data_replies
from protocol.framing import encode
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from segments.appending import Appender, Chunk, Outcome, Sent
from segments.consumers import Consumer
from segments.cursor_keeper import CursorKeeper
from segments.cursors import Cursor
from segments.dispatch.key_owners import KeySharing
from segments.dispatch.receivers import Kind
from segments.errors import NotHere, QuotaExceeded, Terminated, TooMany
from segments.frames import Receipts
from segments.keeping import OverQuota, Quota, needed_from, trim_below
from segments.ports import Peer
from segments.producers import WHOLE, Producer, Producers, Sequences
from segments.rates import Meter
from segments.subscription import LogSubscription
from segments.tail import Budget, Tail

log = logging.getLogger(__name__)

# Entries in one read: enough for a round trip to be worth it. What they may weigh is bounded by the read itself.
_READ_ENTRIES: Final = 256
# Some clients look for the word in brackets.
_OVER_QUOTA: Final = "Consumers are too far behind, and the backlog quota is used up: let them catch up first."
_SEALED: Final = "The segment is sealed (TopicTerminated): send to the segments that took its place."


@dataclass(frozen=True, slots=True)
class LogLimits:
    tail_bytes: int = 1024 * 1024  # of one log, kept in memory for those who read along
    queued_bytes: int = 8 * 1024 * 1024  # sent by producers and not stored yet
    producers: int = 10_000
    subscriptions: int = 1_000
    consumers: int = 10_000  # of a subscription
    max_unacked: int = 50_000
    replicas: int = 0
    quota: Quota = field(default_factory=Quota)


@dataclass(slots=True)
class DataCounters:
    """Totals over all logs of a node."""

    messages_in: int = 0
    bytes_in: int = 0
    duplicates: int = 0
    send_errors: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    opened: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Around:
    """What all logs of a node share."""

    logs: SegmentLogs
    nursery: trio.Nursery
    limits: LogLimits
    counters: DataCounters
    tails: Budget
    layout_told: Callable[[LogPlace], Awaitable[None]]  # returns when those who watch here know the layout as it is


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
        self._sequences = Sequences(opened.producers)
        self._receipt_frames = Receipts(self.ledger)
        self.producers = Producers(opened.state.topic_epoch, self._close_producer)
        self.subscriptions: dict[str, LogSubscription] = {}
        self._readers: set[LogSubscription] = set()  # not durable, gone with their consumer
        self._sealed_out: list[Sent] = []  # to be told that the log is sealed
        self._tail = Tail(opened.state.next, around.tails, around.limits.tail_bytes)
        self._appender = Appender(
            around.logs,
            opened,
            self._sequences,
            Outcome(self._stored, self._receipts, self._refused, self._found_sealed, self.lose),
            nursery=around.nursery,
            replicas=around.limits.replicas,
        )
        self._keeper = CursorKeeper(
            around.logs,
            lambda: None if self._appender.is_claiming else self._appender.claim,
            nursery=around.nursery,
            lost=self.lose,
        )
        self._saving: set[trio.Event] = set()  # of those who wait for a cursor to be written
        self.meter_in, self.meter_out = Meter(trio.current_time()), Meter(trio.current_time())
        for name, stored in opened.cursors.items():
            # Of which type its consumers are, the first of them says.
            self.subscriptions[name] = self._subscription(name, Kind.EXCLUSIVE, Cursor.decode(stored), durable=True)

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def topic(self) -> TopicName:
        return keys.topic_at(self.place.path)

    @property
    def claim(self) -> Claim:
        return self._appender.claim

    @property
    def next(self) -> int:
        return self._appender.next

    @property
    def size(self) -> int:
        return self._appender.size

    @property
    def is_idle(self) -> bool:
        """Whether no client has anything open here."""
        return not self.producers.all and not any(s.consumers for s in self._all_subscriptions())

    # Producers.

    async def join(self, producer: Producer, client_epoch: int | None) -> bool:
        """Let a producer in; False if it has to wait until it has the log alone."""
        self._check_open()
        if self.sealed:
            raise await self.terminated()
        if self._is_over_quota:
            raise QuotaExceeded(_OVER_QUOTA)
        if len(self.producers) >= self._around.limits.producers:
            raise TooMany(f"{self.name} has {len(self.producers)} producers, which is the limit: close some.")
        before = self.producers.topic_epoch
        ready = self.producers.join(producer, client_epoch)
        if ready and self.producers.topic_epoch != before and self.producers.topic_epoch is not None:
            await self._around.logs.set_topic_epoch(self.claim, self.producers.topic_epoch)
        return ready

    def last_sequence(self, producer: Producer) -> int:
        return self._sequences.last(producer.name)

    def send(
        self, producer: Producer, sequence: int, highest: int, messages: int, body: bytes, chunk: Chunk | None = None
    ) -> None:
        """Take a message of a producer that has joined; what becomes of it is told to its connection."""
        if not self.is_open:
            return  # it has been told to come back, and sends again then whatever it has sent since
        last = max(sequence, highest)
        if self._appender.ended:
            # Sealed: nobody comes back to it, so everything is answered.
            producer.pending += 1
            self._found_sealed([Sent(producer, sequence, highest, last, messages, b"", False)])
            return
        if producer.broken:
            return  # as above
        if self._is_over_quota:
            self._turn_away(producer, sequence, QuotaExceeded.server_error, _OVER_QUOTA)
            return
        is_new = self._sequences.accept(producer.name, last, WHOLE if chunk is None else chunk.number)
        producer.pending += 1
        if is_new:
            producer.messages += messages
            producer.bytes += len(body)
        else:
            self._around.counters.duplicates += 1
            body = b""
        self._appender.add(Sent(producer, sequence, highest, last, messages, body, is_new, chunk))

    @property
    def _is_over_quota(self) -> bool:
        quota = self._around.limits.quota
        return quota.policy is OverQuota.REFUSE and quota.is_exceeded(self.size)

    @property
    def is_congested(self) -> bool:
        """Whether so much waits to be stored that its producers should be left unread."""
        return self._appender.queued_bytes > self._around.limits.queued_bytes

    async def wait_room(self) -> None:
        """Return when less than half of what may wait to be stored does."""
        await self._appender.wait_room(self._around.limits.queued_bytes // 2)

    async def leave(self, producer: Producer) -> None:
        following = self.producers.leave(producer)
        if following is not None:
            if following.topic_epoch is not None:
                await self._around.logs.set_topic_epoch(self.claim, following.topic_epoch)
            following.begin()

    async def terminated(self) -> Terminated:
        """The refusal of a sealed log, for whoever watches the layout already knows what took its place."""
        await self._around.layout_told(self.place)
        return Terminated(_SEALED)

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
    ) -> LogSubscription:
        """Let a consumer in; `start` says where a subscription begins that was never here."""
        self._check_open()
        limits = self._around.limits
        if durable:
            subscription = self.subscriptions.get(name)
            if subscription is None:
                if len(self.subscriptions) >= limits.subscriptions:
                    raise TooMany(f"{self.name} has {limits.subscriptions} subscriptions, which is the limit.")
                subscription = self._subscription(name, kind, Cursor(start() - 1), durable=True)
                self.subscriptions[name] = subscription
                await self.saved(subscription)
                self._check_open()
        else:
            subscription = self._subscription(name, kind, Cursor(start() - 1), durable=False)
        subscription.change_kind(kind, sharing)
        if len(subscription.consumers) >= limits.consumers:
            raise TooMany(f"Subscription {name} of {self.name} has {limits.consumers} consumers, which is the limit.")
        subscription.join(consumer)
        if not durable:
            self._readers.add(subscription)
        return subscription

    def unsubscribe(self, consumer: Consumer, subscription: LogSubscription) -> None:
        """A consumer has gone."""
        subscription.leave(consumer)
        if not subscription.durable:
            self._readers.discard(subscription)

    async def remove(self, name: str) -> None:
        """Forget a subscription with its position."""
        subscription = self.subscriptions.pop(name, None)
        if subscription is None:
            return
        for consumer in subscription.consumers:
            consumer.tell_closed()
        await self._write(name, lambda: None, drained=self.sealed)

    async def seek(self, subscription: LogSubscription, index: int) -> None:
        """Move a subscription; its consumers come back and begin anew."""
        subscription.seek(min(max(index, self.first), self.next))
        for consumer in subscription.consumers:
            subscription.leave(consumer)
            consumer.tell_closed()
        if subscription.durable:
            await self.saved(subscription)

    async def ensure_subscription(self, name: str) -> None:
        """A subscription from the beginning on, for a producer whose messages must not be lost before one comes."""
        if name not in self.subscriptions:
            subscription = self._subscription(name, Kind.SHARED, Cursor(self.first - 1), durable=True)
            self.subscriptions[name] = subscription
            await self.saved(subscription)

    async def somebody_left(self, name: str) -> None:
        """Return when a consumer of a subscription has gone."""
        subscription = self.subscriptions.get(name)
        if subscription is not None:
            await subscription.left.wait()

    def index_of(self, ledger: int, entry: int) -> int:
        """The index that a client's message id means, itself included; ids of elsewhere mean the nearer end."""
        if ledger == self.ledger:
            return self.first if entry >= 2**63 else min(max(entry, self.first), self.next)
        # The earliest of all is -1 in a field without a sign, the latest the largest number with one.
        return self.first if ledger >= 2**63 or ledger < self.ledger else self.next

    async def move(self, name: str, index: int) -> None:
        """Let a subscription go on from an index, also one that was never here."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            subscription = self.subscriptions[name] = self._subscription(
                name, Kind.EXCLUSIVE, Cursor(self.first - 1), durable=True
            )
        await self.seek(subscription, index)

    async def index_at(self, timestamp_ms: int) -> int:
        return await self._around.logs.index_at(self.claim, timestamp_ms)

    async def saved(self, subscription: LogSubscription) -> None:
        """Write a cursor, and return when it is written."""
        await self._write(subscription.name, subscription.cursor.encode, drained=subscription.is_drained)

    async def _write(self, name: str, encode: Callable[[], bytes | None], *, drained: bool) -> None:
        """Raises NotHere where the log ends before it is known whether it was written."""
        self._check_open()
        done = trio.Event()
        self._saving.add(done)
        try:
            self._keeper.mark(name, encode, told=done.set, drained=drained)
            await done.wait()
        finally:
            self._saving.discard(done)
        self._check_open()

    def cursor_changed(self, subscription: LogSubscription, told: Callable[[], None] | None) -> None:
        self._keeper.mark(subscription.name, subscription.cursor.encode, told=told, drained=subscription.is_drained)

    def delivered(self, messages: int, size: int) -> None:
        """Count what was sent to consumers."""
        self._around.counters.messages_out += messages
        self._around.counters.bytes_out += size
        if messages:
            self.meter_out.count(trio.current_time(), messages, size)

    def cached(self, indexes: Sequence[int]) -> list[StoredEntry] | None:
        return self._tail.get(indexes)

    async def fetch(self, indexes: Sequence[int]) -> list[StoredEntry]:
        if isinstance(indexes, range) and indexes.step == 1:
            return await self._around.logs.read(self.claim, indexes[0], min(len(indexes), _READ_ENTRIES))
        return await self._around.logs.read_some(self.claim, indexes[:_READ_ENTRIES])

    async def keep(self, retention_ms: int, expected: Collection[str] = ()) -> None:
        """Remove what nobody needs and what is older than that; negative: keep all but what is over the quota.

        A subscription that is expected and was never here has everything before it: its consumers come when they have
        done with the segments before this one.
        """
        quota = self._around.limits.quota
        marks = [s.cursor.mark for s in self.subscriptions.values()]
        if any(name not in self.subscriptions for name in expected):
            marks.append(self.first - 1)
        needed = needed_from(marks, self.next)
        if needed <= self.first and not quota.is_exceeded(self.size):
            return
        young = self.first
        if retention_ms >= 0:
            young = await self.index_at(max(0, time.time_ns() // 1_000_000 - retention_ms))
        await self.trim(
            trim_below(first=self.first, end=self.next, needed=needed, young=young, size=self.size, quota=quota)
        )

    async def trim(self, below: int) -> None:
        """Remove the beginning of the log."""
        below = min(below, self.next)
        if below <= self.first:
            return
        share = (below - self.first) / max(1, self.next - self.first)
        self._appender.size -= round(self._appender.size * share)
        await self._around.logs.trim(self.claim, below, self._appender.size)
        self.first = below
        for subscription in self._all_subscriptions():
            subscription.trim()

    # The end.

    def note_sealed(self) -> None:
        """The layout has the log sealed: nothing more is appended."""
        if self.sealed or not self.is_open:
            return
        if self._appender.is_idle or self._appender.ended:
            self._seal()
        elif not self._sealing:
            # What is under way may have been stored before that, and then it is not over.
            self._sealing = True
            self._around.nursery.start_soon(self._seal_when_idle)

    async def _seal_when_idle(self) -> None:
        await self._appender.wait_idle()
        self._seal()

    def _seal(self) -> None:
        if self.sealed or not self.is_open:
            return
        self.sealed = True
        for subscription in self._all_subscriptions():
            if subscription.is_drained and subscription.durable:
                self.cursor_changed(subscription, None)
            subscription.tell_if_drained()

    def lose(self, error: StoreError) -> None:
        """This node does not have the log any more."""
        if self.is_open:
            log.info("%s is not ours any more: %s", self.name, error)
            self._around.counters.lost += 1
            self._close_all(None)

    async def let_go(self, url: str | None = None) -> None:
        """Give the log up in order: what was sent is stored or sent again elsewhere, cursors are written."""
        if not self.is_open:
            return
        self._close_all(url)
        await self._appender.wait_idle()
        await self._keeper.flushed()
        await self._around.logs.release(self.claim)

    def _close_all(self, url: str | None) -> None:
        self.is_open = False
        self._appender.end()
        for producer in self.producers.all:
            self._close_producer(producer, url)
        for subscription in self._all_subscriptions():
            for consumer in subscription.consumers:
                consumer.tell_closed(url)
            subscription.let_go_of_waiting()
        for saving in self._saving:
            saving.set()
        self._tail.clear()
        self._ended(self)

    def _close_producer(self, producer: Producer, url: str | None = None) -> None:
        producer.broken = True
        producer.peer.reply(encode(data_replies.close_producer(producer.producer_id, url)))

    # What becomes of messages.

    def _stored(self, entries: Sequence[StoredEntry]) -> None:
        self._tail.add(entries)
        messages = size = 0
        for entry in entries:
            messages += entry.messages
            size += len(entry.body)
        self._around.counters.messages_in += messages
        self._around.counters.bytes_in += size
        self.meter_in.count(trio.current_time(), messages, size)
        for subscription in self._all_subscriptions():
            subscription.wake()

    def _receipts(self, told: Sequence[tuple[Sent, int | None]]) -> None:
        # Together for each connection: a call to the kernel for every one would cost more than all the rest of it.
        frames: dict[Peer, list[bytes]] = {}
        frame = self._receipt_frames.frame
        for sent, index in told:
            producer = sent.producer
            producer.pending -= 1
            some = frames.get(producer.peer)
            if some is None:
                some = frames[producer.peer] = []
            some.append(frame(producer.producer_id, sent.sequence, sent.highest, index))
        for peer, some in frames.items():
            peer.reply(b"".join(some))

    def _refused(self, refused: Sequence[Sent], error: StoreError) -> None:
        for sent in refused:
            self._refuse(sent, api.PersistenceError, str(error))

    def _found_sealed(self, refused: Sequence[Sent]) -> None:
        self.note_sealed()
        if not self._sealed_out:
            self._around.nursery.start_soon(self._tell_sealed)
        self._sealed_out += refused

    async def _tell_sealed(self) -> None:
        error = await self.terminated()
        refused, self._sealed_out = self._sealed_out, []
        for sent in refused:
            self._refuse(sent, error.server_error, str(error))

    def _refuse(self, sent: Sent, code: int, why: str) -> None:
        sent.producer.pending -= 1
        self._turn_away(sent.producer, sent.sequence, code, why)

    def _turn_away(self, producer: Producer, sequence: int, code: int, why: str) -> None:
        """What follows a refused message must not overtake it, so nothing more is taken until the client comes back."""
        producer.broken = True
        self._around.counters.send_errors += 1
        producer.peer.reply(encode(data_replies.send_error(producer.producer_id, sequence, code, why)))

    def _subscription(self, name: str, kind: Kind, cursor: Cursor, *, durable: bool) -> LogSubscription:
        return LogSubscription(
            name,
            kind,
            cursor,
            self,
            nursery=self._around.nursery,
            durable=durable,
            max_unacked=self._around.limits.max_unacked,
        )

    def _all_subscriptions(self) -> list[LogSubscription]:
        return [*self.subscriptions.values(), *self._readers]

    def _check_open(self) -> None:
        if not self.is_open:
            raise NotHere(f"{self.name} is not served here any more: look it up again.")
