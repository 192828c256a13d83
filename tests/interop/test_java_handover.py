"""Segments that move between stream consumers of the Java client, with leader and logs on different nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.java_peer import JavaPeer
from tests.interop.messages import Received, keyed, values
from tests.support.processes import ValkeyProcess
from tests.support.waiting import wait_until

Pair = tuple[VelaServer, VelaServer]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A silent consumer is neither cut nor evicted within a test: it only has to let go of what others are given."""
    with ValkeyProcess().start() as store:
        flags = ("--store", store.url, "--handover", "2s", "--keep-alive", "1h", "--consumer-grace", "1h")
        with (
            VelaServer.start(tmp_path / "first", *flags) as first,
            VelaServer.start(tmp_path / "second", *flags) as second,
        ):
            yield first, second


def test_a_silent_consumer_lets_go_of_segments_wherever_their_logs_are(
    java: JavaPeer, java_class_path: str, tmp_path: Path, pair: Pair, name: str, topic: str
) -> None:
    """One node leads the topic, and each has some of its segments."""
    first, second = pair
    first.create(name, segments=8)
    with (
        java.client(second.pulsar_url) as client,
        client.producer(topic) as producer,
        JavaPeer(java_class_path, tmp_path / "java.log") as other,
    ):
        silent = other.client(first.pulsar_url).stream("readers", topic=topic, consumerName="silent")
        before = keyed(200, keys=40)
        producer.send(before, asynchronously=True)
        assert len(silent.receive(200)) == 200
        os.kill(other._process.pid, signal.SIGSTOP)
        try:
            with client.stream("readers", topic=topic, consumerName="next") as following:
                sent = keyed(400, keys=40, prefix="after")
                producer.send(sent, asynchronously=True)
                came: list[Received] = []
                topics: set[str] = set()

                def has_its_share() -> bool:
                    came.extend(following.receive(400, within=1))
                    topics.update(message.topic for message in came)
                    return len(topics) == 4

                # Half of the segments, of whichever node.
                wait_until(has_its_share, 60)
                os.kill(other._process.pid, signal.SIGCONT)

                def all_came() -> bool:
                    came.extend(following.receive(400, within=1))
                    came.extend(silent.receive(400, within=1))
                    return set(values(sent)) <= set(values(came))

                wait_until(all_came, 60)
        finally:
            os.kill(other._process.pid, signal.SIGCONT)
