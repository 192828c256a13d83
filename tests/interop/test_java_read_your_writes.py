"""What the Java admin client was answered is in whatever the Java client asks for next at the same node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.java_peer import JavaAdmin, JavaClient, JavaPeer

# Forty topics in all; a consumer of a namespace opens each of its topics.
NAMESPACES, TOPICS = 8, 5


@pytest.fixture
def lazy_server(tmp_path: Path) -> Iterator[VelaServer]:
    """After one change of a namespace it reads no other for a while, unless somebody waits for it."""
    with VelaServer.start(tmp_path / "lazy", "--coalesce", "60s") as server:
        yield server


@pytest.fixture
def lazy_client(java: JavaPeer, lazy_server: VelaServer) -> Iterator[JavaClient]:
    client = java.client(lazy_server.pulsar_url)
    yield client
    client.closing()


@pytest.fixture
def lazy_admin(java: JavaPeer, lazy_server: VelaServer) -> JavaAdmin:
    return java.admin(lazy_server.http_url)


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_each_of_forty_new_topics_has_the_consumer_that_is_opened_after_its_answer(
    lazy_server: VelaServer, lazy_client: JavaClient, lazy_admin: JavaAdmin, kind: str
) -> None:
    """A consumer of a namespace is open when it has subscribed at all topics of its snapshot."""
    open_consumer = lazy_client.queue if kind == "queue" else lazy_client.stream
    missing = []
    for place in range(NAMESPACES):
        namespace = f"public/{kind}-{place}"
        assert lazy_server.request("PUT", f"/admin/v2/namespaces/{namespace}").is_success
        # It has the node follow the namespace: what others are told comes from that view.
        with open_consumer("first", namespace=namespace):
            for number in range(TOPICS):
                topic, subscription = f"topic://{namespace}/topic-{number}", f"readers-{number}"
                lazy_admin("create", topic=topic)
                with open_consumer(subscription, namespace=namespace):
                    if subscription not in lazy_admin("stats", topic=topic)["subscriptions"]:
                        missing.append(topic)
    assert missing == []
