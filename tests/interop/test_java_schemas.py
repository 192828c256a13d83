"""Typed messages of the Java client: schemas are kept for a topic, checked, and handed to readers."""

import pytest

from tests.interop.java_peer import JavaAdmin, JavaClient, JavaError
from tests.interop.messages import Sent, values

READINGS = [Sent(f"sensor-{n % 3}", {"sensor": f"sensor-{n % 3}", "celsius": n}) for n in range(30)]
formats = pytest.mark.parametrize("format_", ["json", "avro"])


def by_celsius(reading: dict[str, object]) -> int:
    celsius = reading["celsius"]
    assert isinstance(celsius, int)
    return celsius


@formats
def test_records_come_out_as_they_went_in(client: JavaClient, admin: JavaAdmin, topic: str, format_: str) -> None:
    admin("create", topic=topic, count=2)
    with (
        client.producer(topic, schema=format_) as producer,
        client.queue("queue", topic=topic, schema=format_) as queue,
        client.stream("stream", topic=topic, schema=format_) as stream,
        client.checkpoints(topic, schema=format_) as checkpoints,
    ):
        producer.send(READINGS)
        for consumer in (queue, stream, checkpoints):
            assert sorted(values(consumer.receive(30)), key=by_celsius) == values(READINGS)


@formats
def test_later_schema_reads_what_an_earlier_one_wrote(client: JavaClient, topic: str, format_: str) -> None:
    noted = Sent("sensor-1", {"sensor": "sensor-1", "celsius": 99, "note": "hot"})
    with client.producer(topic, schema=format_) as producer, client.producer(topic, schema=f"{format_}-noted") as later:
        producer.send(READINGS[:1])
        later.send([noted])
        with client.queue("readers", topic=topic, schema=f"{format_}-noted") as consumer:
            came = sorted(values(consumer.receive(2)), key=by_celsius)
            assert came == [READINGS[0].value | {"note": None}, noted.value]


@formats
def test_schema_survives_a_split(client: JavaClient, admin: JavaAdmin, topic: str, format_: str) -> None:
    admin("create", topic=topic)
    with client.producer(topic, schema=format_) as producer:
        producer.send(READINGS[:10])
        admin("split", topic=topic, segments=[0])
        producer.send(READINGS[10:])
        with client.stream("readers", topic=topic, schema=format_) as consumer:
            assert sorted(values(consumer.receive(30)), key=by_celsius) == values(READINGS)
        with pytest.raises((JavaError, AssertionError), match="IncompatibleSchema"):
            client.producer(topic, schema=f"{format_}-garbled").send([Sent(None, {"sensor": "x", "celsius": [True]})])


@formats
def test_incompatible_producer_is_refused(client: JavaClient, topic: str, format_: str) -> None:
    with client.producer(topic, schema=format_) as producer:
        producer.send(READINGS[:1])
        # Producers attach to a segment when they send to it first.
        with pytest.raises((JavaError, AssertionError), match="IncompatibleSchema"):
            client.producer(topic, schema=f"{format_}-garbled").send([Sent(None, {"sensor": "x", "celsius": [True]})])


@formats
def test_incompatible_consumer_is_refused(client: JavaClient, topic: str, format_: str) -> None:
    with client.producer(topic, schema=format_) as producer:
        producer.send(READINGS[:1])
        with pytest.raises(JavaError, match="IncompatibleSchema"):
            client.queue("readers", topic=topic, schema=f"{format_}-garbled")
