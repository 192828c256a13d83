"""The watches of classic topics by patterns: which logs of a namespace each pattern stands for, and who is told.

A bucket's index names all logs of a namespace that lie in it. Whenever one of them changes, and after every gap, the
index is read again; one reader per namespace does so for all patterns. The truth is the last completed read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from metadata import keys
from metadata.classic_topics import ClassicTopics
from metadata.errors import StoreError
from metadata.lanes import Lane
from metadata.tasks import Tasks
from protocol.backoff import Backoff
from protocol.framing import encode
from protocol.names import PERSISTENT, NamespaceName
from protocol.replies import error as error_reply
from protocol.wire import pulsar_api_pb2 as api
from sessions.bucket_sets import BucketSet
from sessions.errors import TooManyTopics
from sessions.log_sets import LogSet, hash_field
from sessions.outbox import Outbox
from sessions.patterns import TopicPattern, subject_of
from sessions.set_groups import SetGroup, SetWatch
from sessions.splice import frame_head, varint
from sessions.turns import Turns, end_in_turns
from sessions.unread_writes import UnreadWrites

log = logging.getLogger(__name__)

# Buckets read together: enough to share the cost of asking, few enough that a large namespace comes in pieces.
_READ_TOGETHER: Final = 16
# Names compared with a pattern before other tasks run, at less than a microsecond each; and groups looked after.
_MATCHES_PER_TURN: Final = 512
_TOLD_PER_TURN: Final = 64
_FIRST_PAUSE: Final = 0.05
# Part of what a watcher waits after an outage, so well within the second that is promised for it.
_LONGEST_PAUSE: Final = 0.25


class ListWatch(SetWatch):
    """One watch of a connection, with the request that its first answer goes to."""

    __slots__ = ("request_id",)

    KEY_OFFSET = 1 << 67

    group: PatternGroup

    def __init__(
        self, outbox: Outbox, request_id: int, watcher_id: int, current_hash: str | None, group: PatternGroup
    ) -> None:
        super().__init__(outbox, watcher_id, current_hash, group)
        self.request_id = request_id


@dataclass(slots=True)
class ListCounters:
    watches: int = 0
    patterns: int = 0
    listings: int = 0  # of one bucket each
    hash_matches: int = 0


@dataclass(frozen=True, slots=True)
class ListSurroundings:
    """What watches of classic topics need of the node. `trusted` and `whole` are the change feed's."""

    nursery: Tasks
    topics: ClassicTopics
    lane: Callable[[], Lane]
    trusted: Callable[[int], bool]
    whole: Callable[[], bool]
    window: float
    frame_limit: int


class PatternGroup(SetGroup):
    """All watches of one namespace with the same pattern."""

    COMMAND = api.BaseCommand.WATCH_TOPIC_UPDATE
    COST = 32 * 1_024  # most of it the compiled pattern

    def __init__(self, view: _NamespaceView, pattern: TopicPattern) -> None:
        around = view.around
        self._logs = LogSet(f"{PERSISTENT}://{view.namespace}/", around.frame_limit)
        super().__init__(self._logs, nursery=around.nursery, window=around.window)
        self.view = view
        self.pattern = pattern
        self.unread = BucketSet.whole()

    @property
    def complete(self) -> bool:
        return not self.unread and self.view.around.whole()

    def join(self, watch: SetWatch) -> None:
        self.view.hurry()
        super().join(watch)

    def _moment(self) -> int:
        return self.view.moment()

    def _settled_until(self) -> float:
        return self.view.unread.settled_until()

    async def take(self, read: _ReadBucket, turns: Turns) -> None:
        """A bucket was read: all of it is compared with the pattern for the first time, and later what has changed."""
        bucket, now, subjects, fits = read.bucket, read.now, read.subjects, self.pattern.fits
        if bucket not in self.unread:
            for part in _slices(read.changed):
                for name in part:
                    if fits(subjects[name]):
                        self.topics.update(bucket, name, now.get(name))
                await turns.spend(len(part))
            return
        members: dict[str, str] = {}
        for part in _slices(list(now)):
            members.update((name, now[name]) for name in part if fits(subjects[name]))
            await turns.spend(len(part))
        self.unread.discard(bucket)
        if members:
            self.topics.replace(bucket, members)

    def tell(self) -> bool:
        """Whether somebody was told something at once."""
        self._schedule()
        return self._admit_waiting()

    def _greet(self, watch: SetWatch) -> None:
        assert isinstance(watch, ListWatch)
        logs = self._logs
        # A watch that is refreshed may have updates on their way that its hash does not know of, unless the last one
        # that it was sent leads to what there is now.
        is_current = watch.step is None or watch.step == logs.step
        watch.step = logs.step
        if is_current and watch.current_hash == logs.hash():
            self.view.counters.hash_matches += 1
            tail: bytes | None = hash_field(logs.hash())
        else:
            tail = logs.whole()
        if tail is None:
            refused = TooManyTopics(f"{len(logs)} topics match, more than a frame holds: watch fewer of them.")
            watch.outbox.reply(encode(error_reply(watch.request_id, refused.server_error, str(refused))))
            watch.closed = True
            return
        ids = b"\x08" + varint(watch.request_id) + b"\x10" + varint(watch.watch_id)
        head = frame_head(api.BaseCommand.WATCH_TOPIC_LIST_SUCCESS, len(ids), tail)
        watch.outbox.reply(head + ids + tail)


class _ReadBucket:
    """What a read of a bucket has found, prepared once for all patterns."""

    __slots__ = ("bucket", "changed", "now", "subjects")

    def __init__(self, bucket: int, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        self.bucket = bucket
        self.now = now
        self.changed = [name for name in before.keys() | now.keys() if before.get(name) != now.get(name)]
        self.subjects: dict[str, bytes] = {}

    async def prepare(self, namespace: NamespaceName, turns: Turns) -> None:
        for part in _slices([*self.now, *self.changed]):
            self.subjects.update((name, subject_of(namespace, name)) for name in part)
            await turns.spend(len(part))


class _NamespaceView:
    """The logs of one namespace while somebody watches it, and the only reader of them."""

    def __init__(self, namespace: NamespaceName, around: ListSurroundings, counters: ListCounters) -> None:
        self.namespace = namespace
        self.around = around
        self.counters = counters
        self.groups: dict[str, PatternGroup] = {}
        self._names: dict[int, Mapping[str, str]] = {}  # by bucket, without the empty ones
        self._stale = BucketSet()
        self._reading = False
        self._read_at = float("-inf")
        self._pause = trio.CancelScope()  # what the reader waits in, to read several changes together
        self._hurried = False
        self._moment = 0
        self.unread: UnreadWrites[int] = UnreadWrites()  # buckets with classic topics that this node wrote

    def moment(self) -> int:
        self._moment += 1
        return self._moment

    def written(self, bucket: int) -> None:
        self.unread.add(bucket, self.moment())
        self.doubt((bucket,))

    def hurry(self) -> None:
        """Somebody is going to wait for what this node wrote: read it now."""
        if self.unread:
            self._hurried = True
            self._pause.cancel()

    def add(self, pattern: TopicPattern) -> PatternGroup:
        group = self.groups[pattern.text] = PatternGroup(self, pattern)
        self.doubt(range(keys.BUCKETS))
        return group

    def doubt(self, buckets: Iterable[int]) -> None:
        """Something has changed in these buckets, or may have: read them again."""
        self._stale.update(buckets)
        if not self._reading:
            self._reading = True
            self.around.nursery.start_soon(self._read)

    async def _read(self) -> None:
        """Read until nothing is stale that can be read; what cannot be trusted waits for the gap that ends it."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            while self.groups and any(map(self.around.trusted, self._stale)):
                # The first change after quiet is read at once, later ones together with what comes in the window.
                if not self._hurried:
                    with trio.CancelScope(deadline=self._read_at + self.around.window) as self._pause:
                        await trio.sleep_forever()
                self._hurried = False
                is_whole = await self._read_some(list(filter(self.around.trusted, self._stale)))
                await self._tell()
                if is_whole:
                    backoff.reset()
                else:
                    await trio.sleep(backoff.next())
        finally:
            self._reading = False

    async def _read_some(self, todo: Sequence[int]) -> bool:
        """Read these buckets; whether all of them could be read."""
        whole = True
        for start in range(0, len(todo), _READ_TOGETHER):
            some = todo[start : start + _READ_TOGETHER]
            self._stale.difference_update(some)
            began = self.moment()
            listed: Mapping[int, Mapping[str, str]] = {}
            try:
                listed = await self.around.topics.list_log_buckets(self.around.lane(), some, self.namespace)
            except StoreError as error:
                log.debug("listing the classic topics of %s waits for the store: %s", self.namespace, error)
            except Exception:
                log.exception("listing the classic topics of %s failed", self.namespace)
            self.counters.listings += len(listed)
            for bucket in some:
                if bucket in listed and self.around.trusted(bucket):
                    await self._take(bucket, listed[bucket])
                    self.unread.read(bucket, began)
                else:
                    self._stale.add(bucket)
                    whole = False
        self._read_at = trio.current_time()
        return whole

    async def _take(self, bucket: int, now: Mapping[str, str]) -> None:
        read = _ReadBucket(bucket, self._names.pop(bucket, {}), now)
        if now:
            self._names[bucket] = now
        turns = Turns(_MATCHES_PER_TURN)
        await read.prepare(self.namespace, turns)
        # Who comes meanwhile has this bucket read once more.
        for group in list(self.groups.values()):
            if not group.closed:
                await group.take(read, turns)
                await turns.spend()
        await trio.lowlevel.checkpoint()

    async def _tell(self) -> None:
        """To whom it may concern. What is told for the first time is put together for it, which takes its time."""
        turns = Turns(_TOLD_PER_TURN)
        for group in list(self.groups.values()):
            if not group.closed:
                await turns.spend(_TOLD_PER_TURN if group.tell() else 1)


def _slices(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _MATCHES_PER_TURN):
        yield names[start : start + _MATCHES_PER_TURN]


class TopicLists:
    """Namespaces and patterns to watches. Hears the change feed, and does what a client's conversation asks for."""

    def __init__(self, around: ListSurroundings) -> None:
        self.counters = ListCounters()
        self._around = around
        self._views: dict[str, _NamespaceView] = {}  # by the path of their namespace

    # What a conversation calls.

    def open(
        self,
        outbox: Outbox,
        registry: dict[int, ListWatch],
        request: api.CommandWatchTopicList,
        namespace: NamespaceName,
        pattern: TopicPattern,
    ) -> None:
        """Watch under this id, in place of a watch with the same: clients refresh theirs so. Answers the request."""
        before = registry.pop(request.watcher_id, None)
        if before is not None:
            outbox.drop(before.key)
        path = keys.namespace_path(namespace)
        view = self._views.get(path)
        if view is None:
            view = self._views[path] = _NamespaceView(namespace, self._around, self.counters)
        group = view.groups.get(pattern.text)
        if group is None:
            group = view.add(pattern)
            self.counters.patterns += 1
        current_hash = request.topics_hash if request.HasField("topics_hash") else None
        if before is not None and before.group is not group:
            current_hash = None
        watch = ListWatch(outbox, request.request_id, request.watcher_id, current_hash, group)
        watch.step = None if before is None else before.step
        registry[request.watcher_id] = watch
        self.counters.watches += 1
        group.join(watch)
        if before is not None:
            # Last, so that a group whose only watch is refreshed stays.
            self._detach(before)

    def close(self, registry: dict[int, ListWatch], watcher_id: int) -> None:
        """End a watch without a word; unknown ids are fine."""
        watch = registry.pop(watcher_id, None)
        if watch is not None:
            self._detach(watch)
            watch.outbox.drop(watch.key)

    def drop_all(self, registry: dict[int, ListWatch]) -> None:
        """The connection is gone."""
        watches = list(registry.values())
        registry.clear()
        end_in_turns(self._around.nursery, watches, self._detach)

    # What the store calls.

    def written(self, bucket: int, path: str) -> None:
        """This node has changed a classic topic, and who asked for it may know: no need to hear it from the feed."""
        view = self._views.get(path.rpartition("/")[0])
        if view is not None:
            view.written(bucket)

    # What the feed calls.

    def changed(self, bucket: int, path: str) -> None:
        """Scalable topics are none of these."""

    def registered(self, bucket: int, path: str) -> None:
        """Nobody registers at a classic topic."""

    def orphaned(self, bucket: int, path: str) -> None:
        """Nobody leads a classic topic."""

    def classic(self, bucket: int, path: str) -> None:
        view = self._views.get(path.rpartition("/")[0])
        if view is not None:
            view.doubt((bucket,))

    def gap(self, buckets: Collection[int]) -> None:
        for view in self._views.values():
            view.doubt(buckets)

    def _detach(self, watch: ListWatch) -> None:
        group = watch.group
        group.leave(watch)
        self.counters.watches -= 1
        view = group.view
        if group.closed and view.groups.get(group.pattern.text) is group:
            del view.groups[group.pattern.text]
            self.counters.patterns -= 1
            if not view.groups:
                self._views.pop(keys.namespace_path(view.namespace), None)
