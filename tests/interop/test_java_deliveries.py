"""Who gets which message, how often and when, after Pulsar's own tests of its Java client: chunks, counts, delays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.vela_process import SCALABLE, VelaServer
from tests.interop.java_peer import ANSWER_LIMIT, JavaAdmin, JavaClient, JavaConsumer, JavaPeer, received
from tests.interop.messages import Received, Sent, assert_each_once
from tests.support.waiting import wait_until

# Seconds from sending to delivery: enough for a consumer on a busy machine to be there before.
DELAY_MS = 3_000
LARGE = 50_000  # three chunks of the classic producer


class Side:
    """The client of earlier releases in a Java process; what it opens ends with it."""

    def __init__(self, java: JavaPeer, url: str) -> None:
        self._java = java
        self._client = self._open("client", url=url)

    def _open(self, what: str, **options: Any) -> str:
        name = self._java.name(what)
        self._java.call(f"deliveries-{what}", name=name, **options)
        return name

    def producer(self, topic: str, **options: Any) -> str:
        return self._open("producer", client=self._client, topic=topic, **options)

    def consumer(self, topic: str, type_: str = "Shared", **options: Any) -> str:
        return self._open("consumer", client=self._client, topic=topic, type=type_, **options)

    def reader(self, topic: str) -> str:
        return self._open("reader", client=self._client, topic=topic)

    def send(self, producer: str, contents: list[str], **options: Any) -> int:
        """When all were stored, in milliseconds."""
        return int(self._java.call("deliveries-send", producer=producer, values=contents, **options))

    def receive(
        self, consumer: str, count: int, within: float = 30.0, settle: str = "acknowledge"
    ) -> list[dict[str, Any]]:
        options = {"count": count, "limit": int(within * 1000), "settle": settle}
        found = self._java.start("deliveries-receive", consumer=consumer, **options).result(within + ANSWER_LIMIT)
        assert isinstance(found, list)
        return found

    def read(self, reader: str, count: int) -> list[str]:
        return list(self._java.call("deliveries-read", reader=reader, count=count))

    def close(self, name: str) -> None:
        self._java.call("deliveries-close", name=name)


@pytest.fixture
def side(java: JavaPeer, server: VelaServer) -> Iterator[Side]:
    side = Side(java, server.pulsar_url)
    yield side
    side.close(side._client)


def large(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number:02d}" + "x" * LARGE for number in range(count)]


def contents(messages: list[dict[str, Any]]) -> list[str]:
    return [message["value"] for message in messages]


def shares_of(side: Side, consumers: list[str], count: int) -> list[list[str]]:
    shares: list[list[str]] = [[] for _ in consumers]

    def all_came() -> bool:
        for share, consumer in zip(shares, consumers, strict=True):
            share += contents(side.receive(consumer, count, within=0.3))
        return sum(map(len, shares)) >= count

    wait_until(all_came, 40)
    return shares


# Chunked messages.


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
@pytest.mark.parametrize("queue_size", [1, 1000])
def test_two_consumers_of_one_subscription_get_whole_chunked_messages(
    side: Side, classic_topic: str, type_: str, queue_size: int
) -> None:
    consumers = [side.consumer(classic_topic, type_, queueSize=queue_size) for _ in range(2)]
    producer = side.producer(classic_topic, chunks=True)
    side.send(producer, large(20))
    shares = shares_of(side, consumers, 20)
    assert sorted([*shares[0], *shares[1]]) == large(20)
    assert all(shares)


def test_chunked_messages_of_two_producers_come_whole_to_two_consumers(side: Side, classic_topic: str) -> None:
    consumers = [side.consumer(classic_topic) for _ in range(2)]
    producers = [side.producer(classic_topic, chunks=True) for _ in range(2)]
    sending = [
        side._java.start("deliveries-send", producer=producer, values=large(10, prefix))
        for producer, prefix in zip(producers, "ab", strict=True)
    ]
    shares = shares_of(side, consumers, 20)
    for each in sending:
        each.result(ANSWER_LIMIT)
    assert sorted([*shares[0], *shares[1]]) == sorted([*large(10, "a"), *large(10, "b")])


def test_rejected_chunked_message_comes_again_whole(side: Side, classic_topic: str) -> None:
    consumers = [side.consumer(classic_topic) for _ in range(2)]
    side.send(side.producer(classic_topic, chunks=True), large(4))
    for settle in ("reject", "acknowledge"):
        came: set[str] = set()

        def all_came(came: set[str] = came, settle: str = settle) -> bool:
            """What was rejected may come again before the others have come once."""
            for consumer in consumers:
                came |= set(contents(side.receive(consumer, 4, within=0.3, settle=settle)))
            return len(came) >= 4

        wait_until(all_came, 40)
        assert sorted(came) == large(4)


def test_chunked_messages_of_a_consumer_that_closes_come_whole_to_another(side: Side, classic_topic: str) -> None:
    first = side.consumer(classic_topic)
    side.send(side.producer(classic_topic, chunks=True), large(6))
    assert sorted(contents(side.receive(first, 3, settle="keep"))) == large(3)
    others = [side.consumer(classic_topic) for _ in range(2)]
    side.close(first)
    assert sorted(c for share in shares_of(side, others, 6) for c in share) == large(6)


def test_two_queue_consumers_get_whole_chunked_messages(client: JavaClient, topic: str) -> None:
    sent = [Sent(None, f"{number:02d}" + "x" * 2_500_000) for number in range(6)]
    with (
        client.queue("readers", topic=topic) as one,
        client.queue("readers", topic=topic) as other,
        client.producer(topic, chunks=True) as producer,
    ):
        producer.send(sent)
        assert_each_once(together([one, other], 6), sent)


def together(consumers: list[JavaConsumer], count: int) -> list[Received]:
    came: list[Received] = []

    def all_came() -> bool:
        for receiving in [consumer.receiving(count, within=0.3) for consumer in consumers]:
            came.extend(received(receiving))
        return len(came) >= count

    wait_until(all_came, 40)
    return came


# Counts, and the end of a log.


def test_consumers_that_merely_close_bring_nothing_to_the_dead_letters(side: Side, classic_topic: str) -> None:
    dead = side.consumer(f"{classic_topic}-readers-DLQ")
    side.send(side.producer(classic_topic), ["good"])
    for _ in range(4):
        consumer = side.consumer(classic_topic, deadAfter=2)
        assert [message["redeliveries"] for message in side.receive(consumer, 1, settle="keep")] == [0]
        side.close(consumer)
    consumer = side.consumer(classic_topic, deadAfter=2)
    assert [message["redeliveries"] for message in side.receive(consumer, 3, within=10, settle="reject")] == [0, 1, 2]
    assert contents(side.receive(dead, 1)) == ["good"]


def test_reader_inside_the_last_batch_is_told_that_there_is_more(side: Side, classic_topic: str) -> None:
    producer = side.producer(classic_topic, batches=True)
    side.send(producer, [f"v{number}" for number in range(10)])
    for before in (1, 9):
        reader = side.reader(classic_topic)
        assert side.read(reader, before) == [f"v{number}" for number in range(before)]
        assert side.read(reader, 100) == [f"v{number}" for number in range(before, 10)]
        side.send(producer, ["one more"])
        assert side.read(reader, 100) == ["one more"]
        side.close(reader)
        producer, classic_topic = side.producer(classic_topic + "-b", batches=True), classic_topic + "-b"
        side.send(producer, [f"v{number}" for number in range(10)])


# Delayed messages.


@pytest.mark.parametrize("type_", ["Shared", "Key_Shared"])
def test_delayed_messages_come_when_due_and_others_at_once(side: Side, classic_topic: str, type_: str) -> None:
    consumer, producer = side.consumer(classic_topic, type_), side.producer(classic_topic, batches=True)
    sent = side.send(producer, [f"late{number}" for number in range(10)], after=DELAY_MS)
    side.send(producer, [f"soon{number}" for number in range(10)])
    came = side.receive(consumer, 20)
    assert contents(came)[:10] == [f"soon{number}" for number in range(10)]
    assert sorted(contents(came)[10:]) == [f"late{number}" for number in range(10)]
    # The clock of their sender: the first of them was sent before all were stored, by what that took.
    assert all(message["time"] >= sent for message in came[10:])
    assert all(message["redeliveries"] == 0 for message in came)


@pytest.mark.parametrize("type_", ["Exclusive", "Failover"])
def test_ordered_consumers_get_delayed_messages_at_once(side: Side, classic_topic: str, type_: str) -> None:
    consumer, producer = side.consumer(classic_topic, type_), side.producer(classic_topic)
    side.send(producer, ["late"], after=3_600_000)
    side.send(producer, ["soon"])
    assert contents(side.receive(consumer, 2)) == ["late", "soon"]


def test_messages_with_different_delays_come_in_the_order_of_their_times(side: Side, classic_topic: str) -> None:
    consumer, producer = side.consumer(classic_topic), side.producer(classic_topic)
    for delay in (7_000, 2_500, 4_000):
        side.send(producer, [str(delay)], after=delay)
    assert contents(side.receive(consumer, 3)) == ["2500", "4000", "7000"]


def test_queue_consumers_get_delayed_messages_across_a_split(
    java: JavaPeer, client: JavaClient, admin: JavaAdmin, server: VelaServer, topic: str
) -> None:
    admin("create", topic=topic, count=1)
    stats = f"{SCALABLE}/{topic.rpartition('/')[2]}/stats"
    late = [Sent(None, f"late{number}") for number in range(10)]
    with client.queue("readers", topic=topic) as consumer, client.producer(topic) as producer:
        said = [{**message._asdict(), "after": 3 * DELAY_MS} for message in late]
        assert not java.call("send", producer=producer._name, messages=said, **{"async": True, "pace": 0})
        wait_until(lambda: server.request("GET", stats).json()["subscriptions"]["readers"]["delayedMessageCount"] == 10)
        admin("split", topic=topic, segments=[0])
        producer.send(soon := [Sent(None, "soon")])
        assert_each_once(consumer.receive(11), [*late, *soon])
