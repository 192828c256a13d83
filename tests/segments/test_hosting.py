"""Which logs a node has, and what it learns about them when calls to the store fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import pytest
import trio
import trio.testing

from layout import records
from metadata.errors import StoreUnavailable
from metadata.log_figures import MOST_CLIENTS
from metadata.log_places import LogPlace
from metadata.log_states import Claim, LogState
from metadata.segment_logs import SegmentLogs
from metadata.store import TopicStore
from protocol.names import SegmentName, TopicName
from segments import placement
from segments.around import Around, DataCounters, LogLimits
from segments.consumers import Consumer
from segments.dispatch.receivers import Kind
from segments.errors import NotHere
from segments.figures import traffic_of
from segments.frames import MessageFrames
from segments.hosting import Hosting
from segments.keeping import Keeping
from segments.open_log import OpenLog
from segments.producers import Mode, Producer
from segments.tail import Budget
from segments.upkeep import Upkeep
from tests.segments.peers import ListeningPeer
from tests.support.logs import PLACE, TOPIC, A, B, LogBench, log_bench
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

LIMIT: Final = 30.0


@dataclass(frozen=True, slots=True)
class NodeNamed:
    session: str
    pulsar_url: str


HERE: Final = NodeNamed(A, "pulsar://here:6650")
THERE: Final = NodeNamed(B, "pulsar://there:6650")


@dataclass(slots=True)
class Cluster:
    """Nodes that are alive, this one first."""

    nodes: list[NodeNamed]
    unseen: set[str] = field(default_factory=set)  # sessions that are alive, too

    async def is_alive(self, session: str) -> bool:
        return session in self.unseen or any(node.session == session for node in self.nodes)


class FalteringLogs(SegmentLogs):
    """Looks at a log and tellings of its figures fail as often as told; of both, those that did not are known."""

    failures = telling_failures = 0
    looks = 0

    def __init__(self, store: TopicStore) -> None:
        super().__init__(store)
        self.told: list[bytes] = []

    async def tell(self, claim: Claim, traffic: bytes, holds: float) -> None:
        if self.telling_failures:
            self.telling_failures -= 1
            raise StoreUnavailable("The store does not answer now.")
        self.told.append(traffic)
        await super().tell(claim, traffic, holds)

    async def state(self, place: LogPlace) -> LogState | None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("The store does not answer now.")
        state = await super().state(place)
        self.looks += 1
        return state


@dataclass(frozen=True, slots=True)
class HostBench:
    bench: LogBench
    logs: FalteringLogs
    hosting: Hosting
    upkeep: Upkeep
    cluster: Cluster
    subscribed: set[str]  # to the topic


class NoClassicLogs:
    async def provide(self, topic: TopicName) -> None:
        raise AssertionError(f"nobody asks for {topic}")

    async def check(self, topic: TopicName) -> None:
        raise AssertionError(f"nobody asks for {topic}")


@asynccontextmanager
async def host_bench(
    url: str, segments: int = 1, logs_of: Callable[[TopicStore], FalteringLogs] = FalteringLogs
) -> AsyncIterator[HostBench]:
    async def told(_: LogPlace) -> None:
        await trio.lowlevel.checkpoint()

    subscribed: set[str] = set()

    async def subscriptions(_: TopicName) -> Mapping[str, str | None]:
        return dict.fromkeys(subscribed, "")

    async def always(_: LogPlace) -> Keeping:
        return Keeping(-1)

    async with log_bench(url, segments) as bench, trio.open_nursery() as nursery:
        logs = logs_of(bench.store)
        around = Around(logs, nursery, LogLimits(), DataCounters(), Budget(1_000_000), told)
        cluster = Cluster([HERE])
        hosting = Hosting(around, cluster, NoClassicLogs(), subscriptions)
        upkeep = Upkeep(hosting, cluster, subscriptions, always, interval=1)
        yield HostBench(bench, logs, hosting, upkeep, cluster, subscribed)
        nursery.cancel_scope.cancel()


async def test_look_that_fails_is_repeated_although_no_change_was_missed(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        owned = await b.hosting.open(PLACE.name)
        b.logs.failures = 3
        await b.bench.transitions.split(TOPIC, 0)
        b.hosting.changed(PLACE.bucket, PLACE.path)
        await eventually(lambda: owned.sealed, LIMIT)


async def joined(owned: OpenLog, name: str = "p") -> tuple[Producer, ListeningPeer]:
    peer = ListeningPeer()
    producer = Producer(peer, 1, name, Mode.SHARED, 0, is_named=True, begin=lambda begun: None)
    assert await owned.join(producer, None)
    return producer, peer


async def open_all(b: HostBench) -> list[OpenLog]:
    layout = records.decode_layout((await b.bench.topic()).value)
    names = [SegmentName(TOPIC, s.range.start, s.range.end, s.segment_id) for s in layout.segments.values()]
    return [await b.hosting.open(str(name)) for name in names]


async def test_logs_move_to_a_node_that_stays_a_few_at_a_time(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url, segments=64) as b:
        logs = await open_all(b)
        peers = {owned.name: (await joined(owned))[1] for owned in logs}
        b.cluster.nodes.append(THERE)
        ours = {owned.name for owned in logs if placement.choose(owned.name, (A, B)) == A}
        assert 8 < 64 - len(ours) < 56, "both nodes have their share"
        await b.upkeep.rebalance()
        assert len(b.hosting.logs) == 64, "who has just come may soon be gone"
        for _ in range(20):
            before = len(b.hosting.logs)
            await b.upkeep.rebalance()
            assert 0 <= before - len(b.hosting.logs) <= 8
        assert {owned.name for owned in b.hosting.logs} == ours
        for owned in logs:
            told = [it.close_producer.assignedBrokerServiceUrl for it in peers[owned.name].heard]
            assert told == ([] if owned.name in ours else [THERE.pulsar_url])
            assert (await b.bench.state(owned.place)).session == (A if owned.name in ours else "")
            assert await b.hosting.url_of(owned.name) == (HERE if owned.name in ours else THERE).pulsar_url


async def test_log_that_belongs_elsewhere_is_not_taken_while_its_node_lives(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        b.cluster.nodes.append(THERE)
        await b.bench.open(B)
        with pytest.raises(NotHere, match="another node"):
            await b.hosting.open(PLACE.name)
        assert await b.hosting.url_of(PLACE.name) == THERE.pulsar_url
        b.cluster.nodes.remove(THERE)
        assert (await b.hosting.open(PLACE.name)).is_open


async def test_those_who_come_together_get_the_same_log(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        opened: list[OpenLog] = []

        async def come() -> None:
            opened.append(await b.hosting.open(PLACE.name))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(come)
        assert opened == b.hosting.logs * 3


class SlowRelease(FalteringLogs):
    """Logs are given up when that is allowed."""

    def __init__(self, store: TopicStore) -> None:
        super().__init__(store)
        self.releasing, self.allowed = trio.Event(), trio.Event()

    async def release(self, claim: Claim) -> None:
        self.releasing.set()
        await self.allowed.wait()
        await super().release(claim)


async def test_log_that_is_on_its_way_to_another_node_is_not_taken_back(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url, segments=16, logs_of=SlowRelease) as b:
        assert isinstance(b.logs, SlowRelease)
        theirs = next(owned for owned in await open_all(b) if placement.choose(owned.name, (A, B)) == B)
        b.cluster.nodes.append(THERE)
        came_back: list[str] = []

        async def come_back() -> None:
            with pytest.raises(NotHere, match="another node"):
                await b.hosting.open(theirs.name)
            came_back.append(theirs.name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.hosting.let_go, theirs)
            await b.logs.releasing.wait()
            assert await b.hosting.url_of(theirs.name) == THERE.pulsar_url
            nursery.start_soon(come_back)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not came_back, "the store still says that it is here"
            b.logs.allowed.set()
        assert came_back
        assert (await b.bench.state(theirs.place)).session == ""


async def test_who_reads_is_not_served_by_a_node_that_has_lost_the_log_unawares(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        owned = await b.hosting.open(PLACE.name)
        await eventually(lambda: b.logs.looks >= 2, LIMIT)
        b.cluster.nodes.append(THERE)
        await b.bench.open(B)
        assert await b.hosting.open(PLACE.name) is owned, "nobody has told it"
        with pytest.raises(NotHere, match="another node"):
            await b.hosting.open(PLACE.name, surely=True)
        assert not owned.is_open
        assert b.hosting.logs == []


async def test_who_reads_waits_for_a_store_that_can_tell_whose_the_log_is(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        owned = await b.hosting.open(PLACE.name)
        await eventually(lambda: b.logs.looks >= 2, LIMIT)
        b.logs.failures = 1
        with pytest.raises(StoreUnavailable):
            await b.hosting.open(PLACE.name, surely=True)
        assert await b.hosting.open(PLACE.name, surely=True) is owned


async def test_unused_log_is_given_up_and_taken_again(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url, segments=2) as b:
        used, unused = await open_all(b)
        await joined(used)
        await b.upkeep.give_up_unused()
        assert unused.is_open, "it was opened a moment ago"
        await b.upkeep.give_up_unused()
        assert b.hosting.logs == [used]
        again = await b.hosting.open(unused.name)
        assert again.is_open
        assert again.ledger == unused.ledger


async def test_log_with_messages_is_kept_to_be_trimmed(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        owned = await b.hosting.open(PLACE.name)
        producer, peer = await joined(owned)
        owned.sending.send(producer, 0, 0, 1, b"message")
        await eventually(lambda: peer.receipts == [0], LIMIT)
        await owned.sending.leave(producer)
        for _ in range(3):
            await b.upkeep.give_up_unused()
        assert owned.is_open
        await owned.trim(1)
        for _ in range(2):
            await b.upkeep.give_up_unused()
        assert not owned.is_open


async def test_what_goes_through_is_told_in_every_round_and_silence_once(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url, segments=2) as b:
        owned, _ = await open_all(b)
        await b.upkeep.tell_figures()
        assert b.logs.told == [], "nobody is there"
        producer, peer = await joined(owned)
        for _ in range(3):
            await b.upkeep.tell_figures()
        assert len(b.logs.told) == 1, "it does nothing"
        owned.sending.send(producer, 0, 0, 1, b"message")
        await eventually(lambda: peer.receipts == [0], LIMIT)
        for _ in range(3):
            await b.upkeep.tell_figures()
        assert len(b.logs.told) == 4
        assert traffic_of(owned, trio.current_time()).messages_in > 0
        await owned.sending.leave(producer)
        assert traffic_of(owned, trio.current_time() + 60).is_still
        await owned.tell(traffic_of(owned, trio.current_time() + 60), 1)
        assert b.logs.told[4:] == [b""], "and nobody is there again"
        await owned.tell(traffic_of(owned, trio.current_time() + 60), 1)
        assert len(b.logs.told) == 5


async def test_figures_that_could_not_be_told_are_told_in_the_next_round(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        owned = await b.hosting.open(PLACE.name)
        await joined(owned)
        b.logs.telling_failures = 1
        await b.upkeep.tell_figures()
        assert b.logs.told == []
        await b.upkeep.tell_figures()
        assert len(b.logs.told) == 1


async def test_figures_that_may_have_been_told_are_taken_back_for_sure(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        owned = await b.hosting.open(PLACE.name)
        producer, _ = await joined(owned)
        b.logs.telling_failures = 1
        await b.upkeep.tell_figures()
        await owned.sending.leave(producer)
        await b.upkeep.tell_figures()
        assert b.logs.told == [b""], "although nothing was told before as far as is known"


async def test_owner_that_is_refused_when_it_tells_figures_looks_whose_the_log_is(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        owned = await b.hosting.open(PLACE.name)
        await joined(owned)
        await eventually(lambda: b.logs.looks == 2, LIMIT)  # for the claim, and right after it
        await b.bench.open(B)
        await b.upkeep.tell_figures()
        await eventually(lambda: not owned.is_open, LIMIT)


async def test_of_very_many_clients_some_are_named_and_all_are_counted(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        owned = await b.hosting.open(PLACE.name)
        for number in range(MOST_CLIENTS + 5):
            await joined(owned, f"p{number}")
        for name in ("s", "t"):
            for number in range(60):
                consumer = Consumer(ListeningPeer(), number, f"c{number}", MessageFrames(number, owned.ledger, -1))
                await owned.subscribe(name, Kind.SHARED, consumer, start=lambda: 0, durable=True)
        traffic = traffic_of(owned, trio.current_time())
        assert (traffic.producer_count, len(traffic.producers)) == (MOST_CLIENTS + 5, MOST_CLIENTS)
        found = [traffic.subscriptions[name] for name in ("s", "t")]
        assert [(it.consumer_count, len(it.consumers)) for it in found] == [(60, 60), (60, MOST_CLIENTS - 60)]


async def test_log_whose_end_the_store_has_lost_is_opened_anew(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        owned = await b.hosting.open(PLACE.name)
        producer, peer = await joined(owned)
        for number in range(3):
            owned.sending.send(producer, number, 0, 1, b"message")
        await eventually(lambda: peer.receipts == [0, 1, 2], LIMIT)
        await b.bench.store.commands.gather([(PLACE.slot, ("HSET", PLACE.key, "next", "1"))])
        b.hosting.changed(PLACE.bucket, PLACE.path)
        await eventually(lambda: not owned.is_open, LIMIT)
        assert (await b.hosting.open(PLACE.name)).next == 1
