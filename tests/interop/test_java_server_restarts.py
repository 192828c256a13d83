"""A server that is killed under the Java client's hands and comes back: what was acknowledged is there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.vela_process import SCALABLE, VelaServer
from tests.interop.java_peer import JavaPeer, received
from tests.interop.messages import keyed, values
from tests.support.ports import HOST, ReservedPort
from tests.support.waiting import wait_until

COUNT: Final = 400
PACE_MS: Final = 10


class ReturningServer:
    """A server on ports that stay its own, so that clients find it again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = [ReservedPort(), ReservedPort()]
        self.running = self._start()

    def kill_and_start_again(self) -> None:
        self.running.close()
        self.running = self._start()

    def close(self) -> None:
        self.running.close()
        for port in self._ports:
            port.release()

    def _start(self) -> VelaServer:
        listen, http = (f"{HOST}:{port.number}" for port in self._ports)
        flags = ("--listen", listen, "--http", http, "--session-lease", "2s", "--consumer-grace", "2s")
        return VelaServer.start(self._directory, *flags)


@pytest.fixture
def returning(tmp_path: Path) -> Iterator[ReturningServer]:
    server = ReturningServer(tmp_path / "returning")
    yield server
    server.close()


@pytest.mark.parametrize(
    ("kind", "asynchronously"),
    [("queue", True), ("stream", False), ("checkpoint", True)],
    ids=["queue", "stream", "checkpoint"],
)
def test_every_acknowledged_message_arrives_although_the_server_was_killed(
    java: JavaPeer, returning: ReturningServer, topic: str, kind: str, asynchronously: bool
) -> None:
    server = returning.running
    assert server.request("PUT", f"{SCALABLE}/{topic.rpartition('/')[2]}?numInitialSegments=2").is_success
    sent = keyed(COUNT)
    with java.client(server.pulsar_url) as client:
        consumer = {
            "queue": lambda: client.queue("readers", topic=topic),
            "stream": lambda: client.stream("readers", topic=topic),
            "checkpoint": lambda: client.checkpoints(topic),
        }[kind]()
        producer = client.producer(topic)
        sending = producer.sending(sent, asynchronously=asynchronously, pace=PACE_MS)
        wait_until(lambda: producer.acknowledged > COUNT // 3, 60)
        before = received(consumer.receiving(COUNT // 4, within=10))
        returning.kill_and_start_again()

        failed = {int(place) for place in sending.result(90)}
        acknowledged = [message for place, message in enumerate(sent) if place not in failed]
        assert len(acknowledged) > COUNT // 2, "the producer did not come back"
        came = list(before)

        def everything_acknowledged_came() -> bool:
            came.extend(consumer.receive(COUNT, within=1))
            return set(values(acknowledged)) <= set(values(came))

        wait_until(everything_acknowledged_came, 60)
        # At least once, and nothing that was never sent; what was refused or not answered may still be there.
        assert set(values(came)) <= set(values(sent))


def test_what_was_acknowledged_before_the_kill_does_not_come_back(
    java: JavaPeer, returning: ReturningServer, topic: str
) -> None:
    sent = keyed(100)
    with java.client(returning.running.pulsar_url) as client:
        with client.producer(topic) as producer:
            producer.send(sent)
        with client.queue("readers", topic=topic) as consumer:
            seen = consumer.receive(50)
    returning.kill_and_start_again()
    with java.client(returning.running.pulsar_url) as client, client.queue("readers", topic=topic) as consumer:
        rest = consumer.receive(50)
        assert sorted([*values(seen), *values(rest)]) == sorted(values(sent))
        assert consumer.receive(1, within=0.5) == []
