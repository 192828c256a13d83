"""Which logs this node has: claims them when a client comes, and gives them up when another node should have them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

import trio

from metadata.errors import LogMissing, StoreError
from metadata.log_places import LogPlace
from metadata.log_states import LogState
from protocol.names import PERSISTENT, SEGMENT, SegmentName, TopicName
from segments import placement
from segments.errors import NoLog, NotAllowed, NotHere
from segments.open_log import Around, OpenLog
from segments.ports import Nodes

log = logging.getLogger(__name__)

# Attempts to claim a log that others claim at the same time.
_ATTEMPTS: Final = 5
# Logs that are given up at once because they belong elsewhere: each move makes its clients connect anew.
_MOVES: Final = 8
# A node must have been there for so many rounds before logs move to it.
_SETTLED_ROUNDS: Final = 2


class ClassicLogs(Protocol):
    """Topics that are not scalable."""

    async def ensure(self, topic: TopicName) -> bool:
        """Create a topic where that is allowed; whether it is there."""


def place_of(name: str) -> LogPlace:
    """The log that a client names. Raises InvalidName."""
    if name.startswith(f"{SEGMENT}://"):
        segment = SegmentName.parse(name)
        return LogPlace.of_segment(segment.parent, segment.descriptor)
    topic = TopicName.parse(name)
    if topic.domain != PERSISTENT:
        raise NotAllowed(f"Messages of {topic} are in its segments: look the topic up with a client that knows them.")
    return LogPlace.of_classic(topic)


class Hosting:
    """The open logs of a node. A listener of the change feed."""

    def __init__(
        self,
        around: Around,
        nodes: Nodes,
        classic: ClassicLogs,
        *,
        rebalance_interval: float,
        session_held: Callable[[], bool] = lambda: True,
    ) -> None:
        self._around = around
        self._nodes = nodes
        self._classic = classic
        self._interval = rebalance_interval
        self._session_held = session_held
        self._open: dict[str, OpenLog] = {}
        self._opening: dict[str, trio.Event] = {}
        self._by_path: dict[str, set[OpenLog]] = {}
        self._looking: dict[OpenLog, bool] = {}  # whether it has to be looked at once more
        self._known_rounds: dict[str, int] = {}
        self._stopping = False

    @property
    def logs(self) -> list[OpenLog]:
        return list(self._open.values())

    def get(self, name: str) -> OpenLog | None:
        return self._open.get(name)

    async def url_of(self, name: str) -> str:
        """Where a client should go for a log: to its owner, or else to the node that should own it."""
        place = place_of(name)
        if place.name in self._open:
            return self._nodes.nodes[0].pulsar_url
        state = await self._around.logs.state(place)
        if state is not None and state.session and await self._nodes.is_alive(state.session):
            for node in self._nodes.nodes:
                if node.session == state.session and node.pulsar_url:
                    return node.pulsar_url
        return self._chosen_url(place.name)

    async def open(self, name: str) -> OpenLog:
        """The log, owned by this node. Raises NotHere, NoLog, and StoreError."""
        place = place_of(name)
        while True:
            found = self._open.get(place.name)
            if found is not None:
                return found
            opening = self._opening.get(place.name)
            if opening is None:
                return await self._claim_alone(place)
            await opening.wait()

    async def _claim_alone(self, place: LogPlace) -> OpenLog:
        done = self._opening[place.name] = trio.Event()
        try:
            return await self._claim(place)
        finally:
            del self._opening[place.name]
            done.set()

    async def _claim(self, place: LogPlace) -> OpenLog:
        for _ in range(_ATTEMPTS):
            if self._stopping or not self._session_held():
                raise NotHere(f"This node cannot serve {place.name} now: look it up again.")
            state = await self._state(place)
            mine = self._nodes.nodes[0].session
            if state.session and state.session != mine and await self._nodes.is_alive(state.session):
                raise NotHere(f"{place.name} is served by another node: look it up again.")
            if state.session != mine and self._chosen(place.name) != mine:
                raise NotHere(f"{place.name} belongs to another node: look it up again.")
            opened = await self._around.logs.claim(place, state, mine)
            if opened is not None:
                self._around.counters.opened += 1
                owned = self._open[place.name] = OpenLog(opened, self._around, self._forget)
                self._by_path.setdefault(place.path, set()).add(owned)
                # What has happened between the claim and now was heard by nobody.
                self._look_soon(owned)
                return owned
        raise NotHere(f"{place.name} is claimed by several nodes at once: look it up again.")

    async def _state(self, place: LogPlace) -> LogState:
        state = await self._around.logs.state(place)
        if state is None and place.segment_id is None and await self._classic.ensure(TopicName.parse(place.name)):
            state = await self._around.logs.state(place)
        if state is None:
            raise NoLog(f"{place.name} does not exist: look its topic up again.")
        return state

    def _chosen(self, name: str) -> str | None:
        return placement.choose(name, (node.session for node in self._nodes.nodes))

    def _chosen_url(self, name: str) -> str:
        chosen = self._chosen(name)
        return next(
            (node.pulsar_url for node in self._nodes.nodes if node.session == chosen and node.pulsar_url),
            self._nodes.nodes[0].pulsar_url,
        )

    def _forget(self, owned: OpenLog) -> None:
        if self._open.get(owned.name) is owned:
            del self._open[owned.name]
        siblings = self._by_path.get(owned.place.path)
        if siblings is not None:
            siblings.discard(owned)
            if not siblings:
                del self._by_path[owned.place.path]

    # What the change feed calls.

    def changed(self, bucket: int, path: str) -> None:
        for owned in self._by_path.get(path, ()):
            self._look_soon(owned)

    def registered(self, bucket: int, path: str) -> None:
        """Consumers are of no concern here."""

    def orphaned(self, bucket: int, path: str) -> None:
        """Nor are leaders."""

    def gap(self, buckets: Collection[int]) -> None:
        gone = set(buckets)
        for owned in self._open.values():
            if owned.place.bucket in gone:
                self._look_soon(owned)

    def _look_soon(self, owned: OpenLog) -> None:
        if owned in self._looking:
            self._looking[owned] = True
        else:
            self._looking[owned] = False
            self._around.nursery.start_soon(self._look, owned)

    async def _look(self, owned: OpenLog) -> None:
        """See whether a log is still ours and open for writing."""
        try:
            while owned.is_open:
                self._looking[owned] = False
                try:
                    state = await self._around.logs.state(owned.place)
                except StoreError as error:
                    log.debug("%s cannot be looked at now: %s", owned.name, error)
                    return  # when the store is back there is a gap, and another look
                if state is None or state.incarnation != owned.incarnation:
                    owned.lose(LogMissing(f"{owned.name} was deleted: look the topic up again."))
                elif state.session != owned.claim.session:
                    owned.lose(LogMissing(f"{owned.name} is served by another node: look it up again."))
                elif state.sealed:
                    owned.note_sealed()
                if not self._looking[owned]:
                    return
        finally:
            del self._looking[owned]

    # Moving.

    async def run(self) -> None:
        """Give up logs that belong to other nodes now, a few at a time."""
        while True:
            await trio.sleep(self._interval)
            await self.rebalance()

    async def rebalance(self) -> None:
        others = {node.session for node in self._nodes.nodes[1:]}
        self._known_rounds = {session: self._known_rounds.get(session, 0) + 1 for session in others}
        moving = 0
        for owned in self.logs:
            chosen = self._chosen(owned.name)
            if chosen is None or self._known_rounds.get(chosen, 0) < _SETTLED_ROUNDS:
                continue
            await self._let_go(owned)
            moving += 1
            if moving == _MOVES:
                return

    async def release_all(self) -> None:
        """The node stops: whoever takes the logs over need not wait for its lease to end."""
        self._stopping = True
        async with trio.open_nursery() as nursery:
            for owned in self.logs:
                nursery.start_soon(self._let_go, owned)

    async def _let_go(self, owned: OpenLog) -> None:
        try:
            await owned.let_go(self._chosen_url(owned.name) if not self._stopping else None)
        except StoreError as error:
            log.info("%s is not given up in order: %s", owned.name, error)
