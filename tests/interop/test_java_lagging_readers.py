"""Readers of the Java client that lag behind: what a log would have kept for them, a split keeps for them as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.java_peer import JavaPeer
from tests.interop.messages import assert_each_once, keyed
from tests.support.waiting import wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VelaServer]:
    """It prunes and trims as soon as it may; how long anything is kept is as it is by default."""
    flags = ("--prune-interval", "50ms", "--rebalance-interval", "100ms", "--consumer-grace", "0ms")
    with VelaServer.start(tmp_path / "server", *flags) as server:
        yield server


@pytest.mark.parametrize("group", [{}, {"group": "readers"}], ids=["alone", "group"])
def test_a_lagging_checkpoint_consumer_crosses_a_split_and_a_merge_without_loss(
    java: JavaPeer, server: VelaServer, topic: str, name: str, group: dict[str, str]
) -> None:
    admin = java.admin(server.http_url)
    admin("create", topic=topic)
    sent = keyed(300)
    with java.client(server.pulsar_url) as client, client.producer(topic) as producer:
        producer.send(sent[:100], asynchronously=True)
        # Its connection ends with it: that a reader leaves its group, this client does not say in any other way.
        with java.client(server.pulsar_url) as before, before.checkpoints(topic, **group) as consumer:
            seen = consumer.receive(37)
            checkpoint = consumer.checkpoint()
        admin("split", topic=topic, segments=[0])
        producer.send(sent[100:200], asynchronously=True)
        admin("merge", topic=topic, segments=[1, 2])
        producer.send(sent[200:], asynchronously=True)
        until_its_leader_has_looked(server)
        with client.checkpoints(topic, **group, **{"from": checkpoint}) as consumer:
            assert_each_once([*seen, *consumer.receive(263)], sent)


def until_its_leader_has_looked(server: VelaServer) -> None:
    """What can be pruned is pruned within some rounds, each of them at least an interval of pruning after the last."""
    before = server.metric("vela_leader_rounds_total")
    wait_until(lambda: server.metric("vela_leader_rounds_total") > before + 2, 60)
