"""The producing end of a log that this node owns: who may send, what becomes of what they send, what each is told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import trio

from metadata.complaints import note_waiting
from metadata.errors import LogFenced, LogMissing, StoreError
from metadata.log_entries import StoredEntry
from metadata.log_places import LogPlace
from metadata.log_states import Claim, Opened
from protocol import data_replies
from protocol.backoff import Backoff
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from segments.appending import Appender, Chunk, Outcome, Sent
from segments.around import Around
from segments.errors import DataRefusal, ProducerFenced, QuotaExceeded, Terminated, TooMany
from segments.frames import Receipts
from segments.keeping import OverQuota
from segments.ports import Peer
from segments.producers import WHOLE, Producer, Producers, Sequences

log = logging.getLogger(__name__)

_OVER_QUOTA: Final = "Consumers are too far behind, and the backlog quota is used up: let them catch up first."
# Some clients look for the word in brackets.
_SEALED: Final = "The segment is sealed (TopicTerminated): send to the segments that took its place."
_FENCED: Final = (
    "Another producer has taken the topic for itself while this one waited (ProducerFenced): create a new one."
)
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
# How long it is remembered what a producer has stored that does not come back: as long as Pulsar's brokers do.
_MEMORY: Final = 6 * 3600.0
# How many of those are remembered in one log, and for how long where each of their last messages stands: whoever comes
# back from a lost connection does so sooner.
_MOST_AWAY: Final = 10_000
_PLACES_MEMORY: Final = 60.0


def _nothing() -> None:
    """For a log that has ended: it was told all that it can be told."""


def _no_backlog() -> int:
    return 0


class Sending:
    def __init__(
        self,
        opened: Opened,
        around: Around,
        *,
        stored: Callable[[Sequence[StoredEntry]], None],
        sealed: Callable[[], None],
        lost: Callable[[StoreError], None],
        backlog: Callable[[], int],
    ) -> None:
        """`stored` gets what was appended; `sealed` and `lost` are called when an append finds the log to be so.

        `backlog` says how many bytes wait to be consumed.
        """
        self.place: LogPlace = opened.claim.place
        self.producers = Producers(opened.state.topic_epoch, self._fence)
        self._around = around
        self._note_sealed = sealed
        self._backlog = backlog
        self._sequences = Sequences(opened.producers)
        self._receipts = Receipts(opened.claim.ledger)
        self._refused_as_sealed: list[Sent] = []
        # When producers were last here, of those that are not, in the order in which they left: as far as can be told.
        by_place = sorted(opened.producers, key=lambda name: opened.producers[name].index)
        self._away = dict.fromkeys(by_place, trio.current_time())
        self._appender = Appender(
            around.logs,
            opened,
            self._sequences,
            Outcome(stored, self._tell_stored, self._tell_refused, self._found_sealed, lost),
            nursery=around.nursery,
            queue=around.queue,
            replicas=around.limits.replicas,
        )

    @property
    def claim(self) -> Claim:
        return self._appender.claim

    @property
    def settled_claim(self) -> Claim | None:
        """The claim that stands in the store; None while nobody can tell."""
        return None if self._appender.is_claiming else self._appender.claim

    @property
    def next(self) -> int:
        return self._appender.next

    @property
    def size(self) -> int:
        return self._appender.size

    @property
    def queued_bytes(self) -> int:
        """What waits to be stored."""
        return self._appender.queued_bytes

    def shrink(self, size: int) -> None:
        """So many bytes were trimmed."""
        self._appender.size -= size

    # Who is there.

    async def join(self, producer: Producer, client_epoch: int | None) -> bool:
        """Let a producer in; False if it has to wait until it has the log alone."""
        if self._is_over_quota:
            raise QuotaExceeded(_OVER_QUOTA)
        if self.producers.count >= self._around.limits.producers:
            raise TooMany(f"{self.place.name} has {self.producers.count} producers, which is the limit: close some.")
        before = self.producers.topic_epoch
        ready = self.producers.join(producer, client_epoch)
        self._away.pop(producer.name, None)
        if ready and self.producers.topic_epoch != before and self.producers.topic_epoch is not None:
            try:
                await self._around.logs.set_topic_epoch(self.claim, self.producers.topic_epoch)
            except BaseException:
                self.drop(producer)  # nobody else knows of it
                raise
        return ready

    async def leave(self, producer: Producer, *, for_good: bool = False) -> None:
        """A producer is gone; `for_good` if its client has closed it, which then sends nothing again."""
        self.drop(producer)
        if for_good and not producer.is_named and not producer.pending and producer.name in self._away:
            await self._forget([producer.name])

    def drop(self, producer: Producer) -> None:
        """A producer is gone; one that waited for that may send."""
        following = self.producers.leave(producer)
        self._note_away(producer)
        if following is not None:
            self._around.nursery.start_soon(self._promote, following)

    def _note_away(self, producer: Producer) -> None:
        if producer.name not in self.producers:
            if self._sequences.last(producer.name) >= 0:
                self._away[producer.name] = trio.current_time()
            else:
                self._sequences.forget(producer.name)

    async def _promote(self, following: Producer) -> None:
        """Note that a producer has the log alone now, and tell it so."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            while following.topic_epoch is not None and not following.broken:
                claim = self.claim
                try:
                    await self._around.logs.set_topic_epoch(claim, following.topic_epoch)
                    break
                except StoreError as error:
                    if isinstance(error, LogFenced | LogMissing) and claim == self.settled_claim:
                        return  # the log is not ours any more, and the producer hears of that
                    note_waiting(log, error, "a producer of %s waits for the store", self.place.name)
                await trio.sleep(backoff.next())
            if following.broken:
                return  # it has been told to go meanwhile
            following.waits = False
            following.begin(following)
        except Exception:
            log.exception("a producer of %s could not be told that it may send", self.place.name)
            self.close(following)

    async def forget_long_gone(self) -> None:
        """Forget what was sent by those who have not been here for hours, or longer than many others."""
        now = trio.current_time()
        names = list(self._away)  # in the order in which they left
        oldest = names[: max(0, len(names) - _MOST_AWAY)]
        await self._forget(oldest + [name for name in names[len(oldest) :] if self._away[name] < now - _MEMORY])
        for name, since in self._away.items():
            if since < now - _PLACES_MEMORY:
                self._sequences.forget_places(name)

    async def _forget(self, names: Sequence[str]) -> None:
        if not names:
            return
        for name in names:
            del self._away[name]
            self._sequences.forget(name)
        try:
            await self._around.logs.forget_producers(self.claim, names)
        except StoreError as error:
            # They stay in the store until another owner has not seen them for long.
            log.debug("producers of %s are not forgotten in the store: %s", self.place.name, error)

    def last_sequence(self, producer: Producer) -> int:
        return self._sequences.last(producer.name)

    def close(self, producer: Producer, url: str | None = None) -> None:
        """Tell a client that its producer has to go, perhaps elsewhere."""
        producer.broken = True
        producer.peer.reply(encode(data_replies.close_producer(producer.producer_id, url)))

    def _fence(self, producer: Producer) -> None:
        """Another one has the log alone from now on. Who waits has no producer yet that could be closed."""
        if producer.waits:
            self._refuse_waiting(producer, ProducerFenced(_FENCED))
        else:
            self.close(producer)

    def _refuse_waiting(self, producer: Producer, error: DataRefusal) -> None:
        producer.broken = True
        self._note_away(producer)
        producer.refuse(producer, error)

    def end_waiting(self) -> None:
        """Nothing more is appended: nobody needs to wait for a turn."""
        if waiting := self.producers.take_waiting():
            self._around.nursery.start_soon(self._turn_waiting_away, waiting)

    async def _turn_waiting_away(self, waiting: Sequence[Producer]) -> None:
        error = Terminated(_SEALED)
        try:
            error = await self.terminated()
        except Exception:
            log.exception("the layout of %s could not be told", self.place.name)
        for producer in waiting:
            self._refuse_waiting(producer, error)

    # Messages.

    def send(
        self, producer: Producer, sequence: int, highest: int, messages: int, body: bytes, chunk: Chunk | None = None
    ) -> None:
        """Take a message of a producer that has joined; what becomes of it is told to its connection."""
        last = max(sequence, highest)
        if self._appender.ended:
            # Sealed: nobody comes back to it, so everything is answered.
            producer.pending += 1
            self._found_sealed([Sent(producer, sequence, highest, last, messages, b"", False)])
            return
        if producer.broken or producer.waits:
            return  # it has been told to come back, or to wait, and sends again then whatever it has sent since
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
        # A backlog is never larger than the log, whose size costs nothing to know.
        return (
            quota.is_exceeded(self._appender.size)
            and quota.policy is OverQuota.REFUSE
            and quota.is_exceeded(self._backlog())
        )

    @property
    def is_congested(self) -> bool:
        """Whether so much waits to be stored, here or in all logs, that producers should be left unread."""
        return self._appender.queued_bytes > self._around.limits.queued_bytes or self._around.queue.is_full

    async def wait_room(self) -> None:
        """Return when less than half of what may wait to be stored does."""
        await self._appender.wait_room(self._around.limits.queued_bytes // 2)
        await self._around.queue.wait_room()

    # The end.

    @property
    def is_idle(self) -> bool:
        """Whether no append is under way, so that it is known how far the log reaches."""
        return self._appender.is_idle or self._appender.ended

    async def wait_idle(self) -> None:
        await self._appender.wait_idle()

    def end(self, url: str | None) -> None:
        """Take nothing more, and send everybody elsewhere."""
        self._appender.end()
        for producer in self.producers.all:
            self.close(producer, url)
        self.producers.end()
        # They are the log's, which holds this.
        self._note_sealed, self._backlog = _nothing, _no_backlog

    async def terminated(self) -> Terminated:
        """The refusal of a sealed log, for whoever watches the layout already knows what took its place."""
        await self._around.layout_told(self.place)
        return Terminated(_SEALED)

    # What becomes of messages.

    def _tell_stored(self, told: Sequence[tuple[Sent, int | None]]) -> None:
        # Together for each connection: a call to the kernel for every one would cost more than all the rest of it.
        frames: dict[Peer, list[bytes]] = {}
        frame = self._receipts.frame
        for sent, index in told:
            producer = sent.producer
            producer.pending -= 1
            some = frames.get(producer.peer)
            if some is None:
                some = frames[producer.peer] = []
            some.append(frame(producer.producer_id, sent.sequence, sent.highest, index))
        for peer, some in frames.items():
            peer.reply(b"".join(some))

    def _tell_refused(self, refused: Sequence[Sent], error: StoreError) -> None:
        for sent in refused:
            self._refuse(sent, api.PersistenceError, str(error))

    def _found_sealed(self, refused: Sequence[Sent]) -> None:
        self._note_sealed()
        if not self._refused_as_sealed:
            self._around.nursery.start_soon(self._tell_sealed)
        self._refused_as_sealed += refused

    async def _tell_sealed(self) -> None:
        error = Terminated(_SEALED)
        try:
            error = await self.terminated()
        except Exception:
            log.exception("the layout of %s could not be told", self.place.name)
        refused, self._refused_as_sealed = self._refused_as_sealed, []
        for sent in refused:
            self._refuse(sent, error.server_error, str(error))

    def _refuse(self, sent: Sent, code: int, why: str) -> None:
        sent.producer.pending -= 1
        self._turn_away(sent.producer, sent.sequence, code, why)

    def refuse_damaged(self, producer: Producer, sequence: int, code: int, why: str) -> None:
        """A message cannot be what was sent, or may not be: the client comes back, and sends again from there on."""
        if not producer.broken:
            self._turn_away(producer, sequence, code, why)
            self.close(producer)

    def _turn_away(self, producer: Producer, sequence: int, code: int, why: str) -> None:
        """What follows a refused message must not overtake it, so nothing more is taken until the client comes back."""
        producer.broken = True
        self._around.counters.send_errors += 1
        producer.peer.reply(encode(data_replies.send_error(producer.producer_id, sequence, code, why)))
