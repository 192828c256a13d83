"""Messages that name the time of their delivery: consumers of a Shared subscription get them then, wherever that is."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from gateway.node import Node
from metadata.log_entries import StoredEntry
from protocol.framing import encode_payload
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.consumers import Consumer
from segments.cursor_keeper import Told
from segments.cursors import Cursor
from segments.dispatch.receivers import Kind
from segments.figures import traffic_of
from segments.frames import MessageFrames
from segments.subscription import LogSubscription
from tests.segments.dispatch.staged import StagedLog
from tests.segments.peers import ListeningPeer
from tests.segments.test_sending import PRODUCER_ID, TOPIC, connected, producer, receipts
from tests.segments.wire_consumer import WireConsumer
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

START_MS = 1_700_000_000_000
SHARED = api.CommandSubscribe.Shared


@dataclass(eq=False)
class TimingPeer(ListeningPeer):
    """Remembers when each message came, in seconds on the clock of the loop."""

    times: list[tuple[int, float]] = field(default_factory=list)

    def send(self, parts: tuple[bytes, ...]) -> None:
        before = len(self.messages)
        super().send(parts)
        self.times += [(index, round(trio.current_time(), 3)) for index in self.messages[before:]]


class CachedLog:
    """A log that is in memory, with a clock of the wall that can be set."""

    first = 0
    opened_at = 0.0
    sealed = False
    is_open = True

    def __init__(self) -> None:
        self.staged = StagedLog()
        self.set_forward_ms = 0
        self.looks = 0

    def now_ms(self) -> int:
        self.looks += 1
        return START_MS + self.set_forward_ms + int(trio.current_time() * 1000)

    @property
    def next(self) -> int:
        return self.staged.end

    def cached(self, indexes: Sequence[int]) -> list[StoredEntry] | None:
        return [self.staged.entries[index] for index in indexes]

    async def fetch(self, indexes: Sequence[int]) -> list[StoredEntry]:
        return self.cached(indexes) or []

    def delivered(self, now: float, messages: int, size: int) -> None: ...

    def cursor_changed(self, subscription: LogSubscription, told: Told | None) -> None: ...


def attached(log: CachedLog, nursery: trio.Nursery, permits: int = 100) -> tuple[LogSubscription, Consumer, TimingPeer]:
    subscription = LogSubscription(
        "s", Kind.SHARED, Cursor(), log, nursery=nursery, durable=True, max_unacked=1_000, now_ms=log.now_ms
    )
    peer = TimingPeer()
    consumer = Consumer(peer, 1, "c", MessageFrames(1, 7, -1))
    subscription.join(consumer)
    subscription.flow(consumer, permits)
    return subscription, consumer, peer


async def test_message_comes_at_its_time(autojump_clock: trio.testing.MockClock) -> None:
    log = CachedLog()
    for seconds in (5, 2, 300, 2):
        log.staged.append_delayed(START_MS + seconds * 1_000)
    async with trio.open_nursery() as nursery:
        subscription, _, peer = attached(log, nursery)
        await trio.sleep(1)
        assert subscription.delayed == 4
        # Sooner than all that are there, so that nobody may sleep until the first of those.
        log.staged.append_delayed(START_MS + 1_500)
        subscription.wake()
        await trio.sleep(400)
        assert peer.times == [(4, 1.5), (1, 2.0), (3, 2.0), (0, 5.0), (2, 300.0)]
        nursery.cancel_scope.cancel()


async def test_clock_that_is_set_forward_is_noticed(autojump_clock: trio.testing.MockClock) -> None:
    log = CachedLog()
    log.staged.append_delayed(START_MS + 3_600_000)
    async with trio.open_nursery() as nursery:
        _, _, peer = attached(log, nursery)
        await trio.sleep(1)
        log.set_forward_ms = 3_600_000
        await trio.sleep(10)
        assert peer.messages == [0]
        nursery.cancel_scope.cancel()


async def test_due_message_waits_quietly_for_somebody_with_room(autojump_clock: trio.testing.MockClock) -> None:
    log = CachedLog()
    log.staged.append_delayed(START_MS + 1_000, 2)
    async with trio.open_nursery() as nursery:
        subscription, consumer, peer = attached(log, nursery, permits=1)
        await trio.sleep(2)
        assert peer.messages == [0]
        looks = log.looks
        await trio.sleep(100)
        assert log.looks - looks < 30
        subscription.flow(consumer, 1)
        assert peer.messages == [0, 1]
        nursery.cancel_scope.cancel()


async def test_log_that_is_given_up_delivers_nothing_any_more(autojump_clock: trio.testing.MockClock) -> None:
    """Its next owner does, to the same consumer."""
    log = CachedLog()
    log.staged.append_delayed(START_MS + 1_000)
    async with trio.open_nursery() as nursery:
        _, _, peer = attached(log, nursery)
        log.is_open = False
        await trio.sleep(100)
        assert peer.messages == []
        nursery.cancel_scope.cancel()


# With a real node and a real store.


def delayed(sequence: int, due_ms: int | None) -> bytes:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = PRODUCER_ID
    command.send.sequence_id = sequence
    metadata = api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, deliver_at_time=due_ms)
    return encode_payload(command, metadata.SerializeToString(), b"hello")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def sent(node: Node, dues: Sequence[int | None]) -> None:
    client = await connected(node)
    await producer(client)
    await client.send(b"".join(delayed(sequence, due) for sequence, due in enumerate(dues)))
    await receipts(client, len(dues))
    client.close()


async def test_message_is_delivered_when_due_by_whichever_node_has_the_log_then(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        due = now_ms() + 2_000
        await sent(node, [None, due, None])
        consumer = WireConsumer(await connected(node), kind=SHARED)
        await consumer.subscribe(permits=10)
        at_once = await consumer.messages(2)
        assert [told.message_id.entryId for told in at_once] == [0, 2]
        for told in at_once:
            await consumer.ack(told, request_id=3)
        [owned] = node.data.hosting.logs
        assert traffic_of(owned, trio.current_time()).subscriptions["s"].delayed == 1
    async with running_node(valkey.url) as node:
        consumer = WireConsumer(await connected(node), kind=SHARED)
        await consumer.subscribe(permits=10)
        [told] = await consumer.messages(1)
        assert now_ms() >= due
        assert (told.message_id.entryId, told.redelivery_count) == (1, 0)


async def test_sealed_segment_is_not_drained_before_its_delayed_messages_are(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        consumer = WireConsumer(await connected(node), kind=SHARED)
        await consumer.subscribe(permits=10)
        due = now_ms() + 1_500
        await sent(node, [None, due])
        [at_once] = await consumer.messages(1)
        await transitions_of(node).split(TOPIC, 0)
        owned = next(log for log in node.data.hosting.logs if log.place.segment_id == 0)
        await eventually(lambda: owned.sealed)
        assert (await consumer.ack(at_once, request_id=3)) is not None
        assert not owned.subscriptions["s"].is_drained
        [late] = await consumer.messages(1)
        assert now_ms() >= due
        await consumer.ack(late)
        assert (await consumer.client.receive()).type == BaseCommand.REACHED_END_OF_TOPIC
        assert owned.subscriptions["s"].is_drained


@pytest.mark.parametrize("kind", [api.CommandSubscribe.Exclusive, api.CommandSubscribe.Failover])
async def test_ordered_consumers_get_everything_at_once(
    valkey: ValkeyProcess, kind: api.CommandSubscribe.SubType.ValueType
) -> None:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        await sent(node, [now_ms() + 3_600_000, None])
        consumer = WireConsumer(await connected(node), kind=kind)
        await consumer.subscribe()
        if kind == api.CommandSubscribe.Failover:
            assert (await consumer.client.receive()).type == BaseCommand.ACTIVE_CONSUMER_CHANGE
        await consumer.flow(10)
        assert [told.message_id.entryId for told in await consumer.messages(2)] == [0, 1]
