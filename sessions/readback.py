"""Reads records that changed or might have: one read of a topic at a time, in batches, shared by all who want it.

The truth about a topic is its last completed read. A change during a read marks the topic again; what was read while
the store could not be trusted does not count.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from metadata import keys
from metadata.errors import RecordDamaged, StoreError
from metadata.records import StoredTopic
from protocol.names import TopicName

log = logging.getLogger(__name__)

Found = StoredTopic | RecordDamaged | None
Reader = Callable[[Sequence[TopicName]], Awaitable[list[Found]]]

# Records in one read: long enough to pipeline well, short enough that the first are served soon.
_BATCH: Final = 256
# Results handed on between two yields; each may send to as many watches as one turn of a fan-out.
_APPLIED_PER_TURN: Final = 8
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0


class Listener(Protocol):
    """Who wants to know about topics."""

    def wants(self, bucket: int, path: str) -> bool: ...

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

    def __init__(self, *, nursery: trio.Nursery, read: Reader, trusted: Callable[[int], bool]) -> None:
        self.counters = ReadBackCounters()
        self.trusted = trusted
        self._nursery = nursery
        self._read = read
        self._listeners: list[Listener] = []
        self._marked: list[dict[str, None]] = [{} for _ in range(keys.BUCKETS)]
        self._reading: list[set[str]] = [set() for _ in range(keys.BUCKETS)]
        self._running: set[int] = set()  # buckets with a reading task
        self._moment = 0
        self._began = [0] * keys.BUCKETS

    def add(self, listener: Listener) -> None:
        self._listeners.append(listener)

    # What the feed calls.

    def changed(self, bucket: int, path: str) -> None:
        if self._wanted(bucket, path):
            self.mark(bucket, path)

    def gap(self, buckets: Collection[int]) -> None:
        for listener in self._listeners:
            listener.gap(buckets)

    # What listeners call.

    def mark(self, bucket: int, path: str) -> None:
        """Read this topic, again if a read of it is under way."""
        self._marked[bucket][path] = None
        if bucket not in self._running and self.trusted(bucket):
            self._running.add(bucket)
            self._nursery.start_soon(self._read_bucket, bucket)

    def unmark(self, bucket: int, path: str) -> None:
        """A listener has lost interest: without this, marks would pile up while the store is away."""
        if not self._wanted(bucket, path):
            self._marked[bucket].pop(path, None)

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

    async def _read_bucket(self, bucket: int) -> None:
        """Read what is marked in a bucket until nothing is, or until reads cannot be trusted."""
        marked, reading = self._marked[bucket], self._reading[bucket]
        pause = _FIRST_PAUSE
        try:
            while marked and self.trusted(bucket):
                batch = []
                for path in list(marked)[:_BATCH]:
                    del marked[path]
                    if self._wanted(bucket, path):
                        batch.append(path)
                if not batch:
                    continue
                reading.update(batch)
                self._began[bucket] = self.moment()
                try:
                    found = await self._read([keys.topic_at(path) for path in batch])
                except Exception as error:
                    # Whatever it is, it delays these topics and nothing else.
                    if not isinstance(error, StoreError):
                        log.exception("reading back %d topics failed", len(batch))
                    self.counters.failed += 1
                    self._put_back(bucket, batch)
                    await trio.sleep(pause * random.uniform(0.5, 1.0))
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                pause = _FIRST_PAUSE
                self.counters.count_batch(len(batch))
                for index, (path, record) in enumerate(zip(batch, found, strict=True)):
                    if not self.trusted(bucket):
                        # A gap came meanwhile: what was read may be of before it.
                        self._put_back(bucket, batch[index:])
                        return
                    reading.discard(path)
                    self._hand_on(bucket, path, record)
                    if index % _APPLIED_PER_TURN == _APPLIED_PER_TURN - 1:
                        await trio.lowlevel.checkpoint()
        finally:
            reading.clear()
            self._running.discard(bucket)

    def _put_back(self, bucket: int, paths: Sequence[str]) -> None:
        self._reading[bucket].difference_update(paths)
        for path in paths:
            if self._wanted(bucket, path):
                self._marked[bucket][path] = None

    def _hand_on(self, bucket: int, path: str, found: Found) -> None:
        for listener in self._listeners:
            if not listener.wants(bucket, path):
                continue
            try:
                listener.apply(bucket, path, found)
            except Exception:
                # One record that upsets one listener must not end the reading of all others.
                log.exception("the record at %s could not be taken in", path)
