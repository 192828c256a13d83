"""Faults that nobody foresaw cost the log or the subscription that they are in, never the server around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Final, cast

import pytest
import trio
import trio.testing

from metadata.errors import StoreError
from metadata.log_entries import StoredEntry
from protocol.framing import encode, encode_payload
from protocol.turns import SlowTurns
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.connection import DataDialogue, DataPlane
from segments.cursor_keeper import CursorKeeper
from segments.cursors import Cursor
from segments.dispatch.receivers import Kind
from segments.errors import NoLog
from segments.reading_ahead import ReadingAhead
from segments.subscription import LogSubscription
from tests.segments.peers import ListeningPeer
from tests.segments.test_sending import PRODUCER_ID, SEGMENT, TOPIC, connected, producer, receipts
from tests.segments.test_subscription import SlowLog, consumer
from tests.support.logs import log_bench
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess

LIMIT: Final = 30.0


class BrokenLog(SlowLog):
    """Neither its memory nor the store gives anything but faults."""

    def cached(self, indexes: Sequence[int]) -> list[StoredEntry] | None:
        if self._is_cached:
            raise AttributeError("a fault in memory")
        return None

    async def fetch(self, indexes: Sequence[int]) -> list[StoredEntry]:
        self.fetching.append(indexes)
        await trio.lowlevel.checkpoint()
        raise AttributeError("a fault of reading")


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.FAILOVER, Kind.KEY_SHARED])
async def test_fault_of_a_subscription_sends_its_consumers_away_once(
    kind: Kind, is_cached: bool, autojump_clock: trio.testing.MockClock
) -> None:
    log = BrokenLog(is_cached=is_cached)
    async with trio.open_nursery() as nursery:
        subscription = LogSubscription("s", kind, Cursor(), log, nursery=nursery, durable=True, max_unacked=1_000)
        (first, peer), (second, other) = consumer(1), consumer(2)
        for joining in (first, second):
            subscription.join(joining)
        woken = subscription.left
        subscription.flow(first, 5)
        await trio.sleep(60)
        assert not subscription.consumers
        assert [it.count(BaseCommand.CLOSE_CONSUMER) for it in (peer, other)] == [1, 1]
        assert woken.is_set(), "who waits for a place may try"
        assert len(log.fetching) <= 1, "nobody tries again before somebody comes back"
        assert subscription.kind is kind


async def test_fault_of_reading_ahead_reaches_who_wants_the_page() -> None:
    async def fetch(indexes: Sequence[int]) -> list[StoredEntry]:
        await trio.lowlevel.checkpoint()
        if indexes[0]:
            raise AttributeError("a fault of reading")
        return [StoredEntry(index, 0, 1, b"") for index in indexes]

    async with trio.open_nursery() as nursery:
        pages = ReadingAhead(fetch, nursery, 4)
        await pages.get(range(4), 20)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(AttributeError):
            await pages.get(range(4, 8), 20)


async def test_cursor_that_cannot_be_encoded_costs_its_log(valkey: ValkeyProcess) -> None:
    def encode_cursor() -> bytes:
        raise OverflowError("a fault of a cursor")

    async with log_bench(valkey.url) as bench, trio.open_nursery() as nursery:
        claim = (await bench.open()).claim
        lost: list[StoreError] = []
        keeper = CursorKeeper(bench.logs, lambda: claim, nursery=nursery, lost=lost.append)
        keeper.mark("s", encode_cursor)
        with trio.fail_after(LIMIT):
            await keeper.flushed()
        assert len(lost) == 1


def keyed(sequence: int, edit: Callable[[bytes], bytes]) -> bytes:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = PRODUCER_ID
    command.send.sequence_id = sequence
    metadata = api.MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=1, partition_key="a-key")
    return encode_payload(command, edit(metadata.SerializeToString()), b"value")


async def test_key_that_is_no_text_is_delivered_like_any_other(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        client, reader = await connected(node), await connected(node)
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        command.subscribe.topic = SEGMENT
        command.subscribe.subscription = "s"
        command.subscribe.subType = command.subscribe.Key_Shared
        command.subscribe.consumer_id = command.subscribe.request_id = 1
        await reader.send(encode(command))
        assert (await reader.receive()).type == BaseCommand.SUCCESS
        flow = BaseCommand(type=BaseCommand.FLOW)
        flow.flow.consumer_id, flow.flow.messagePermits = 1, 10
        await reader.send(encode(flow))
        await producer(client)
        await client.send(keyed(0, lambda data: data.replace(b"a-key", b"\xff-key")) + keyed(1, lambda data: data))
        await receipts(client, 2)
        got = [(await reader.receive()).message.message_id.entryId for _ in range(2)]
        assert got == [0, 1]


class Nowhere:
    """Hosts nothing, and says so in a way that UTF-8 cannot spell."""

    async def url_of(self, topic: str) -> str:
        await trio.lowlevel.checkpoint()
        raise NoLog("There is no \ud800.")


async def test_refusal_whose_text_no_wire_can_carry_is_told_all_the_same() -> None:
    peer = ListeningPeer()
    async with trio.open_nursery() as nursery:
        plane = SimpleNamespace(hosting=Nowhere(), nursery=nursery, turns=SlowTurns())
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.request_id, command.lookupTopic.topic = 1, SEGMENT
        DataDialogue(cast(DataPlane, plane), peer, "", "").receive(command, b"")
    [answer] = peer.heard
    assert answer.lookupTopicResponse.error == api.TopicNotFound
