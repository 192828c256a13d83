"""Logs at their owner: what its clients are told when it is sealed, lost, or the store does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from controller.transitions import TopicLimits, Transitions
from metadata import scripts
from metadata.errors import LogFenced, StoreError, StoreUnavailable
from metadata.log_states import Opened
from metadata.store import open_store
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.around import Around, DataCounters, LogLimits, SendQueue
from segments.consumers import Consumer
from segments.cursor_keeper import CursorKeeper
from segments.dispatch.errors import ConsumerBusy
from segments.dispatch.receivers import Kind
from segments.errors import NotHere, QuotaExceeded
from segments.frames import MessageFrames
from segments.keeping import Keeping, OverQuota, Quota
from segments.open_log import OpenLog
from segments.producers import Mode, Producer
from segments.subscription import LogSubscription
from segments.tail import Budget
from tests.segments.peers import ListeningPeer
from tests.support.logs import TOPIC, A, B, LogBench, log_bench
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

LIMIT = 30.0
# What a receipt says of a message that is stored at a place which nobody remembers.
NOWHERE = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Desk:
    """A log that is open here, on a store that others may change."""

    bench: LogBench
    log: OpenLog

    async def producer(self, name: str, *, is_named: bool = True) -> tuple[Producer, ListeningPeer]:
        peer = ListeningPeer()
        producer = Producer(peer, 1, name, Mode.SHARED, 0, is_named=is_named, begin=lambda begun: None)
        assert await self.log.join(producer, None)
        return producer, peer

    async def consumer(self, name: str, permits: int = 100) -> tuple[Consumer, LogSubscription, ListeningPeer]:
        peer = ListeningPeer()
        consumer = Consumer(peer, 1, name, MessageFrames(1, self.log.ledger, -1))
        subscription = await self.log.subscribe("s", Kind.EXCLUSIVE, consumer, start=lambda: 0, durable=True)
        subscription.joined(consumer)
        subscription.flow(consumer, permits)
        return consumer, subscription, peer

    def send(self, producer: Producer, sequence: int) -> None:
        self.log.sending.send(producer, sequence, 0, 1, b"message")

    async def seal(self) -> None:
        """As a split does; the owner does not know yet."""
        stored = await self.bench.topic()
        await self.bench.transitions.split(stored.name, 0)


@asynccontextmanager
async def desk(url: str, session: str = A, limits: LogLimits | None = None) -> AsyncIterator[Desk]:
    async with log_bench(url) as bench, desk_of(bench, session, limits) as opened:
        yield opened


@asynccontextmanager
async def desk_of(bench: LogBench, session: str, limits: LogLimits | None = None) -> AsyncIterator[Desk]:
    async def told(_: object) -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        opened: Opened = await bench.open(session)
        around = Around(bench.logs, nursery, limits or LogLimits(), DataCounters(), Budget(1_000_000), told)
        yield Desk(bench, OpenLog(opened, around, lambda _: None))
        nursery.cancel_scope.cancel()


async def test_everybody_who_sends_to_a_sealed_log_is_told_so(valkey: ValkeyProcess) -> None:
    """Also who had nothing on its way when that was found out."""
    async with desk(valkey.url) as d:
        (first, first_peer), (second, second_peer) = await d.producer("first"), await d.producer("second")
        await d.seal()
        d.send(first, 0)
        await eventually(lambda: first_peer.errors == [(0, api.TopicTerminatedError)], LIMIT)
        d.send(second, 0)
        d.send(second, 1)
        await eventually(
            lambda: second_peer.errors == [(0, api.TopicTerminatedError), (1, api.TopicTerminatedError)], LIMIT
        )
        assert (first.pending, second.pending) == (0, 0)


async def test_who_waits_for_a_place_is_woken_when_the_log_goes(valkey: ValkeyProcess) -> None:
    async with desk(valkey.url) as d:
        _, _, peer = await d.consumer("first")
        with pytest.raises(ConsumerBusy):
            await d.consumer("second")
        woken = trio.Event()

        async def wait() -> None:
            await d.log.subscriptions["s"].left.wait()
            woken.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            d.log.lose(LogFenced("another node has it"))
            with trio.fail_after(LIMIT):
                await woken.wait()
        assert peer.count(BaseCommand.CLOSE_CONSUMER) == 1
        with pytest.raises(NotHere):
            await d.consumer("second")


async def test_who_waits_for_an_acknowledgement_is_told_that_the_log_is_lost(valkey: ValkeyProcess) -> None:
    """Found out by the acknowledgement itself, by one that was on its way then, and known before."""
    async with desk(valkey.url) as d:
        consumer, subscription, _ = await d.consumer("c")
        told: list[bool] = []
        subscription.ack(consumer, [], told.append)
        await eventually(lambda: told == [True], LIMIT)
        await d.bench.open(B)
        subscription.ack(consumer, [], told.append)
        await trio.lowlevel.checkpoint()
        subscription.ack(consumer, [], told.append)
        await eventually(lambda: told == [True, False, False], LIMIT)
        assert not d.log.is_open
        subscription.ack(consumer, [], told.append)
        assert told == [True, False, False, False]


async def test_acknowledgement_that_waits_for_the_store_is_answered_although_the_log_went(
    valkey: ValkeyProcess,
) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, desk(proxy.url) as d:
        consumer, subscription, _ = await d.consumer("c")
        proxy.refuse()
        proxy.cut()
        told: list[bool] = []
        subscription.ack(consumer, [], told.append)
        await trio.sleep(0.2)
        assert told == []
        d.log.lose(LogFenced("another node has it"))
        subscription.ack(consumer, [], told.append)
        proxy.accept()
        assert told == [False]
        await eventually(lambda: len(told) == 2, LIMIT)


async def test_subscription_of_a_lost_log_is_not_waited_for(valkey: ValkeyProcess) -> None:
    """Whether its cursor is gone, only the next owner knows."""
    async with desk(valkey.url) as d:
        await d.consumer("c")
        await d.bench.open(B)
        with trio.fail_after(LIMIT), pytest.raises(NotHere):
            await d.log.remove("s")
        assert not d.log.is_open


async def test_end_is_told_only_when_it_is_known_what_was_stored(valkey: ValkeyProcess) -> None:
    """A message whose answer was lost may stand in a log that was sealed since."""
    async with FaultProxy.open(*valkey.address) as proxy, desk(proxy.url) as d, open_store(valkey.url) as store:
        producer, sender = await d.producer("p")
        consumer, subscription, receiver = await d.consumer("c")
        d.send(producer, 0)
        await eventually(lambda: receiver.messages == [0], LIMIT)
        subscription.ack(consumer, [(0, ())], None)

        proxy.cut_before_reply(lambda request: scripts.APPEND_ENTRIES.sha.encode() in request)
        d.send(producer, 1)
        await eventually(lambda: proxy.cuts == 1, LIMIT)
        proxy.refuse()
        proxy.cut()
        await Transitions(store, TopicLimits()).split(TOPIC, 0)
        d.log.note_sealed()
        await trio.testing.wait_all_tasks_blocked()
        assert not receiver.count(BaseCommand.REACHED_END_OF_TOPIC)

        proxy.accept()
        await eventually(lambda: (sender.receipts, receiver.messages) == ([0, 1], [0, 1]), LIMIT)
        subscription.ack(consumer, [(1, ())], None)
        await eventually(lambda: receiver.count(BaseCommand.REACHED_END_OF_TOPIC) == 1, LIMIT)
        assert not sender.errors


async def test_cursors_are_written_under_the_claim_that_replaced_the_one_they_were_sent_with(
    valkey: ValkeyProcess,
) -> None:
    """While a claim is renewed, what is refused says nothing about who owns the log."""
    async with log_bench(valkey.url) as bench, trio.open_nursery() as nursery:
        before = (await bench.open()).claim
        after = (await bench.open()).claim
        answers = iter([before, None, None, after])
        lost: list[StoreError] = []
        keeper = CursorKeeper(bench.logs, lambda: next(answers, after), nursery=nursery, lost=lost.append)
        written = trio.Event()
        keeper.mark("s", lambda: b"cursor", told=lambda _: written.set())
        with trio.fail_after(LIMIT):
            await written.wait()
        assert not lost
        assert (await bench.open()).cursors == {"s": b"cursor"}


async def received(peer: ListeningPeer) -> None:
    await eventually(lambda: peer.receipts == [0])


async def remembered(d: Desk) -> set[str]:
    """The producers that the next owner would know."""
    claim = d.log.claim
    names = await d.bench.store.commands.gather(
        [(claim.place.slot, ("HKEYS", claim.place.producers(claim.incarnation)))]
    )
    return {name.decode() for name in names[0]}


async def test_producers_that_the_server_named_are_forgotten_when_they_are_closed(valkey: ValkeyProcess) -> None:
    async with desk(valkey.url) as d:
        for name, is_named, for_good in (("closed", False, True), ("lost", False, False), ("by-user", True, True)):
            producer, peer = await d.producer(name, is_named=is_named)
            d.send(producer, 0)
            await received(peer)
            await d.log.sending.leave(producer, for_good=for_good)
        assert await remembered(d) == {"lost", "by-user"}
        back, peer = await d.producer("lost", is_named=False)
        assert d.log.sending.last_sequence(back) == 0


async def test_producers_are_forgotten_when_they_were_away_for_hours(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(valkey.url) as d:
        gone, peer = await d.producer("gone")
        there, other = await d.producer("there")
        d.send(gone, 0)
        d.send(there, 0)
        await eventually(lambda: peer.receipts == other.receipts == [0])
        await d.log.sending.leave(gone)
        await d.log.keep(Keeping())
        assert await remembered(d) == {"gone", "there"}
        monkeypatch.setattr("segments.sending._MEMORY", -1.0)
        await d.log.keep(Keeping())
        assert await remembered(d) == {"there"}


async def test_of_many_producers_that_are_away_those_are_forgotten_that_left_first(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segments.sending._MOST_AWAY", 2)
    async with desk(valkey.url) as d:
        for name in ("first", "second", "third", "first"):
            producer, peer = await d.producer(name)
            d.send(producer, 0)
            await received(peer)
            await d.log.sending.leave(producer)
        await d.log.keep(Keeping())
        assert await remembered(d) == {"third", "first"}


async def test_producer_that_stored_nothing_leaves_nothing(valkey: ValkeyProcess) -> None:
    async with desk(valkey.url) as d:
        producer, peer = await d.producer("refused")
        valkey.client().config_set("maxmemory", "1")
        try:
            d.send(producer, 0)
            await eventually(lambda: peer.errors == [(0, api.PersistenceError)], LIMIT)
        finally:
            valkey.client().config_set("maxmemory", "0")
        await d.log.sending.leave(producer)
        assert d.log.sending._sequences._lines == {}


async def test_producers_of_which_nobody_knows_when_they_left_are_forgotten_in_the_order_of_their_messages(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(valkey.url) as d:
        names = [f"p{number}" for number in range(20)]
        for name in names:
            producer, peer = await d.producer(name)
            d.send(producer, 0)
            await received(peer)
        monkeypatch.setattr("segments.sending._MOST_AWAY", 5)
        async with desk_of(d.bench, B) as again:
            await again.log.keep(Keeping())
            assert await remembered(again) == set(names[-5:])


@pytest.mark.parametrize(("memory", "places"), [(60.0, [0, 1]), (-1.0, [NOWHERE, 1])])
async def test_of_producers_that_stay_away_only_the_last_place_is_remembered(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch, memory: float, places: list[int]
) -> None:
    monkeypatch.setattr("segments.sending._PLACES_MEMORY", memory)
    async with desk(valkey.url) as d:
        told = []
        for _ in range(2):
            producer, peer = await d.producer("away")
            for sequence in range(2):
                d.send(producer, sequence)
            await eventually(lambda heard=peer: heard.receipts == [0, 1])  # type: ignore[misc]  # a default it can be called without
            told.append([it.send_receipt.message_id.entryId for it in peer.heard])
            await d.log.sending.leave(producer)
            await d.log.keep(Keeping())
        assert told == [[0, 1], places]


async def test_producer_that_waits_to_have_the_log_alone_cannot_send(valkey: ValkeyProcess) -> None:
    async with desk(valkey.url) as d:
        first, first_peer = await d.producer("first")
        begun = trio.Event()
        peer = ListeningPeer()
        waiting = Producer(peer, 1, "w", Mode.WAIT, 0, is_named=True, begin=lambda _: begun.set())
        assert not await d.log.join(waiting, None)
        d.send(waiting, 0)
        d.send(first, 0)
        await received(first_peer)
        assert (peer.heard, d.log.next) == ([], 1)
        await d.log.sending.leave(first)
        with trio.fail_after(LIMIT):
            await begun.wait()
        d.send(waiting, 0)
        await received(peer)


async def test_producers_of_all_logs_share_a_bound_of_what_waits() -> None:
    queue = SendQueue(limit=10)
    queue.add(10)
    assert not queue.is_full
    queue.add(1)
    assert queue.is_full
    gone_on = []

    async def wait() -> None:
        await queue.wait_room()
        gone_on.append(queue.used)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        queue.remove(5)
        await trio.testing.wait_all_tasks_blocked()
        assert gone_on == []
        queue.remove(1)
    assert gone_on == [5]


async def test_quota_is_about_what_nobody_has_consumed(valkey: ValkeyProcess) -> None:
    limits = LogLimits(quota=Quota(100, OverQuota.REFUSE))
    async with desk(valkey.url, limits=limits) as d:
        producer, sender = await d.producer("p")
        for number in range(30):
            d.send(producer, number)
        await eventually(lambda: len(sender.receipts) == 30)
        assert d.log.size > 100
        assert sender.errors == [], "nobody waits for these"
        consumer, subscription, _ = await d.consumer("c")
        d.send(producer, 30)
        assert sender.errors == [(30, api.ProducerBlockedQuotaExceededError)]
        late = Producer(sender, 2, "late", Mode.SHARED, 0, is_named=True, begin=lambda begun: None)
        with pytest.raises(QuotaExceeded):
            await d.log.join(late, None)
        subscription.ack_cumulative(consumer, 29, (), None)
        assert await d.log.join(late, None)


async def test_evicting_quota_takes_what_is_oldest_of_the_backlog(valkey: ValkeyProcess) -> None:
    limits = LogLimits(quota=Quota(70, OverQuota.EVICT))
    async with desk(valkey.url, limits=limits) as d:
        _, subscription, _ = await d.consumer("c", permits=0)
        producer, sender = await d.producer("p")
        for number in range(30):
            d.send(producer, number)
        await eventually(lambda: len(sender.receipts) == 30)
        await d.log.keep(Keeping(-1))
        assert (d.log.first, subscription.backlog) == (20, 10)


async def test_what_is_trimmed_during_an_append_stays_subtracted(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(valkey.url) as d:
        producer, sender = await d.producer("p")
        d.send(producer, 0)
        await eventually(lambda: sender.receipts == [0])
        append = d.bench.logs.append

        async def with_trim(*given: Any, **named: Any) -> None:
            await append(*given, **named)
            await d.log.trim(1)

        monkeypatch.setattr(d.bench.logs, "append", with_trim)
        d.send(producer, 1)
        await eventually(lambda: sender.receipts == [0, 1])
        assert (d.log.first, d.log.size) == (1, len(b"message"))


async def test_exclusive_producer_that_could_not_be_noted_is_in_nobodys_way(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(valkey.url) as d:
        note = d.bench.logs.set_topic_epoch

        async def fail(*_: Any) -> None:
            monkeypatch.setattr(d.bench.logs, "set_topic_epoch", note)
            raise StoreUnavailable("The store does not answer now.")

        monkeypatch.setattr(d.bench.logs, "set_topic_epoch", fail)
        first = Producer(ListeningPeer(), 1, "first", Mode.EXCLUSIVE, 0, is_named=False, begin=lambda begun: None)
        with pytest.raises(StoreUnavailable):
            await d.log.join(first, None)
        second = Producer(ListeningPeer(), 1, "second", Mode.EXCLUSIVE, 0, is_named=False, begin=lambda begun: None)
        assert await d.log.join(second, None)


async def test_producer_that_waited_may_send_although_the_store_was_away(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(valkey.url) as d:
        begun: list[str] = []
        alone = Producer(ListeningPeer(), 1, "alone", Mode.EXCLUSIVE, 0, is_named=True, begin=lambda begun: None)
        waiting = Producer(ListeningPeer(), 1, "w", Mode.WAIT, 0, is_named=True, begin=lambda _: begun.append("w"))
        assert await d.log.join(alone, None)
        assert not await d.log.join(waiting, None)
        note, failures = d.bench.logs.set_topic_epoch, [1, 2]

        async def falter(*given: Any) -> None:
            if failures:
                failures.pop()
                raise StoreUnavailable("The store does not answer now.")
            await note(*given)

        monkeypatch.setattr(d.bench.logs, "set_topic_epoch", falter)
        await d.log.sending.leave(alone)
        await eventually(lambda: begun == ["w"], LIMIT)
        assert not failures


async def test_cursor_beyond_the_end_of_a_log_that_went_back_hides_nothing(valkey: ValkeyProcess) -> None:
    async with desk(valkey.url) as d:
        consumer, subscription, _ = await d.consumer("c")
        producer, sender = await d.producer("p")
        for number in range(10):
            d.send(producer, number)
        await eventually(lambda: len(sender.receipts) == 10)
        subscription.ack_cumulative(consumer, 9, (), None)
        await d.log.saved(subscription)
        place = d.log.place
        await d.bench.store.commands.gather([(place.slot, ("HSET", place.key, "next", "4"))])
        opened = await d.bench.open(B)
        again = OpenLog(opened, d.log._around, lambda _: None)
        assert again.next == 4
        assert again.subscriptions["s"].cursor.mark == 3


async def test_tail_of_a_log_that_was_given_up_takes_nothing(valkey: ValkeyProcess) -> None:
    async with desk(valkey.url) as d:
        producer, _ = await d.producer("p")
        d.send(producer, 0)
        await d.log.let_go()
        assert d.log._around.tails.used == 0
