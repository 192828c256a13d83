"""Deletes what deleted topics and pruned segments left behind, from the garbage lists of all buckets."""

from __future__ import annotations

import logging
import random
from typing import Final

import trio

from controller.leftovers import Leftover, leftover_at
from metadata import keys, scripts
from metadata.classic_topics import ClassicTopics
from metadata.complaints import complain, note_waiting
from metadata.errors import RecordDamaged, StoreError, TopicChanging, TopicMissing, VersionConflict
from metadata.store import TopicStore
from protocol.backoff import Backoff

log = logging.getLogger(__name__)

# Entries taken from one bucket at a time: somebody else's command never waits for a whole large topic to go.
_SLICE: Final = 100
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class GarbageCollector:
    """One on every node. What two of them delete at the same time is deleted once and missing the second time."""

    def __init__(self, store: TopicStore, *, interval: float) -> None:
        self.collected = 0
        self._store = store
        self._interval = interval
        self._wanted = trio.Event()

    def collect_soon(self) -> None:
        """There is something: no need to wait for the next look."""
        self._wanted.set()

    async def run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            self._wanted = trio.Event()
            try:
                await self.collect()
                backoff.reset()
            except StoreError as error:
                note_waiting(log, error, "collecting garbage waits for the store")
                await trio.sleep(backoff.next())
                continue
            with trio.move_on_after(self._interval * random.uniform(0.5, 1.0)):
                await self._wanted.wait()

    async def collect(self) -> None:
        """Delete everything that is listed now."""
        slots = keys.BUCKET_SLOTS
        lengths = await self._store.bulk.gather(
            [(slots[bucket], ("HLEN", keys.garbage_key(bucket))) for bucket in range(keys.BUCKETS)], refusals=True
        )
        for bucket, length in enumerate(lengths):
            # A key of another kind in the place of a list is logged by the lane, and costs its bucket.
            if length and not isinstance(length, StoreError):
                try:
                    await self._collect_bucket(bucket)
                except RecordDamaged as error:
                    note_waiting(log, error, "the garbage of bucket %d stays", bucket)

    async def _collect_bucket(self, bucket: int) -> None:
        slot, garbage = keys.BUCKET_SLOTS[bucket], keys.garbage_key(bucket)
        entries: list[bytes] = await self._store.bulk.call(slot, "HKEYS", garbage)
        for start in range(0, len(entries), _SLICE):
            commands = []
            for entry in entries[start : start + _SLICE]:
                if (leftover := leftover_at(entry)) is not None:
                    await self._collect_classic(bucket, entry, leftover)
                    continue
                if (parts := _parts(entry, bucket)) is None:
                    complain(
                        log, "the garbage list of bucket %d has an entry that is none of ours: %r", bucket, entry[:64]
                    )
                    continue
                incarnation, segment, storage = parts
                commands.append(
                    (slot, scripts.COLLECT_GARBAGE.command([garbage, segment, *storage], [entry, incarnation]))
                )
            replies = await self._store.bulk.gather(commands, refusals=True)
            self.collected += sum(reply for reply in replies if not isinstance(reply, StoreError))

    async def _collect_classic(self, bucket: int, entry: bytes, leftover: Leftover) -> None:
        """Delete what a scalable topic was made of. It may lie in another bucket, so it goes before the entry does."""
        topics = ClassicTopics(self._store)
        delete = topics.delete_log if leftover.is_log else topics.delete_partitioned
        try:
            await delete(leftover.topic, incarnation=leftover.incarnation, migrated=True)
        except (TopicMissing, TopicChanging, VersionConflict):
            pass  # it is gone, or another topic has the name
        await self._store.bulk.call(keys.BUCKET_SLOTS[bucket], "HDEL", keys.garbage_key(bucket), entry)
        self.collected += 1


def _parts(entry: bytes, bucket: int) -> tuple[str, bytes, tuple[bytes, ...]] | None:
    """The incarnation that an entry belongs to, the key of its segment, and those of what that stored.

    None for what nobody of ours wrote. A classic topic has no descriptor; with it go its schemas, unless there is a
    colon: then they are those of the scalable topic that it had become a part of.
    """
    try:
        incarnation, _, place = entry.decode().partition("/")
    except UnicodeDecodeError:
        return None
    path, _, descriptor = place.rpartition("/")
    if path.count("/") != 2 or keys.bucket_of(path) != bucket:
        return None
    if descriptor and descriptor != ":":
        segment = keys.segment_key(path, descriptor)
        return incarnation, segment, keys.storage_keys(segment, incarnation)
    log_state = keys.classic_key(path)
    schemas = () if descriptor else (keys.schemas_key(path, incarnation),)
    return incarnation, log_state, (*keys.storage_keys(log_state, incarnation), *schemas)
