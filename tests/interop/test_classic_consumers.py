"""The `pulsar-client` of PyPI consumes persistent topics: types of subscriptions, and ways to settle a message."""

from collections import Counter, defaultdict
from typing import Any

import pulsar
import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.classic import data, keep, nothing_more, numbered, receive, send, send_together, sending
from tests.support.waiting import wait_until

FROM_START = {"initial_position": pulsar.InitialPosition.Earliest}


def test_exclusive_subscription_takes_one_consumer(classic: Any, classic_topic: str) -> None:
    first = classic.subscribe(classic_topic, "readers")
    with pytest.raises(pulsar.ConsumerBusy):
        classic.subscribe(classic_topic, "readers")
    first.close()
    classic.subscribe(classic_topic, "readers")


def test_subscription_of_another_type_is_refused(classic: Any, classic_topic: str) -> None:
    classic.subscribe(classic_topic, "readers", pulsar.ConsumerType.Shared)
    with pytest.raises(pulsar.PulsarException):
        classic.subscribe(classic_topic, "readers", pulsar.ConsumerType.Failover)


def test_every_subscription_gets_everything(classic: Any, classic_topic: str) -> None:
    consumers = [classic.subscribe(classic_topic, f"readers-{n}") for n in range(3)]
    send(classic.create_producer(classic_topic), numbered(20))
    for consumer in consumers:
        assert data(receive(consumer, 20)) == numbered(20)
        assert nothing_more(consumer)


@pytest.mark.parametrize("batching", [False, True], ids=["one by one", "in batches"])
def test_shared_consumers_take_turns(classic: Any, classic_topic: str, batching: bool) -> None:
    consumers = [
        classic.subscribe(classic_topic, "readers", pulsar.ConsumerType.Shared, receiver_queue_size=10)
        for _ in range(3)
    ]
    producer = classic.create_producer(classic_topic, batching_enabled=batching, batching_max_messages=5)
    send_together(producer, numbered(300))
    shares: list[list[bytes]] = [[], [], []]

    def all_came() -> bool:
        for share, consumer in zip(shares, consumers, strict=True):
            share += data(receive(consumer, 100, within=0.1))
        return sum(map(len, shares)) >= 300

    wait_until(all_came, 30)
    assert sorted(content for share in shares for content in share) == numbered(300)
    assert all(shares), [len(share) for share in shares]


def test_failover_goes_to_the_next_when_the_active_one_leaves(classic: Any, classic_topic: str) -> None:
    names = ["a", "b"]
    first, second = (
        classic.subscribe(classic_topic, "readers", pulsar.ConsumerType.Failover, consumer_name=name) for name in names
    )
    producer = classic.create_producer(classic_topic)
    send(producer, numbered(10, "first"))
    assert data(receive(first, 10)) == numbered(10, "first")
    assert nothing_more(second)
    first.close()
    send(producer, numbered(10, "second"))
    assert data(receive(second, 10)) == numbered(10, "second")
    assert nothing_more(second)


def test_failover_hands_on_what_was_not_acknowledged(classic: Any, classic_topic: str) -> None:
    first = classic.subscribe(classic_topic, "readers", pulsar.ConsumerType.Failover, consumer_name="a")
    second = classic.subscribe(classic_topic, "readers", pulsar.ConsumerType.Failover, consumer_name="b")
    send(classic.create_producer(classic_topic), numbered(10))
    assert data(receive(first, 4)) == numbered(10)[:4]
    assert data(receive(first, 3, settle=keep)) == numbered(10)[4:7]
    first.close()
    assert data(receive(second, 6)) == numbered(10)[4:]
    assert nothing_more(second)


def test_key_shared_keeps_each_key_at_one_consumer_and_in_order(classic: Any, classic_topic: str) -> None:
    consumers = [classic.subscribe(classic_topic, "readers", pulsar.ConsumerType.KeyShared) for _ in range(3)]
    producer = classic.create_producer(classic_topic)
    sent = [(f"key-{n % 30}", f"key-{n % 30}:{n // 30}".encode()) for n in range(600)]
    for key, content in sent:
        sending(producer, [content], partition_key=key)
    producer.flush()
    holders: defaultdict[str, set[int]] = defaultdict(set)
    came: defaultdict[str, list[bytes]] = defaultdict(list)

    def all_came() -> bool:
        for place, consumer in enumerate(consumers):
            for message in receive(consumer, 200, within=0.1):
                holders[message.partition_key()].add(place)
                came[message.partition_key()].append(message.data())
        return sum(map(len, came.values())) >= 600

    wait_until(all_came, 30)
    assert Counter(map(len, holders.values())) == {1: 30}
    assert set.union(*holders.values()) == {0, 1, 2}
    for key, contents in came.items():
        assert contents == [content for sent_key, content in sent if sent_key == key]


def test_sticky_key_ranges_that_overlap_are_refused(classic: Any, classic_topic: str) -> None:
    def subscribe(*ranges: tuple[int, int]) -> Any:
        policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))
        kind = pulsar.ConsumerType.KeyShared
        return classic.subscribe(classic_topic, "readers", kind, key_shared_policy=policy)

    low, high = subscribe((0, 32767)), subscribe((32768, 65535))
    with pytest.raises(pulsar.PulsarException):
        subscribe((100, 200))
    producer = classic.create_producer(classic_topic)
    for content in numbered(100):
        producer.send(content, partition_key=content.decode())
    shares = [receive(consumer, 100, within=2) for consumer in (low, high)]
    assert all(shares)
    assert sorted(content for share in shares for content in data(share)) == numbered(100)


def test_rejected_message_comes_again_with_its_count(classic: Any, classic_topic: str) -> None:
    kind = pulsar.ConsumerType.Shared
    consumer = classic.subscribe(classic_topic, "readers", kind, negative_ack_redelivery_delay_ms=100)
    send(classic.create_producer(classic_topic), [b"again", b"once"])
    first = receive(consumer, 2, settle=lambda message: reject_if(consumer, message, b"again"))
    assert sorted(data(first)) == [b"again", b"once"]
    counts = [receive(consumer, 1, settle=consumer.negative_acknowledge)[0].redelivery_count() for _ in range(2)]
    assert counts == [1, 2]
    assert [message.redelivery_count() for message in receive(consumer, 1)] == [3]
    assert nothing_more(consumer)


def reject_if(consumer: Any, message: Any, content: bytes) -> None:
    settle = consumer.negative_acknowledge if message.data() == content else consumer.acknowledge
    settle(message)


def test_message_that_is_not_acknowledged_in_time_comes_again(classic: Any, classic_topic: str) -> None:
    kind = pulsar.ConsumerType.Shared
    # The least that the client allows.
    consumer = classic.subscribe(classic_topic, "readers", kind, unacked_messages_timeout_ms=10_000)
    send(classic.create_producer(classic_topic), [b"forgotten"])
    receive(consumer, 1, settle=keep)
    (again,) = receive(consumer, 1, within=30)
    assert (again.data(), again.redelivery_count()) == (b"forgotten", 1)


def test_consumer_asks_for_all_it_has_again(classic: Any, classic_topic: str) -> None:
    consumer = classic.subscribe(classic_topic, "readers", pulsar.ConsumerType.Shared)
    send(classic.create_producer(classic_topic), numbered(10))
    receive(consumer, 4)
    receive(consumer, 3, settle=keep)
    consumer.redeliver_unacknowledged_messages()
    assert sorted(data(receive(consumer, 6))) == numbered(10)[4:]
    assert nothing_more(consumer)


@pytest.mark.parametrize("batching", [False, True], ids=["one by one", "in batches"])
def test_cumulative_acknowledgement_covers_what_came_before(classic: Any, classic_topic: str, batching: bool) -> None:
    consumer = classic.subscribe(classic_topic, "readers")
    send_together(
        classic.create_producer(classic_topic, batching_enabled=batching, batching_max_messages=5), numbered(20)
    )
    came = receive(consumer, 15, settle=keep)
    consumer.acknowledge_cumulative(came[9])
    consumer.close()
    assert data(receive(classic.subscribe(classic_topic, "readers"), 10)) == numbered(20)[10:]


def test_part_of_a_batch_is_acknowledged(classic: Any, classic_topic: str) -> None:
    kind = pulsar.ConsumerType.Shared
    consumer = classic.subscribe(classic_topic, "readers", kind, batch_index_ack_enabled=True)
    send_together(classic.create_producer(classic_topic, batching_enabled=True), numbered(10))
    for message in receive(consumer, 10, settle=keep)[::2]:
        consumer.acknowledge(message)
    consumer.close()
    again = classic.subscribe(classic_topic, "readers", kind, batch_index_ack_enabled=True)
    assert sorted(data(receive(again, 5))) == numbered(10)[1::2]
    assert nothing_more(again)


def test_closed_subscription_keeps_what_it_did_not_acknowledge(
    classic: Any, classic_topic: str, server: VelaServer
) -> None:
    consumer = classic.subscribe(classic_topic, "readers")
    producer = classic.create_producer(classic_topic)
    send(producer, numbered(10))
    receive(consumer, 5)
    consumer.close()
    send(producer, numbered(5, "later"))
    other = pulsar.Client(server.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    came = receive(other.subscribe(classic_topic, "readers"), 10)
    other.close()
    assert data(came) == [*numbered(10)[5:], *numbered(5, "later")]


def test_unsubscribed_subscription_is_forgotten(classic: Any, classic_topic: str) -> None:
    consumer = classic.subscribe(classic_topic, "readers")
    send(classic.create_producer(classic_topic), numbered(10))
    receive(consumer, 5)
    consumer.unsubscribe()
    fresh = classic.subscribe(classic_topic, "readers", **FROM_START)
    assert data(receive(fresh, 10)) == numbered(10)


def test_small_receiver_queue_is_never_overrun(classic: Any, classic_topic: str) -> None:
    """One message at a time is asked for, so that another consumer can have all the rest."""
    kind = pulsar.ConsumerType.Shared
    slow = classic.subscribe(classic_topic, "readers", kind, receiver_queue_size=1)
    quick = classic.subscribe(classic_topic, "readers", kind)
    send(classic.create_producer(classic_topic), numbered(100))
    assert len(receive(quick, 100, within=3)) >= 98
    assert len(receive(slow, 2, within=3)) <= 2
