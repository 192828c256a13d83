"""What is too long or too many on the wire is refused before anything is done with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import pytest

from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from segments import bounds
from segments.connection import DataDialogue, DataPlane
from tests.segments.peers import ListeningPeer
from tests.segments.test_sending import PRODUCER_ID, SEGMENT, TOPIC, connected
from tests.segments.wire_consumer import WireConsumer, subscribe
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

CLASSIC: Final = "persistent://public/default/classic"
# Two bytes each: bytes are bounded, and not characters.
LONGEST: Final = "é" * (bounds.LONGEST_NAME // 2)

Change = Callable[[api.CommandSubscribe], object]
ProducerChange = Callable[[api.CommandProducer], object]


def produce(change: ProducerChange = lambda request: None, *, topic: str = SEGMENT) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = topic
    command.producer.producer_id = PRODUCER_ID
    command.producer.request_id = 1
    change(command.producer)
    return command


def consume(change: Change, *, topic: str = SEGMENT) -> BaseCommand:
    command = subscribe(topic=topic)
    change(command.subscribe)
    return command


def fill(pairs: object, count: int, value: str = "") -> None:
    for number in range(count):
        pairs.add(key=str(number), value=value)  # type: ignore[attr-defined]  # generated


def with_ranges(request: api.CommandSubscribe, count: int) -> None:
    request.subType = api.CommandSubscribe.Key_Shared
    request.keySharedMeta.keySharedMode = api.STICKY
    for number in range(count):
        request.keySharedMeta.hashRanges.add(start=2 * number, end=2 * number)


def register(properties: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA)
    request = command.getOrCreateSchema
    request.request_id, request.topic = 1, SEGMENT
    request.schema.name, request.schema.type, request.schema.schema_data = "s", api.Schema.String, b""
    fill(request.schema.properties, properties)
    return command


MOST, BYTES = bounds.MOST_PROPERTIES, bounds.PROPERTIES_BYTES
TOO_MUCH: Final = {
    "subscription name": consume(lambda it: setattr(it, "subscription", LONGEST + "s")),
    "consumer name": consume(lambda it: setattr(it, "consumer_name", LONGEST + "c")),
    "consumer properties": consume(lambda it: fill(it.metadata, MOST + 1)),
    "bytes of consumer properties": consume(lambda it: fill(it.metadata, 1, "v" * BYTES)),
    "subscription properties": consume(lambda it: fill(it.subscription_properties, MOST + 1)),
    "bytes of subscription properties": consume(lambda it: fill(it.subscription_properties, 1, "v" * BYTES)),
    "ranges": consume(lambda it: with_ranges(it, bounds.MOST_RANGES + 1)),
    "producer name": produce(lambda it: setattr(it, "producer_name", LONGEST + "p")),
    "initial subscription": produce(lambda it: setattr(it, "initial_subscription_name", LONGEST + "s")),
    "producer properties": produce(lambda it: fill(it.metadata, MOST + 1)),
    "bytes of producer properties": produce(lambda it: fill(it.metadata, 1, "v" * BYTES)),
}


class Untouched:
    """What a request that is refused must not get to."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked for")


@pytest.mark.parametrize("what", TOO_MUCH)
async def test_too_much_is_refused_before_anything_is_done_with_it(what: str) -> None:
    peer = ListeningPeer()
    dialogue = DataDialogue(cast(DataPlane, Untouched()), peer, "", "")
    dialogue.receive(TOO_MUCH[what], b"")
    [refusal] = peer.heard
    assert (refusal.type, refusal.error.error) == (BaseCommand.ERROR, api.NotAllowedError)
    assert refusal.error.message.rpartition(": ")[2] in (
        "shorten it.",
        "leave some out.",
        "put adjacent ones together.",
    ), "it says what to do"
    assert refusal.ByteSize() < 300, "and does not repeat what was sent"


async def test_schema_of_too_many_properties_is_refused_for_good() -> None:
    peer = ListeningPeer()
    dialogue = DataDialogue(cast(DataPlane, Untouched()), peer, "", "")
    dialogue.receive(register(bounds.MOST_SCHEMA_PROPERTIES + 1), b"")
    command = produce()
    command.producer.schema.CopyFrom(register(bounds.MOST_SCHEMA_PROPERTIES + 1).getOrCreateSchema.schema)
    dialogue.receive(command, b"")
    registered, opened = peer.heard
    assert registered.getOrCreateSchemaResponse.error_code == api.IncompatibleSchema
    assert opened.error.error == api.IncompatibleSchema


async def test_all_that_is_allowed_is_taken_by_segments_and_by_classic_topics(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        await created_classic(node, TOPIC.parse(CLASSIC))
        for topic in (SEGMENT, CLASSIC):
            consumer = WireConsumer(await connected(node))

            def fullest(request: api.CommandSubscribe) -> None:
                request.subscription = request.consumer_name = LONGEST
                fill(request.metadata, MOST)
                with_ranges(request, bounds.MOST_RANGES)

            answer = await consumer.ask(consume(fullest, topic=topic))
            assert answer.type == BaseCommand.SUCCESS, answer

            def fullest_producer(request: api.CommandProducer) -> None:
                request.producer_name = request.initial_subscription_name = LONGEST
                request.user_provided_producer_name = True
                fill(request.metadata, 1, "v" * (BYTES - 20))

            answer = await consumer.ask(produce(fullest_producer, topic=topic))
            assert answer.type == BaseCommand.PRODUCER_SUCCESS, answer


async def test_open_producer_keeps_nothing_of_what_its_client_said_but_its_name(valkey: ValkeyProcess) -> None:
    """Its request is as large as properties and a schema may be, and a connection has thousands of producers."""
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        peer = ListeningPeer()
        node.data.plane.connect(peer, "", "").receive(produce(lambda it: fill(it.metadata, 1, "v" * 1_000)), b"")
        await eventually(lambda: peer.heard)
        assert [it.type for it in peer.heard] == [BaseCommand.PRODUCER_SUCCESS]
        [log] = node.data.hosting.logs
        [opened] = log.sending.producers.all
        kept = [cell.cell_contents for call in (opened.begin, opened.refuse) for cell in call.__closure__ or ()]
        assert not [it for it in kept if isinstance(it, BaseCommand | api.CommandProducer)]


async def test_seated_consumer_keeps_no_ranges_of_its_own(valkey: ValkeyProcess) -> None:
    """Thousands that share the same entry buckets would each keep a copy."""
    async with running_node(valkey.url) as node:
        await transitions_of(node).create(TOPIC, 1)
        consumer = WireConsumer(await connected(node))
        assert (await consumer.ask(consume(lambda it: with_ranges(it, 2)))).type == BaseCommand.SUCCESS
        [log] = node.data.hosting.logs
        [seated] = log.consumers
        assert not seated.key_ranges
