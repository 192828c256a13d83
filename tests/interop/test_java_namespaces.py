"""The Java client's consumers of all topics of a namespace that have certain properties."""

import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.java_peer import JavaAdmin, JavaClient
from tests.interop.messages import assert_each_once, unkeyed


@pytest.fixture
def namespace(server: VelaServer, name: str) -> str:
    """A namespace of this test's own."""
    answer = server.request("PUT", f"/admin/v2/namespaces/public/{name}")
    assert answer.is_success, answer.text
    return f"public/{name}"


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_consumer_picks_up_matching_topics_old_and_new(
    client: JavaClient, admin: JavaAdmin, namespace: str, kind: str
) -> None:
    old, new, other = (f"topic://{namespace}/{name}" for name in ("old", "new", "other"))
    admin("create", topic=old, properties={"team": "red", "tier": "gold"})
    admin("create", topic=other, properties={"team": "blue", "tier": "gold"})
    open_consumer = client.queue if kind == "queue" else client.stream
    filters = {"team": "red", "tier": "gold"}
    with open_consumer("readers", namespace=namespace, filters=filters) as consumer:
        with client.producer(old) as producer, client.producer(other) as unwanted:
            unwanted.send(unkeyed(5, "unwanted"))
            producer.send(first := unkeyed(20, "first"))
            assert_each_once(consumer.receive(20), first)

        admin("create", topic=new, count=2, properties={"team": "red", "tier": "gold"})
        with client.producer(new) as producer:
            producer.send(second := unkeyed(20, "second"))
            came = consumer.receive(20)
            assert_each_once(came, second)
            assert {message.topic for message in came} == {new}
        assert consumer.receive(1, within=0.5) == []


def test_consumer_of_an_empty_namespace_waits_for_its_first_topic(
    client: JavaClient, admin: JavaAdmin, namespace: str
) -> None:
    topic = f"topic://{namespace}/first"
    with client.queue("readers", namespace=namespace) as consumer:
        admin("create", topic=topic)
        with client.producer(topic) as producer:
            producer.send(sent := unkeyed(10))
            assert_each_once(consumer.receive(10), sent)
