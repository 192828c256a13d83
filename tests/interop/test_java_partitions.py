"""Pulsar's Java client of earlier releases at persistent topics: partitions that become more, Failover over several of
them, producers that are fenced off while they wait, topics that go, and readers that seek a time.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.java_peer import JavaError, JavaPeer
from tests.support.waiting import wait_until


def partitions(server: VelaServer, name: str, method: str, count: int | None = None) -> None:
    path = f"/admin/v2/persistent/public/default/{name}/partitions"
    options: dict[str, Any] = {} if count is None else {"json": count}
    answer = server.request(method, f"{path}?force=true" if method == "DELETE" else path, **options)
    assert answer.status_code == 204, answer.text


def test_consumer_gets_what_was_sent_to_new_partitions_before_it_found_them(
    java: JavaPeer, server: VelaServer, name: str, classic_topic: str
) -> None:
    partitions(server, name, "PUT", 2)
    at: dict[str, Any] = {"url": server.pulsar_url, "topic": classic_topic}
    consumer = java.name("consumer")
    java.call("v4-consume", name=consumer, refresh=2, **at)
    partitions(server, name, "POST", 4)
    sent = [str(number) for number in range(12)]
    java.call("v4-send", values=sent, **at)
    came = java.call("v4-receive", name=consumer, count=12, limit=20_000)
    assert sorted(came, key=int) == sent


def test_failover_consumers_share_the_partitions(
    java: JavaPeer, server: VelaServer, name: str, classic_topic: str
) -> None:
    partitions(server, name, "PUT", 4)
    at: dict[str, Any] = {"url": server.pulsar_url, "topic": classic_topic}
    consumers = [java.name("consumer") for _ in range(2)]
    for consumer in consumers:
        java.call("v4-consume", name=consumer, type="Failover", **at)
    java.call("v4-send", values=[str(number) for number in range(20)], **at)
    shares = [java.call("v4-receive", name=consumer, count=10, limit=20_000) for consumer in consumers]
    assert list(map(len, shares)) == [10, 10]
    assert sorted(map(int, [*shares[0], *shares[1]])) == list(range(20))


def test_producer_that_waits_is_told_that_another_has_fenced_it_off(
    java: JavaPeer, server: VelaServer, name: str, classic_topic: str
) -> None:
    at: dict[str, Any] = {"url": server.pulsar_url, "topic": classic_topic}
    holder, waiting, newest = (java.name("producer") for _ in range(3))
    java.call("v4-produce", name=holder, mode="Exclusive", **at)
    java.call("v4-produced", name=holder)
    java.call("v4-produce", name=waiting, mode="WaitForExclusive", **at)

    def both_are_there() -> bool:
        stats = server.request("GET", f"/admin/v2/persistent/public/default/{name}/stats").json()
        return len(stats["publishers"]) == 2

    wait_until(both_are_there, 20)
    java.call("v4-produce", name=newest, mode="ExclusiveWithFencing", **at)
    java.call("v4-produced", name=newest)
    with pytest.raises(JavaError, match="ProducerFenced"):
        java.call("v4-produced", name=waiting)


def test_deleted_topic_costs_others_of_the_same_connection_nothing(
    java: JavaPeer, server: VelaServer, name: str, classic_topic: str
) -> None:
    partitions(server, name, "PUT", 2)
    at: dict[str, Any] = {"url": server.pulsar_url, "topic": classic_topic}
    java.call("v4-consume", name=java.name("consumer"), **at)
    other = java.name("consumer")
    java.call("v4-consume", name=other, url=server.pulsar_url, topic=f"{classic_topic}-other")
    partitions(server, name, "DELETE")
    with pytest.raises(JavaError, match=r"TopicDoesNotExist|NotFound"):
        java.call("v4-consume", name=java.name("consumer"), url=server.pulsar_url, topic=f"{classic_topic}-partition-0")
    java.call("v4-send", values=["still there"], url=server.pulsar_url, topic=f"{classic_topic}-other")
    assert java.call("v4-receive", name=other, count=1, limit=20_000) == ["still there"]


@pytest.mark.parametrize("index", [0, 3])
def test_reader_goes_on_from_the_time_that_it_sought(
    java: JavaPeer, server: VelaServer, classic_topic: str, index: int
) -> None:
    at: dict[str, Any] = {"url": server.pulsar_url, "topic": classic_topic}
    values = [str(number) for number in range(6)]
    java.call("v4-send", values=values, pause=5, **at)
    assert java.call("v4-seek", count=6, index=index, **at) == values[index:]
