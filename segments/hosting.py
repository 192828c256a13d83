"""Which logs this node has: claims them when a client comes, and gives them up when another node should have them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol

import trio

from metadata import keys
from metadata.complaints import note_waiting
from metadata.cursor_requests import CursorRequest
from metadata.errors import LogMissing, StoreError
from metadata.log_places import LogPlace
from metadata.log_states import LogState
from protocol.backoff import Backoff
from protocol.names import PERSISTENT, SEGMENT, SegmentName, TopicName
from segments import cursor_entries, placement
from segments.around import Around
from segments.errors import NoLog, NotAllowed, NotHere
from segments.open_log import OpenLog
from segments.ports import Nodes

log = logging.getLogger(__name__)

# Attempts to claim a log that others claim at the same time.
_ATTEMPTS: Final = 5
# What giving a log up may take; one that could not tell the store is claimed anew by whoever needs it.
_LET_GO_LIMIT: Final = 10.0
# Between two looks at a log while the store does not answer.
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 5.0


class ClassicLogs(Protocol):
    """Topics that are not scalable."""

    async def provide(self, topic: TopicName) -> None:
        """See that the log of this name is there; a StoreError where it may not be."""

    async def check(self, topic: TopicName) -> None:
        """Raise the same for a log that is not there, and create nothing."""


def place_of(name: str) -> LogPlace:
    """The log that a client names. Raises InvalidName."""
    if name.startswith(f"{SEGMENT}://"):
        segment = SegmentName.parse(name)
        return LogPlace.of_segment(segment.parent, segment.descriptor)
    topic = TopicName.parse(name)
    if topic.domain != PERSISTENT:
        raise NotAllowed(f"Messages of {topic} are in its segments: look the topic up with a client that knows them.")
    return LogPlace.of_classic(topic)


async def _nothing_deleted(topic: TopicName) -> Collection[tuple[str, str]]:
    return ()


def _has_registrations(owned: OpenLog) -> bool:
    """Whether a topic knows the subscriptions of a log: those of a classic one stand nowhere else until it is migrated,
    which seals it.
    """
    return owned.place.segment_id is not None or owned.sealed


class Hosting:
    """The open logs of a node. A listener of the change feed."""

    def __init__(
        self,
        around: Around,
        nodes: Nodes,
        classic: ClassicLogs,
        subscriptions: Callable[[TopicName], Awaitable[Mapping[str, str | None]]],
        *,
        deleted: Callable[[TopicName], Awaitable[Collection[tuple[str, str]]]] = _nothing_deleted,
        session_held: Callable[[], bool] = lambda: True,
    ) -> None:
        """`subscriptions` tells which a topic has, each with the id of its registration, and `deleted` which were
        deleted: others that it does not have, the store has lost.
        """
        self._around = around
        self._nodes = nodes
        self._classic = classic
        self._subscriptions = subscriptions
        self._deleted = deleted
        self._session_held = session_held
        self._open: dict[str, OpenLog] = {}
        self._opening: dict[str, trio.Event] = {}
        self._leaving: dict[str, trio.Event] = {}  # given up, and the store does not know yet
        self._by_path: dict[str, set[OpenLog]] = {}
        # By the scalable topic that they belong to, or would: a partition has a path of its own.
        self._by_topic: dict[str, set[OpenLog]] = {}
        self._looking: dict[OpenLog, bool] = {}  # whether it has to be looked at once more
        self._checking: dict[str, bool] = {}  # topics whose subscriptions are looked at, and whether once more
        self._adopted: set[OpenLog] = set()  # opened although no client wanted them
        self._stopping = False

    @property
    def logs(self) -> list[OpenLog]:
        return list(self._open.values())

    def get(self, name: str) -> OpenLog | None:
        return self._open.get(name)

    async def url_of(self, name: str) -> str:
        """Where a client should go for a log: to its owner, or else to the node that should own it.

        Raises what opening it there would: clients that are sent somewhere, and refused, give up more than this log.
        """
        place = place_of(name)
        here = self._nodes.nodes[0]
        try:
            state = await self._around.logs.state(place)
        except StoreError:
            if place.name in self._open:
                return here.pulsar_url  # as far as anybody can tell
            raise
        if place.name in self._open and state is not None and state.session == here.session:
            return here.pulsar_url
        if state is None:
            if place.segment_id is not None:
                raise _no_log(place)
            await self._classic.check(TopicName.parse(place.name))
        if place.name in self._leaving:
            return self._chosen_url(place.name)
        alive = state is not None and await self._nodes.is_alive(state.session)
        return placement.url_of(place.name, state.session if state is not None and alive else "", self._nodes.nodes)

    async def is_alive(self, session: str) -> bool:
        return await self._nodes.is_alive(session)

    async def is_elsewhere(self, session: str) -> bool:
        """Whether a session is that of another living node."""
        return session != self._nodes.nodes[0].session and await self._nodes.is_alive(session)

    async def open(self, name: str, *, by_force: bool = False, anywhere: bool = False, surely: bool = False) -> OpenLog:
        """The log, owned by this node. Raises NotHere, NoLog, and StoreError.

        `by_force`: taken from whichever node has it, whose clients come here then. `anywhere`: also where another node
        should have it, as long as none has. `surely`: the store is asked whether it is still ours. Writes find that out
        by themselves, but who reads would get what another node knows to be acknowledged.
        """
        place = place_of(name)
        while True:
            found = self._open.get(place.name)
            if found is not None:
                if surely:
                    await self._compare(found)
                if found.is_open:
                    return found
                continue
            under_way = self._opening.get(place.name, self._leaving.get(place.name))
            if under_way is None:
                return await self._claim_alone(place, by_force, anywhere)
            await under_way.wait()

    def should_have(self, name: str) -> bool:
        """Whether this node is the one for a log that it does not have and that nobody else has."""
        return not self._is_known(name) and self.chosen(name) == self._nodes.nodes[0].session

    async def adopt(self, place: LogPlace, state: LogState) -> None:
        """Open a log that was seen to be nobody's, unless that has changed since. Raises StoreError.

        It is given up again when all of it that can go is gone, unless clients come.
        """
        if self._stopping or not self._session_held() or not self.should_have(place.name):
            return
        done = self._opening[place.name] = trio.Event()
        try:
            if (owned := await self._enter(place, state)) is not None:
                self._adopted.add(owned)
        finally:
            del self._opening[place.name]
            done.set()

    def is_adopted(self, owned: OpenLog) -> bool:
        """Whether it was opened although no client wanted it."""
        return owned in self._adopted

    def _is_known(self, name: str) -> bool:
        return name in self._open or name in self._opening or name in self._leaving

    async def _claim_alone(self, place: LogPlace, by_force: bool, anywhere: bool) -> OpenLog:
        done = self._opening[place.name] = trio.Event()
        try:
            return await self._claim(place, by_force, anywhere)
        finally:
            del self._opening[place.name]
            done.set()

    async def _claim(self, place: LogPlace, by_force: bool, anywhere: bool) -> OpenLog:
        for _ in range(_ATTEMPTS):
            if self._stopping or not self._session_held():
                raise NotHere(f"This node cannot serve {place.name} now: look it up again.")
            state = await self._state(place)
            mine = self._nodes.nodes[0].session
            if state.session != mine and not by_force:
                if state.session and await self._nodes.is_alive(state.session):
                    raise NotHere(f"{place.name} is served by another node: look it up again.")
                if not anywhere and self.chosen(place.name) != mine:
                    raise NotHere(f"{place.name} belongs to another node: look it up again.")
            if (owned := await self._enter(place, state)) is not None:
                return owned
        raise NotHere(f"{place.name} is claimed by several nodes at once: look it up again.")

    async def _enter(self, place: LogPlace, state: LogState) -> OpenLog | None:
        """Own a log in the place of the owner that was seen; None if somebody was faster or it is gone."""
        opened = await self._around.logs.claim(place, state, self._nodes.nodes[0].session)
        if opened is None:
            return None
        try:
            owned = OpenLog(opened, self._around, self._forget)
            await owned.carry_out(opened.state.requests)
        except NotHere:
            return None
        except StoreError:
            await self._around.logs.release(opened.claim)  # what is damaged in it, is so for all
            raise
        self._around.counters.opened += 1
        self._open[place.name] = owned
        self._by_path.setdefault(place.path, set()).add(owned)
        self._by_topic.setdefault(place.topic_path, set()).add(owned)
        if self._stopping:
            # The others were given up meanwhile.
            await self.let_go(owned)
            return None
        # What has happened between the claim and now was heard by nobody, nor what has while nobody had it.
        self.look_soon(owned)
        self.check_soon(owned)
        return owned

    async def _state(self, place: LogPlace) -> LogState:
        state = await self._around.logs.state(place)
        if state is None and place.segment_id is None:
            await self._classic.provide(TopicName.parse(place.name))
            state = await self._around.logs.state(place)
        if state is None:
            raise _no_log(place)
        return state

    def chosen(self, name: str) -> str | None:
        """The session of the node that should have a log."""
        return placement.choose(name, (node.session for node in placement.candidates(self._nodes.nodes)))

    def _chosen_url(self, name: str) -> str:
        return placement.url_of(name, "", self._nodes.nodes)

    def _forget(self, owned: OpenLog) -> None:
        if self._open.get(owned.name) is owned:
            del self._open[owned.name]
        self._adopted.discard(owned)
        for index, path in ((self._by_path, owned.place.path), (self._by_topic, owned.place.topic_path)):
            siblings = index.get(path)
            if siblings is not None:
                siblings.discard(owned)
                if not siblings:
                    del index[path]

    # What the change feed calls.

    def changed(self, bucket: int, path: str) -> None:
        for owned in self._by_path.get(path, ()):
            self.look_soon(owned)

    def registered(self, bucket: int, path: str) -> None:
        """A subscription may have been deleted."""
        for owned in self._by_topic.get(path, ()):
            self.check_soon(owned)

    def check_soon(self, owned: OpenLog) -> None:
        """See before long whether its topic still has the subscriptions that a log has."""
        path = owned.place.topic_path
        if not _has_registrations(owned) or not (owned.subscriptions or owned.damaged):
            return
        if path in self._checking:
            self._checking[path] = True
        else:
            self._checking[path] = False
            self._around.nursery.start_soon(self._check_subscriptions, path)

    async def is_sealed(self, owned: OpenLog) -> bool:
        """Whether the store has a log sealed by now: that of a classic topic by its migration, and by nothing else."""
        state = await self._around.logs.state(owned.place)
        return state is not None and state.sealed

    async def _check_subscriptions(self, path: str) -> None:
        """Forget those that the topic does not have any more, or has another one of. Whoever subscribes enters it there
        first.
        """
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            while True:
                self._checking[path] = False
                known = [
                    (log_, subscription)
                    for log_ in self._by_topic.get(path, ())
                    if _has_registrations(log_)
                    for subscription in log_.subscriptions.values()
                ]
                topic = keys.topic_at(path)
                try:
                    there = await self._subscriptions(topic)
                    foreign = [
                        (log_, it) for log_, it in known if not cursor_entries.belongs(it.identity, there, it.name)
                    ]
                    for log_ in list(self._by_topic.get(path, ())):
                        for name in [name for name in log_.damaged if name not in there]:
                            if _has_registrations(log_):
                                await log_.remove(name)
                    deleted = await self._deleted(topic) if foreign else ()
                    for log_, it in foreign:
                        if log_.subscriptions.get(it.name) is it:
                            await log_.remove(it.name, dismissing=(it.identity, it.name) in deleted)
                except NotHere:
                    continue  # the others have still to be looked at
                except StoreError as error:
                    note_waiting(log, error, "subscriptions of %s cannot be looked at now", path)
                    await trio.sleep(backoff.next())
                    continue
                if not self._checking[path]:
                    return
        finally:
            del self._checking[path]

    def classic(self, bucket: int, path: str) -> None:
        self.changed(bucket, path)

    def orphaned(self, bucket: int, path: str) -> None:
        """Nor are leaders."""

    def gap(self, buckets: Collection[int]) -> None:
        gone = set(buckets)
        for path in list(self._by_topic):
            if keys.bucket_of(path) in gone:
                self.registered(keys.bucket_of(path), path)
        for owned in self._open.values():
            if owned.place.bucket in gone:
                self.look_soon(owned)

    def look_soon(self, owned: OpenLog) -> None:
        """See before long whether a log is still ours."""
        if owned in self._looking:
            self._looking[owned] = True
        else:
            self._looking[owned] = False
            self._around.nursery.start_soon(self._look, owned)

    async def _look(self, owned: OpenLog) -> None:
        """See whether a log is still ours and open for writing."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            while owned.is_open:
                self._looking[owned] = False
                try:
                    await self._compare(owned)
                except StoreError as error:
                    # Not every trouble of a call is one of the feed, which would lead to another look.
                    log.debug("%s cannot be looked at now: %s", owned.name, error)
                    await trio.sleep(backoff.next())
                    continue
                if not self._looking[owned]:
                    return
        finally:
            del self._looking[owned]

    async def _compare(self, owned: OpenLog) -> None:
        """Take over what the store has of a log now, and if it is another's, its end."""
        reached = owned.next
        state = await self._around.logs.state(owned.place)
        if state is None or state.incarnation != owned.incarnation:
            owned.lose(LogMissing(f"{owned.name} was deleted: look the topic up again."))
        elif state.session != owned.claim.session:
            owned.lose(LogMissing(f"{owned.name} is served by another node: look it up again."))
        elif state.next < reached:
            owned.lose(LogMissing(f"The store has lost the end of {owned.name}: look it up again."))
        else:
            if state.sealed:
                owned.note_sealed()
            if state.requests:
                await self._carry_out(owned, state.requests)

    async def _carry_out(self, owned: OpenLog, requests: Mapping[str, CursorRequest]) -> None:
        try:
            await owned.carry_out(requests)
        except NotHere as error:
            # It has ended meanwhile: whoever has it next carries them out.
            log.debug("cursors of %s are not moved here: %s", owned.name, error)
        # A subscription that was deleted before the request stood is there again, and nobody would tell.
        self.check_soon(owned)

    # Giving up.

    async def release_all(self) -> None:
        """The node stops: whoever takes the logs over need not wait for its lease to end."""
        self._stopping = True
        async with trio.open_nursery() as nursery:
            for owned in self.logs:
                nursery.start_soon(self.let_go, owned)

    async def let_go(self, owned: OpenLog) -> None:
        """Give a log up in order, as far as the store answers in time."""
        if owned.name in self._leaving:
            return
        done = self._leaving[owned.name] = trio.Event()
        try:
            with trio.move_on_after(_LET_GO_LIMIT) as limit:
                await owned.let_go(self._chosen_url(owned.name) if not self._stopping else None)
        except StoreError as error:
            note_waiting(log, error, "%s is not given up in order", owned.name)
        else:
            if limit.cancelled_caught:
                log.info("%s is not given up in order: the store does not answer", owned.name)
        finally:
            del self._leaving[owned.name]
            done.set()


def _no_log(place: LogPlace) -> NoLog:
    return NoLog(f"{place.name} does not exist: look its topic up again.")
