"""Where the Java client's subscriptions begin, and what becomes of them and their consumers when they are deleted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.vela_process import SCALABLE, VelaServer
from tests.interop.java_peer import JavaAdmin, JavaClient, JavaConsumer, JavaError, JavaPeer
from tests.interop.messages import assert_each_once, assert_order_of_keys, keyed, unkeyed

COUNT = 40
MIGRATIONS = 6
LATEST = {"from": "latest"}  # which is a word of Python's
Open = Callable[..., JavaConsumer]
CONSUMERS: dict[str, Open] = {"QUEUE": JavaClient.queue, "STREAM": JavaClient.stream}
every_kind = pytest.mark.parametrize("kind", CONSUMERS)


def subscriptions(server: VelaServer, name: str) -> list[str]:
    return list(server.request("GET", f"{SCALABLE}/{name}/subscriptions").json())


@every_kind
def test_latest_is_when_the_subscription_begins_although_segments_are_opened_later(
    java: JavaPeer, client: JavaClient, server: VelaServer, admin: JavaAdmin, topic: str, kind: str
) -> None:
    admin("create", topic=topic)
    with client.producer(topic) as producer:
        producer.send(keyed(COUNT, prefix="sealed"))
        admin("split", topic=topic, segments=[0])
        producer.send(keyed(COUNT, prefix="before"))
        # It is there for a moment only, and may not even have opened the children of the sealed segment. A stream
        # consumer leaves with its connection: closing it does not tell the server.
        with java.client(server.pulsar_url) as first:
            CONSUMERS[kind](first, "readers", topic=topic, **LATEST).close()
        producer.send(sent := keyed(COUNT, prefix="after"))
        with CONSUMERS[kind](client, "readers", topic=topic, **LATEST) as consumer:
            assert_order_of_keys(consumer.receive(COUNT), sent)
            assert consumer.receive(1, within=0.5) == []


@every_kind
def test_deleted_subscription_stays_deleted_under_its_consumer_and_begins_anew_for_the_next(
    java: JavaPeer, client: JavaClient, server: VelaServer, admin: JavaAdmin, name: str, topic: str, kind: str
) -> None:
    admin("create", topic=topic, count=2)
    sent = keyed(COUNT)
    with client.producer(topic) as producer:
        producer.send(sent)
    consumer = CONSUMERS[kind](client, "readers", topic=topic)
    assert_order_of_keys(consumer.receive(COUNT), sent)
    admin("unsubscribe", topic=topic, subscription="readers")
    assert subscriptions(server, name) == []
    try:
        # In this time the client tries to come back, and ends.
        assert consumer.receive(1, within=3) == []
    except JavaError:
        pass  # it may tell whoever waits that it has ended
    assert subscriptions(server, name) == []
    admin("subscribe", topic=topic, subscription="readers", type=kind)
    with java.client(server.pulsar_url) as other, CONSUMERS[kind](other, "readers", topic=topic) as following:
        assert_order_of_keys(following.receive(COUNT), sent)
        assert following.receive(1, within=0.5) == []
    consumer.closing()


def test_who_subscribes_while_a_topic_is_migrated_is_known_to_the_scalable_one(
    java: JavaPeer, client: JavaClient, server: VelaServer, name: str
) -> None:
    for number in range(MIGRATIONS):
        local = f"{name}-{number}"
        classic = f"persistent://public/default/{local}"
        answer = server.request("PUT", f"/admin/v2/persistent/public/default/{local}")
        assert answer.status_code == 204, answer.text
        migrating = java.start("admin", url=server.http_url, call="migrate", topic=classic, force=True)
        topic = f"topic://public/default/{local}"
        with client.queue("readers", topic=topic, **LATEST):
            migrating.result(45)
            assert subscriptions(server, local) == ["readers"]
        # The M1 release misses a layout that comes while it opens its consumer, so it is the next one that receives.
        with client.producer(topic) as producer:
            producer.send(sent := unkeyed(10))
        with client.queue("readers", topic=topic, **LATEST) as consumer:
            assert_each_once(consumer.receive(10), sent)
