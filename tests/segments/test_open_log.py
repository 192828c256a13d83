"""Logs at their owner: what its clients are told when it is sealed, lost, or the store does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from metadata.log_states import Opened
from protocol.framing import FrameDecoder
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.consumers import Consumer
from segments.dispatch.receivers import Kind
from segments.frames import MessageFrames
from segments.open_log import Around, DataCounters, LogLimits, OpenLog
from segments.producers import Mode, Producer
from segments.subscription import LogSubscription
from segments.tail import Budget
from tests.support.logs import A, LogBench, log_bench
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

LIMIT = 10.0


@dataclass(eq=False)
class ListeningPeer:
    """A client's connection that takes everything at once."""

    closed: bool = False
    queued_bytes: int = 0
    heard: list[BaseCommand] = field(default_factory=list)
    _decoder: FrameDecoder = field(default_factory=FrameDecoder)

    def reply(self, frame: bytes) -> None:
        self.heard += [found.command for found in self._decoder.receive(frame) if hasattr(found, "command")]

    def send(self, parts: tuple[bytes, ...]) -> None:
        self.reply(b"".join(parts))

    def when_sent(self, call: Callable[[], None]) -> None:
        raise AssertionError("nothing is ever queued")

    @property
    def errors(self) -> list[tuple[int, int]]:
        """Messages that were refused, each with the reason."""
        return [
            (it.send_error.sequence_id, it.send_error.error) for it in self.heard if it.type == BaseCommand.SEND_ERROR
        ]

    @property
    def receipts(self) -> list[int]:
        return [it.send_receipt.sequence_id for it in self.heard if it.type == BaseCommand.SEND_RECEIPT]

    @property
    def messages(self) -> list[int]:
        return [it.message.message_id.entryId for it in self.heard if it.type == BaseCommand.MESSAGE]

    def count(self, kind: BaseCommand.Type.ValueType) -> int:
        return sum(it.type == kind for it in self.heard)


@dataclass(frozen=True, slots=True)
class Desk:
    """A log that is open here, on a store that others may change."""

    bench: LogBench
    log: OpenLog

    async def producer(self, name: str) -> tuple[Producer, ListeningPeer]:
        peer = ListeningPeer()
        producer = Producer(peer, 1, name, Mode.SHARED, 0, is_named=True, begin=lambda: None)
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
        self.log.send(producer, sequence, 0, 1, b"message")

    async def seal(self) -> None:
        """As a split does; the owner does not know yet."""
        stored = await self.bench.topic()
        await self.bench.transitions.split(stored.name, 0)


@asynccontextmanager
async def desk(url: str, session: str = A) -> AsyncIterator[Desk]:
    async def told(_: object) -> None:
        await trio.lowlevel.checkpoint()

    async with log_bench(url) as bench, trio.open_nursery() as nursery:
        opened: Opened = await bench.open(session)
        around = Around(bench.logs, nursery, LogLimits(), DataCounters(), Budget(1_000_000), told)
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
