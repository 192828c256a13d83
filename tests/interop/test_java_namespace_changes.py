"""The Java client's namespace consumers while topics are deleted, change their properties, and the server restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.java_peer import JavaAdmin, JavaClient, JavaConsumer, JavaPeer
from tests.interop.messages import Received, Sent, assert_each_once, unkeyed, values
from tests.interop.test_java_namespaces import namespace
from tests.interop.test_java_server_restarts import ReturningServer, returning
from tests.support.waiting import wait_until

__all__ = ["namespace", "returning"]  # fixtures

both_kinds = pytest.mark.parametrize("kind", ["queue", "stream"])
BLUE = {"team": "blue"}
WITHIN = 60.0


def opened(client: JavaClient, kind: str, **options: Any) -> JavaConsumer:
    if kind == "queue":
        return client.queue("readers", **options)
    # The M1 release keeps its registration when it leaves a topic. Under its name it finds that again.
    return client.stream("readers", consumerName="reader", **options)


def until_all_came(consumer: JavaConsumer, sent: Sequence[Sent], came: list[Received]) -> None:
    """At least once: what had arrived before a change may come again after it."""

    def all_came() -> bool:
        came.extend(consumer.receive(1_000, within=0.5))
        return set(values(sent)) <= set(values(came))

    wait_until(all_came, WITHIN)
    assert set(values(came)) == set(values(sent))


def give(server: VelaServer, topic: str, properties: dict[str, str]) -> None:
    path = topic.removeprefix("topic://")
    answer = server.request("PUT", f"/admin/v2/scalable/{path}/properties", json=properties)
    assert answer.is_success, answer.text


@both_kinds
def test_a_topic_that_left_the_filter_is_silent_and_goes_on_when_it_is_back(
    client: JavaClient, admin: JavaAdmin, server: VelaServer, namespace: str, kind: str
) -> None:
    leaving, staying = (f"topic://{namespace}/{name}" for name in ("leaving", "staying"))
    for topic in (leaving, staying):
        admin("create", topic=topic, properties=BLUE)
    with (
        opened(client, kind, namespace=namespace, filters=BLUE) as consumer,
        client.producer(leaving) as producer,
        client.producer(staying) as other,
    ):
        producer.send(sent := unkeyed(10, "before"))
        came = consumer.receive(10)
        assert_each_once(came, sent)
        give(server, leaving, {"team": "red"})

        def is_silent() -> bool:
            producer.send(probe := unkeyed(1, f"probe {len(sent)}"))
            sent.extend(probe)
            came.extend(again := consumer.receive(1, within=1))
            return not again

        wait_until(is_silent, WITHIN)
        other.send(meanwhile := unkeyed(10, "meanwhile"))
        assert_each_once(consumer.receive(10), meanwhile)
        give(server, leaving, BLUE)
        until_all_came(consumer, sent, came)


@both_kinds
def test_a_topic_is_deleted_and_made_again_under_its_name_while_another_goes_on(
    client: JavaClient, admin: JavaAdmin, namespace: str, kind: str
) -> None:
    gone, staying = (f"topic://{namespace}/{name}" for name in ("gone", "staying"))
    for topic in (gone, staying):
        admin("create", topic=topic)
    with opened(client, kind, namespace=namespace) as consumer, client.producer(staying) as other:
        with client.producer(gone) as producer:
            producer.send(first := unkeyed(10, "first"))
            assert_each_once(consumer.receive(10), first)
        other.send(before := unkeyed(5, "before"))
        admin("delete", topic=gone, force=True)
        other.send(after := unkeyed(5, "after"))
        assert_each_once(consumer.receive(10), before + after)
        wait_until(lambda: admin("list", namespace=namespace) == [staying], WITHIN)

        admin("create", topic=gone, count=2)
        with client.producer(gone) as producer:
            producer.send(second := unkeyed(10, "second"))
            came: list[Received] = []
            until_all_came(consumer, second, came)
            assert {message.topic for message in came} == {gone}


@both_kinds
def test_a_killed_server_comes_back_with_topics_that_match_and_nothing_is_lost(
    java: JavaPeer, returning: ReturningServer, kind: str
) -> None:
    server = returning.running
    old, new = "topic://public/default/old", "topic://public/default/new"
    admin = java.admin(server.http_url)
    admin("create", topic=old, properties=BLUE)
    with java.client(server.pulsar_url) as client:
        consumer = opened(client, kind, namespace="public/default", filters=BLUE)
        with client.producer(old) as producer:
            producer.send(sent := unkeyed(20, "old"))
        came = consumer.receive(10)
        returning.kill_and_start_again()
        admin("create", topic=new, properties=BLUE)
        with client.producer(old) as producer, client.producer(new) as another:
            producer.send(more := unkeyed(10, "more"))
            another.send(newest := unkeyed(10, "new"))
        until_all_came(consumer, sent + more + newest, came)


def test_a_cumulative_acknowledgement_covers_all_topics(client: JavaClient, admin: JavaAdmin, namespace: str) -> None:
    topics = [f"topic://{namespace}/{name}" for name in "abc"]
    for topic in topics:
        admin("create", topic=topic, count=2)
    with opened(client, "stream", namespace=namespace) as consumer:
        for topic in topics:
            with client.producer(topic) as producer:
                producer.send(unkeyed(10, topic))
        assert len(consumer.receive(29, settle="keep")) == 29
        assert len(consumer.receive(1, settle="acknowledge")) == 1
    with opened(client, "stream", namespace=namespace) as consumer:
        with client.producer(topics[0]) as producer:
            producer.send(later := unkeyed(3, "later"))
        assert_each_once(consumer.receive(3), later)
        assert consumer.receive(1, within=0.5) == []
