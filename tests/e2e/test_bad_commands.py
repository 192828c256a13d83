"""Well-formed commands that ask for the impossible are answered in their own terms, and the connection stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocol import replies
from protocol.client import requests
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.e2e.peers import close_watch, full, greeted, next_update, until_epoch, watch
from tests.e2e.vela_process import SCALABLE, VelaServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

MAX = 2**64 - 1

BAD_NAMES = {
    "empty": "",
    "blank": " ",
    "scheme-only": "topic://",
    "no-namespace": "topic://public/orders",
    "no-local-name": "topic://public/default/",
    "blank-local-name": "topic://public/default/ \t",
    "empty-tenant": "topic:///default/orders",
    "empty-namespace": "topic://public//orders",
    "two-parts": "public/default",
    "empty-part": "topic://public/default/a//b",
    "slash-at-the-end": "topic://public/default/a/",
    "unknown-domain": "kafka://public/default/orders",
    "capital-domain": "TOPIC://public/default/orders",
    "two-domains": "topic://topic://public/default/orders",
    "cluster-form": "persistent://tenant/cluster/namespace/orders",
    "space-in-tenant": "topic://pub lic/default/orders",
    "slash-encoded-in-tenant": "topic://pub%2Flic/default/orders",
    "newline-in-namespace": "topic://public/def\nault/orders",
    "accent-in-tenant": "topic://públic/default/orders",
    "null-in-namespace": "topic://public/def\0ault/orders",
    "long-tenant": f"topic://{'t' * 256}/default/orders",
    "long-local-name": f"topic://public/default/{'x' * 1025}",
    "long-local-name-in-bytes": f"topic://public/default/{'ü' * 513}",
    "megabyte": f"topic://public/default/{'x' * 1_000_000}",
    "thousands-of-slashes": "topic://" + "/" * 5_000,
    "segment-without-descriptor": "segment://public/default/orders",
    "segment-with-bad-range": "segment://public/default/orders/ffff-0000-1",
    "segment-with-huge-id": f"segment://public/default/orders/0000-ffff-{10**30}",
}


def lookup(name: str) -> BaseCommand:
    return requests.lookup(7, name, authoritative=False)


def partitions(name: str) -> BaseCommand:
    return requests.partitioned_metadata(7, name, create_if_missing=True)


@pytest.mark.parametrize("name", BAD_NAMES.values(), ids=BAD_NAMES)
async def test_bad_name_gets_an_error_and_keeps_its_connection(server: VelaServer, name: str) -> None:
    async with greeted(server) as client:
        await client.send(watch(7, name))
        update = await next_update(client)
        assert (update.session_id, update.error) == (7, api.InvalidTopicName)
        assert update.message
        assert not update.HasField("dag")
        await client.send(encode(lookup(name)))
        looked_up = (await client.receive()).lookupTopicResponse
        assert (looked_up.request_id, looked_up.response) == (7, looked_up.Failed)
        assert looked_up.error == api.InvalidTopicName
        await client.send(encode(partitions(name)))
        metadata = (await client.receive()).partitionMetadataResponse
        assert (metadata.request_id, metadata.response) == (7, metadata.Failed)
        assert metadata.error == api.InvalidTopicName
        assert len(update.message + looked_up.message + metadata.message) < 1_500
        assert await client.is_alive()


NOT_TO_BE_CREATED = {
    "control-character": ("topic://public/default/a\x07b", api.InvalidTopicName),
    "null": ("topic://public/default/a\0b", api.InvalidTopicName),
    "white-space-around": ("topic://public/default/ orders", api.InvalidTopicName),
    "non-persistent": ("non-persistent://public/default/orders", api.NotAllowedError),
    "partition": ("persistent://public/default/orders-partition-3", api.TopicNotFound),
    "classic-white-space-around": (" orders", api.InvalidTopicName),
    "segment-of-nothing": ("segment://public/default/nothing-here/0000-ffff-0", api.TopicNotFound),
}


@pytest.mark.parametrize(("name", "error"), NOT_TO_BE_CREATED.values(), ids=NOT_TO_BE_CREATED)
async def test_name_that_may_exist_but_not_be_created_gets_an_error(server: VelaServer, name: str, error: int) -> None:
    before = server.request("GET", SCALABLE).json()
    async with greeted(server) as client:
        await client.send(watch(7, name))
        update = await next_update(client)
        assert (update.session_id, update.error) == (7, error)
        assert await client.is_alive()
    assert server.request("GET", SCALABLE).json() == before


@pytest.mark.parametrize("number", [0, 2**31, 2**63, MAX])
async def test_numbers_up_to_the_largest_come_back_as_they_were(server: VelaServer, topic: str, number: int) -> None:
    async with greeted(server) as client:
        await client.send(watch(number, full(topic)))
        assert (await next_update(client)).session_id == number
        server.split(topic, 0)
        assert (await until_epoch(client, 1)).session_id == number
        await client.send(close_watch(number))
        await client.send(encode(requests.lookup(number, full(topic), authoritative=True)))
        answer = (await client.receive()).lookupTopicResponse
        assert (answer.request_id, answer.brokerServiceUrl) == (number, server.pulsar_url)
        await client.send(encode(requests.partitioned_metadata(number, full(topic), create_if_missing=False)))
        assert (await client.receive()).partitionMetadataResponse.request_id == number


async def test_reused_session_id_passes_to_the_newer_watch(server: VelaServer, topic: str) -> None:
    other = f"{topic}-other"
    server.create(topic)
    server.create(other)
    async with greeted(server) as client:
        for name in (topic, other, topic, other):
            await client.send(watch(5, full(name)))
            assert (await next_update(client)).resolved_topic_name == full(name)
        await eventually(lambda: server.metric("vela_watches") == 1)
        server.split(topic, 0)
        server.split(other, 0)
        update = await next_update(client)
        assert (update.resolved_topic_name, update.dag.epoch) == (full(other), 1)
        # Nothing about the first one is on its way either.
        await client.send(encode(replies.ping()))
        assert (await client.receive()).type == BaseCommand.PONG


async def test_bad_name_under_a_used_session_id_ends_the_watch_that_had_it(server: VelaServer, topic: str) -> None:
    async with greeted(server) as client:
        await client.send(watch(5, full(topic)))
        await next_update(client)
        await client.send(watch(5, "topic://"))
        assert (await next_update(client)).error == api.InvalidTopicName
        server.split(topic, 0)
        await client.send(encode(replies.ping()))
        assert (await client.receive()).type == BaseCommand.PONG


async def test_closing_a_watch_that_is_not_there_is_no_matter(server: VelaServer, topic: str) -> None:
    async with greeted(server) as client:
        await client.send(close_watch(1) + close_watch(MAX) + watch(1, full(topic)))
        await next_update(client)
        await client.send(close_watch(1) * 3)
        assert await client.is_alive()
        await eventually(lambda: server.metric("vela_watches") == 0)


def producer() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic = full("a")
    command.producer.producer_id, command.producer.request_id = 3, MAX
    return command


def schema() -> BaseCommand:
    command = BaseCommand(type=BaseCommand.GET_SCHEMA)
    command.getSchema.request_id, command.getSchema.topic = MAX, full("a")
    return command


@pytest.mark.parametrize(
    ("request_of", "answer", "id_of"),
    [
        (producer, BaseCommand.ERROR, lambda reply: reply.error.request_id),
        (schema, BaseCommand.GET_SCHEMA_RESPONSE, lambda reply: reply.getSchemaResponse.request_id),
    ],
)
async def test_what_is_not_supported_is_refused_in_its_own_response(
    server: VelaServer, request_of: Callable[[], BaseCommand], answer: int, id_of: Callable[[BaseCommand], int]
) -> None:
    async with greeted(server) as client:
        await client.send(encode(request_of()))
        reply = await client.receive()
        assert (reply.type, id_of(reply)) == (answer, MAX)
        assert await client.is_alive()
