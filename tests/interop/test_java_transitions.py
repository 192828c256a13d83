"""Splits and merges under the Java client's hands: nothing is lost, and the order of each key holds."""

from contextlib import ExitStack
from typing import Final

import pytest

from tests.interop.java_peer import JavaAdmin, JavaClient, JavaProducer, received
from tests.interop.messages import assert_each_once, assert_order_of_keys, keyed, unkeyed
from tests.support.waiting import wait_until

PRODUCERS: Final = 3
PER_PRODUCER: Final = 400
# So that sending lasts for seconds, and the changes of the layout fall into it.
PACE_MS: Final = 5


def split_and_merge_while_sending(admin: JavaAdmin, topic: str, producer: JavaProducer) -> None:
    """At thirds of what the producer has to send: split the only segment, then merge the halves."""
    wait_until(lambda: producer.acknowledged > PER_PRODUCER // 3, 60)
    admin("split", topic=topic, segments=[0])
    wait_until(lambda: producer.acknowledged > PER_PRODUCER * 2 // 3, 60)
    admin("merge", topic=topic, segments=[1, 2])
    assert producer.acknowledged < PER_PRODUCER, "the merge came too late to be in the middle"


@pytest.mark.parametrize("kind", ["stream", "checkpoint", "queue"])
def test_nothing_is_lost_by_a_split_and_a_merge_while_sending(
    client: JavaClient, admin: JavaAdmin, topic: str, kind: str
) -> None:
    admin("create", topic=topic)
    parts = [keyed(PER_PRODUCER, prefix=f"from-{n}") for n in range(PRODUCERS)]
    everything = [message for part in parts for message in part]
    with ExitStack() as stack:
        if kind == "stream":
            consumer = stack.enter_context(client.stream("readers", topic=topic))
        elif kind == "queue":
            consumer = stack.enter_context(client.queue("readers", topic=topic))
        else:
            consumer = stack.enter_context(client.checkpoints(topic))
        producers = [stack.enter_context(client.producer(topic)) for _ in parts]
        receiving = consumer.receiving(len(everything), within=40)
        sending = [producer.sending(part, pace=PACE_MS) for producer, part in zip(producers, parts, strict=True)]
        split_and_merge_while_sending(admin, topic, producers[0])
        for each in sending:
            assert each.result(60) == {}
        came = received(receiving, 40)
        # Only the stream consumer promises an order across segments.
        if kind == "stream":
            assert_order_of_keys(came, everything)
        else:
            assert_each_once(came, everything)


def test_order_of_keys_holds_for_a_consumer_that_comes_between_the_changes(
    client: JavaClient, admin: JavaAdmin, topic: str
) -> None:
    """It has the parent's messages still to read while the children get new ones."""
    admin("create", topic=topic)
    # Enough to take the client a while.
    backlog, sent = keyed(5000, prefix="backlog"), keyed(PER_PRODUCER, prefix="backlog")
    sent = [message._replace(value=f"{message.key}:{5000 + n}") for n, message in enumerate(sent)]
    with client.producer(topic) as producer:
        producer.send(backlog, asynchronously=True)
        admin("split", topic=topic, segments=[0])
        sending = producer.sending(sent, pace=PACE_MS)
        with client.stream("readers", topic=topic) as consumer:
            receiving = consumer.receiving(5000 + PER_PRODUCER, within=40)
            wait_until(lambda: producer.acknowledged > 5000 + PER_PRODUCER // 2, 60)
            admin("merge", topic=topic, segments=[1, 2])
            assert sending.result(60) == {}
            assert_order_of_keys(received(receiving, 40), [*backlog, *sent])


def test_consumer_that_comes_after_the_changes_reads_sealed_segments_first(
    client: JavaClient, admin: JavaAdmin, topic: str
) -> None:
    admin("create", topic=topic)
    sent = keyed(300)
    with client.producer(topic) as producer:
        producer.send(sent[:100])
        admin("split", topic=topic, segments=[0])
        producer.send(sent[100:200])
        admin("merge", topic=topic, segments=[1, 2])
        producer.send(sent[200:])
        with client.stream("readers", topic=topic) as consumer:
            assert_order_of_keys(consumer.receive(300), sent)
            assert consumer.receive(1, within=0.5) == []


@pytest.mark.parametrize("type_", ["QUEUE", "STREAM"])
def test_subscription_that_starts_at_the_end_loses_nothing_by_a_split(
    client: JavaClient, admin: JavaAdmin, topic: str, type_: str
) -> None:
    """The children stand at their start for it, although the client asks for their end."""
    admin("create", topic=topic)
    with client.producer(topic) as producer:
        producer.send(unkeyed(10, "before"))
        open_consumer = client.queue if type_ == "QUEUE" else client.stream
        with open_consumer("readers", topic=topic, **{"from": "latest"}) as consumer:
            sent = keyed(200)
            sending = producer.sending(sent, pace=PACE_MS)
            wait_until(lambda: producer.acknowledged > 10 + 50, 60)
            admin("split", topic=topic, segments=[0])
            assert sending.result(60) == {}
            assert_each_once(consumer.receive(200), sent)
            assert consumer.receive(1, within=0.5) == []
