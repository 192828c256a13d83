"""A group: all namespace watchers with the same namespace and filters. They share one set, one listing, one timer."""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from metadata import keys
from metadata.errors import StoreError
from metadata.tasks import Tasks
from protocol.backoff import Backoff
from protocol.names import NamespaceName
from protocol.wire import pulsar_api_pb2 as api
from sessions.bucket_sets import BucketSet
from sessions.outbox import Outbox
from sessions.readback import ReadBack
from sessions.set_groups import SetGroup, SetWatch
from sessions.topic_sets import TopicSet

if TYPE_CHECKING:
    from sessions.namespaces import Listing

log = logging.getLogger(__name__)

Filters = frozenset[tuple[str, str]]

# Buckets in one listing: enough to share the cost of asking, few enough that a large namespace comes in pieces.
_LISTED_AT_ONCE: Final = 16
# The part of the window after which changes are read: a read of some hundred topics takes a few milliseconds.
_READ_BEFORE_TOLD: Final = 0.8
_FIRST_PAUSE: Final = 0.05
# Part of what a watcher waits after an outage, so well within the second that is promised for it.
_LONGEST_PAUSE: Final = 0.25


class NamespaceWatch(SetWatch):
    __slots__ = ("registry",)

    # Beside DAG watches, whose ids are their own 64-bit numbers.
    KEY_OFFSET = 1 << 64

    group: Group

    def __init__(
        self,
        outbox: Outbox,
        registry: dict[int, NamespaceWatch],
        watch_id: int,
        current_hash: str | None,
        group: Group,
    ) -> None:
        super().__init__(outbox, watch_id, current_hash, group)
        self.registry = registry


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a group needs of the node."""

    nursery: Tasks
    readback: ReadBack
    listing: Listing
    whole: Callable[[], bool]
    window: float
    frame_limit: int


class Group(SetGroup):
    COMMAND = api.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE
    COST = 6 * 1_024

    def __init__(self, namespace: NamespaceName, filters: Filters, around: Surroundings) -> None:
        topics = TopicSet(f"topic://{namespace}/", around.frame_limit)
        super().__init__(topics, nursery=around.nursery, window=around.window)
        self.namespace = namespace
        self._path = keys.namespace_path(namespace)
        self.filters = filters
        self._around = around
        self._unlisted = BucketSet.whole()
        self._listing = BucketSet()  # buckets being listed
        self._doubtful: dict[int, set[str]] = {}  # by bucket that is being listed: topics to read again afterwards
        # The read-back's moment when a listing was complete, by bucket: in the least room, as there may be many groups.
        self._listed_at = array("q", bytes(8 * keys.BUCKETS))
        self._again = BucketSet()  # buckets that had a gap while they were listed
        self.list_again(range(keys.BUCKETS))

    @property
    def read_at(self) -> float:
        """When changes are to be read, all that came until then together: in time for when they can be told."""
        return self._flushed_at + self._around.window * _READ_BEFORE_TOLD

    @property
    def complete(self) -> bool:
        return not self._unlisted and not self._listing and self._around.whole()

    @property
    def cost(self) -> int:
        return self.COST + 2 * sum(len(key) + len(value) for key, value in self.filters)

    def join(self, watch: SetWatch) -> None:
        self._around.readback.hurry(self._path)
        super().join(watch)

    def matches(self, properties: Mapping[str, str]) -> bool:
        return all(properties.get(key) == value for key, value in self.filters)

    def _moment(self) -> int:
        return self._around.readback.moment()

    def _settled_until(self) -> float:
        return self._around.readback.settled_until(self._path)

    def _greet(self, watch: SetWatch) -> None:
        if watch.current_hash is not None and watch.current_hash == self.topics.hash():
            watch.step = self.topics.step
            self._around.listing.note_hash_match()
        else:
            watch.queued = watch.outbox.send_from(watch.key, watch.catch_up)

    # The set.

    def update(self, bucket: int, path: str, name: str, incarnation: str | None) -> None:
        """A read of one topic is complete; incarnation is None where it is not, or no longer, in the set."""
        self._take(bucket, path, name, incarnation)
        self._admit_waiting()

    def skip(self) -> None:
        """A read of one topic is complete that says nothing of it, so that nobody needs to wait for more."""
        self._admit_waiting()

    def _take(self, bucket: int, path: str, name: str, incarnation: str | None) -> None:
        if self._around.readback.began(bucket) < self._listed_at[bucket]:
            # Older than a listing that is complete: it was marked again then, and the next read counts.
            return
        if bucket in self._listing:
            # The listing under way may be older or newer than this read: only a later read can tell.
            self._doubtful.setdefault(bucket, set()).add(path)
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
                self._listing.add(bucket)
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
        moment = readback.moment()
        once_more = []
        for bucket in buckets:
            if self.closed or not readback.trusted(bucket):
                # Not to be listed now; the gap that ends the distrust begins it again.
                self._listing.discard(bucket)
                self._doubtful.pop(bucket, None)
                self._unlisted.add(bucket)
            elif bucket in self._again or bucket not in listed:
                once_more.append(bucket)
            else:
                self.topics.replace(bucket, listed[bucket])
                self._listing.discard(bucket)
                doubtful = self._doubtful.pop(bucket, set())
                self._listed_at[bucket] = moment
                for path in doubtful | readback.under_way(bucket):
                    if path.rpartition("/")[0] == self._path:
                        readback.read_again(bucket, path)
        self._schedule()
        self._admit_waiting()
        return once_more
