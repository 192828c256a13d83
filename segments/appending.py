"""Appending to one log: messages queue up while a call is under way, and the next call takes all of them.

One call at a time keeps the order whatever happens: all of its messages are stored or none, and nothing behind them is
sent before that is known.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from metadata.complaints import note_waiting
from metadata.errors import (
    LogFenced,
    LogMissing,
    LogSealed,
    OutcomeUnknown,
    RecordDamaged,
    StoreError,
    StoreFull,
    TooFewReplicas,
    WritesRefused,
)
from metadata.log_entries import StoredEntry
from metadata.log_states import Claim, Opened, ProducerMark
from metadata.segment_logs import SegmentLogs
from metadata.tasks import Tasks
from protocol.backoff import Backoff
from segments.around import SendQueue
from segments.producers import WHOLE, Producer, Sequences

log = logging.getLogger(__name__)

# One call: long enough to spread its cost, short enough that the store serves others in between.
_MOST_ENTRIES: Final = 256
_MOST_BYTES: Final = 1024 * 1024
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0


class Chunk(NamedTuple):
    """A part of a message that is too large for one frame."""

    number: int
    of: int


class Sent(NamedTuple):
    """A message as its client sent it, on the way into the log."""

    producer: Producer
    sequence: int
    highest: int  # 0 if the client said none
    last: int  # the higher of both
    messages: int
    body: bytes
    is_new: bool  # False: it was stored before, or is on its way, and only wants to know where
    chunk: Chunk | None = None
    hash_range: tuple[int, int] | None = None

    @property
    def chunk_id(self) -> int:
        return WHOLE if self.chunk is None else self.chunk.number

    @property
    def is_last(self) -> bool:
        """Whether its message is complete with it."""
        return self.chunk is None or self.chunk.number >= self.chunk.of - 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the owner of the log does about what became of messages."""

    stored: Callable[[Sequence[StoredEntry]], None]
    receipts: Callable[[Sequence[tuple[Sent, int | None]]], None]  # with the index, None if it is not known any more
    refused: Callable[[Sequence[Sent], StoreError], None]
    sealed: Callable[[Sequence[Sent]], None]
    lost: Callable[[StoreError], None]


# For what has ended and is told nothing more: the owner of the log holds its appender, which must not hold it for ever.
_NOBODY: Final = Outcome(
    stored=lambda entries: None,
    receipts=lambda receipts: None,
    refused=lambda refused, error: None,
    sealed=lambda refused: None,
    lost=lambda error: None,
)


class _Stored(NamedTuple):
    """What a call has stored: from which index on, and for whom; `new` is what of `taken` was not there before."""

    first: int
    entries: Sequence[StoredEntry]
    taken: Sequence[Sent]
    new: Sequence[Sent]


class Appender:
    """The writing end of a log that this node owns."""

    def __init__(
        self,
        logs: SegmentLogs,
        opened: Opened,
        sequences: Sequences,
        outcome: Outcome,
        *,
        nursery: Tasks,
        queue: SendQueue,
        replicas: int = 0,
    ) -> None:
        self.claim: Claim = opened.claim
        self.next = opened.state.next
        self.size = opened.state.size
        self.queued_bytes = 0
        self.last_time_ms = opened.last_time_ms
        self.is_claiming = False  # anew: nobody can tell by now which claim stands in the store
        self._logs = logs
        self._sequences = sequences
        self._outcome = outcome
        self._nursery = nursery
        self._all_queued = queue
        self._replicas = replicas
        self._queue: deque[Sent] = deque()
        self._untold: _Stored | None = None  # nobody knows of it yet
        self._running = False
        self.ended = False  # nothing more is appended: the log is sealed, or not ours
        self._room = trio.Event()

    def add(self, sent: Sent) -> None:
        """Queue a message."""
        self._queue.append(sent)
        size = len(sent.body)
        self.queued_bytes += size
        self._all_queued.add(size)
        if not self._running and not self.ended:
            self._running = True
            self._nursery.start_soon(self._run)

    def end(self) -> list[Sent]:
        """Append nothing more; what was still queued."""
        self.ended = True
        left = self._emptied()
        self._note_progress()
        self._let_go_of_owner()
        return left

    def _let_go_of_owner(self) -> None:
        """Once nothing can happen any more that it has to be told."""
        if self.ended and not self._running and self._untold is None:
            self._outcome = _NOBODY

    @property
    def is_idle(self) -> bool:
        """Whether no call is under way, so that it is known how far the log reaches."""
        return not self._running

    async def wait_idle(self) -> None:
        """Return when it is so."""
        while self._running:
            await self._progress()

    async def wait_room(self, most: int) -> None:
        """Return when no more than so many bytes wait, or nothing more is appended."""
        while self.queued_bytes > most and not self.ended:
            await self._progress()

    async def _progress(self) -> None:
        await self._room.wait()

    def _note_progress(self) -> None:
        self._room.set()
        self._room = trio.Event()

    async def _run(self) -> None:
        try:
            while self._queue and not self.ended:
                taken = self._take()
                try:
                    await self._append(taken)
                finally:
                    self._settle(taken)
                self._note_progress()
            self._tell_untold()
        except (LogFenced, LogMissing, RecordDamaged) as error:
            # Of a damaged log the clients hear when they come back.
            await self._tell_soon()
            self._outcome.lost(error)
        except Exception as error:
            self._fail(error)
        finally:
            self._running = False
            self._note_progress()
            self._let_go_of_owner()

    def _fail(self, error: Exception) -> None:
        log.exception("appending to %s failed", self.claim.place.name)
        self._outcome.lost(LogFenced(f"The log cannot be written now: {error}"))

    def _take(self) -> list[Sent]:
        taken: list[Sent] = []
        size = 0
        while self._queue and len(taken) < _MOST_ENTRIES and size < _MOST_BYTES:
            sent = self._queue.popleft()
            size += len(sent.body)
            taken.append(sent)
        return taken

    async def _append(self, taken: list[Sent]) -> None:
        now_ms = self.last_time_ms = max(self.last_time_ms, time.time_ns() // 1_000_000)
        new = [sent for sent in taken if sent.is_new]
        if not new:
            await self._tell_again(taken)
            return
        first = self.next
        entries = [
            StoredEntry(index, now_ms, sent.messages, sent.body, None, sent.hash_range)
            for index, sent in enumerate(new, first)
        ]
        # The last one of each producer.
        last = {sent.producer.name: (sent.last, index) for index, sent in enumerate(new, first) if sent.is_last}
        marks = {name: ProducerMark(*mark) for name, mark in last.items()}
        added = sum([len(sent.body) for sent in new])
        try:
            await self._store(first, entries, marks, added)
        except TooFewReplicas as error:
            self._tell_untold()
            self._grow(first, entries, added)
            self._keep(first, entries, new)
            self._refuse(taken, error)
            return
        except LogSealed:
            self._tell_untold()
            self._refuse_all(taken)
            return
        except (StoreFull, WritesRefused) as error:
            self._tell_untold()
            self._refuse(taken, error)
            return
        self._tell_untold()
        self._grow(first, entries, added)
        self._untold = _Stored(first, entries, taken, new)
        if self._queue:
            # Whoever waits for these is told while the store is busy with the next.
            self._nursery.start_soon(self._tell_soon)
        else:
            self._tell_untold()

    async def _tell_again(self, taken: Sequence[Sent]) -> None:
        """Answer for messages that were stored before, perhaps without the replicas that they need."""
        try:
            if self._replicas:
                await self._confirm()
        except TooFewReplicas as error:
            self._tell_untold()
            self._refuse(taken, error)
            return
        self._tell_untold()
        self._tell(taken)

    def _grow(self, first: int, entries: Sequence[StoredEntry], added: int) -> None:
        self.next = first + len(entries)
        # By what was added, not to what it was going to be: something may have been trimmed meanwhile.
        self.size += added

    def _refuse(self, taken: Sequence[Sent], error: StoreError) -> None:
        """Refuse messages with all behind them; those that are not stored are new when they are sent again."""
        refused = self._with_queued(taken)
        for sent in refused:
            self._sequences.refuse(sent.producer.name)
        self._outcome.refused(refused, error)

    async def _store(
        self, first: int, entries: Sequence[StoredEntry], marks: dict[str, ProducerMark], added: int
    ) -> None:
        """Store entries; where the answer was lost, find out, and go on until they are stored or cannot be."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        unsure = False  # whether an earlier try has stored them
        while True:
            try:
                size = self.size + added
                await self._logs.append(self.claim, first, entries, marks, size, replicas=self._replicas)
                return
            except OutcomeUnknown:
                unsure = True
            except (LogFenced, LogMissing, LogSealed, RecordDamaged, StoreFull, TooFewReplicas):
                raise
            except WritesRefused:
                if not unsure:
                    raise
            except StoreError as error:
                note_waiting(log, error, "appending to %s waits for the store", self.claim.place.name)
            await trio.sleep(backoff.next())
            if await self._claim_again() >= first + len(entries):
                if self._replicas:
                    await self._confirm()
                return

    async def _confirm(self) -> None:
        """Return when as many replicas as are asked for have all that is stored; TooFewReplicas where not in time."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                await self._logs.confirm(self.claim, self._replicas)
                return
            except (LogFenced, LogMissing, RecordDamaged, TooFewReplicas):
                raise
            except StoreError as error:
                note_waiting(log, error, "%s waits for its replicas", self.claim.place.name)
            await trio.sleep(backoff.next())

    async def _claim_again(self) -> int:
        """Under a new term whatever is still under way of the last call is refused; how far the log reaches."""
        self.is_claiming = True
        try:
            return await self._claim_until_known()
        finally:
            self.is_claiming = False

    async def _claim_until_known(self) -> int:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                state = await self._logs.state(self.claim.place)
                if state is None or state.incarnation != self.claim.incarnation:
                    raise LogMissing(f"{self.claim.place.name} is gone: look the topic up again.")
                if state.session != self.claim.session or state.term != self.claim.term:
                    raise LogFenced(f"This node does not own {self.claim.place.name} any more: look it up again.")
                opened = await self._logs.claim(self.claim.place, state, self.claim.session)
                if opened is not None:
                    self.claim = opened.claim
                    return opened.state.next
            except (LogFenced, LogMissing, RecordDamaged):
                raise
            except StoreError as error:
                note_waiting(log, error, "claiming %s again waits for the store", self.claim.place.name)
            await trio.sleep(backoff.next())

    async def _tell_soon(self) -> None:
        try:
            self._tell_untold()
        except Exception as error:
            self._fail(error)
        finally:
            self._let_go_of_owner()

    def _tell_untold(self) -> None:
        """Tell what the last call has stored, if nobody was told yet."""
        untold, self._untold = self._untold, None
        if untold is None:
            return
        first, entries, taken, new = untold
        self._keep(first, entries, new)
        if len(taken) == len(new):
            self._outcome.receipts(list(zip(new, range(first, first + len(new)), strict=True)))
        else:
            self._tell(taken)

    def _keep(self, first: int, entries: Sequence[StoredEntry], new: Sequence[Sent]) -> None:
        stored = self._sequences.stored
        for index, sent in enumerate(new, first):
            if sent.chunk is None:
                stored(sent.producer.name, sent.last, index)
            else:
                stored(sent.producer.name, sent.last, index, sent.chunk_id, is_last=sent.is_last)
        self._outcome.stored(entries)

    def _tell(self, taken: Sequence[Sent]) -> None:
        place = self._sequences.place
        self._outcome.receipts([(sent, place(sent.producer.name, sent.last, sent.chunk_id)) for sent in taken])

    def _refuse_all(self, taken: Sequence[Sent]) -> None:
        refused = self._with_queued(taken)
        self.ended = True
        self._outcome.sealed(refused)

    def _with_queued(self, taken: Sequence[Sent]) -> list[Sent]:
        """What is queued behind refused messages must not overtake them: it is refused as well."""
        return [*taken, *self._emptied()]

    def _emptied(self) -> list[Sent]:
        left = list(self._queue)
        self._queue.clear()
        self._settle(left)
        return left

    def _settle(self, sent: Sequence[Sent]) -> None:
        """These do not wait any more."""
        size = sum([len(each.body) for each in sent])
        self.queued_bytes -= size
        self._all_queued.remove(size)
