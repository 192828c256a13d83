"""The change feed: which topics changed, learnt from bells, checked by comparing tails, honest about gaps.

A keyspace notification is only the doorbell of a bucket's change log. What is read from the log names the topics;
whatever could have been missed is declared as a gap, after which everything watched there is read again.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import trio

from metadata import keys
from metadata.arrivals import Arrivals
from metadata.bells import Bells, check_role
from metadata.change_log import (
    READ_COUNT,
    Heard,
    Position,
    entries_after,
    heard_of,
    is_whole_log,
    log_read,
    position_of,
)
from metadata.complaints import complain
from metadata.errors import StoreError, StoreLost
from metadata.lanes import Lane
from metadata.link import Link, LinkLost, Reply
from metadata.store import TopicStore
from metadata.tails import Tail, read_tails, rolled_back
from metadata.urls import Endpoint
from protocol.backoff import Backoff

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.02
# Part of what a watcher waits after an outage, so well within the second that is promised for it.
_LONGEST_PAUSE: Final = 0.25
# Between two tries whether a server takes writes again.
_TROUBLED_INTERVAL: Final = 1.0


class FeedListener(Protocol):
    """Who wants to know. Both are called on the loop and must not block."""

    def changed(self, bucket: int, path: str) -> None:
        """The topic at this path was created, changed or deleted, or has another leader."""

    def registered(self, bucket: int, path: str) -> None:
        """Subscriptions, consumers or assignments of this topic changed, and its record did not."""

    def orphaned(self, bucket: int, path: str) -> None:
        """The leader of this topic has resigned; `changed` is called, too."""

    def classic(self, bucket: int, path: str) -> None:
        """The classic topic at this path was created, sealed or deleted, or has another number of partitions."""

    def gap(self, buckets: Collection[int]) -> None:
        """Anything may have changed in these buckets; they can be read again now."""


class FeedObserver(Protocol):
    """Who wants to see the feed itself. Both are called on the loop, before the listener, and must not block."""

    def entries(self, bucket: int, fresh: Sequence[Reply], arrivals: Sequence[float | None]) -> None:
        """These entries of a log were read, and the notification of each came then, if it came."""

    def gap(self, buckets: Collection[int], cause: str) -> None:
        """As for the listener, and why."""


@dataclass(slots=True)
class FeedCounters:
    bells: int = 0
    changes: int = 0
    lost_bells: int = 0
    probes: int = 0
    gaps: Counter[str] = field(default_factory=Counter)  # by cause
    rollbacks: int = 0
    flag_repairs: int = 0
    failures: int = 0  # faults of ours, each of which made a follower begin anew


class _Bucket:
    __slots__ = ("follower", "position", "since")

    def __init__(self) -> None:
        self.follower: _Follower | None = None  # whose subscription stands, the position being known
        self.position: Position | None = None  # None: there was no log
        self.since = float("inf")  # when it was last taken up


class ChangeFeed:
    def __init__(
        self,
        store: TopicStore,
        listener: FeedListener,
        *,
        probe_interval: float,
        on_rollback: Callable[[Collection[int]], None] = lambda buckets: None,
        observer: FeedObserver | None = None,
    ) -> None:
        """`on_rollback` is called when the store has forgotten writes, before the gap that follows from it."""
        self.counters = FeedCounters()
        self.lane = Lane(
            "feed",
            store.directory,
            store.timeouts,
            on_push=self._on_push,
            on_lost=self._on_lost,
            trouble=store.trouble,
        )
        self._store = store
        self._directory = store.directory
        self._listener = listener
        self._probe_interval = probe_interval
        self._on_rollback = on_rollback
        self._observer = observer
        self._pattern = f"__keyspace@{store.url.db}__:{keys.CHANGES_PREFIX}*"
        self._channel_prefix = len(self._pattern) - len(keys.CHANGES_PREFIX) - 1
        self._buckets = [_Bucket() for _ in range(keys.BUCKETS)]
        self._away = set(range(keys.BUCKETS))  # without a follower
        self._foreign: set[int] = set()  # the mark of our store is gone from them
        self._followers: dict[Endpoint, _Follower] = {}
        self._adopted = trio.Event()

    @property
    def whole(self) -> bool:
        """Every bucket is followed and is ours: what watchers were told is current."""
        return not self._away and not self._foreign and not self._store.identity.is_another

    @property
    def doubts(self) -> list[str]:
        """What is wrong with the store as a whole, a sentence each."""
        identity = self._store.identity
        return [*([identity.doubt] if identity.doubt else ()), *self._store.trouble.doubts]

    @property
    def foreign_buckets(self) -> int:
        return len(self._foreign)

    @property
    def away_buckets(self) -> int:
        return len(self._away)

    def trusted(self, bucket: int) -> bool:
        """Whether a read of this bucket tells the truth about what exists, and changes to it would be heard."""
        return bucket not in self._away and bucket not in self._foreign and not self._store.identity.is_another

    def followed_since(self, bucket: int) -> float:
        """Since when this bucket has been trusted without a break; infinite while it is not."""
        return self._buckets[bucket].since if self.trusted(bucket) else float("inf")

    async def wait_whole(self) -> None:
        """Return when every bucket is followed and ours."""
        while not self.whole:
            await self._adopted.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow every primary, and follow the primaries as they change."""
        self._followers.clear()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.lane.run)
            nursery.start_soon(self._look_for_primaries)
            task_status.started()
            while True:
                primaries = self._directory.primaries()
                for endpoint in primaries - self._followers.keys():
                    follower = self._followers[endpoint] = _Follower(self, endpoint)
                    nursery.start_soon(follower.run)
                for endpoint in self._followers.keys() - primaries:
                    self._followers.pop(endpoint).scope.cancel()
                self._store.trouble.retain(primaries)
                for follower in self._followers.values():
                    follower.ring()
                await self._directory.changed()

    async def _look_for_primaries(self) -> None:
        """Apart from the followers: a server that is slow to say who leads must not make them deaf."""
        while True:
            await trio.sleep(self._interval())
            try:
                await self._directory.refresh()
            except StoreError as error:
                log.debug("the primaries cannot be looked up now: %s", error)
            except Exception:
                log.exception("looking up the primaries failed")
                self.counters.failures += 1

    def _interval(self) -> float:
        return self._probe_interval * random.uniform(0.8, 1.0)

    def _on_push(self, link: Link, message: list[Any]) -> None:
        if message[0] != b"pmessage":
            return
        follower = self._followers.get(link.endpoint)
        if follower is not None and follower.link is link:
            follower.bell(bytes(message[2][self._channel_prefix :]), message[3], link.received_at)

    def _on_lost(self, link: Link) -> None:
        follower = self._followers.get(link.endpoint)
        if follower is not None and follower.link is link:
            follower.deafened()


class _Follower:
    """Follows the buckets of one primary over one connection after another."""

    def __init__(self, feed: ChangeFeed, endpoint: Endpoint) -> None:
        self.feed = feed
        self.endpoint = endpoint
        self.scope = trio.CancelScope()
        self.link: Link | None = None
        self.buckets: frozenset[int] = frozenset()
        self._dirty: set[int] = set()
        self._rung = trio.Event()
        self._bells = Bells(endpoint, feed._pattern, feed._probe_interval)
        self._arrivals = Arrivals() if feed._observer is not None else None

    async def run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        cause = "start"
        with self.scope:
            while True:
                try:
                    self.link = await self.feed.lane.link(self.endpoint)
                    await check_role(self.link, self._bells)
                    await self._hang_bells(self.link)
                    await self._adopt(cause)
                    backoff.reset()
                    await self._follow(self.link)
                except (LinkLost, StoreError) as error:
                    if backoff.fresh:
                        log.warning("change feed of %s interrupted: %s", self.endpoint, error)
                    cause = "connection"
                except Exception:
                    # The feeds of other servers go on.
                    log.exception("change feed of %s failed and begins anew", self.endpoint)
                    self.feed.counters.failures += 1
                    cause = "failure"
                finally:
                    self._abandon()
                try:
                    await self.feed._directory.refresh()
                except StoreError as error:
                    log.debug("the primaries cannot be found now: %s", error)
                await trio.sleep(backoff.next())

    def bell(self, key: bytes, event: bytes, at: float) -> None:
        bucket = keys.bucket_of_changes_key(key)
        if bucket is None:
            self._bells.rung += 1
        elif bucket in self.buckets:
            self.feed.counters.bells += 1
            # An append that also trims rings twice.
            if self._arrivals is not None and event == b"xadd":
                self._arrivals.ring(bucket, at)
            self._mark(bucket)

    def ring(self) -> None:
        """Something may want attention: a marked bucket, a new map of primaries, or a lost link."""
        self._rung.set()

    def deafened(self) -> None:
        """The link is gone. At once, although a read of ours may go on at a successor: nobody hears the bells."""
        self._leave(self.buckets)
        self.ring()

    def _mark(self, bucket: int) -> None:
        self._dirty.add(bucket)
        self.ring()

    def _abandon(self) -> None:
        """Nothing is heard of these buckets until somebody follows them again."""
        self._leave(self.buckets)
        self.buckets = frozenset()
        self._dirty.clear()
        if self.link is not None:
            # A half-dead link must not linger with a subscription that nobody answers to.
            self.link.close()
            self.link = None

    async def _hang_bells(self, link: Link) -> None:
        if await self._bells.subscribe(link):
            await self._see_bells_ring(link)

    async def _see_bells_ring(self, link: Link) -> None:
        buckets = self.feed._directory.buckets_of(self.endpoint)
        if buckets and not await self._bells.ring(link, keys.bell_key(min(buckets))):
            self.feed.counters.flag_repairs += 1
            await self._bells.repair(link)

    async def _adopt(self, cause: str) -> None:
        """Take up the buckets that this primary owns and that are not followed yet."""
        owned = self.feed._directory.buckets_of(self.endpoint)
        # Not merely what is missing from `self.buckets`: another may have taken one over for a moment, and left it.
        new = sorted(bucket for bucket in owned if self.feed._buckets[bucket].follower is not self)
        self._leave(self.buckets - owned)
        self._dirty &= owned
        # From here on bells of the new buckets count, so that none falls between their tails and the first read.
        self.buckets = owned
        if not new:
            return
        identity = self.feed._store.identity
        if unmarked := [bucket for bucket in new if bucket in identity.unmarked]:
            await identity.see_marked(unmarked)
        await self._notice_rollback(new)
        tails = await self._tails(new)
        if self.link is None or not self.link.usable:
            raise LinkLost(f"connection to {self.endpoint} lost")
        still_owned = self.feed._directory.buckets_of(self.endpoint)
        adopted = [(bucket, tail) for bucket, tail in zip(new, tails, strict=True) if bucket in still_owned]
        for bucket, tail in adopted:
            state = self.feed._buckets[bucket]
            state.position = tail.position
            state.follower = self
            state.since = trio.current_time()
            self.feed._away.discard(bucket)
            self._note_foreign(bucket, tail.foreign)
        self._declare_gap([bucket for bucket, _ in adopted], cause)

    def _leave(self, buckets: Collection[int]) -> None:
        for bucket in buckets:
            # Whoever owns it now may have taken it up already.
            if self.feed._buckets[bucket].follower is self:
                self.feed._buckets[bucket].follower = None
                self.feed._away.add(bucket)
        if self._arrivals is not None:
            self._arrivals.forget(buckets)

    async def _follow(self, link: Link) -> None:
        generation = -1
        next_probe = trio.current_time() + self.feed._interval()
        while True:
            with trio.move_on_at(next_probe):
                await self._rung.wait()
            self._rung = trio.Event()
            if not link.usable:
                raise LinkLost(f"connection to {self.endpoint} lost")
            if self.feed._directory.generation != generation:
                generation = self.feed._directory.generation
                await self._adopt("moved")
            if trio.current_time() >= next_probe:
                await self._probe(link)
                next_probe = trio.current_time() + self.feed._interval()
                if self.endpoint in self.feed._store.trouble:
                    next_probe = min(next_probe, trio.current_time() + _TROUBLED_INTERVAL)
            if self._dirty:
                await self._read()

    async def _read(self) -> None:
        """Take in what the marked logs say. Marks are cleared first: a bell during the read counts for the next."""
        marked = sorted(self._dirty)
        self._dirty.clear()
        new = [bucket for bucket in marked if self.feed._buckets[bucket].position is None]
        requests = [log_read(b, self.feed._buckets[b].position) for b in marked]
        waited = [self._arrivals.waiting(b) for b in marked] if self._arrivals is not None else ()
        # Behind the reads: of a log that was empty, only its own count tells whether its beginning is trimmed already.
        counts = [(keys.BUCKET_SLOTS[b], ("XINFO", "STREAM", keys.changes_key(b))) for b in new]
        replies = await self.feed.lane.gather([*requests, *counts], refusals=True)
        added = dict(zip(new, replies[len(marked) :], strict=True))
        doubtful = []
        for index, (bucket, entries) in enumerate(zip(marked, replies, strict=False)):
            state = self.feed._buckets[bucket]
            if state.follower is not self:
                continue
            fresh = None if isinstance(entries, StoreError) else entries_after(state.position, entries)
            if bucket in added and not is_whole_log(entries, added[bucket]):
                fresh = None
            if fresh is None:
                doubtful.append(bucket)
                continue
            if len(entries) == READ_COUNT:
                self._mark(bucket)
            if not fresh:
                continue
            try:
                heard = heard_of(fresh)
            except ValueError as error:
                # It may be about any topic of the bucket.
                complain(log, "%s is damaged (%s): its bucket is read anew", keys.changes_key(bucket).decode(), error)
                doubtful.append(bucket)
                continue
            state.position = position_of(fresh[-1])
            self.feed.counters.changes += len(fresh)
            if self._arrivals is not None:
                self._show(bucket, fresh, waited[index], to_the_end=len(entries) < READ_COUNT)
            self._tell(bucket, heard)
        if doubtful:
            await self._reset(doubtful, "log")

    def _tell(self, bucket: int, heard: Heard) -> None:
        listener = self.feed._listener
        for path in heard.classic:
            listener.classic(bucket, path)
        for path in heard.changed:
            listener.changed(bucket, path)
        for path in heard.resigned:
            listener.orphaned(bucket, path)
        for path in heard.registered:
            if path not in heard.changed:
                listener.registered(bucket, path)

    def _show(self, bucket: int, fresh: Sequence[Reply], waited: int, *, to_the_end: bool) -> None:
        assert self._arrivals is not None
        assert self.feed._observer is not None
        arrivals = self._arrivals.take(bucket, len(fresh), waited=waited, to_the_end=to_the_end)
        self.feed._observer.entries(bucket, fresh, arrivals)

    async def _probe(self, link: Link) -> None:
        """Compare every tail with what is known: finds lost bells, trimmed logs, fail-overs and flushes."""
        self.feed.counters.probes += 1
        await check_role(link, self._bells)
        probed = sorted(self.buckets)
        tails = await self._tails(probed)
        lost_bells = 0
        back = []
        for bucket, tail in zip(probed, tails, strict=True):
            state = self.feed._buckets[bucket]
            if state.follower is not self:
                continue
            if bucket in self.feed._foreign and not tail.foreign:
                back.append(bucket)
                continue
            self._note_foreign(bucket, tail.foreign)
            if tail.position != state.position and bucket not in self._dirty:
                lost_bells += 1
                self._mark(bucket)
        if back:
            # Trusted again only together with the gap that makes everybody read.
            await self._reset(back, "restored")
            log.warning("%d buckets of the store carry its mark again", len(back))
        if lost_bells:
            self.feed.counters.lost_bells += lost_bells
            await self._see_bells_ring(link)
        await self._check_identity()
        if self.endpoint in self.feed._store.trouble:
            await self._try_writing(link)

    async def _check_identity(self) -> None:
        """Whoever has the key that says which store this is, sees for all that it says the same as at the start."""
        if self.feed._directory.owner(keys.STORE_SLOT) != self.endpoint:
            return
        store, identity = self.feed._store, self.feed._store.identity
        was_another, before = identity.is_another, identity.doubt
        await identity.check(self.feed.lane)
        for lane in store.lanes:
            lane.barred = StoreLost(f"Nothing is written: {identity.doubt}.") if identity.is_another else None
        if identity.doubt and not before and not self.feed._foreign:
            log.error("%s", identity.doubt)
        elif before and not identity.doubt:
            log.warning("the key %s of the store says again what it said", keys.STORE.decode())
        if was_another and not identity.is_another:
            # What was read meanwhile did not count.
            self._declare_gap(range(keys.BUCKETS), "restored")

    async def _try_writing(self, link: Link) -> None:
        """See whether a server that took no writes does so by now."""
        buckets = self.feed._directory.buckets_of(self.endpoint)
        if not buckets:
            return
        key = keys.bell_key(min(buckets))
        reply, _ = await link.execute([("XADD", key, "MAXLEN", 1, "*", "bell", 1), ("UNLINK", key)])
        if isinstance(reply, Exception) and str(reply).startswith("MISCONF"):
            self.feed._store.trouble.refused(self.endpoint, str(reply))
        else:
            self.feed._store.trouble.is_over(self.endpoint)

    async def _reset(self, buckets: Sequence[int], cause: str) -> None:
        """A log no longer continues from where we were: start again from its tail, and read everything again."""
        await self._notice_rollback(buckets)
        tails = await self._tails(buckets)
        ours = [(b, tail) for b, tail in zip(buckets, tails, strict=True) if self.feed._buckets[b].follower is self]
        for bucket, tail in ours:
            self.feed._buckets[bucket].position = tail.position
            self._note_foreign(bucket, tail.foreign)
        self._declare_gap([bucket for bucket, _ in ours], cause)

    async def _tails(self, buckets: Sequence[int]) -> list[Tail]:
        return await read_tails(self.feed.lane, buckets, mark=self.feed._store.identity.mark)

    async def _notice_rollback(self, buckets: Sequence[int]) -> None:
        """Before positions are given up: where the store lost what we have read, it may have lost what we wrote."""
        known = {bucket: self.feed._buckets[bucket].position for bucket in buckets}
        if lost := await rolled_back(self.feed.lane, known):
            self.feed.counters.rollbacks += 1
            log.warning("the store went back to an earlier state: %d change logs lost entries", len(lost))
            self.feed._on_rollback(lost)

    def _note_foreign(self, bucket: int, foreign: bool) -> None:
        if not foreign:
            self.feed._foreign.discard(bucket)
            return
        if not self.feed._foreign:
            log.error(
                "the store has lost its identity (flushed, or another data set): watches hold what they were told; "
                "restore the data, or restart Vela to accept the store as it is"
            )
        self.feed._foreign.add(bucket)

    def _declare_gap(self, buckets: Collection[int], cause: str) -> None:
        self.feed.counters.gaps[cause] += 1
        if self._arrivals is not None:
            # Positions were taken anew, and some of the bells are of what lies before them.
            self._arrivals.forget(buckets)
        if self.feed._observer is not None:
            self.feed._observer.gap(buckets, cause)
        self.feed._listener.gap(buckets)
        self.feed._adopted.set()
        self.feed._adopted = trio.Event()
