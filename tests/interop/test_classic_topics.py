"""The `pulsar-client` of PyPI and kinds of topics: with partitions, those that match a pattern, with a schema."""

import asyncio
import re
from typing import Any

import pulsar
import pulsar.asyncio
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String

from tests.e2e.vela_process import VelaServer
from tests.interop.classic import data, nothing_more, numbered, receive, send, send_together
from tests.interop.java_peer import JavaPeer

PERSISTENT = "/admin/v2/persistent/public/default"
FROM_START = {"initial_position": pulsar.InitialPosition.Earliest}


def create_partitions(server: VelaServer, name: str, count: int) -> None:
    answer = server.request("PUT", f"{PERSISTENT}/{name}/partitions", json=count)
    assert answer.status_code == 204, answer.text


def test_topic_without_partitions_has_one(classic: Any, classic_topic: str) -> None:
    assert classic.get_topic_partitions(classic_topic) == [classic_topic]


def test_partitioned_topic_spreads_messages_and_keeps_keys_together(
    classic: Any, classic_topic: str, server: VelaServer, name: str
) -> None:
    create_partitions(server, name, 3)
    partitions = [f"{classic_topic}-partition-{n}" for n in range(3)]
    assert classic.get_topic_partitions(classic_topic) == partitions
    consumer = classic.subscribe(classic_topic, "readers", pulsar.ConsumerType.Shared)
    producer = classic.create_producer(classic_topic)
    send(producer, numbered(30))
    came = receive(consumer, 30)
    assert sorted(data(came)) == numbered(30)
    assert {message.topic_name() for message in came} == set(partitions)

    send(producer, numbered(30, "keyed"), partition_key="one")
    came = receive(consumer, 30)
    assert data(came) == numbered(30, "keyed")
    assert len({message.topic_name() for message in came}) == 1


def test_partition_is_a_topic_of_its_own(classic: Any, classic_topic: str, server: VelaServer, name: str) -> None:
    create_partitions(server, name, 2)
    consumer = classic.subscribe(f"{classic_topic}-partition-1", "readers")
    send(classic.create_producer(f"{classic_topic}-partition-1"), numbered(5))
    send(classic.create_producer(f"{classic_topic}-partition-0"), numbered(5, "elsewhere"))
    assert data(receive(consumer, 5)) == numbered(5)
    assert nothing_more(consumer)


def test_consumer_of_several_topics(classic: Any, classic_topic: str) -> None:
    topics = [f"{classic_topic}-{n}" for n in range(3)]
    consumer = classic.subscribe(topics, "readers")
    for topic in topics:
        send(classic.create_producer(topic), [topic.encode()])
    assert sorted(data(receive(consumer, 3))) == [topic.encode() for topic in topics]


def test_pattern_consumer_finds_the_topics_that_match(classic: Any, classic_topic: str) -> None:
    for name in ("-one", "-two", "x-unwanted"):
        send(classic.create_producer(f"{classic_topic}{name}"), [name.encode()])
    consumer = classic.subscribe(re.compile(f"{classic_topic}-.*"), "readers", **FROM_START)
    assert sorted(data(receive(consumer, 2))) == [b"-one", b"-two"]
    assert nothing_more(consumer)


def test_pattern_consumer_of_java_is_told_of_new_topics(classic: Any, java: JavaPeer, server: VelaServer) -> None:
    """PyPI's client looks for new ones once a minute, whatever it is told; Java's watches the list."""
    consumer = java.name("pattern")
    # Short, because a watch takes patterns of at most 50 characters, as with Pulsar's brokers.
    classic_topic = "persistent://public/default/watched"
    send(classic.create_producer(f"{classic_topic}-old"), [b"old"])
    java.call("pattern", name=consumer, url=server.pulsar_url, pattern=f"{classic_topic}-.*")
    assert java.call("pattern-receive", name=consumer, count=1, limit=20_000) == ["old"]
    send(classic.create_producer(f"{classic_topic}x-unwanted"), [b"unwanted"])
    send(classic.create_producer(f"{classic_topic}-new"), [b"new"])
    assert java.call("pattern-receive", name=consumer, count=1, limit=20_000) == ["new"]
    assert java.call("pattern-receive", name=consumer, count=1, limit=500) == []
    java.call("pattern-close", name=consumer)


class Reading(Record):  # type: ignore[misc]  # the package is not typed
    sensor = String()
    celsius = Integer()


class NotedReading(Record):  # type: ignore[misc]  # the package is not typed
    sensor = String()
    celsius = Integer()
    # Without a default in the schema, readers of it could not read what was written before.
    note = String(required_default=True)


class GarbledReading(Record):  # type: ignore[misc]  # the package is not typed
    sensor = String()
    celsius = pulsar.schema.Array(pulsar.schema.Boolean())


def test_json_records_come_out_as_they_went_in(classic: Any, classic_topic: str) -> None:
    consumer = classic.subscribe(classic_topic, "readers", schema=JsonSchema(Reading))
    producer = classic.create_producer(classic_topic, schema=JsonSchema(Reading))
    for celsius in range(5):
        producer.send(Reading(sensor="north", celsius=celsius))
    came = receive(consumer, 5)
    assert [(message.value().sensor, message.value().celsius) for message in came] == [("north", n) for n in range(5)]
    assert all(message.schema_version() for message in came)


def test_schema_may_grow_but_not_become_another(classic: Any, classic_topic: str) -> None:
    classic.create_producer(classic_topic, schema=JsonSchema(Reading))
    classic.create_producer(classic_topic, schema=JsonSchema(NotedReading))
    with pytest.raises(pulsar.IncompatibleSchema):
        classic.create_producer(classic_topic, schema=JsonSchema(GarbledReading))
    with pytest.raises(pulsar.IncompatibleSchema):
        classic.subscribe(classic_topic, "readers", schema=JsonSchema(GarbledReading))


def test_many_topics_are_used_at_once(classic: Any, classic_topic: str) -> None:
    topics = [f"{classic_topic}-{n}" for n in range(20)]
    producers = [classic.create_producer(topic) for topic in topics]
    consumers = [classic.subscribe(topic, "readers", **FROM_START) for topic in topics]
    for producer in producers:
        send_together(producer, numbered(10))
    for consumer in consumers:
        assert data(receive(consumer, 10)) == numbered(10)


def test_asynchronous_client_sends_and_receives(server: VelaServer, classic_topic: str) -> None:
    async def talk() -> list[bytes]:
        client = pulsar.asyncio.Client(server.pulsar_url)
        consumer = await client.subscribe(classic_topic, "readers", **FROM_START)
        producer = await client.create_producer(classic_topic)
        await asyncio.gather(*(producer.send(content) for content in numbered(100)))
        came = []
        for _ in range(100):
            message = await asyncio.wait_for(consumer.receive(), 20)
            await consumer.acknowledge(message)
            came.append(message.data())
        await client.close()
        return came

    assert asyncio.run(talk()) == numbered(100)
