"""Frames of which a part has arrived: what they may cost, and who loses them first."""

from __future__ import annotations

import gc
import logging
import tracemalloc

import pytest

from gateway.connection import PROGRESS, UnfinishedFrame
from gateway.listener import ListenerLimits
from protocol import replies
from protocol.framing import encode
from sessions.counters import CloseReason
from tests.gateway.served import Client, Server, serving
from tests.support.waiting import eventually

KB = 1_024
PONG = encode(replies.pong())


async def begin(server: Server, size: int) -> Client:
    """A client that has sent this much of a frame of 4 MB, all of which was taken in."""
    client = await server.greet()
    await begun(server, client, size)
    return client


async def begun(server: Server, client: Client, size: int) -> None:
    before = server.counters.receive_bytes
    await client.send((4_000_000).to_bytes(4) + (100).to_bytes(4) + b"x" * (size - 8))
    await eventually(lambda: server.counters.receive_bytes == before + size)


async def test_what_has_arrived_of_a_frame_is_counted_until_it_is_whole_or_its_connection_ends() -> None:
    async with serving() as server:
        client = await begin(server, 300 * KB)
        other = await begin(server, 10)
        assert server.counters.receive_bytes == 300 * KB + 10
        client.close()
        await eventually(lambda: server.counters.receive_bytes == 10)
        # A frame that is complete leaves nothing, whatever follows it.
        other.close()
        await eventually(lambda: server.counters.receive_bytes == 0)
        third = await server.greet()
        await third.send(PONG[:7])
        await eventually(lambda: server.counters.receive_bytes == 7)
        await third.send(PONG[7:] + PONG[:3])
        await eventually(lambda: server.counters.receive_bytes == 3)
        await third.send(PONG[3:])
        await eventually(lambda: server.counters.receive_bytes == 0)


async def test_over_the_total_the_greediest_goes_and_a_producer_that_sends_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(limits=ListenerLimits(receive_total=1_000 * KB)) as server:
        stopped = [await begin(server, 400 * KB), await begin(server, 300 * KB)]
        healthy = await begin(server, 250 * KB)
        with caplog.at_level(logging.WARNING):
            await healthy.send(b"x" * 100 * KB)
            assert await stopped[0].is_hung_up()
        assert "receive_total_limit" in caplog.text
        await eventually(lambda: server.counters.receive_bytes == (300 + 250 + 100) * KB)
        assert server.counters.closes[CloseReason.RECEIVE_OVERLOAD] == 1
        # More of its frame is taken as if nothing had been.
        await healthy.send(b"x" * 300 * KB)
        await eventually(lambda: server.counters.receive_bytes == (300 + 250 + 400) * KB)
        assert server.counters.closes[CloseReason.RECEIVE_OVERLOAD] == 1


class _Peer:
    is_paused = False


def test_a_frame_that_comes_byte_by_byte_counts_as_stopped_and_one_that_comes_slowly_does_not() -> None:
    peer = _Peer()
    trickling, slow = (UnfinishedFrame(peer, now=0.0) for _ in range(2))  # type: ignore[arg-type]  # all it needs
    trickling.grow(4_000 * KB, now=1.0)
    for second in range(2, 60):
        trickling.grow(4_000 * KB + second, now=float(second))
        slow.grow(second * PROGRESS, now=float(second))
    assert trickling.burden(60.0) > 20 * slow.burden(60.0)


def test_a_frame_whose_connection_is_left_unread_is_no_fault_of_its_peer() -> None:
    peer = _Peer()
    frame = UnfinishedFrame(peer, now=0.0)  # type: ignore[arg-type]  # all it needs
    frame.grow(100 * KB, now=1.0)
    assert frame.burden(100.0) > 0
    peer.is_paused = True
    assert frame.burden(100.0) == 0


async def test_a_frame_that_cannot_be_read_leaves_nothing_without_a_search_for_cycles() -> None:
    async with serving() as server:
        client = await server.greet()
        size = 3_000_000
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            await client.send((size + 4).to_bytes(4) + size.to_bytes(4) + b"\xff" * size)
            assert await client.is_hung_up()
            await eventually(lambda: server.counters.connections == 0)
            await eventually(lambda: tracemalloc.get_traced_memory()[0] < size / 2)
        finally:
            tracemalloc.stop()
            gc.enable()
        assert server.counters.bad_frames == {"protobuf": 1}
