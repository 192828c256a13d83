"""Many fan-outs, replies, slow readers and closes at once: every peer checks each byte that it gets."""

import random
import socket
import struct
from collections.abc import Iterator

import pytest
import trio

from sessions.counters import CloseReason, Counters
from sessions.outbox import Outbox, OutboxLimits

PEERS = 40
WATCHES = 6
FINAL = 120  # number of the last state of every watch
REPLY_LANE = 255
HEADER = struct.Struct(">IBI")  # length of the body, lane (watch or replies), number within the lane


def frame(lane: int, number: int, rng: random.Random) -> tuple[bytes, bytes]:
    body = bytes([number % 251]) * rng.choice((0, 30, 300, 5_000, 20_000))
    return HEADER.pack(len(body), lane, number), body


class Peer:
    """A client that reads at its own pace and refuses every torn, doubled, lost or stale frame."""

    def __init__(self, sock: socket.socket, rng: random.Random) -> None:
        self.sock = sock
        self.pace = rng.choice((0.0, 0.0, 0.001, 0.004))
        self.chunk = rng.choice((500, 5_000, 65_536))
        self.hurry = False
        self.newest: dict[int, int] = {}
        self.replies = 0
        self._pending = bytearray()

    async def read(self) -> None:
        while self.sock.fileno() != -1:
            try:
                await trio.lowlevel.wait_readable(self.sock)
                data = self.sock.recv(65_536 if self.hurry else self.chunk)
            except BlockingIOError:
                continue
            except (OSError, trio.ClosedResourceError):
                return
            if not data:
                return
            self._pending += data
            self._check()
            await trio.sleep(0 if self.hurry else self.pace)

    def leave(self) -> None:
        trio.lowlevel.notify_closing(self.sock)
        self.sock.close()

    def _check(self) -> None:
        while len(self._pending) >= HEADER.size:
            length, lane, number = HEADER.unpack_from(self._pending)
            assert lane < WATCHES or lane == REPLY_LANE, "torn frame: impossible lane"
            assert length <= 20_000, "torn frame: impossible length"
            end = HEADER.size + length
            if len(self._pending) < end:
                return
            assert set(self._pending[HEADER.size : end]) <= {number % 251}, "torn frame: foreign bytes"
            del self._pending[:end]
            if lane == REPLY_LANE:
                assert number == self.replies, "a reply is missing or doubled"
                self.replies += 1
            else:
                assert number > self.newest.get(lane, -1), "a state went back"
                self.newest[lane] = number


def connect() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for index in range(PEERS):
            if index % 2:
                yield socket.socketpair()
            else:
                client = socket.create_connection(listening.getsockname())
                yield listening.accept()[0], client


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_peers_get_whole_frames_gapless_replies_and_the_newest_states(seed: int) -> None:
    rng = random.Random(seed)
    counters = Counters()
    current = [0] * WATCHES
    replied = [0] * PEERS

    async with trio.open_nursery() as reading, trio.open_nursery() as writers:
        outboxes: list[Outbox] = []
        peers: list[Peer] = []
        for ours, theirs in connect():
            ours.setblocking(False)
            theirs.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            outboxes.append(Outbox(ours, writers, OutboxLimits(), counters, set()))
            peers.append(Peer(theirs, rng))
            reading.start_soon(peers[-1].read)
        doomed = set(rng.sample(range(PEERS), PEERS // 4))

        async def fan_out(watch: int) -> None:
            for number in range(1, FINAL + 1):
                current[watch] = number
                parts = frame(watch, number, rng)
                for count, outbox in enumerate(outboxes):
                    outbox.push(parts, watch)
                    if count % 16 == 0:
                        await trio.lowlevel.checkpoint()

        async def answer() -> None:
            for _ in range(800):
                index = rng.randrange(PEERS)
                if not outboxes[index].congested:
                    head, body = frame(REPLY_LANE, replied[index], rng)
                    outboxes[index].reply(head + body)
                    replied[index] += 1
                await trio.lowlevel.checkpoint()

        async def close_some() -> None:
            for index in sorted(doomed):
                await trio.sleep(rng.random() * 0.05)
                if rng.random() < 0.5:
                    outboxes[index].close(CloseReason.SHUTDOWN)
                else:
                    peers[index].leave()

        async with trio.open_nursery() as load:
            for watch in range(WATCHES):
                load.start_soon(fan_out, watch)
            load.start_soon(answer)
            load.start_soon(close_some)

        for peer in peers:
            peer.hurry = True
        with trio.fail_after(30):
            for outbox in outboxes:
                await outbox.wait_sent()
        for outbox in outboxes:
            outbox.close(CloseReason.SHUTDOWN)

    for index, peer in enumerate(peers):
        peer.sock.close()
        if index not in doomed:
            assert peer.newest == dict.fromkeys(range(WATCHES), FINAL)
            assert peer.replies == replied[index]
    assert counters.outbox_bytes == 0
    assert counters.pushes_replaced > 1_000  # the peers were slow enough to mean something
    assert counters.pushes_direct > 1_000
