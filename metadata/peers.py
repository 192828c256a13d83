"""Which nodes are alive: all sessions in the store, looked at a few times per lease and whenever one is due to end."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec
import trio

from metadata import keys
from metadata.errors import StoreError
from metadata.node_sessions import NodeRecord, NodeSession
from metadata.store import TopicStore
from metadata.stored_values import UNREADABLE

log = logging.getLogger(__name__)

_LOOKS_PER_LEASE: Final = 3
# After the moment when a lease ends: looking a little late is cheaper than looking twice.
_DELAY: Final = 0.02
_SHORTEST_PAUSE: Final = 0.05
# By how much a lease must end later than it did at the last look, in intervals between looks, so as not to be noise.
_RENEWAL: Final = 0.3
# Sessions that somebody named and no look has found. They never come back, so it is only about what that may cost.
_UNKNOWN: Final = 1_000
_SESSION: Final = re.compile(rb"[0-9a-f]{16}")


def _record(session: str, value: bytes) -> NodeRecord:
    """What a node says about itself. That it is alive does not hang on whether this version can read it."""
    try:
        return msgspec.json.decode(value, type=NodeRecord)
    except UNREADABLE:
        return NodeRecord(session, "", "")


class Peers:
    """A view of the nodes. Expiry events of the store come too late to be of use, so every node looks for itself."""

    def __init__(
        self,
        store: TopicStore,
        session: NodeSession,
        *,
        lease: float,
        on_death: Callable[[Collection[str]], None],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called whenever `nodes` has become another list."""
        self._store = store
        self._session = session
        self._interval = lease / _LOOKS_PER_LEASE
        self._on_death = on_death
        self._on_change = on_change
        self._nodes: Sequence[NodeRecord] = (session.record,)
        self._told: Sequence[NodeRecord] = self._nodes  # to whoever waits for changes
        self._unknown: set[str] = set()
        self._named = trio.Event()  # a session that no look has found yet
        self._alive: dict[str, NodeRecord] = {}
        self._ends: dict[str, float] = {}  # when each lease ends, as of the last look
        self._renewed: set[str] = set()  # those that were seen to be prolonged
        self._looked_at = float("-inf")
        self._in_touch_since = float("inf")

    @property
    def in_touch_since(self) -> float:
        """Since when the store has answered without a break; infinite while it does not, or we were not running."""
        return self._in_touch_since if self._looks_regular() else float("inf")

    def _looks_regular(self) -> bool:
        return trio.current_time() - self._looked_at <= 2 * self._interval

    @property
    def nodes(self) -> Sequence[NodeRecord]:
        """All that were alive at the last look, this one first."""
        if self._nodes[0] is not self._session.record:
            self._note_nodes()
        return self._nodes

    def _note_nodes(self) -> None:
        """Kept, because this is asked for every segment of every layout."""
        own = self._session.record
        self._nodes = (own, *(node for name, node in sorted(self._alive.items()) if name != own.session))

    def _tell_changes(self) -> None:
        self._note_nodes()
        if self._nodes != self._told:
            self._told = self._nodes
            self._on_change()

    def heard_of(self, session: str) -> None:
        """Somebody has met this session: if it is not known, it may be of a node that has just come. Look, but once."""
        if self.seemed_alive(session) or session in self._unknown:
            return
        if len(self._unknown) >= _UNKNOWN:
            self._unknown.clear()
        self._unknown.add(session)
        self._named.set()

    async def is_alive(self, session: str) -> bool:
        """By the last look, or by another one for a session that was not seen at it.

        What is left of this node itself from before it was killed is not alive, though its lease may still stand.
        """
        if session in self._alive or session == self._session.record.session:
            return True
        if not session:
            return False
        node = keys.node_key(session)
        value: bytes | None = await self._store.leases.call(keys.slot_of(node), "GET", node)
        if value is None or self._is_own_past(record := _record(session, value)):
            return False
        # From now on it is missed when it is gone, also if it was never there at a look.
        self._alive[session] = record
        self._tell_changes()
        return True

    def _is_own_past(self, record: NodeRecord) -> bool:
        """Whether this is what is left of this node from before it was killed: at our address, and not prolonged."""
        own = self._session.record
        return record.session not in (own.session, *self._renewed) and record.pulsar_url == own.pulsar_url

    def seemed_alive(self, session: str) -> bool:
        """By the last look alone."""
        return session in self._alive or session == self._session.record.session

    async def run(self) -> None:
        while True:
            pause = self._interval
            self._named = trio.Event()
            try:
                pause = min(pause, max(await self._look() + _DELAY, _SHORTEST_PAUSE))
            except StoreError as error:
                log.debug("the other nodes cannot be looked at now: %s", error)
            with trio.move_on_after(pause):
                await self._named.wait()

    async def _look(self) -> float:
        """Take in who is there, tell who has gone; seconds until the next lease ends."""
        leases = self._store.leases
        mine = self._session.record.session
        names: list[bytes] = await leases.call(keys.NODES_SLOT, "HKEYS", keys.NODES)
        listed = [name.decode() for name in names if _SESSION.fullmatch(name)]
        requests = [
            (keys.slot_of(key), (command, key)) for key in map(keys.node_key, listed) for command in ("GET", "PTTL")
        ]
        replies = await leases.gather_available(requests, limit=self._interval)
        now = trio.current_time()
        alive: dict[str, NodeRecord] = {}
        dead: list[str] = []
        ends: dict[str, float] = {}
        for name, value, left in zip(listed, replies[::2], replies[1::2], strict=True):
            if isinstance(value, StoreError) or isinstance(left, StoreError):
                # Nobody can tell, and who is not known to be dead is not treated so.
                alive[name] = self._alive.get(name) or NodeRecord(name, "", "")
            elif value is not None:
                alive[name] = _record(name, value)
                ends[name] = now + left / 1000
            elif name != mine:
                dead.append(name)
        self._notice_renewals(alive, ends)
        alive = {name: record for name, record in alive.items() if not self._is_own_past(record)}
        gone = {*dead, *(name for name in self._alive if name not in alive)} - {mine}
        urls = {name: f"{name} ({self._alive[name].pulsar_url})" if name in self._alive else name for name in gone}
        self._alive = alive
        if not self._looks_regular():
            self._in_touch_since = trio.current_time()
        self._looked_at = trio.current_time()
        self._tell_changes()
        if gone:
            log.info("nodes that are gone: %s", ", ".join(sorted(urls.values())))
            self._on_death(gone)
        if dead:
            # Last: whoever is not on the list any more is not found to be dead again.
            await leases.call(keys.NODES_SLOT, "HDEL", keys.NODES, *dead)
        return min((end - now for name, end in ends.items() if name != mine), default=self._interval)

    def _notice_renewals(self, there: dict[str, NodeRecord], ends: dict[str, float]) -> None:
        own = self._session.record
        for name, end in ends.items():
            if name in self._renewed or end <= self._ends.get(name, end) + _RENEWAL * self._interval:
                continue
            self._renewed.add(name)
            if name != own.session and there[name].pulsar_url == own.pulsar_url:
                log.warning(
                    "another node, %s, advertises %s as well: give each node an address of its own with --advertise",
                    name,
                    own.pulsar_url,
                )
        self._renewed &= ends.keys()
        self._ends = ends
