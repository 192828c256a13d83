"""What the Java admin client was answered is in whatever the Java client asks for next at the same node."""

import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.java_peer import JavaAdmin, JavaClient
from tests.interop.messages import assert_each_once, unkeyed

TOPICS = 40


@pytest.fixture
def namespace(server: VelaServer, name: str) -> str:
    """A namespace of this test's own."""
    answer = server.request("PUT", f"/admin/v2/namespaces/public/{name}")
    assert answer.is_success, answer.text
    return f"public/{name}"


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_each_of_forty_new_topics_has_the_consumer_that_is_opened_after_its_answer(
    client: JavaClient, admin: JavaAdmin, namespace: str, kind: str
) -> None:
    """A consumer of a namespace is open when it has subscribed at all topics of its snapshot."""
    open_consumer = client.queue if kind == "queue" else client.stream
    # It keeps the node's view of the namespace warm: changes reach that by the feed, in their own time.
    with open_consumer("warm", namespace=namespace):
        missing = []
        for number in range(TOPICS):
            # One topic per consumer, so that the turns cost the same.
            topic, turn = f"topic://{namespace}/topic-{number}", {"turn": str(number)}
            admin("create", topic=topic, properties=turn)
            with open_consumer(f"readers-{number}", namespace=namespace, filters=turn):
                if f"readers-{number}" not in admin("stats", topic=topic)["subscriptions"]:
                    missing.append(number)
        assert missing == []


def test_topics_of_one_answer_after_the_other_are_all_there_for_a_late_consumer(
    client: JavaClient, admin: JavaAdmin, namespace: str
) -> None:
    topics = [f"topic://{namespace}/topic-{number}" for number in range(TOPICS)]
    for topic in topics:
        admin("create", topic=topic)
    with client.queue("readers", namespace=namespace, **{"from": "latest"}) as consumer:
        assert [topic for topic in topics if "readers" not in admin("stats", topic=topic)["subscriptions"]] == []
        for topic in topics[-3:]:
            with client.producer(topic) as producer:
                producer.send(sent := unkeyed(1, topic))
                assert_each_once(consumer.receive(1), sent)
