"""A group: all namespace watchers with the same namespace and filters. They share one set, one listing, one timer."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from metadata import keys
from metadata.errors import StoreError
from protocol.backoff import Backoff
from protocol.names import NamespaceName
from protocol.wire import pulsar_api_pb2 as api
from sessions.outbox import Outbox
from sessions.readback import ReadBack
from sessions.splice import frame_head, id_field
from sessions.topic_sets import TopicSet

if TYPE_CHECKING:
    from sessions.namespaces import Listing

log = logging.getLogger(__name__)

Filters = frozenset[tuple[str, str]]

_SENDS_PER_TURN: Final = 128
# Frames that are kept until the next step, for further sessions with the same id.
_KEPT_FRAMES: Final = 256
_SHORT: Final = 4_096
# Buckets in one listing: enough to share the cost of asking, few enough that a large namespace comes in pieces.
_LISTED_AT_ONCE: Final = 16
# The part of the window after which changes are read: a read of some hundred topics takes a few milliseconds.
_READ_BEFORE_TOLD: Final = 0.8
_FIRST_PAUSE: Final = 0.05
# Part of what a watcher waits after an outage, so well within the second that is promised for it.
_LONGEST_PAUSE: Final = 0.25
# Queued work of namespace watches stands beside that of DAG watches, whose ids are their own 64-bit numbers.
_KEY_OFFSET: Final = 1 << 64


class NamespaceWatch:
    """One session of one connection. `step` is what it was told last; None while it was told nothing."""

    __slots__ = (
        "admitted",
        "closed",
        "current_hash",
        "field",
        "group",
        "key",
        "outbox",
        "queued",
        "registry",
        "step",
        "watch_id",
    )

    def __init__(
        self,
        outbox: Outbox,
        registry: dict[int, NamespaceWatch],
        watch_id: int,
        current_hash: str | None,
        group: Group,
    ) -> None:
        self.outbox = outbox
        self.registry = registry
        self.watch_id = watch_id
        self.current_hash = current_hash
        self.field = id_field(watch_id)
        self.key = _KEY_OFFSET + watch_id
        self.group = group
        self.step: int | None = None
        self.admitted = False
        self.queued = False
        self.closed = False

    def catch_up(self) -> tuple[bytes, ...]:
        """What this session lacks, asked for when the socket can take it."""
        self.queued = False
        return self.group.frames_for(self)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a group needs of the node."""

    nursery: trio.Nursery
    readback: ReadBack
    listing: Listing
    whole: Callable[[], bool]
    window: float
    frame_limit: int


class Group:
    def __init__(self, namespace: NamespaceName, filters: Filters, around: Surroundings) -> None:
        self.namespace = namespace
        self.filters = filters
        self.topics = TopicSet(f"topic://{namespace}/", around.frame_limit)
        self.watches: dict[NamespaceWatch, None] = {}
        self.closed = False
        self._around = around
        self._waiting = 0  # watches that are not admitted yet
        self._unlisted = set(range(keys.BUCKETS))
        self._listing: dict[int, set[str]] = {}  # buckets being listed, with the topics to read again afterwards
        self._listed_at = [0] * keys.BUCKETS  # the read-back's moment when a listing was complete
        self._again: set[int] = set()  # buckets that had a gap while they were listed
        self._flushed_at = float("-inf")
        self._timer = False
        self._fanning_out = False
        self._told_somebody = False
        self._frames: dict[tuple[int | None, bytes], tuple[bytes, ...]] = {}  # by the step they lead from and the id
        self._ready: dict[tuple[int | None, bytes], bytes] = {}  # those of them that are one piece
        self.list_again(range(keys.BUCKETS))

    @property
    def read_at(self) -> float:
        """When changes are to be read, all that came until then together: in time for when they can be told."""
        return self._flushed_at + self._around.window * _READ_BEFORE_TOLD

    @property
    def complete(self) -> bool:
        return not self._unlisted and not self._listing and self._around.whole()

    def matches(self, properties: Mapping[str, str]) -> bool:
        return all(properties.get(key) == value for key, value in self.filters)

    # Sessions.

    def join(self, watch: NamespaceWatch) -> None:
        self.watches[watch] = None
        self._waiting += 1
        self._admit_waiting()

    def leave(self, watch: NamespaceWatch) -> None:
        del self.watches[watch]
        watch.closed = True
        self._waiting -= not watch.admitted
        if not self.watches:
            self.closed = True

    def _admit(self, watch: NamespaceWatch) -> None:
        """Flush first: then the snapshot and the next diff fit together, for this session and for the others."""
        if self.topics.changed:
            self.flush()
        watch.admitted = self._told_somebody = True
        self._waiting -= 1
        if watch.current_hash is not None and watch.current_hash == self.topics.hash():
            watch.step = self.topics.step
            self._around.listing.note_hash_match()
        else:
            watch.queued = watch.outbox.send_from(watch.key, watch.catch_up)

    # The set.

    def update(self, bucket: int, path: str, name: str, incarnation: str | None) -> None:
        """A read of one topic is complete; incarnation is None where it is not, or no longer, in the set."""
        if self._around.readback.began(bucket) < self._listed_at[bucket]:
            # Older than a listing that is complete: it was marked again then, and the next read counts.
            return
        if bucket in self._listing:
            # The listing under way may be older or newer than this read: only a later read can tell.
            self._listing[bucket].add(path)
        elif bucket not in self._unlisted:
            self.topics.update(bucket, name, incarnation)
            self._schedule()

    def list_again(self, buckets: Collection[int]) -> None:
        """Anything may have changed in these buckets."""
        readback = self._around.readback
        together: dict[Hashable, list[int]] = {}  # by server, so that none waits for another one
        for bucket in buckets:
            if bucket in self._listing:
                self._again.add(bucket)
            elif readback.trusted(bucket):
                self._unlisted.discard(bucket)
                self._listing[bucket] = set()
                together.setdefault(readback.route(bucket), []).append(bucket)
            else:
                self._unlisted.add(bucket)
        for begun in together.values():
            self._around.nursery.start_soon(self._list, begun)

    async def _list(self, buckets: Iterable[int]) -> None:
        todo = deque(buckets)
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while todo:
            some = [todo.popleft() for _ in range(min(_LISTED_AT_ONCE, len(todo)))]
            self._again.difference_update(some)
            listed: Mapping[int, Mapping[str, str]] = {}
            try:
                if not self.closed:
                    listed = await self._around.listing.members(some, self)
            except Exception as error:
                if not isinstance(error, StoreError):
                    log.exception("listing %s failed", self.namespace)
            todo += self._take_listed(some, listed)
            if len(listed) == len(some):
                backoff.reset()
            elif todo:
                await trio.sleep(backoff.next())

    def _take_listed(self, buckets: Sequence[int], listed: Mapping[int, Mapping[str, str]]) -> list[int]:
        """Take in what was listed; the buckets that have to be listed once more."""
        readback = self._around.readback
        once_more = []
        for bucket in buckets:
            if self.closed or not readback.trusted(bucket):
                # Not to be listed now; the gap that ends the distrust begins it again.
                del self._listing[bucket]
                self._unlisted.add(bucket)
            elif bucket in self._again or bucket not in listed:
                once_more.append(bucket)
            else:
                self.topics.replace(bucket, listed[bucket])
                doubtful = self._listing.pop(bucket)
                self._listed_at[bucket] = readback.moment()
                for path in doubtful | readback.under_way(bucket):
                    readback.changed(bucket, path)
        self._schedule()
        self._admit_waiting()
        return once_more

    def _admit_waiting(self) -> None:
        if self._waiting and self.complete:
            # The newest are last, and usually there is one: looking from there finds it at once.
            for watch in reversed(self.watches):
                if not watch.admitted:
                    self._admit(watch)
                if not self._waiting:
                    break

    # Telling.

    def _schedule(self) -> None:
        if self.topics.changed and not self._timer:
            self._timer = True
            self._around.nursery.start_soon(self._flush_when_due)

    async def _flush_when_due(self) -> None:
        """The first change after quiet goes out at once, later ones when the window has passed."""
        try:
            await trio.lowlevel.checkpoint()
            # Somebody who joined may have had it flushed meanwhile: then the window begins anew.
            while trio.current_time() < (due := self._flushed_at + self._around.window):  # noqa: ASYNC110  # it moves
                await trio.sleep_until(due)
        finally:
            self._timer = False
        self.flush()

    def flush(self) -> None:
        if not self.topics.changed:
            return
        self.topics.flush(remember=self._told_somebody)
        self._flushed_at = trio.current_time()
        self._frames.clear()
        self._ready.clear()
        if not self._fanning_out:
            self._fanning_out = True
            self._around.nursery.start_soon(self._fan_out)

    async def _fan_out(self) -> None:
        """Bring every session to the current step; a step made meanwhile is told by the same task."""
        topics = self.topics
        try:
            step = -1
            while step != topics.step:
                step = topics.step
                for count, watch in enumerate(list(self.watches), start=1):
                    if watch.step != topics.step and watch.admitted and not watch.closed and not watch.queued:
                        # What most sessions need is ready made; the rest is put together when it can be sent.
                        frame = self._ready.get((watch.step, watch.field))
                        if frame is not None and watch.outbox.offer(frame):
                            watch.step = topics.step
                        else:
                            watch.queued = watch.outbox.send_from(watch.key, watch.catch_up)
                    if count % _SENDS_PER_TURN == 0:
                        await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
        finally:
            self._fanning_out = False

    def frames_for(self, watch: NamespaceWatch) -> tuple[bytes, ...]:
        """The frames that bring a session up to date, which it then counts as being."""
        if watch.closed:
            return ()
        key = (watch.step, watch.field)
        frames = self._frames.get(key)
        if frames is None:
            frames = self._compose(*key)
            if len(self._frames) < _KEPT_FRAMES:
                self._frames[key] = frames
                if len(frames) == 1:
                    self._ready[key] = frames[0]
        watch.step = self.topics.step
        return frames

    def _compose(self, step: int | None, field: bytes) -> tuple[bytes, ...]:
        tails = self.topics.snapshot() if step is None else self.topics.since(step)
        parts: list[bytes] = []
        for tail in tails:
            parts += (frame_head(api.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE, len(field), tail) + field, tail)
        # One buffer is cheaper to send than two, and many sessions have the same id; a long tail is not worth copying.
        return (b"".join(parts),) if sum(map(len, tails)) <= _SHORT else tuple(parts)
