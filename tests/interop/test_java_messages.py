"""The Java client's producers and its three kinds of consumers on a topic that stays as it is."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.e2e.vela_process import SCALABLE, VelaServer
from tests.interop.java_peer import JavaAdmin, JavaClient, JavaConsumer, JavaPeer, received
from tests.interop.messages import Received, Sent, assert_each_once, assert_order_of_keys, keyed, unkeyed, values
from tests.support.waiting import wait_until

COUNT = 200
Open = Callable[[JavaClient, str], JavaConsumer]
CONSUMERS: dict[str, Open] = {
    "queue": lambda client, topic: client.queue("readers", topic=topic),
    "stream": lambda client, topic: client.stream("readers", topic=topic),
    "checkpoint": lambda client, topic: client.checkpoints(topic),
}
every_kind = pytest.mark.parametrize("open_consumer", CONSUMERS.values(), ids=CONSUMERS)


@every_kind
@pytest.mark.parametrize("asynchronously", [False, True], ids=["one by one", "in batches"])
@pytest.mark.parametrize("messages", [keyed(COUNT), unkeyed(COUNT)], ids=["keyed", "unkeyed"])
def test_everything_sent_is_received_once(
    client: JavaClient, admin: JavaAdmin, topic: str, open_consumer: Open, messages: list[Sent], asynchronously: bool
) -> None:
    admin("create", topic=topic, count=3)
    with client.producer(topic) as producer, open_consumer(client, topic) as consumer:
        producer.send(messages, asynchronously=asynchronously)
        came = consumer.receive(COUNT)
        if messages[0].key is None:
            assert_each_once(came, messages)
        else:
            assert_order_of_keys(came, messages)
        assert consumer.receive(1, within=0.5) == []


@every_kind
def test_topic_is_created_by_who_uses_it_first(client: JavaClient, topic: str, open_consumer: Open) -> None:
    with open_consumer(client, topic) as consumer, client.producer(topic) as producer:
        producer.send(sent := unkeyed(10))
        assert_each_once(consumer.receive(10), sent)


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_acknowledged_messages_do_not_come_back_to_the_next_consumer(
    java: JavaPeer, server: VelaServer, admin: JavaAdmin, topic: str, kind: str
) -> None:
    admin("create", topic=topic, count=2)
    sent = keyed(100)
    stats = f"{SCALABLE}/{topic.rpartition('/')[2]}/stats"
    with java.client(server.pulsar_url) as first:
        with first.producer(topic) as producer:
            producer.send(sent)
        with CONSUMERS[kind](first, topic) as consumer:
            seen = consumer.receive(40)
            # The client groups what it acknowledges, and tells it a little later.
            wait_until(lambda: server.request("GET", stats).json()["subscriptions"]["readers"]["msgBacklog"] == 60)
    with java.client(server.pulsar_url) as second, CONSUMERS[kind](second, topic) as consumer:
        rest = consumer.receive(60)
        assert_each_once([*seen, *rest], sent)
        assert consumer.receive(1, within=0.5) == []


def test_rejected_message_comes_again_with_its_count(client: JavaClient, topic: str) -> None:
    with client.queue("readers", topic=topic) as consumer, client.producer(topic) as producer:
        producer.send([Sent(None, "again")])
        counts = [consumer.receive(1, settle="reject")[0].redeliveries for _ in range(3)]
        assert counts == [0, 1, 2]
        assert [message.redeliveries for message in consumer.receive(1)] == [3]
        assert consumer.receive(1, within=0.5) == []


def test_message_that_was_rejected_too_often_goes_to_the_dead_letters(client: JavaClient, topic: str) -> None:
    with (
        client.queue("readers", topic=topic, deadAfter=2) as consumer,
        client.producer(topic) as producer,
        client.queue("undertaker", topic=f"{topic}-DLQ") as dead,
    ):
        producer.send([Sent("key", "poison"), Sent("key", "good")])
        came = consumer.receive(1, settle="reject")
        assert values([*came, *consumer.receive(1)]) == ["poison", "good"]
        assert [message.redeliveries for message in consumer.receive(2, settle="reject")] == [1, 2]
        assert values(dead.receive(1)) == ["poison"]
        assert consumer.receive(1, within=0.5) == []


def test_part_of_a_batch_that_was_not_acknowledged_comes_again(client: JavaClient, topic: str) -> None:
    sent = unkeyed(50)
    with client.producer(topic) as producer:
        with client.queue("readers", topic=topic) as consumer:
            producer.send(sent, asynchronously=True)
            done = consumer.receive(20)
            consumer.receive(5, settle="keep")
        with client.queue("readers", topic=topic) as consumer:
            assert_each_once([*done, *consumer.receive(30)], sent)


def test_dead_consumer_s_messages_go_to_another(
    java: JavaPeer, java_class_path: str, client: JavaClient, server: VelaServer, topic: str, tmp_path: Path
) -> None:
    sent = unkeyed(60)
    with client.producer(topic) as producer:
        with JavaPeer(java_class_path, tmp_path / "doomed") as doomed:
            consumer = doomed.client(server.pulsar_url).queue("readers", topic=topic)
            producer.send(sent)
            assert_each_once(consumer.receive(60, settle="keep"), sent)
        with client.queue("readers", topic=topic) as consumer:
            came = consumer.receive(60)
            assert_each_once(came, sent)
            assert {message.redeliveries for message in came} == {0}


def receive_together(consumers: Sequence[JavaConsumer], count: int) -> list[list[Received]]:
    """The share of each, once there are `count` messages in all."""
    shares: list[list[Received]] = [[] for _ in consumers]

    def all_came() -> bool:
        for share, receiving in zip(shares, [each.receiving(count, within=0.3) for each in consumers], strict=True):
            share += received(receiving)
        return sum(map(len, shares)) >= count

    wait_until(all_came, 30)
    assert all(shares), [len(share) for share in shares]
    return shares


def test_queue_consumers_share_the_messages(client: JavaClient, topic: str) -> None:
    sent = unkeyed(100)
    with (
        client.queue("readers", topic=topic, queueSize=5) as one,
        client.queue("readers", topic=topic, queueSize=5) as other,
        client.producer(topic) as producer,
    ):
        producer.send(sent)
        shares = receive_together([one, other], 100)
        assert_each_once([*shares[0], *shares[1]], sent)


@pytest.mark.parametrize("kind", ["stream", "checkpoint"])
def test_consumers_of_a_group_divide_the_segments_between_them(
    java: JavaPeer, client: JavaClient, server: VelaServer, admin: JavaAdmin, topic: str, kind: str
) -> None:
    admin("create", topic=topic, count=4)
    sent = keyed(200, keys=40)

    def open_member(of: JavaClient) -> JavaConsumer:
        return of.stream("readers", topic=topic) if kind == "stream" else of.checkpoints(topic, group="readers")

    with (
        java.client(server.pulsar_url) as second,
        open_member(client) as one,
        open_member(second) as other,
        client.producer(topic) as producer,
    ):
        producer.send(sent)
        shares = receive_together([one, other], 200)
        assert_order_of_keys([*shares[0], *shares[1]], sent)


def test_checkpoint_says_where_to_go_on(client: JavaClient, admin: JavaAdmin, topic: str) -> None:
    admin("create", topic=topic, count=2)
    sent = keyed(100)
    with client.producer(topic) as producer:
        producer.send(sent, asynchronously=True)
        with client.checkpoints(topic) as consumer:
            seen = consumer.receive(37)
            checkpoint = consumer.checkpoint()
            assert len(consumer.receive(10)) == 10
        with client.checkpoints(topic, **{"from": checkpoint}) as consumer:
            assert_order_of_keys([*seen, *consumer.receive(63)], sent)
            assert consumer.receive(1, within=0.5) == []


def test_checkpoint_consumer_from_the_end_sees_only_what_follows(client: JavaClient, topic: str) -> None:
    with client.producer(topic) as producer:
        producer.send(unkeyed(10, "before"))
        with client.checkpoints(topic, **{"from": "latest"}) as consumer:
            producer.send(after := unkeyed(10, "after"))
            assert values(consumer.receive(10)) == values(after)
