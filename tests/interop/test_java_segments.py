"""Single segments through Pulsar's admin client: what its brokers do with them in the middle of a split."""

import pytest

from tests.interop.java_peer import JavaAdmin, JavaClient, JavaError
from tests.interop.messages import assert_each_once, unkeyed, values

LATEST = {"from": "latest"}  # `from` is a word of Python's
WHOLE, LOWER, UNKNOWN = "0000-ffff-0", "0000-7fff-1", "0000-7fff-9"


@pytest.fixture
def segments(topic: str) -> str:
    return topic.replace("topic://", "segment://")


def refused(admin: JavaAdmin, call: str, **arguments: object) -> int | None:
    with pytest.raises(JavaError) as refusal:
        admin(call, **arguments)
    return refusal.value.status


def test_created_segment_keeps_its_messages_for_the_subscriptions_in_the_list(
    client: JavaClient, admin: JavaAdmin, topic: str, segments: str
) -> None:
    admin("create", topic=topic)
    for _ in range(2):
        admin("create-segment", topic=f"{segments}/{WHOLE}", subscriptions=["queued", "streamed"])
    with client.producer(topic) as producer:
        producer.send(unkeyed(20, "m"))
    for subscription in ("queued", "streamed"):
        assert admin("segment-backlog", topic=f"{segments}/{WHOLE}", subscription=subscription) == 20
    # The first consumer of each decides its type, and not where it begins.
    with client.queue("queued", topic=topic, **LATEST) as consumer:
        assert_each_once(consumer.receive(20), unkeyed(20, "m"))
    with client.stream("streamed", topic=topic, **LATEST) as consumer:
        assert values(consumer.receive(20)) == values(unkeyed(20, "m"))


def test_segment_of_a_layout_is_neither_terminated_nor_deleted(admin: JavaAdmin, topic: str, segments: str) -> None:
    admin("create", topic=topic)
    assert refused(admin, "terminate-segment", topic=f"{segments}/{WHOLE}") == 409
    admin("split", topic=topic, segments=[0])
    for _ in range(2):
        admin("terminate-segment", topic=f"{segments}/{WHOLE}")
    for descriptor in (WHOLE, LOWER):
        for force in (False, True):
            assert refused(admin, "delete-segment", topic=f"{segments}/{descriptor}", force=force) == 409
    assert refused(admin, "create-segment", topic=f"{segments}/{UNKNOWN}") == 412
    assert refused(admin, "terminate-segment", topic=f"{segments}/{UNKNOWN}") == 404
    assert admin("metadata", topic=topic)["epoch"] == 1


def test_segment_that_no_layout_has_is_deleted(admin: JavaAdmin, topic: str, segments: str) -> None:
    admin("delete-segment", topic=f"{segments}/{WHOLE}")
    admin("create", topic=topic)
    admin("delete-segment", topic=f"{segments}/{UNKNOWN}", force=True)
    admin("delete", topic=topic)
    admin("delete-segment", topic=f"{segments}/{WHOLE}")
