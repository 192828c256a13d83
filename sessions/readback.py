"""Reads records that changed or might have: one read of a topic at a time, in batches, shared by all who want it.

What changes on a server while a read of it is under way makes the next batch. The truth about a topic is its last
completed read. A change during a read marks the topic again; what was read while the store could not be trusted does
not count.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from metadata import keys
from metadata.classic_records import ClassicTopic
from metadata.errors import RecordDamaged, StoreError, StoreLost
from metadata.records import StoredTopic
from metadata.tasks import Tasks
from protocol.names import TopicName
from sessions.unread_writes import UnreadWrites

log = logging.getLogger(__name__)

# Where there is no record, what there is of a classic topic of the same name.
Found = StoredTopic | ClassicTopic | RecordDamaged | None
# Gives StoreLost for topics whose bucket says nothing about them now.
Reader = Callable[[Sequence[TopicName]], Awaitable[Sequence[Found | StoreLost]]]

# Records in one read: long enough to pipeline well, short enough that the first are served soon.
_BATCH: Final = 256
# Results handed on between two yields; each may send to as many watches as one turn of a fan-out.
_APPLIED_PER_TURN: Final = 8
# Part of what a watcher waits after an outage, so well within the second that is promised for it. It is not what
# protects the store: the connections to it have their own patience.
_PAUSE: Final = 0.2


class Listener(Protocol):
    """Who wants to know about topics."""

    def wants(self, bucket: int, path: str) -> bool: ...

    def patience(self, bucket: int, path: str) -> float:
        """Until when a change of a wanted topic may stay unread, because nobody would be told of it before."""

    def apply(self, bucket: int, path: str, found: Found) -> None:
        """A read of a wanted topic is complete."""

    def gap(self, buckets: Collection[int]) -> None:
        """Anything may have changed in these buckets."""


@dataclass(slots=True)
class ReadBackCounters:
    reads: int = 0
    batches: dict[int, int] = field(default_factory=dict)  # by the power of two that holds their size
    failed: int = 0

    def count_batch(self, size: int) -> None:
        self.reads += size
        bound = 1 << (size - 1).bit_length()
        self.batches[bound] = self.batches.get(bound, 0) + 1


class ReadBack:
    """Stands between the change feed, whose listener it is, and those who watch."""

    def __init__(
        self,
        *,
        nursery: Tasks,
        read: Reader,
        trusted: Callable[[int], bool],
        route: Callable[[int], Hashable] = lambda bucket: None,
    ) -> None:
        """`route` names the server of a bucket: buckets on one are read together, and none waits for another server."""
        self.counters = ReadBackCounters()
        self.trusted = trusted
        self._nursery = nursery
        self._read = read
        self.route = route
        self._listeners: list[Listener] = []
        self._marked: list[dict[str, None]] = [{} for _ in range(keys.BUCKETS)]
        self._reading: list[set[str]] = [set() for _ in range(keys.BUCKETS)]
        self._queues: dict[Hashable, dict[int, None]] = {}  # by route, of those with a reader: buckets with marks
        self._in_hand: set[int] = set()  # buckets of which a reader holds topics
        self._postponed: dict[str, int] = {}  # topics to be marked later, with their buckets
        self._postponement: trio.CancelScope | None = None  # ends when the most impatient of them is due
        self._unread: dict[str, UnreadWrites[str]] = {}  # by the path of their namespace: topics that this node wrote
        self._moment = 0
        self._began = [0] * keys.BUCKETS

    def add(self, listener: Listener) -> None:
        self._listeners.append(listener)

    # What the store calls.

    def written(self, bucket: int, path: str) -> None:
        """This node has changed a topic, and who asked for it may know: no need to hear it from the feed."""
        if self._wanted(bucket, path):
            self._unread.setdefault(_namespace(path), UnreadWrites()).add(path, self.moment())
            self.changed(bucket, path)

    # What the feed calls.

    def changed(self, bucket: int, path: str) -> None:
        due = None
        for listener in self._listeners:
            if listener.wants(bucket, path):
                patience = listener.patience(bucket, path)
                due = patience if due is None else min(due, patience)
        if due is None:
            return
        if due <= trio.current_time():
            self.mark(bucket, path)
            return
        self._postponed[path] = bucket
        if self._postponement is None:
            self._postponement = trio.CancelScope(deadline=due)
            self._nursery.start_soon(self._mark_postponed, self._postponement)
        elif due < self._postponement.deadline:
            self._postponement.deadline = due

    def gap(self, buckets: Collection[int]) -> None:
        for listener in self._listeners:
            listener.gap(buckets)
        for bucket in buckets:
            self._queue(bucket)

    # What listeners call.

    def mark(self, bucket: int, path: str) -> None:
        """Read this topic, again if a read of it is under way."""
        self._marked[bucket][path] = None
        self._queue(bucket)

    def read_again(self, bucket: int, path: str) -> None:
        """A listener could not use what was read of this topic: nobody who waits for that is helped by it."""
        if self._wanted(bucket, path):
            self._unread.setdefault(_namespace(path), UnreadWrites()).doubt(path, self.moment())
            self.mark(bucket, path)

    def settled_until(self, namespace: str) -> float:
        """Whatever this node wrote in a namespace before this moment has been handed on."""
        unread = self._unread.get(namespace)
        return float("inf") if unread is None else unread.settled_until()

    def hurry(self, namespace: str) -> None:
        """Somebody is going to wait for what this node wrote there: read it now, however patient the others are."""
        unread = self._unread.get(namespace)
        for path in unread.keys() if unread is not None else ():
            bucket = self._postponed.pop(path, None)
            if bucket is not None:
                self.mark(bucket, path)

    def unmark(self, bucket: int, path: str) -> None:
        """A listener has lost interest: without this, marks would pile up while the store is away."""
        if not self._wanted(bucket, path):
            self._marked[bucket].pop(path, None)
            self._forget(path)

    def is_marked(self, bucket: int, path: str) -> bool:
        return path in self._marked[bucket]

    def is_settled(self, bucket: int, path: str) -> bool:
        """Whether the last completed read still stands, as far as anybody here knows."""
        return path not in self._marked[bucket] and path not in self._reading[bucket] and self.trusted(bucket)

    def under_way(self, bucket: int) -> frozenset[str]:
        return frozenset(self._reading[bucket])

    def moment(self) -> int:
        """A number between those of the reads that began before and after this call."""
        self._moment += 1
        return self._moment

    def began(self, bucket: int) -> int:
        """The moment when the read began that is being handed on."""
        return self._began[bucket]

    def _wanted(self, bucket: int, path: str) -> bool:
        return any(listener.wants(bucket, path) for listener in self._listeners)

    def _queue(self, bucket: int) -> None:
        """See that the marks of a bucket are read, unless they cannot be trusted: then the gap that ends it calls."""
        if not self._marked[bucket] or bucket in self._in_hand or not self.trusted(bucket):
            return
        route = self.route(bucket)
        queue = self._queues.get(route)
        if queue is None:
            queue = self._queues[route] = {}
            self._nursery.start_soon(self._read_queued, route)
        queue[bucket] = None

    async def _mark_postponed(self, postponement: trio.CancelScope) -> None:
        """What has come until then is read together; some of it could have waited longer."""
        try:
            with postponement:
                await trio.sleep_forever()
        finally:
            self._postponement = None
        postponed, self._postponed = self._postponed, {}
        for path, bucket in postponed.items():
            if self._wanted(bucket, path):
                self.mark(bucket, path)
            else:
                self._forget(path)

    async def _read_queued(self, route: Hashable) -> None:
        """Read what is marked on one server until nothing is."""
        queue = self._queues[route]
        try:
            while batch := self._next_batch(queue):
                await self._read_batch(batch)
        finally:
            del self._queues[route]

    def _next_batch(self, queue: dict[int, None]) -> list[tuple[int, str]]:
        """Take marked topics off the queue, in hand until `_read_batch` lets go of them."""
        batch: list[tuple[int, str]] = []
        while queue and len(batch) < _BATCH:
            bucket = next(iter(queue))
            del queue[bucket]
            if not self.trusted(bucket):
                continue
            marked = self._marked[bucket]
            for path in list(marked)[: _BATCH - len(batch)]:
                del marked[path]
                if self._wanted(bucket, path):
                    batch.append((bucket, path))
                    self._reading[bucket].add(path)
                    self._in_hand.add(bucket)
                else:
                    self._forget(path)
            # What did not fit is queued again when the bucket is out of hand.
            if marked and bucket not in self._in_hand:
                queue[bucket] = None
        return batch

    async def _read_batch(self, batch: Sequence[tuple[int, str]]) -> None:
        buckets = list(dict.fromkeys(bucket for bucket, _ in batch))
        moment = self.moment()
        for bucket in buckets:
            self._began[bucket] = moment
        again: Collection[int] = buckets
        try:
            found = await self._read([keys.topic_at(path) for _, path in batch])
            self.counters.count_batch(len(batch))
            again = await self._hand_on(batch, found)
        except Exception as error:
            # Whatever it is, it delays these topics and nothing else.
            if not isinstance(error, StoreError):
                log.exception("reading back %d topics failed", len(batch))
            self.counters.failed += 1
            for bucket, path in batch:
                self._put_back(bucket, path)
        finally:
            for bucket in buckets:
                self._reading[bucket].clear()
                self._in_hand.discard(bucket)
        for bucket in buckets:
            if bucket not in again:
                self._queue(bucket)
        if again:
            self._nursery.start_soon(self._queue_later, again)

    async def _hand_on(self, batch: Sequence[tuple[int, str]], found: Sequence[Found | StoreLost]) -> Collection[int]:
        """Give the results to those who want them; the buckets that said nothing are to be asked again."""
        silent: dict[int, None] = {}
        for index, ((bucket, path), record) in enumerate(zip(batch, found, strict=True)):
            if isinstance(record, StoreLost):
                self._put_back(bucket, path)
                silent[bucket] = None
            elif not self.trusted(bucket):
                # A gap came meanwhile: what was read may be of before it.
                self._put_back(bucket, path)
            else:
                self._reading[bucket].discard(path)
                self._tell(bucket, path, record)
            if index % _APPLIED_PER_TURN == _APPLIED_PER_TURN - 1:
                await trio.lowlevel.checkpoint()
        return silent

    async def _queue_later(self, buckets: Collection[int]) -> None:
        await trio.sleep(_PAUSE * random.uniform(0.5, 1.0))
        for bucket in buckets:
            self._queue(bucket)

    def _put_back(self, bucket: int, path: str) -> None:
        self._reading[bucket].discard(path)
        if self._wanted(bucket, path):
            self._marked[bucket][path] = None
        else:
            self._forget(path)

    def _forget(self, path: str) -> None:
        if (unread := self._unread.get(_namespace(path))) is not None:
            unread.forget(path)
            self._drop_settled(path)

    def _drop_settled(self, path: str) -> None:
        namespace = _namespace(path)
        if not self._unread[namespace]:
            del self._unread[namespace]

    def _tell(self, bucket: int, path: str, found: Found) -> None:
        # Before the listeners, which may have somebody waiting for it.
        if self._unread and (unread := self._unread.get(_namespace(path))) is not None:
            unread.read(path, self._began[bucket])
            self._drop_settled(path)
        for listener in self._listeners:
            if not listener.wants(bucket, path):
                continue
            try:
                listener.apply(bucket, path, found)
            except Exception:
                # One record that upsets one listener must not end the reading of all others.
                log.exception("the record at %s could not be taken in", path)


def _namespace(path: str) -> str:
    return path.rpartition("/")[0]
