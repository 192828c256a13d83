"""The topics that this node leads: taken on demand or over from nodes that died, given up with the node's session."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar

import trio

from controller.leader import Around, LeaderCounters, TopicLeader
from metadata import keys
from metadata.complaints import complain, note_waiting
from metadata.errors import Fenced, LeaderUnreachable, RecordDamaged, StoreError, TopicMissing
from metadata.node_sessions import NodeSession
from metadata.records import Leader, StoredTopic
from metadata.store import TopicStore
from metadata.tasks import Tasks
from protocol.backoff import Backoff
from protocol.errors import InvalidName
from protocol.names import TopicName

log = logging.getLogger(__name__)
Outcome = TypeVar("Outcome")

_ATTEMPTS: Final = 5
_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
# Take-overs at a time: a node that died may have led ten thousand topics.
_TAKEN_AT_ONCE: Final = 16
_LEFT_AT_ONCE: Final = 256
_RESIGN_LIMIT: Final = 3.0


class LedElsewhere(Exception):
    """Another node leads the topic, and is alive."""

    def __init__(self, topic: TopicName, leader: Leader) -> None:
        super().__init__(f"{topic} is led by the node at {leader.http_url}: ask there.")
        self.leader = leader


class Leaders:
    def __init__(
        self,
        store: TopicStore,
        session: NodeSession,
        around: Around,
        *,
        nursery: Tasks,
        sweep_interval: float,
        jitter: float,
        answers: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        """`answers` tells whether there is a node at an HTTP address; without it, it is believed."""
        self._store = store
        self._session = session
        self._around = around
        self._nursery = nursery
        self._sweep_interval = sweep_interval
        self._jitter = jitter
        self._answers = answers
        self._leading: dict[str, TopicLeader] = {}
        self._locks: dict[str, trio.Lock] = {}
        self._sweep_wanted = trio.Event()
        self._resigned = False

    @property
    def counters(self) -> LeaderCounters:
        return self._around.counters

    def __len__(self) -> int:
        return len(self._leading)

    def leads(self, topic: TopicName) -> bool:
        return keys.path_of(topic) in self._leading

    # What the feed calls.

    def changed(self, bucket: int, path: str) -> None:
        leader = self._leading.get(path)
        if leader is not None:
            leader.wake()

    def registered(self, bucket: int, path: str) -> None:
        self.changed(bucket, path)

    def orphaned(self, bucket: int, path: str) -> None:
        self.sweep()

    def classic(self, bucket: int, path: str) -> None:
        """Nobody leads a classic topic."""

    def gap(self, buckets: Collection[int]) -> None:
        affected = set(buckets)
        for path, leader in self._leading.items():
            if keys.bucket_of(path) in affected:
                leader.wake()
        self.sweep()

    # What others of the node call.

    def nodes_died(self, sessions: Collection[str]) -> None:
        for leader in self._leading.values():
            leader.nodes_died(sessions)
        self.sweep()

    def sweep(self) -> None:
        """Look soon for topics whose leader is gone."""
        self._sweep_wanted.set()

    async def lead(self, topic: TopicName) -> TopicLeader:
        """Be the leader of this topic, now or already; raise LedElsewhere where another node is, and is alive."""
        path = keys.path_of(topic)
        lock = self._locks.setdefault(path, trio.Lock())
        try:
            async with lock:
                for _ in range(_ATTEMPTS):
                    found = self._leading.get(path)
                    if found is not None:
                        return found
                    stored = await self._store.get(topic)
                    if stored is None:
                        raise TopicMissing(f"Scalable topic not found: {topic}. Check its name, or create it.")
                    if stored.leader is not None and await self._is_another(stored.leader):
                        raise LedElsewhere(topic, stored.leader)
                    if (taken := await self._take(stored, path)) is not None:
                        return taken
                    await trio.sleep(_PAUSE * random.uniform(0.5, 1.0))
        finally:
            if not lock.locked() and self._locks.get(path) is lock:
                del self._locks[path]
        raise Fenced(f"Others contend for the lead of {topic}: try again.")

    async def ensure_led(self, topic: TopicName, known: Leader | None) -> None:
        """See that somebody leads a topic, this node if nobody else does; `known` is what was read of it last."""
        mine = self._session.record.session
        leader = self._leading.get(keys.path_of(topic))
        if leader is not None:
            if leader.leader != known:
                # Perhaps it led a topic that is gone, and has not noticed yet. Then a sweep follows its end.
                leader.wake()
            return
        if known is not None and known.session != mine and self._around.peers.seemed_alive(known.session):
            return
        try:
            await self.lead(topic)
        except LedElsewhere:
            pass

    async def as_leader(self, topic: TopicName, act: Callable[[TopicLeader], Awaitable[Outcome]]) -> Outcome:
        """Do something that only the leader may; once more if the lead was lost in the middle of it."""
        for _ in range(_ATTEMPTS):
            try:
                leader = await self.lead(topic)
            except LedElsewhere as elsewhere:
                if self._answers is not None and not await self._answers(elsewhere.leader.http_url):
                    raise LeaderUnreachable(
                        f"{topic} is led by the node at {elsewhere.leader.http_url}, which does not answer: try again "
                        "when its lease is over, or look at --advertise-http there."
                    ) from None
                raise
            try:
                async with leader.operations:
                    outcome = await act(leader)
            except Fenced:
                self._depose(leader)
                continue
            leader.wake()
            return outcome
        raise Fenced(f"Others contend for the lead of {topic}: try again.")

    async def run(self) -> None:
        """Take over what nobody leads; give everything up when the session is lost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up_with_session)
            backoff = Backoff(_PAUSE, _LONGEST_PAUSE)
            while True:
                self._sweep_wanted = trio.Event()
                if await self._sweep():
                    backoff.reset()
                    wait = self._sweep_interval * random.uniform(0.8, 1.0)
                else:
                    wait = backoff.next()
                with trio.move_on_after(wait):
                    await self._sweep_wanted.wait()

    async def resign(self) -> None:
        """Leave all topics to other nodes, when this one ends."""
        self._resigned = True
        leading = list(self._leading.values())
        for leader in leading:
            self._depose(leader)
        slots = trio.CapacityLimiter(_LEFT_AT_ONCE)
        with trio.move_on_after(_RESIGN_LIMIT) as limit:
            async with trio.open_nursery() as nursery:
                for leader in leading:
                    nursery.start_soon(self._leave, leader, slots)
        if limit.cancelled_caught:
            log.info("topics were left to the end of the lease: the store was too slow")

    async def _leave(self, leader: TopicLeader, slots: trio.CapacityLimiter) -> None:
        async with slots:
            try:
                await leader.resign()
            except StoreError as error:
                log.debug("%s is left to the end of the lease: %s", leader.topic, error)

    async def _give_up_with_session(self) -> None:
        while True:
            await self._session.wait_lost()
            for leader in list(self._leading.values()):
                self._depose(leader)
            self.sweep()

    async def _sweep(self) -> bool:
        """Take over what nobody leads; False if something could not be seen or taken, and has to be tried again."""
        try:
            listed, complete = await self._around.leaderships.listed_where_possible()
            alive, sure = await self._living({session for session in listed.values() if session})
            await self._notice_other_retentions()
        except StoreError as error:
            log.debug("topics without a leader cannot be looked for now: %s", error)
            return False
        mine = self._session.record.session
        orphans = [
            path
            for path, session in listed.items()
            if path not in self._leading and (session not in alive or session == mine)
        ]
        if not orphans or self._resigned:
            return complete and sure
        # So that nodes that notice at the same moment share the work instead of racing for all of it.
        await trio.sleep(random.uniform(0, self._jitter))
        random.shuffle(orphans)
        failed: list[str] = []
        async with trio.open_nursery() as nursery:
            slots = trio.CapacityLimiter(_TAKEN_AT_ONCE)
            for path in orphans:
                nursery.start_soon(self._adopt, path, slots, failed)
        log.info(
            "of %d topics without a leader this node leads %d now",
            len(orphans),
            sum(map(self._leading.__contains__, orphans)),
        )
        return complete and sure and not failed

    async def _living(self, sessions: Collection[str]) -> tuple[set[str], bool]:
        """Those of these sessions that are alive or of which nobody can tell now; and whether all could be told."""
        alive: set[str] = set()
        untold: set[str] = set()

        async def ask(session: str) -> None:
            try:
                if await self._around.peers.is_alive(session):
                    alive.add(session)
            except StoreError:
                untold.add(session)

        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(ask, session)
        return alive | untold, not untold

    async def _adopt(self, path: str, slots: trio.CapacityLimiter, failed: list[str]) -> None:
        async with slots:
            try:
                await self.lead(keys.topic_at(path))
            except (LedElsewhere, TopicMissing):
                pass
            except RecordDamaged as error:
                # Until it is restored nobody can lead it, and a round of its own for it would be for nothing.
                note_waiting(log, error, "%s cannot be led", path)
            except StoreError as error:
                note_waiting(log, error, "taking over %s failed for now", path)
                failed.append(path)
            except (InvalidName, ValueError):
                complain(log, "the list of topics that need a leader has an entry that is none of ours: %r", path[:64])

    async def _notice_other_retentions(self) -> None:
        """Leaders who keep sealed segments for long look seldom, and not at their namespace."""
        led = {leader.topic.namespace_name for leader in self._leading.values()}
        for namespace in await self._around.retention.changed(led):
            for leader in self._leading.values():
                if leader.topic.namespace_name == namespace:
                    leader.look_at_sealed()

    async def _is_another(self, leader: Leader) -> bool:
        """Whether a leader is another node's, and that node is alive."""
        return leader.session != self._session.record.session and await self._around.peers.is_alive(leader.session)

    async def _take(self, stored: StoredTopic, path: str) -> TopicLeader | None:
        if self._resigned or not self._session.held:
            raise Fenced("This node's session is not sure: try again, or ask another node.")
        node = self._session.record
        leader = await self._around.leaderships.take(stored, node)
        if leader is None or self._session.record != node:
            # Somebody was faster, or the session that it was taken with was lost on the way.
            return None
        found = TopicLeader(stored.name, stored.version.incarnation, leader, self._around)
        self._leading[path] = found
        self._nursery.start_soon(self._drive, found)
        return found

    async def _drive(self, leader: TopicLeader) -> None:
        try:
            await leader.run()
        finally:
            self._depose(leader)
            # Whoever came in the last moment relied on us, and the name may be another topic's by now.
            self.sweep()

    def _depose(self, leader: TopicLeader) -> None:
        leader.scope.cancel()
        path = keys.path_of(leader.topic)
        if self._leading.get(path) is leader:
            del self._leading[path]
