"""The hub with real outboxes on socket pairs, and a store that the test plays: what is told, when, and to whom."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio

from layout.layouts import Layout
from layout.records import TopicRecord, encode
from metadata import keys
from metadata.errors import RecordDamaged, StoreError, StoreFull, StoreUnavailable
from metadata.records import StoredTopic, Version
from protocol.errors import InvalidName
from protocol.framing import Frame, FrameDecoder
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from sessions.counters import CloseReason, Counters
from sessions.hub import Hub
from sessions.outbox import Outbox, OutboxLimits
from sessions.points import Watch
from sessions.readback import ReadBack
from tests.support.waiting import eventually

TOPIC = TopicName.parse("topic://public/default/orders")
PATH = keys.path_of(TOPIC)
BUCKET = keys.bucket_of(PATH)
NOTICE = 0.15


class Store:
    """A store in memory whose reads can be held, failed and counted."""

    def __init__(self) -> None:
        self.topics: dict[TopicName, StoredTopic | RecordDamaged] = {}
        self.reads = 0
        self.created: list[TopicName] = []
        self.trusted = True
        self.failures: list[Exception] = []
        self.creation_failures: list[Exception] = []
        self.gate = trio.Event()
        self.gate.set()

    def put(self, layout: Layout, *, incarnation: str = "a" * 16, number: int = 0, topic: TopicName = TOPIC) -> None:
        version = Version(incarnation, number)
        self.topics[topic] = StoredTopic(topic, encode(TopicRecord(layout)), version, 0, 0)

    async def read(self, topics: Sequence[TopicName]) -> list[StoredTopic | RecordDamaged | None]:
        self.reads += 1
        seen: list[StoredTopic | RecordDamaged | None] = [self.topics.get(topic) for topic in topics]
        await self.gate.wait()
        if self.failures:
            raise self.failures.pop()
        return seen

    async def create(self, topic: TopicName) -> None:
        await trio.lowlevel.checkpoint()
        if self.creation_failures:
            raise self.creation_failures.pop()
        self.created.append(topic)
        self.put(Layout.create(1, 0), topic=topic)


class Peer:
    """The far end of a connection."""

    def __init__(self, nursery: trio.Nursery, counters: Counters) -> None:
        ours, self.sock = socket.socketpair()
        ours.setblocking(False)
        self.sock.setblocking(False)
        self.outbox = Outbox(ours, nursery, OutboxLimits(), counters, set())
        self.registry: dict[int, Watch] = {}
        self._decoder = FrameDecoder()
        self._received: list[api.CommandScalableTopicUpdate] = []

    async def next(self) -> api.CommandScalableTopicUpdate:
        with trio.fail_after(30):
            while not self._received:
                await trio.lowlevel.wait_readable(self.sock)
                self._take()
        return self._received.pop(0)

    async def silence(self) -> bool:
        """Nothing arrives, although everything that could send something had its turn."""
        await trio.testing.wait_all_tasks_blocked(0.02)
        try:
            self._take()
        except BlockingIOError:
            pass
        return not self._received

    def _take(self) -> None:
        for frame in self._decoder.receive(self.sock.recv(1_000_000)):
            assert isinstance(frame, Frame)
            self._received.append(frame.command.scalableTopicUpdate)


class Stage:
    def __init__(self, nursery: trio.Nursery, *, auto_create: bool, notice: float) -> None:
        self.store = Store()
        self.nursery = nursery
        self.counters = Counters()
        self.readback = ReadBack(nursery=nursery, read=self.store.read, trusted=lambda _: self.store.trusted)
        self.hub = Hub(
            nursery=nursery,
            readback=self.readback,
            create=self.store.create,
            owner_url="pulsar://node:1",
            auto_create=auto_create,
            deletion_notice=notice,
        )
        self.peers: list[Peer] = []

    def peer(self) -> Peer:
        self.peers.append(Peer(self.nursery, self.counters))
        return self.peers[-1]

    def open(self, peer: Peer, session_id: int = 1, *, topic: TopicName = TOPIC, create: bool = False) -> None:
        self.hub.open(peer.outbox, peer.registry, session_id, topic, topic.domain if create else None)

    def change(self) -> None:
        self.readback.changed(BUCKET, PATH)


@asynccontextmanager
async def staged(*, auto_create: bool = True, notice: float = NOTICE) -> AsyncIterator[Stage]:
    async with trio.open_nursery() as nursery:
        stage = Stage(nursery, auto_create=auto_create, notice=notice)
        nursery.start_soon(stage.hub.run)
        yield stage
        for peer in stage.peers:
            peer.outbox.close(CloseReason.SHUTDOWN)
            peer.sock.close()
        nursery.cancel_scope.cancel()


async def test_the_first_watch_reads_and_the_second_does_not() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(2, 0))
        first, second = stage.peer(), stage.peer()
        stage.open(first, 7)
        update = await first.next()
        assert (update.session_id, len(update.dag.segments)) == (7, 2)
        assert update.resolved_topic_name == str(TOPIC)
        stage.open(second, 8)
        assert (await second.next()).dag == update.dag
        assert stage.store.reads == 1


async def test_a_change_is_read_once_and_told_to_all() -> None:
    async with staged() as stage:
        layout = Layout.create(1, 0)
        stage.store.put(layout)
        peers = [stage.peer() for _ in range(200)]
        for peer in peers:
            stage.open(peer)
        for peer in peers:
            assert (await peer.next()).dag.epoch == 0
        reads = stage.store.reads
        stage.store.put(layout.split(0, 1), number=1)
        stage.change()
        for peer in peers:
            assert (await peer.next()).dag.epoch == 1
        assert stage.store.reads == reads + 1


async def test_an_event_that_changes_nothing_tells_nothing() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(1, 0))
        peer = stage.peer()
        stage.open(peer)
        await peer.next()
        stage.store.put(Layout.create(1, 0), number=1)
        stage.change()
        assert await peer.silence()


async def test_a_change_during_a_read_is_read_again() -> None:
    async with staged() as stage:
        layout = Layout.create(1, 0)
        stage.store.put(layout)
        peer = stage.peer()
        stage.store.gate = trio.Event()
        stage.open(peer)
        await eventually(lambda: stage.store.reads == 1)
        stage.store.put(layout.split(0, 1), number=1)
        stage.change()
        stage.store.gate.set()
        epochs = [(await peer.next()).dag.epoch, (await peer.next()).dag.epoch]
        assert epochs == [0, 1]


async def test_not_found_never_comes_from_a_read_that_began_before_the_lookup() -> None:
    async with staged() as stage:
        early, late = stage.peer(), stage.peer()
        stage.store.gate = trio.Event()
        stage.open(early)
        await eventually(lambda: stage.store.reads == 1)
        stage.open(late)
        stage.store.put(Layout.create(1, 0))
        stage.store.gate.set()
        assert (await late.next()).HasField("dag")
        assert (await early.next()).HasField("dag")


async def test_a_missing_topic_is_created_once_for_all_who_ask_for_it() -> None:
    async with staged() as stage:
        peers = [stage.peer() for _ in range(5)]
        for peer in peers:
            stage.open(peer, create=True)
        for peer in peers:
            assert len((await peer.next()).dag.segments) == 1
        assert stage.store.created == [TOPIC]


@pytest.mark.parametrize(("auto_create", "create"), [(True, False), (False, True)])
async def test_a_missing_topic_that_must_not_be_created_is_not_found(auto_create: bool, create: bool) -> None:
    async with staged(auto_create=auto_create) as stage:
        peer = stage.peer()
        stage.open(peer, create=create)
        update = await peer.next()
        assert update.error == api.TopicNotFound
        assert not update.HasField("dag")
        assert peer.registry == {}
        assert stage.hub.counters.watches == stage.hub.counters.points == 0


async def test_a_name_that_cannot_be_created_gets_a_verdict() -> None:
    async with staged() as stage:
        peer = stage.peer()
        stage.store.creation_failures = [InvalidName("no such name")]
        stage.open(peer, create=True)
        update = await peer.next()
        assert (update.error, update.message) == (api.InvalidTopicName, "no such name")


async def test_creation_waits_for_a_store_that_is_full_or_away() -> None:
    async with staged() as stage:
        peer = stage.peer()
        stage.store.creation_failures = [StoreFull("full"), StoreUnavailable("away")]
        stage.open(peer, create=True)
        assert (await peer.next()).HasField("dag")


async def test_a_failed_read_is_tried_again_and_tells_no_error() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(1, 0))
        stage.store.failures = [StoreUnavailable("away"), StoreUnavailable("away")]
        peer = stage.peer()
        stage.open(peer)
        assert (await peer.next()).HasField("dag")
        assert stage.readback.counters.failed == 2


async def test_nothing_is_told_while_the_store_is_not_trusted() -> None:
    async with staged() as stage:
        layout = Layout.create(1, 0)
        stage.store.put(layout)
        watcher, late = stage.peer(), stage.peer()
        stage.open(watcher)
        await watcher.next()
        stage.store.trusted = False
        stage.store.topics.clear()
        stage.change()
        stage.open(late)
        await trio.sleep(2 * NOTICE)
        assert await watcher.silence()
        assert await late.silence()
        stage.store.put(layout.split(0, 1), number=1)
        stage.store.trusted = True
        stage.readback.gap([BUCKET])
        assert (await watcher.next()).dag.epoch == 1
        assert (await late.next()).dag.epoch == 1


async def test_a_read_that_a_gap_overtook_does_not_count() -> None:
    async with staged() as stage:
        layout = Layout.create(1, 0)
        stage.store.put(layout)
        peer = stage.peer()
        stage.open(peer)
        await peer.next()
        stage.store.gate = trio.Event()
        stage.store.put(layout.split(0, 1), number=1)
        stage.change()
        await eventually(lambda: stage.store.reads == 2)
        stage.store.trusted = False
        stage.store.gate.set()
        assert await peer.silence()
        stage.store.put(layout, number=0)
        stage.store.trusted = True
        stage.readback.gap([BUCKET])
        assert await peer.silence()


async def test_a_topic_recreated_within_the_notice_is_an_ordinary_update() -> None:
    notice = 1.5
    async with staged(notice=notice) as stage:
        stage.store.put(Layout.create(1, 1))
        peer = stage.peer()
        stage.open(peer)
        await peer.next()
        del stage.store.topics[TOPIC]
        stage.change()
        await eventually(lambda: stage.store.reads == 2)
        stage.store.put(Layout.create(1, 2), incarnation="b" * 16)
        stage.change()
        assert (await peer.next()).dag.segments[0].created_at_ms == 2
        await trio.sleep(1.5 * notice)
        assert await peer.silence()
        assert 1 in peer.registry


async def test_a_topic_that_stays_away_is_told_as_not_found_once_and_the_watch_ends() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(1, 0))
        peers = [stage.peer(), stage.peer()]
        for peer in peers:
            stage.open(peer)
            await peer.next()
        del stage.store.topics[TOPIC]
        stage.change()
        stage.change()
        for peer in peers:
            update = await peer.next()
            assert (update.error, update.HasField("dag")) == (api.TopicNotFound, False)
            assert peer.registry == {}
        stage.store.put(Layout.create(1, 0))
        stage.change()
        assert await peers[0].silence()
        assert stage.hub.counters.deletions == 2


async def test_a_lookup_during_the_notice_sees_that_the_topic_is_gone() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(1, 0))
        watcher, late = stage.peer(), stage.peer()
        stage.open(watcher)
        await watcher.next()
        del stage.store.topics[TOPIC]
        stage.change()
        await eventually(lambda: stage.store.reads == 2)
        stage.open(late)
        assert (await late.next()).error == api.TopicNotFound


async def test_a_state_that_goes_back_is_told_and_counted() -> None:
    async with staged() as stage:
        layout = Layout.create(1, 0)
        stage.store.put(layout.split(0, 1), number=1)
        peer = stage.peer()
        stage.open(peer)
        assert (await peer.next()).dag.epoch == 1
        stage.store.put(layout, number=0)
        stage.readback.gap(range(keys.BUCKETS))
        assert (await peer.next()).dag.epoch == 0
        assert stage.hub.counters.went_back == 1


async def test_a_reused_session_id_replaces_the_old_watch() -> None:
    async with staged() as stage:
        other = TopicName.parse("topic://public/default/other")
        stage.store.put(Layout.create(1, 0))
        stage.store.put(Layout.create(3, 0), topic=other)
        peer = stage.peer()
        stage.open(peer, 5)
        await peer.next()
        stage.open(peer, 5, topic=other)
        assert len((await peer.next()).dag.segments) == 3
        stage.store.put(Layout.create(1, 0).split(0, 1), number=1)
        stage.change()
        assert await peer.silence()
        assert stage.hub.counters.watches == 1


async def test_close_is_idempotent_and_silences_the_watch() -> None:
    async with staged() as stage:
        layout = Layout.create(1, 0)
        stage.store.put(layout)
        peer = stage.peer()
        stage.open(peer, 5)
        await peer.next()
        for _ in range(2):
            stage.hub.close(peer.registry, 5)
        stage.hub.close(peer.registry, 99)
        stage.store.put(layout.split(0, 1), number=1)
        stage.change()
        assert await peer.silence()
        assert stage.hub.counters.points == 0


async def test_a_watch_closed_before_its_read_came_back_is_told_nothing() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(1, 0))
        peer = stage.peer()
        stage.store.gate = trio.Event()
        stage.open(peer)
        await eventually(lambda: stage.store.reads == 1)
        stage.hub.drop_all(peer.registry)
        stage.store.gate.set()
        assert await peer.silence()
        assert stage.hub.counters.points == stage.hub.counters.watches == 0


async def test_opening_and_closing_ten_thousand_watches_leaves_nothing_behind() -> None:
    async with staged() as stage:
        peer = stage.peer()
        for n in range(10_000):
            topic = TopicName("topic", "t", "n", f"topic-{n}")
            stage.open(peer, n % 7, topic=topic)
            stage.hub.close(peer.registry, n % 7)
        assert stage.hub.counters.points == stage.hub.counters.watches == 0
        await trio.testing.wait_all_tasks_blocked()
        assert stage.store.reads == 0


async def test_an_unreadable_record_is_a_verdict_for_new_watches_and_silence_for_others() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(1, 0))
        watcher, late = stage.peer(), stage.peer()
        stage.open(watcher)
        await watcher.next()
        stage.store.topics[TOPIC] = StoredTopic(TOPIC, b"nonsense", Version("a" * 16, 1), 0, 0)
        stage.change()
        assert await watcher.silence()
        stage.hub.close(watcher.registry, 1)
        stage.open(late)
        assert (await late.next()).error == api.MetadataError


async def test_who_joins_during_a_fan_out_is_told_too() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(1, 0))
        peers = [stage.peer() for _ in range(300)]
        for peer in peers:
            stage.open(peer)
        # A fan-out of 300 begins; more come while it runs, and their read finds nothing new.
        while stage.counters.pushes_direct == 0:
            await trio.lowlevel.checkpoint()
        late = [stage.peer() for _ in range(100)]
        for peer in late:
            stage.open(peer)
            stage.change()
        for peer in (*peers, *late):
            assert (await peer.next()).HasField("dag")


async def test_nobody_gets_the_dag_of_a_topic_that_a_read_found_gone() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(5, 1))
        first, second, third = stage.peer(), stage.peer(), stage.peer()
        stage.open(first)
        await first.next()
        del stage.store.topics[TOPIC]
        stage.store.creation_failures = [StoreFull("full")] * 3
        stage.change()
        stage.open(second, create=True)
        stage.hub.close(first.registry, 1)
        await eventually(lambda: len(stage.store.creation_failures) < 3)
        stage.open(third, create=True)
        assert len((await third.next()).dag.segments) == 1
        assert len((await second.next()).dag.segments) == 1


async def test_deletion_is_not_told_while_somebody_has_the_topic_created() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(1, 1))
        old, new = stage.peer(), stage.peer()
        stage.open(old)
        await old.next()
        del stage.store.topics[TOPIC]
        stage.change()
        await eventually(lambda: stage.store.reads == 2)
        stage.store.creation_failures = [StoreUnavailable("away")] * 4
        stage.open(new, create=True)
        for peer in (old, new):
            assert (await peer.next()).HasField("dag")
        assert stage.hub.counters.deletions == 0


async def test_a_damaged_record_harms_no_other_topic_of_its_bucket() -> None:
    neighbour = next(
        topic
        for topic in (TopicName("topic", "t", "n", f"topic-{n}") for n in range(10_000))
        if keys.bucket_of(keys.path_of(topic)) == BUCKET
    )
    async with staged() as stage:
        stage.store.topics[TOPIC] = RecordDamaged("nonsense")
        stage.store.put(Layout.create(1, 0), topic=neighbour)
        damaged, healthy = stage.peer(), stage.peer()
        stage.open(damaged)
        stage.open(healthy, topic=neighbour)
        assert (await damaged.next()).error == api.MetadataError
        assert (await healthy.next()).HasField("dag")


async def test_a_read_that_fails_in_an_unforeseen_way_is_tried_again() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(1, 0))
        stage.store.failures = [RuntimeError("a fault of ours")]
        peer = stage.peer()
        stage.open(peer)
        assert (await peer.next()).HasField("dag")


async def test_a_creation_that_the_store_refuses_for_good_is_a_verdict() -> None:
    async with staged() as stage:
        stage.store.creation_failures = [StoreError("no")]
        peer = stage.peer()
        stage.open(peer, create=True)
        assert (await peer.next()).error == api.MetadataError


async def test_a_new_watch_is_not_told_what_was_read_before_it_was_opened() -> None:
    async with staged() as stage:
        stage.store.put(Layout.create(1, 0))
        first = stage.peer()
        stage.open(first)
        assert (await first.next()).dag.epoch == 0
        # A read is under way that looked before the change and before the watch.
        stage.store.gate = trio.Event()
        stage.readback.changed(BUCKET, PATH)
        await eventually(lambda: stage.store.reads == 2)
        stage.store.put(Layout.create(1, 0).split(0, 1), number=1)
        stage.readback.written(BUCKET, PATH)
        late = stage.peer()
        stage.open(late)
        stage.store.gate.set()
        assert (await late.next()).dag.epoch == 1
        assert (await first.next()).dag.epoch == 1
        assert await late.silence()
