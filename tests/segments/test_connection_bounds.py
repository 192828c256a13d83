"""How much one connection may have open and under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import trio
import trio.testing

from protocol.client import requests
from protocol.framing import encode
from protocol.turns import SlowTurns
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments.connection import DataDialogue, DataPlane
from tests.segments.peers import ListeningPeer
from tests.segments.test_sending import PRODUCER_ID, SEGMENT, TOPIC, connected, producer
from tests.segments.wire_consumer import CONSUMER_ID, WireConsumer, stored, subscribe
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess


async def test_connection_that_has_all_it_may_have_opens_more_when_it_has_closed_some(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segments.conversation._MOST_CLIENTS", 3)
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        client, other = await connected(node), await connected(node)
        asking = WireConsumer(client)
        await producer(client)
        for number in (1, 2):
            assert (await asking.ask(subscribe(f"s{number}", consumer_id=number))).type == BaseCommand.SUCCESS
        refused = await asking.ask(subscribe("s3", consumer_id=3))
        assert (refused.type, refused.error.error) == (BaseCommand.ERROR, api.TooManyRequests)
        opening = BaseCommand(type=BaseCommand.PRODUCER)
        opening.producer.topic = SEGMENT
        opening.producer.producer_id, opening.producer.request_id = PRODUCER_ID + 1, 8
        refused = await asking.ask(opening)
        assert (refused.type, refused.error.error) == (BaseCommand.ERROR, api.TooManyRequests)
        await producer(other, "other")
        # What takes the place of what is there is no more than that.
        assert (await asking.ask(subscribe("s2", consumer_id=2))).type == BaseCommand.SUCCESS
        assert (await asking.ask(requests.close_consumer(9, 1))).type == BaseCommand.SUCCESS
        assert (await asking.ask(subscribe("s3", consumer_id=3))).type == BaseCommand.SUCCESS


class Slow:
    """Hosts logs at a place that it does not tell before it may."""

    def __init__(self) -> None:
        self.may_tell = trio.Event()

    async def url_of(self, topic: str) -> str:
        await self.may_tell.wait()
        return "pulsar://here:6650"


async def test_requests_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segments.conversation._MOST_REQUESTS", 3)
    peer, slow = ListeningPeer(), Slow()

    def ask(request_id: int) -> None:
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.request_id, command.lookupTopic.topic = request_id, SEGMENT
        dialogue.receive(command, b"")

    async with trio.open_nursery() as nursery:
        plane = SimpleNamespace(hosting=slow, nursery=nursery, turns=SlowTurns())
        dialogue = DataDialogue(cast(DataPlane, plane), peer, "", "")
        for number in range(5):
            ask(number)
        await trio.testing.wait_all_tasks_blocked()
        refused = [it.lookupTopicResponse for it in peer.heard]
        assert [(it.request_id, it.error) for it in refused] == [(3, api.TooManyRequests), (4, api.TooManyRequests)]
        dialogue.receive(requests.close_producer(7, PRODUCER_ID), b"")
        await trio.testing.wait_all_tasks_blocked()
        assert peer.heard[-1].success.request_id == 7, "closing is never too much"
        slow.may_tell.set()
        await trio.testing.wait_all_tasks_blocked()
        ask(5)
        await trio.testing.wait_all_tasks_blocked()
        told = [it.lookupTopicResponse.request_id for it in peer.heard[3:]]
        assert (sorted(told[:3]), told[3:]) == ([0, 1, 2], [5])


async def test_acknowledgements_that_wait_for_the_store_are_bounded(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segments.consumer_dialogue._MOST_ACKS", 2)
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        await stored(node, 3)
        consumer = WireConsumer(await connected(node))
        await consumer.subscribe(permits=3)
        got = await consumer.messages(3)
        valkey.pause()
        try:
            for number, message in enumerate(got[:2]):
                await consumer.client.send(
                    encode(requests.ack(CONSUMER_ID, api.CommandAck.Individual, [message.message_id], number))
                )
            refused = await consumer.ack(got[2], request_id=2)
            assert refused is not None
            assert (refused.request_id, refused.error) == (2, api.TooManyRequests)
        finally:
            valkey.resume()
        answers = [(await consumer.client.receive()).ackResponse for _ in range(2)]
        assert [(it.request_id, it.HasField("error")) for it in answers] == [(0, False), (1, False)]
        answer = await consumer.ack(got[2], request_id=3)
        assert answer is not None
        assert (answer.request_id, answer.HasField("error")) == (3, False)


async def test_acknowledgement_that_is_refused_is_not_waited_for(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        await stored(node, 1)
        consumer = WireConsumer(await connected(node), kind=api.CommandSubscribe.Shared)
        await consumer.subscribe(permits=1)
        [got] = await consumer.messages(1)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("segments.consumer_dialogue._MOST_ACKS", 1)
            for number in range(2):
                refused = await consumer.ack(got, cumulative=True, request_id=number)
                assert refused is not None
                assert refused.error == api.NotAllowedError
