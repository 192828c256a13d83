"""The recorder on the loop: hears the feed and what is read back, puts it into the queue, and takes bases after gaps.

Nothing here waits for the disk. When the queue is full, changes are dropped and counted until half of it is free again;
then a gap is put in their place, and a base of everything follows. A record that does not fit is missing from its
change, and nothing else is.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from gateway.recorder.bases import read_base
from gateway.recorder.intake import Base, BaseEnd, Entries, Gap, Intake, Value
from gateway.recorder.losses import Losses
from gateway.recorder.writer import WriterCounters
from metadata import keys
from metadata.errors import StoreError
from metadata.link import Reply
from metadata.records import StoredTopic
from metadata.store import TopicStore
from protocol.backoff import Backoff
from sessions.readback import Found

log = logging.getLogger(__name__)

_ALL: Final = frozenset(range(keys.BUCKETS))
DROPPED: Final = "dropped"
# How often it is looked whether the queue has room again.
_ROOM_INTERVAL: Final = 0.05
# Between two slices of a base, each of which takes about as long.
_BREATH: Final = 0.002
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
# How long a change that nobody watches may stay unread, to be read with others: well within what a row is held for.
_PATIENCE: Final = 0.2


@dataclass(slots=True)
class RecorderCounters:
    dropped: int = 0  # changes for which there was no room
    values_missing: int = 0  # records for which there was none, of changes that are recorded
    gaps: int = 0
    bases: int = 0  # complete ones


class _Overtaken(Exception):
    """A base is of no use any more, because something was dropped meanwhile."""


class Recorder:
    """An observer of the change feed; `values` is its listener at the read-back."""

    def __init__(self, store: TopicStore, intake: Intake, written: WriterCounters) -> None:
        self.counters = RecorderCounters()
        self.written = written
        self.values = ValueTap(self)
        self._store = store
        self._intake = intake
        self._baseless: set[int] = set()  # buckets that a base has to follow for
        self._dropped: int | None = None  # since when there is no room; None: there is
        self._work = trio.Event()

    @property
    def queued(self) -> int:
        """Events that wait for the disk."""
        return self._intake.events

    @property
    def losses(self) -> Losses:
        return Losses(self.counters.dropped, self.counters.values_missing)

    @property
    def is_dropping(self) -> bool:
        return self._dropped is not None

    # What the feed calls.

    def entries(self, bucket: int, fresh: Sequence[Reply], arrivals: Sequence[float | None]) -> None:
        if self._dropped is not None or not self._intake.offer(
            Entries(bucket, fresh, arrivals, trio.current_time()), len(fresh), 0
        ):
            self._drop(len(fresh))

    def gap(self, buckets: Collection[int], cause: str) -> None:
        self.counters.gaps += 1
        if self._dropped is None:
            self._put_gap(buckets, cause, 0)

    # What the tap of values calls.

    def take_value(self, path: str, found: StoredTopic) -> None:
        version = found.version
        value = found.value
        if self._dropped is None and not self._intake.offer(
            Value(path, version.incarnation, version.number, value), 0, len(value)
        ):
            # No gap: the change itself is there, with everything but this.
            self.counters.values_missing += 1

    # What the writer calls, through the loop.

    def doubt(self) -> None:
        """What was written may be lost."""
        self.counters.gaps += 1
        if self._dropped is None:
            self._put_gap(_ALL, DROPPED, 0)

    async def run(self) -> None:
        """Take bases where they are missing, and go on when there is room again."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            if self._dropped is not None:
                await self._until_room()
            elif self._baseless:
                if await self._take_base():
                    backoff.reset()
                else:
                    await trio.sleep(backoff.next())
            else:
                self._work = trio.Event()
                await self._work.wait()

    def _drop(self, count: int) -> None:
        if self._dropped is None:
            log.warning("the recorder cannot keep up with the changes: some are dropped")
            self._dropped = 0
            self._work.set()
        self._dropped += count
        self.counters.dropped += count

    async def _until_room(self) -> None:
        await self._room()
        dropped, self._dropped = self._dropped or 0, None
        self.counters.gaps += 1
        log.warning("the recorder goes on; %d changes were dropped", dropped)
        self._put_gap(_ALL, DROPPED, dropped)

    async def _room(self) -> None:
        # No event: it is a thread that makes room.
        while not self._intake.has_room:  # noqa: ASYNC110
            await trio.sleep(_ROOM_INTERVAL)

    def _put_gap(self, buckets: Collection[int], cause: str, dropped: int) -> None:
        if not buckets:
            return
        self._intake.put(Gap(_named(buckets), cause, dropped, trio.current_time()), _rows(buckets))
        self._baseless.update(buckets)
        self._work.set()

    async def _take_base(self) -> bool:
        """Take one of all buckets that need one; whether that went well."""
        buckets, self._baseless = self._baseless, set()
        whole: set[int] = set()
        try:
            whole = await read_base(self._store, buckets, self._take_found)
        except _Overtaken:
            return True
        except StoreError as error:
            log.debug("a base cannot be taken now: %s", error)
        finally:
            failed = buckets - whole
            # Of those with another gap meanwhile, another base follows.
            done = whole - self._baseless
            self._baseless |= failed
        if done:
            self._intake.put(BaseEnd(_named(done), trio.current_time()), _rows(done))
            self.counters.bases += 1
        return not failed

    async def _take_found(self, found: Sequence[tuple[int, StoredTopic]]) -> None:
        # A base may be larger than the queue, and is in no hurry: those who watch come first.
        await trio.sleep(_BREATH)
        await self._room()
        if self._dropped is not None:
            raise _Overtaken
        # After another gap this may be of before it, and would bring back what was deleted in it.
        found = [each for each in found if each[0] not in self._baseless]
        size = sum(len(stored.value) for _, stored in found)
        self._intake.put(Base(found, trio.current_time()), len(found), size)


class ValueTap:
    """A listener of the read-back that wants every topic, and can wait for those that nobody else wants."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def wants(self, bucket: int, path: str) -> bool:
        return not self._recorder.is_dropping

    def patience(self, bucket: int, path: str) -> float:
        return trio.current_time() + _PATIENCE

    def apply(self, bucket: int, path: str, found: Found) -> None:
        if type(found) is StoredTopic:
            self._recorder.take_value(path, found)

    def gap(self, buckets: Collection[int]) -> None:
        """Bases see to it."""


def _named(buckets: Collection[int]) -> Sequence[int] | None:
    return None if len(buckets) == keys.BUCKETS else sorted(buckets)


def _rows(buckets: Collection[int]) -> int:
    """How many events a gap of these buckets, or the end of their base, makes."""
    return 1 if len(buckets) == keys.BUCKETS else len(buckets)
