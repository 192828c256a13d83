"""What the Java client's producers may ask for besides sending: to be alone, to be remembered, and large messages."""

import pytest

from tests.interop.java_peer import JavaAdmin, JavaClient, JavaError
from tests.interop.messages import Sent, unkeyed, values


def test_exclusive_producer_shuts_others_out(client: JavaClient, topic: str) -> None:
    with client.producer(topic, access="EXCLUSIVE") as exclusive:
        with pytest.raises(JavaError, match=r"Producer(Busy|Fenced)"):
            client.producer(topic, access="EXCLUSIVE")
        with pytest.raises(AssertionError, match=r"Producer(Busy|Fenced)"):
            client.producer(topic).send(unkeyed(1, "shut out"))
        exclusive.send(unkeyed(5))
    with client.producer(topic, access="EXCLUSIVE") as successor:
        successor.send(unkeyed(1))


def test_fencing_producer_takes_the_topic_over(client: JavaClient, topic: str) -> None:
    old = client.producer(topic, access="EXCLUSIVE")
    old.send([Sent(None, "old")])
    with client.producer(topic, access="EXCLUSIVE_WITH_FENCING") as new, client.checkpoints(topic) as consumer:
        new.send([Sent(None, "new")])
        with pytest.raises(AssertionError):
            old.send([Sent(None, "too late")])
        assert values(consumer.receive(2)) == ["old", "new"]
        assert consumer.receive(1, within=0.5) == []


def test_exclusive_producer_goes_on_through_a_split(client: JavaClient, admin: JavaAdmin, topic: str) -> None:
    with client.producer(topic, access="EXCLUSIVE") as producer, client.stream("readers", topic=topic) as consumer:
        producer.send(unkeyed(10, "before"))
        admin("split", topic=topic, segments=[0])
        producer.send(unkeyed(10, "after"))
        assert sorted(values(consumer.receive(20))) == sorted(values([*unkeyed(10, "before"), *unkeyed(10, "after")]))


def test_message_larger_than_a_frame_travels_in_chunks(client: JavaClient, topic: str) -> None:
    sent = [Sent("key", "before"), Sent("key", "large " * 2_000_000), Sent("key", "after")]
    with client.producer(topic, chunks=True) as producer, client.queue("readers", topic=topic) as consumer:
        producer.send(sent)
        assert sorted(values(consumer.receive(3))) == sorted(values(sent))


def test_named_producer_comes_back(client: JavaClient, topic: str) -> None:
    sent = unkeyed(30)
    for part in (sent[:10], sent[10:20], sent[20:]):
        with client.producer(topic, producerName="the-producer") as producer:
            producer.send(part)
    with client.checkpoints(topic) as consumer:
        assert values(consumer.receive(30)) == values(sent)
        assert consumer.receive(1, within=0.5) == []
