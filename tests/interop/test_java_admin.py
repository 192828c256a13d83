"""What `pulsar-admin scalable-topics` does, through the client that it is made of."""

import time

import pytest

from tests.interop.java_peer import JavaAdmin, JavaClient, JavaError
from tests.interop.messages import assert_each_once, unkeyed, values
from tests.support.waiting import wait_until


def test_topic_is_created_listed_described_and_deleted(admin: JavaAdmin, topic: str) -> None:
    admin("create", topic=topic, count=4, properties={"team": topic})
    assert topic in admin("list", namespace="public/default")
    assert admin("list", namespace="public/default", properties={"team": topic}) == [topic]

    metadata = admin("metadata", topic=topic)
    assert metadata["epoch"] == 0
    assert metadata["properties"] == {"team": topic}
    ranges = [(segment["hashRange"]["start"], segment["hashRange"]["end"]) for segment in metadata["segments"].values()]
    assert sorted(ranges) == [(0x0000, 0x3FFF), (0x4000, 0x7FFF), (0x8000, 0xBFFF), (0xC000, 0xFFFF)]

    admin("delete", topic=topic)
    assert topic not in admin("list", namespace="public/default")


def test_segments_are_split_and_merged(admin: JavaAdmin, topic: str) -> None:
    admin("create", topic=topic)
    admin("split", topic=topic, segments=[0])
    split = admin("metadata", topic=topic)
    assert split["segments"]["0"]["childIds"] == [1, 2]
    assert {id_ for id_, segment in split["segments"].items() if segment["active"]} == {"1", "2"}

    admin("merge", topic=topic, segments=[1, 2])
    merged = admin("metadata", topic=topic)
    assert merged["segments"]["3"]["parentIds"] == [1, 2]
    assert merged["epoch"] > split["epoch"]


def test_statistics_name_the_subscriptions(admin: JavaAdmin, topic: str) -> None:
    """Of what the server says, releases before 5.0.0 understand these names; they count segments in another shape."""
    admin("create", topic=topic, count=2)
    admin("subscribe", topic=topic, subscription="readers", type="STREAM")
    assert list(admin("stats", topic=topic)["subscriptions"]) == ["readers"]
    admin("unsubscribe", topic=topic, subscription="readers")
    assert admin("stats", topic=topic)["subscriptions"] == {}


@pytest.mark.parametrize(
    ("call", "arguments", "status"),
    [
        ("metadata", {}, 404),
        ("stats", {}, 404),
        ("delete", {}, 404),
        ("split", {"segments": [0]}, 404),
        ("create", {"count": 0}, 412),
    ],
)
def test_refusals_arrive_with_their_status(
    admin: JavaAdmin, topic: str, call: str, arguments: dict[str, object], status: int
) -> None:
    with pytest.raises(JavaError) as refusal:
        admin(call, topic=topic, **arguments)
    assert refusal.value.status == status


def test_topic_that_exists_is_a_conflict(admin: JavaAdmin, topic: str) -> None:
    admin("create", topic=topic)
    with pytest.raises(JavaError) as refusal:
        admin("create", topic=topic)
    assert (refusal.value.kind, refusal.value.status) == ("ConflictException", 409)


def test_cleared_backlog_is_not_delivered(client: JavaClient, admin: JavaAdmin, topic: str) -> None:
    admin("create", topic=topic, count=2)
    admin("subscribe", topic=topic, subscription="readers", type="QUEUE")
    with client.producer(topic) as producer:
        producer.send(unkeyed(20, "before"))
        admin("clear-backlog", topic=topic, subscription="readers")
        with client.queue("readers", topic=topic) as consumer:
            producer.send(after := unkeyed(20, "after"))
            assert_each_once(consumer.receive(20), after)
            assert consumer.receive(1, within=0.5) == []


def test_seek_to_a_time_delivers_again_what_is_younger(client: JavaClient, admin: JavaAdmin, topic: str) -> None:
    admin("create", topic=topic, count=2)
    with client.producer(topic) as producer:
        with client.queue("readers", topic=topic) as consumer:
            producer.send(before := unkeyed(10, "before"))
            assert_each_once(consumer.receive(10), before)
            between = int(time.time() * 1000) + 1
            wait_until(lambda: time.time() * 1000 > between + 1)
            producer.send(after := unkeyed(10, "after"))
            assert_each_once(consumer.receive(10), after)
        admin("seek", topic=topic, subscription="readers", timestamp=between)
        with client.queue("readers", topic=topic) as consumer:
            assert sorted(values(consumer.receive(10))) == sorted(values(after))
            assert consumer.receive(1, within=0.5) == []
