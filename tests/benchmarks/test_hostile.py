"""What attacks are measured with: it sees a stall for as long as it holds, and goes on whatever the server does."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from benchmarks.hostile.attacks import ATTACKS, TABLES
from benchmarks.hostile.healthy import PING_INTERVAL, healthy
from benchmarks.hostile.peers import PING, PONG, Account, Answers, Gone, Over, Peer
from benchmarks.readers import Address
from protocol.framing import BadFrame, Frame, FrameDecoder, encode
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.support.waiting import wait_until

LONG = 60.0
CONNECTED = encode(BaseCommand(type=BaseCommand.CONNECTED, connected={"server_version": "stub"}))  # type: ignore[arg-type]  # a mapping will do
WELCOME = encode(
    BaseCommand(
        type=BaseCommand.PRODUCER_SUCCESS,
        producer_success={"request_id": 1, "producer_name": "p"},  # type: ignore[arg-type]  # as above
    )
)
RECEIPT = encode(
    BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt={"producer_id": 1, "sequence_id": 1})  # type: ignore[arg-type]  # as above
)


class StubServer:
    """Answers everything at once but PINGs, which wait until they are let go of; hangs up on whoever looks something
    up."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Address = self._listener.getsockname()
        self.pings = 0
        self.connections = 0
        self.release = threading.Event()

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._converse, args=(sock,), daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _converse(self, sock: socket.socket) -> None:
        decoder = FrameDecoder()
        answers = {
            BaseCommand.CONNECT: CONNECTED,
            BaseCommand.PRODUCER: WELCOME,
            BaseCommand.SEND: RECEIPT,
            BaseCommand.PING: PONG,
        }
        # Requests of HTTP come here, too, and are no frames.
        with sock, suppress(OSError, BadFrame):
            while data := sock.recv(65_536):
                for frame in decoder.receive(data):
                    assert isinstance(frame, Frame)
                    kind = frame.command.type
                    if kind == BaseCommand.LOOKUP:
                        return
                    if kind == BaseCommand.PING and not self.release.is_set():
                        self.pings += 1
                        threading.Thread(target=self._answer_later, args=(sock,), daemon=True).start()
                    else:
                        sock.sendall(answers[kind])

    def _answer_later(self, sock: socket.socket) -> None:
        self.release.wait()
        with suppress(OSError):
            sock.sendall(PONG)


@contextmanager
def stub_server() -> Iterator[StubServer]:
    server = StubServer()
    threading.Thread(target=server.serve, daemon=True).start()
    try:
        yield server
    finally:
        server.release.set()
        server.close()


def account(seconds: float = LONG) -> Account:
    return Account(ends_at=time.monotonic() + seconds)


LOOKUP = encode(BaseCommand(type=BaseCommand.LOOKUP, lookupTopic={"topic": "t", "request_id": 1}))  # type: ignore[arg-type]  # as above


def test_no_attack_takes_the_place_of_another_of_the_same_name() -> None:
    assert len(ATTACKS) == sum(map(len, TABLES))


@pytest.mark.parametrize("piece", [1, 2, 7, 13, 10_000])
def test_kinds_of_answers_are_told_however_the_stream_is_cut(piece: int) -> None:
    long = encode(BaseCommand(type=BaseCommand.CONNECTED, connected={"server_version": "v" * 500}))  # type: ignore[arg-type]  # as above
    stream = PONG + long + RECEIPT + PING + long
    answers = Answers()
    types = [kind for start in range(0, len(stream), piece) for kind in answers.receive(stream[start : start + piece])]
    assert types == ["PONG", "CONNECTED", "SEND_RECEIPT", "PING", "CONNECTED"]


def test_peer_notes_what_it_is_answered() -> None:
    with stub_server() as server:
        server.release.set()
        noted = account()
        with Peer(server.address, noted) as peer:
            peer.ask(PING * 3, 3)
    assert noted.answers == {"CONNECTED": 1, "PONG": 3}
    assert (noted.connections, noted.closed) == (1, 0)


def test_peer_that_the_server_hangs_up_on_says_so() -> None:
    noted = account()
    with stub_server() as server, Peer(server.address, noted) as peer, pytest.raises(Gone):
        peer.ask(LOOKUP)
    assert noted.closed == 1


def test_peer_that_is_not_answered_gives_up_when_its_time_is_up() -> None:
    noted = account()
    with stub_server() as server, Peer(server.address, noted) as peer:
        peer.say(PING)
        noted.ends_at = time.monotonic()
        with pytest.raises(Over):
            peer.hear(1)


def test_healthy_client_asks_on_while_nothing_is_answered_and_counts_each_from_when_it_was_due() -> None:
    with stub_server() as server, healthy() as client:
        client.open(server.address, server.address, "/", "segment")
        client.begin()
        wait_until(lambda: server.pings >= 20)
        server.release.set()
        delays = client.end()
    assert len(delays.pings) >= 20
    # It was due when the others were still to come, and nothing was answered before they had.
    assert delays.pings[0] >= 19 * PING_INTERVAL
    assert len(delays.sends) > 0
