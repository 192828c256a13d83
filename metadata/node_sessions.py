"""A node's session in the store: the one lease it renews, and on which everything it may claim rests."""

from __future__ import annotations

import logging
import os
import time
from typing import Final

import msgspec
import trio

from metadata import keys, scripts
from metadata.errors import RecordDamaged, StoreError
from metadata.store import TopicStore

log = logging.getLogger(__name__)

# Clocks run at slightly different speeds and replies take time: stop believing in the lease this much earlier.
_MARGIN: Final = 0.1
_RENEWALS_PER_LEASE: Final = 3
_RELEASE_LIMIT: Final = 1.0
# An answer that took longer says too little about the time at which it was given.
_PROMPT: Final = 0.5


class NodeRecord(msgspec.Struct, frozen=True):
    """What other nodes read about this one."""

    session: str
    pulsar_url: str
    http_url: str


class NodeSession:
    """Holds a session while `run` runs. A session that ran out is never taken up again: the next has a new id."""

    def __init__(self, store: TopicStore, *, lease: float, pulsar_url: str, http_url: str) -> None:
        self.sessions_lost = 0
        self.record = NodeRecord(os.urandom(8).hex(), pulsar_url, http_url)
        self._store = store
        self._lease = lease
        self._held_until = float("-inf")
        self._lost = trio.Event()
        self._renewed = trio.Event()
        self._renounced = trio.Event()
        self._warned: set[str] = set()
        # Until the store was asked, the clock of this machine has to do.
        self._store_clock_ahead = time.time() - trio.current_time()

    def store_ms(self) -> int:
        """What the store's clock shows, in milliseconds since 1970: the same for all nodes, whatever theirs show."""
        return int((trio.current_time() + self._store_clock_ahead) * 1000)

    async def wait_held(self) -> None:
        """Return when the lease stands."""
        while not self.held:
            await self._renewed.wait()

    async def wait_lost(self) -> None:
        """Return when the session that is held now, or that is to be begun, has ended."""
        await self._lost.wait()

    @property
    def held(self) -> bool:
        """Whether the lease surely stands; counted from before the renewal was sent, on the monotonic clock."""
        return trio.current_time() < self._held_until and not self._renounced.is_set()

    def renounce(self) -> None:
        """Go on under another session: what the store knows of this one may be wrong, and nobody can put it right."""
        self._renounced.set()

    async def run(self) -> None:
        try:
            first = True
            while True:
                if self._renounced.is_set():
                    await self._release()
                    self._begin_another("the store went back to an earlier state")
                    self._renounced = trio.Event()
                    first = True
                first = await self._renew(first=first)
                with trio.move_on_after(self._lease / _RENEWALS_PER_LEASE):
                    await self._renounced.wait()
        finally:
            await self._release()

    async def _renew(self, *, first: bool) -> bool:
        """Prolong the session; returns whether the next call has to begin one."""
        sent_at = trio.current_time()
        node = keys.node_key(self.record.session)
        try:
            mine = await self._store.leases.script(
                keys.slot_of(node),
                scripts.RENEW_LEASE,
                [node],
                [msgspec.json.encode(self.record), int(self._lease * 1000), "1" if first else "0"],
                repeatable=True,
            )
        except StoreError as error:
            self._warn("the node session was not renewed: %s", error)
            # An attempt whose reply was lost may have begun the session; asking to begin it again is harmless.
            return first
        if mine:
            self._held_until = sent_at + self._lease * (1 - _MARGIN)
            self._renewed.set()
            self._renewed = trio.Event()
            await self._enter()
            return False
        self._begin_another("the node session ran out while the store was away")
        return await self._renew(first=True)

    def _begin_another(self, reason: str) -> None:
        self.sessions_lost += 1
        self._held_until = float("-inf")
        self.record = msgspec.structs.replace(self.record, session=os.urandom(8).hex())
        log.warning("%s: going on as node %s", reason, self.record.session)
        self._lost.set()
        self._lost = trio.Event()

    async def _enter(self) -> None:
        """See that others find the session. At every renewal: whoever took it for dead has struck it off the list."""
        sent_at = trio.current_time()
        try:
            _, (seconds, microseconds) = await self._store.leases.gather(
                [
                    (keys.NODES_SLOT, ("HSET", keys.NODES, self.record.session, "")),
                    (keys.NODES_SLOT, ("TIME",)),
                ]
            )
        except StoreError as error:
            self._warn("the node session was not listed: %s", error)
            return
        self._warned.clear()
        now = trio.current_time()
        if now - sent_at < _PROMPT:
            # Answered half way between sending and hearing, more or less.
            self._store_clock_ahead = int(seconds) + int(microseconds) / 1e6 - (sent_at + now) / 2

    def _warn(self, message: str, error: StoreError) -> None:
        """Once, until the session stands and is listed again."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning(message, error)

    async def _release(self) -> None:
        node = keys.node_key(self.record.session)
        own = msgspec.json.encode(self.record)
        leases = self._store.leases
        with trio.move_on_after(_RELEASE_LIMIT, shield=True) as limit:
            try:
                await leases.script(keys.slot_of(node), scripts.RELEASE_LEASE, [node], [own], repeatable=True)
                await leases.call(keys.NODES_SLOT, "HDEL", keys.NODES, self.record.session)
            except StoreError as error:
                log.info("the node session was left to run out: %s", error)
        if limit.cancelled_caught:
            log.info("the node session was left to run out: the store was too slow")


async def forget_sessions(store: TopicStore) -> None:
    """Strike off all sessions: for who knows that no other node is there."""
    try:
        names = await store.leases.call(keys.NODES_SLOT, "HKEYS", keys.NODES)
    except RecordDamaged:
        names = []  # something else stands there, and goes with it
    for name in names:
        node = keys.node_key(name.decode(errors="replace"))
        await store.leases.call(keys.slot_of(node), "UNLINK", node)
    await store.leases.call(keys.NODES_SLOT, "UNLINK", keys.NODES)
