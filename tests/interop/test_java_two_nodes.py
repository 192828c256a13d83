"""The Java client and two nodes on one store: it finds the owners of segments, and their successors when one dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.java_peer import JavaPeer
from tests.interop.messages import Received, assert_order_of_keys, by_key, keyed, values
from tests.support.processes import ValkeyProcess
from tests.support.waiting import wait_until

COUNT: Final = 600
PACE_MS: Final = 10
Pair = tuple[VelaServer, VelaServer]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ValkeyProcess().start() as store:
        flags = ("--store", store.url, "--session-lease", "2s", "--consumer-grace", "5s", "--retention", "1h")
        with (
            VelaServer.start(tmp_path / "first", *flags) as first,
            VelaServer.start(tmp_path / "second", *flags) as second,
        ):
            yield first, second


def test_what_is_sent_through_one_node_is_received_through_the_other(
    java: JavaPeer, pair: Pair, name: str, topic: str
) -> None:
    first, second = pair
    first.create(name, segments=8)
    sent = keyed(200, keys=40)
    with (
        java.client(first.pulsar_url) as sender,
        java.client(second.pulsar_url) as receiver,
        sender.producer(topic) as producer,
        receiver.queue("queue", topic=topic) as queue,
        receiver.stream("stream", topic=topic) as stream,
        receiver.checkpoints(topic) as checkpoints,
    ):
        producer.send(sent, asynchronously=True)
        for consumer in (queue, stream, checkpoints):
            assert_order_of_keys(consumer.receive(200), sent)


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_death_of_a_node_costs_no_acknowledged_message(
    java: JavaPeer, pair: Pair, name: str, topic: str, kind: str
) -> None:
    first, second = pair
    first.create(name, segments=8)
    sent = keyed(COUNT, keys=40)
    # Both URLs are known to the client, as an operator would have it.
    with java.client(f"{second.pulsar_url},{first.pulsar_url.removeprefix('pulsar://')}") as client:
        open_consumer = client.queue if kind == "queue" else client.stream
        consumer, producer = open_consumer("readers", topic=topic), client.producer(topic)
        sending = producer.sending(sent, pace=PACE_MS)
        came: list[Received] = consumer.receive(COUNT // 4)
        first.close()

        failed = {int(place) for place in sending.result(120)}
        acknowledged = [message for place, message in enumerate(sent) if place not in failed]
        assert len(acknowledged) > COUNT // 2, "the producer did not go on"

        def everything_acknowledged_came() -> bool:
            came.extend(consumer.receive(COUNT, within=1))
            return set(values(acknowledged)) <= set(values(came))

        wait_until(everything_acknowledged_came, 90)
        assert set(values(came)) <= set(values(sent))
        if kind == "stream":
            assert_first_times_in_order(came)


def assert_first_times_in_order(came: list[Received]) -> None:
    """What was not yet acknowledged comes again; but no message comes before an earlier one of its key."""
    for key, contents in by_key(came).items():
        first_times = list(dict.fromkeys(contents))
        assert first_times == sorted(first_times, key=lambda value: int(value.partition(":")[2])), key
