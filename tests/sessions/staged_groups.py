"""A group with real outboxes on socket pairs, a clock that stands still, and a store that the test plays."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from itertools import count

import trio
import trio.testing

from layout.layouts import Layout
from layout.records import TopicRecord, encode
from metadata import keys
from metadata.records import StoredTopic, Version
from protocol.framing import Frame, FrameDecoder
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from sessions.counters import CloseReason, Counters
from sessions.groups import Group, NamespaceWatch, Surroundings
from sessions.outbox import Outbox, OutboxLimits
from sessions.readback import Found, ReadBack

NAMESPACE = NamespaceName("public", "default")
PREFIX = "topic://public/default/"
WINDOW = 0.05
FRAME_LIMIT = 65_536

_VALUE = encode(TopicRecord(Layout.create(1, 0)))


def path_of(name: str) -> str:
    return keys.path_of(TopicName.scalable("public", "default", name))


@cache
def bucket_of(name: str) -> int:
    return keys.bucket_of(path_of(name))


def full(names: Iterable[str]) -> set[str]:
    return {PREFIX + name for name in names}


def hash_of(names: Iterable[str]) -> str:
    return topic_set_hash(full(names))


class Peer:
    """The far end of a connection, which checks what it is told: nothing twice, nothing that cannot be."""

    def __init__(self, nursery: trio.Nursery, counters: Counters, *, send_buffer: int | None = None) -> None:
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.sock.setblocking(False)
        if send_buffer is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.outbox = Outbox(ours, nursery, OutboxLimits(), counters, set())
        self.held: set[str] | None = None  # None until the first snapshot
        self.updates: list[api.CommandWatchScalableTopicsUpdate] = []
        self._decoder = FrameDecoder()

    @property
    def kinds(self) -> list[str | None]:
        return [update.WhichOneof("event") for update in self.updates]

    def believe(self, names: Iterable[str]) -> str:
        """Hold a set from an earlier life; its hash."""
        self.held = full(names)
        return topic_set_hash(self.held)

    def take(self) -> list[api.CommandWatchScalableTopicsUpdate]:
        """What has come by now, applied and checked."""
        taken = []
        while True:
            try:
                data = self.sock.recv(1_000_000)
            except BlockingIOError:
                break
            if not data:
                break
            for frame in self._decoder.receive(data):
                assert isinstance(frame, Frame)
                taken.append(frame.command.watchScalableTopicsUpdate)
                self._apply(taken[-1])
        self.updates += taken
        return taken

    def _apply(self, update: api.CommandWatchScalableTopicsUpdate) -> None:
        assert not update.HasField("error")
        if update.WhichOneof("event") == "snapshot":
            self.held = set(update.snapshot.topics)
            assert len(self.held) == len(update.snapshot.topics)
            return
        added, removed = set(update.diff.added), set(update.diff.removed)
        assert added or removed, "an empty diff"
        assert (len(added), len(removed)) == (len(update.diff.added), len(update.diff.removed))
        assert self.held is not None, "a diff before the snapshot"
        assert removed <= self.held, "removed what was not there"
        self.held -= removed
        assert not added & self.held, "added what was there"
        self.held |= added


class Stage:
    """The topics that there are, how they are read and listed, and one group that follows them."""

    def __init__(
        self, nursery: trio.Nursery, *, window: float, frame_limit: int, trusted: bool, topics: Iterable[str]
    ) -> None:
        self.counters = Counters()
        self.nursery = nursery
        self._incarnations = count(1)
        self.topics = {name: str(next(self._incarnations)) for name in topics}
        self.trusted = trusted
        self.untrusted: set[int] = set()  # these alone
        self.listings: list[int] = []
        self.reads = 0
        self.hash_matches = 0
        self.failures: list[Exception] = []
        self.listing_gate = trio.Event()
        self.listing_gate.set()
        self.read_gate = trio.Event()
        self.read_gate.set()
        self.peers: list[Peer] = []
        self.readback = ReadBack(nursery=nursery, read=self._read, trusted=self.is_trusted)
        around = Surroundings(nursery, self.readback, self, self.is_whole, window, frame_limit)
        self.group = Group(NAMESPACE, frozenset(), around)
        self.readback.add(self)
        self._watch_ids = count(1)

    def is_trusted(self, bucket: int) -> bool:
        return self.trusted and bucket not in self.untrusted

    def is_whole(self) -> bool:
        return self.trusted and not self.untrusted

    # What happens in the store.

    def put(self, *names: str, heard: bool = True) -> None:
        """Create these topics, or create them again."""
        for name in names:
            self.topics[name] = str(next(self._incarnations))
            if heard:
                self.hear(name)

    def remove(self, *names: str, heard: bool = True) -> None:
        for name in names:
            del self.topics[name]
            if heard:
                self.hear(name)

    def hear(self, *names: str) -> None:
        for name in names:
            self.readback.changed(bucket_of(name), path_of(name))

    def miss(self, buckets: Collection[int] = range(keys.BUCKETS)) -> None:
        """The feed declares a gap."""
        self.readback.gap(buckets)

    # Who watches.

    def peer(self, *, send_buffer: int | None = None) -> Peer:
        self.peers.append(Peer(self.nursery, self.counters, send_buffer=send_buffer))
        return self.peers[-1]

    def join(self, peer: Peer, current_hash: str | None = None) -> NamespaceWatch:
        watch = NamespaceWatch(peer.outbox, {}, next(self._watch_ids), current_hash, self.group)
        self.group.join(watch)
        return watch

    async def joined(self, current_hash: str | None = None) -> Peer:
        """A session that was told what there is, and after that it was quiet for long."""
        peer = self.peer()
        self.join(peer, current_hash)
        await settle()
        peer.take()
        await quiet()
        return peer

    # As the read-back and the group see it.

    def wants(self, bucket: int, path: str) -> bool:
        return True

    def patience(self, bucket: int, path: str) -> float:
        return self.group.read_at

    def apply(self, bucket: int, path: str, found: Found) -> None:
        incarnation = found.version.incarnation if isinstance(found, StoredTopic) else None
        self.group.update(bucket, path, keys.topic_at(path).local, incarnation)

    def gap(self, buckets: Collection[int]) -> None:
        self.group.list_again(buckets)

    async def members(self, buckets: Sequence[int], group: Group) -> dict[int, dict[str, str]]:
        self.listings += buckets
        seen: dict[int, dict[str, str]] = {bucket: {} for bucket in buckets}
        for name, incarnation in self.topics.items():
            if bucket_of(name) in seen:
                seen[bucket_of(name)][name] = incarnation
        await self.listing_gate.wait()
        await trio.lowlevel.checkpoint()
        if self.failures:
            raise self.failures.pop()
        return seen

    def note_hash_match(self) -> None:
        self.hash_matches += 1

    async def _read(self, topics: Sequence[TopicName]) -> list[Found]:
        self.reads += len(topics)
        seen = {topic.local: self.topics.get(topic.local) for topic in topics}
        await self.read_gate.wait()
        await trio.lowlevel.checkpoint()
        return [
            None if incarnation is None else StoredTopic(topic, _VALUE, Version(incarnation, 0), 0, 0)
            for topic, incarnation in zip(topics, seen.values(), strict=True)
        ]


async def settle() -> None:
    """Everything that can happen without time passing has happened."""
    await trio.testing.wait_all_tasks_blocked()


async def quiet() -> None:
    """Let all windows pass."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.jump(1.0)
    await settle()


@asynccontextmanager
async def staged(
    *topics: str, window: float = WINDOW, frame_limit: int = FRAME_LIMIT, trusted: bool = True
) -> AsyncIterator[Stage]:
    async with trio.open_nursery() as nursery:
        stage = Stage(nursery, window=window, frame_limit=frame_limit, trusted=trusted, topics=topics)
        yield stage
        for peer in stage.peers:
            peer.outbox.close(CloseReason.SHUTDOWN)
            peer.sock.close()
        nursery.cancel_scope.cancel()
