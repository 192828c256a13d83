"""The DAG watches: who watches which topic, what it looks like now, and who was told what.

Nothing per session is computed per event: one read, one encoding, bytes to sockets.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import trio

from layout import records
from layout.errors import LayoutError
from layout.legacy import synthetic_layout
from metadata import keys
from metadata.classic_records import ClassicTopic
from metadata.complaints import complain
from metadata.errors import RecordDamaged, StoreDenied, StoreError, StoreFull, StoreLost, StoreUnavailable
from metadata.records import StoredTopic, Version
from metadata.tasks import Tasks
from protocol.backoff import Backoff
from protocol.errors import ProtocolError
from protocol.names import PERSISTENT, TOPIC, TopicName
from protocol.wire import pulsar_api_pb2 as api
from sessions.dag import encode_tail, error_frame
from sessions.outbox import Outbox
from sessions.points import FanOut, Point, Watch
from sessions.readback import Found, ReadBack
from sessions.splice import frame_head
from sessions.turns import end_in_turns
from sessions.whereabouts import LogUrl, Whereabouts

log = logging.getLogger(__name__)

# Sends between two yields of a fan-out: so many stall other tasks for 1 to 2 ms, and a yield costs as much as 3 sends.
_SENDS_PER_TURN: Final = 128
# What a watch takes, with its point if it is the only one there, beside the name of its topic.
_WATCH_COST: Final = 1_024
# An error is a verdict, and these are none: the lookup waits instead.
_TEMPORARY: Final = (StoreUnavailable, StoreLost, StoreFull, StoreDenied)
_FIRST_PAUSE: Final = 0.05
# Less than the half second within which a client learns of a new layout at the latest.
_LONGEST_REFRESH: Final = 0.4
_FAN_OUT_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 2.0

Creator = Callable[[TopicName], Awaitable[None]]


@dataclass(slots=True)
class HubCounters:
    watches: int = 0
    points: int = 0
    went_back: int = 0  # a later read showed an older state: writes lost by a fail-over
    unreadable: int = 0
    deletions: int = 0  # watches that were told that their topic is gone


class Hub:
    """Key to watch point to watchers. A listener of the read-back, and the dialogue's `Watches`."""

    def __init__(
        self,
        *,
        nursery: Tasks,
        readback: ReadBack,
        create: Creator,
        owner_url: str,
        segment_url: LogUrl | None = None,
        auto_create: bool,
        deletion_notice: float,
    ) -> None:
        """`owner_url` is this node's; `segment_url` tells where the log of a segment is served whose owner has this
        session, or should be if it has none."""
        self.counters = HubCounters()
        self._nursery = nursery
        self._readback = readback
        self._create = create
        self._owner_url = owner_url
        self._refreshing: dict[str, list[tuple[int, trio.Event]]] = {}
        self._asked: dict[Watch, int] = {}  # watches that wait for a read that begins after this moment
        self._auto_create = auto_create
        self._deletion_notice = deletion_notice
        self._points: list[dict[str, Point]] = [{} for _ in range(keys.BUCKETS)]
        self.whereabouts = Whereabouts(self._points, segment_url or (lambda log, session: owner_url), self._publish)
        self._missing: deque[tuple[float, Point]] = deque()  # by the moment when absence becomes deletion
        self._missing_added = trio.Event()
        readback.add(self)

    # What the dialogue calls.

    def open(
        self,
        outbox: Outbox,
        registry: dict[int, Watch],
        session_id: int,
        topic: TopicName,
        create_as: str | None,
    ) -> None:
        """Watch a `topic://` name under this session id; the answer goes to the outbox, at once or after a read.

        A missing topic is created in the domain `create_as`, if that is given: a scalable or a classic one.
        """
        self.close(registry, session_id)
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        point = self._points[bucket].get(path)
        if point is None:
            point = self._points[bucket][path] = Point(path)
            self.counters.points += 1
        watch = registry[session_id] = Watch(outbox, registry, session_id, create_as, point)
        point.add(watch)
        self.counters.watches += 1
        outbox.hold(_WATCH_COST + len(path))
        if point.tail is not None and self._readback.is_settled(bucket, path):
            self._tell([watch], point, point.tail)
        else:
            # A read already under way may have looked before this command came, and before a change that its client
            # was told of: only the next one can say what there is.
            self._asked[watch] = self._readback.moment()
            self._readback.mark(bucket, path)

    def close(self, registry: dict[int, Watch], session_id: int) -> None:
        """End a watch without a word; unknown ids are fine."""
        watch = registry.pop(session_id, None)
        if watch is not None:
            self._detach(watch)
            # A queued frame of the old watch would reach whoever takes its id next.
            watch.outbox.drop(session_id)

    def drop_all(self, registry: dict[int, Watch]) -> None:
        """The connection is gone."""
        watches = list(registry.values())
        registry.clear()
        end_in_turns(self._nursery, watches, self._detach)

    # What the feed calls.

    def classic(self, bucket: int, path: str) -> None:
        """A classic topic has changed, which stands in for a scalable one while there is none of that name."""
        if path in self._points[bucket]:
            self._readback.mark(bucket, path)

    # What the read-back calls.

    def wants(self, bucket: int, path: str) -> bool:
        return path in self._points[bucket]

    def patience(self, bucket: int, path: str) -> float:
        return float("-inf")  # a DAG is told as soon as it is known

    def gap(self, buckets: Collection[int]) -> None:
        for bucket in buckets:
            for path in self._points[bucket]:
                self._readback.mark(bucket, path)

    def apply(self, bucket: int, path: str, found: Found) -> None:
        point = self._points[bucket][path]
        point.read_at = self._readback.began(bucket)
        try:
            self._apply(point, found)
        except Exception:
            log.exception("the record of %s could not be served", point.topic)
            self._unreadable(point)
        if path in self._refreshing:
            self._refreshed(bucket, path)

    async def refreshed(self, topic: TopicName) -> None:
        """Read a topic, and return when all who watch it here were sent what it is; or after a moment, if that takes
        longer than anybody should wait for it."""
        path = keys.path_of(topic)
        bucket = keys.bucket_of(path)
        if path not in self._points[bucket]:
            return
        done = trio.Event()
        self._refreshing.setdefault(path, []).append((self._readback.moment(), done))
        self._readback.mark(bucket, path)
        with trio.move_on_after(_LONGEST_REFRESH):
            await done.wait()
            # Many are told by a task of its own, a part at a time.
            while (point := self._points[bucket].get(path)) and point.fan_out is not FanOut.NONE:  # noqa: ASYNC110
                await trio.sleep(_FAN_OUT_PAUSE)  # rare and short; an event for it would be in every point

    def _refreshed(self, bucket: int, path: str) -> None:
        """A read is complete: those who asked before it began have waited for it."""
        began = self._readback.began(bucket)
        left = []
        for asked, done in self._refreshing.pop(path):
            if asked < began:
                done.set()
            else:
                left.append((asked, done))
        if left:
            self._refreshing[path] = left

    async def run(self) -> None:
        """Tell watchers of topics that stayed away for the whole deletion notice."""
        while True:
            if not self._missing:
                self._missing_added = trio.Event()
                await self._missing_added.wait()
            due, point = self._missing[0]
            await trio.sleep_until(due)
            self._missing.popleft()
            if point.missing_since is None or point.missing_since + self._deletion_notice > due:
                continue
            if point.creating or not self._readback.is_settled(keys.bucket_of(point.path), point.path):
                # Whether it is deleted cannot be said now: ask again when the notice has passed once more.
                point.missing_since = trio.current_time()
                self._expect_deletion(point)
                continue
            for count, watch in enumerate([watch for watch in point.watches() if watch.told is not None], start=1):
                # During a yield the topic may have come back.
                if point.missing_since is not None and watch.point is point:
                    self.counters.deletions += 1
                    self._end(watch, api.TopicNotFound, f"Scalable topic not found: {point.topic} was deleted.")
                if count % _SENDS_PER_TURN == 0:
                    await trio.lowlevel.checkpoint()

    def _apply(self, point: Point, stored: Found) -> None:
        if stored is None:
            self._absent(point)
            return
        point.missing_since = None
        try:
            if isinstance(stored, RecordDamaged):
                raise stored
            leader_entry = stored.leader_entry if isinstance(stored, StoredTopic) else b""
            owners = stored.owners if isinstance(stored, StoredTopic) else {}
            known = point.tail is not None and point.leader_entry == leader_entry and point.owners == owners
            if not known or stored.version != Version(point.incarnation, point.number):
                point.leader_entry = leader_entry
                point.owners = owners
                point.tail = self._encoded(point, stored)
                self._note_version(point, stored.version)
        except (LayoutError, RecordDamaged) as error:
            complain(log, "the record of %s cannot be served: %s", point.topic, error)
            self._unreadable(point)
        else:
            self._publish(point)

    def _encoded(self, point: Point, stored: StoredTopic | ClassicTopic) -> bytes:
        topic = point.topic
        if isinstance(stored, StoredTopic):
            layout = records.decode_layout(stored.value)
            leader = stored.leader
            # Where nobody leads, whoever is asked first does: so this node says that it is the one.
            url = self._owner_url if leader is None else leader.pulsar_url
            owners, whereabouts = stored.owners, self.whereabouts
            tail = encode_tail(
                layout,
                name=str(topic),
                owner_url=lambda segment: whereabouts.of(topic, segment, owners.get(segment.segment_id, "")),
                controller_url=url,
            )
        else:
            layout = synthetic_layout([str(log) for log in stored.logs], stored.ctime_ms)
            tail = encode_tail(layout, name=str(topic), owner_url=None, controller_url=None)
        return point.tail if tail == point.tail else tail

    def _unreadable(self, point: Point) -> None:
        """Who was told something keeps it; who comes now is told the truth instead of what once was."""
        self.counters.unreadable += 1
        point.forget()
        self._refuse_waiting(point, api.MetadataError, f"The stored record of {point.topic} cannot be read.")

    def _note_version(self, point: Point, version: Version) -> None:
        if point.incarnation == version.incarnation and point.number > version.number:
            self.counters.went_back += 1
        point.incarnation, point.number = version.incarnation, version.number

    def _publish(self, point: Point) -> None:
        """Tell the current content to whoever was not told it yet."""
        if point.fan_out is not FanOut.NONE:
            # A newer content, or somebody who came after the running one looked who is there.
            point.fan_out = FanOut.AGAIN
        elif point.watched <= _SENDS_PER_TURN:
            self._tell(point.watches(), point, point.tail)
        else:
            point.fan_out = FanOut.AGAIN
            self._nursery.start_soon(self._fan_out, point)

    async def _fan_out(self, point: Point) -> None:
        """The only sender of this point while it runs; it always sends the current content."""
        try:
            while point.fan_out is FanOut.AGAIN:
                point.fan_out = FanOut.RUNNING
                watches = point.watches()
                for start in range(0, len(watches), _SENDS_PER_TURN):
                    self._tell(watches[start : start + _SENDS_PER_TURN], point, point.tail)
                    await trio.lowlevel.checkpoint()
        finally:
            point.fan_out = FanOut.NONE

    def _absent(self, point: Point) -> None:
        # From now on its old DAG says nothing: a topic of the same name is another one.
        point.forget()
        if self._readback.is_marked(keys.bucket_of(point.path), point.path):
            return
        wanted = False
        for watch in [watch for watch in point.watches() if watch.told is None]:
            if watch.create_as is not None and self._auto_create:
                wanted = True
            else:
                self._end(watch, api.TopicNotFound, f"Scalable topic not found: {point.topic}.")
        if wanted and not point.creating:
            point.creating = True
            self._nursery.start_soon(self._create_missing, point)
        if any(watch.told is not None for watch in point.watches()) and point.missing_since is None:
            point.missing_since = trio.current_time()
            self._expect_deletion(point)

    def _expect_deletion(self, point: Point) -> None:
        self._missing.append((trio.current_time() + self._deletion_notice, point))
        self._missing_added.set()

    async def _create_missing(self, point: Point) -> None:
        """Create the topic that its watchers asked for; trouble with the store only delays the answer.

        If they do not agree, it is a scalable one: the others can use that, too.
        """
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        said = False
        try:
            while domains := {watch.create_as for watch in point.watches() if watch.told is None} - {None}:
                topic = point.topic
                try:
                    await self._create(topic if TOPIC in domains else replace(topic, domain=PERSISTENT))
                    # If all have left meanwhile, the point is dropped, and another may stand in its place.
                    if point.watched:
                        self._readback.mark(keys.bucket_of(point.path), point.path)
                    return
                except (ProtocolError, LayoutError) as error:
                    self._refuse_waiting(point, api.InvalidTopicName, str(error))
                    return
                except _TEMPORARY as error:
                    if not said:
                        log.warning("creating %s waits for the store: %s", point.topic, error)
                    said = True
                except Exception as error:
                    if not isinstance(error, StoreError):
                        log.exception("creating %s failed", point.topic)
                    self._refuse_waiting(point, api.MetadataError, f"{point.topic} cannot be created: {error}")
                    return
                await trio.sleep(backoff.next())
        finally:
            point.creating = False

    def _refuse_waiting(self, point: Point, server_error: int, message: str) -> None:
        """A verdict for those who were told nothing yet; an error on a running watch would make its client deaf."""
        for watch in [watch for watch in point.watches() if watch.told is None]:
            self._end(watch, server_error, message)

    def _end(self, watch: Watch, server_error: int, message: str) -> None:
        watch.registry.pop(watch.session_id, None)
        self._detach(watch)
        watch.outbox.drop(watch.session_id)
        watch.outbox.reply(error_frame(watch.session_id, server_error, message))

    def _detach(self, watch: Watch) -> None:
        point = watch.point
        if point is None:
            return
        point.remove(watch)
        self._asked.pop(watch, None)
        self.counters.watches -= 1
        watch.outbox.hold(-_WATCH_COST - len(point.path))
        if not point.watched:
            bucket = keys.bucket_of(point.path)
            del self._points[bucket][point.path]
            self._readback.unmark(bucket, point.path)
            self.counters.points -= 1
            point.missing_since = None

    def _tell(self, watches: Sequence[Watch], point: Point, tail: bytes | None) -> None:
        """Send the point's content to those who have not got it. The hot path: everything here runs once per push."""
        if tail is None:
            return
        heads: dict[int, bytes] = {}
        asked = self._asked
        for watch in watches:
            told = watch.told
            if told is tail or watch.point is not point:
                continue
            if told is None and watch in asked:
                if asked[watch] > point.read_at:
                    continue  # a read that it asked for is to come
                del asked[watch]
            watch.told = tail
            if told == tail:
                continue  # gone and back as it was: nothing to tell
            field = watch.field
            head = heads.get(len(field))
            if head is None:
                head = heads[len(field)] = frame_head(api.BaseCommand.SCALABLE_TOPIC_UPDATE, len(field), tail)
            watch.outbox.push((head + field, tail), watch.session_id)
