"""Peers that do not read, do not write, or do either without end: each is bounded and cut, and nobody else notices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import trio

from protocol import replies
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.e2e.peers import (
    assert_serving,
    close_watch,
    dialled,
    full,
    greeted,
    next_update,
    until_epoch,
    watch,
)
from tests.e2e.vela_process import SCALABLE, VelaServer
from tests.gateway.served import Client, connect_frame
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

PING = encode(replies.ping())
MEGABYTE = 1024 * 1024
MAX_CONNECTIONS = 20
# Large enough that a few states fill what the kernel takes for a peer that does not read.
MANY_SEGMENTS = 400


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VelaServer]:
    """A server with little patience."""
    with VelaServer.start(
        tmp_path_factory.mktemp("strict"),
        *("--handshake-timeout", "1s"),
        *("--stall-limit", "1s"),
        *("--outbox-limit", "64KB"),
        *("--keep-alive", "1s"),
        *("--max-connections", str(MAX_CONNECTIONS)),
    ) as server:
        yield server
        assert "Traceback" not in server.err


def memory(server: VelaServer) -> float:
    return server.metric("process_resident_memory_bytes")


def closes(server: VelaServer, reason: str) -> float:
    return server.metric("vela_connections_closed_total", reason=reason)


async def open_and_close(client: Client, topics: list[str], rounds: int, error: int | None) -> None:
    """So many rounds of watches on all these topics; a refused one is over, the others are closed."""
    frames = [watch(number, name, create=False) for number, name in enumerate(topics)]
    opening, closing = b"".join(frames), b"".join(map(close_watch, range(len(topics))))
    for _ in range(rounds):
        await client.send(opening)
        told = [await next_update(client) for _ in topics]
        assert {update.session_id for update in told} == set(range(len(topics)))
        assert all(update.error == error if error else update.HasField("dag") for update in told)
        await client.send(closing)


@pytest.mark.parametrize("rounds", [50, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("exist", "error"), [(True, None), (False, api.TopicNotFound)])
async def test_thousands_of_watches_leave_nothing_behind(
    server: VelaServer, topic: str, exist: bool, error: int | None, rounds: int
) -> None:
    topics = [f"{topic}-{number}" for number in range(10)]
    if exist:
        for name in topics:
            server.create(name)
    names = list(map(full, topics)) * 10
    async with greeted(server) as client:
        await open_and_close(client, names, 20, error)
        await eventually(lambda: server.metric("vela_watches") == 0)
        warm = memory(server)
        await open_and_close(client, names, rounds, error)
        assert await client.is_alive()
        await eventually(lambda: server.metric("vela_watches") == 0)
        assert server.metric("vela_watched_topics") == 0
        # A leak of a kilobyte for each of 5,000 would show, and one of a quarter for each of 20,000.
        assert memory(server) - warm < 5 * MEGABYTE


async def test_ten_thousand_watches_held_at_once_are_let_go_with_their_connection(
    server: VelaServer, topic: str
) -> None:
    server.create(topic)
    async with greeted(server) as client:
        async with trio.open_nursery() as nursery:
            frames = b"".join(watch(number, full(topic)) for number in range(10_000))
            nursery.start_soon(client.send, frames)
            for _ in range(10_000):
                await next_update(client)
        await eventually(lambda: server.metric("vela_watches") == 10_000)
        await client.send(watch(10_000, full(topic)))
        assert (await next_update(client)).error == api.TooManyRequests
        server.split(topic, 0)
        told = {(await next_update(client)).session_id for _ in range(10_000)}
        assert told == set(range(10_000))
    await eventually(lambda: server.metric("vela_watches") == 0)
    await assert_serving(server)


def until_blocked(server: VelaServer, topic: str) -> int:
    """Change a topic until bytes about it wait for somebody; the epoch that this took."""
    for epoch in range(1, 200):
        server.split(topic, epoch - 1)
        if server.metric("vela_outbox_bytes"):
            return epoch
    raise AssertionError("the kernel took everything")


async def test_peer_that_stops_reading_costs_little_while_its_topic_changes_and_is_cut(
    strict_server: VelaServer, topic: str
) -> None:
    server = strict_server
    server.create(topic, MANY_SEGMENTS)
    cut = times_cut(server)
    async with greeted(server, receive_buffer=4096) as client, keeping_up(server, topic) as view:
        await client.send(watch(1, full(topic)))
        epoch = until_blocked(server, topic)
        record = server.request("GET", f"{SCALABLE}/{topic}").content
        # The one that is half sent and the newest one, whatever came between.
        assert server.metric("vela_outbox_bytes") < 2 * len(record)
        await eventually(lambda: times_cut(server) == cut + 1, within=30)
        await eventually(lambda: view.epoch == epoch)
        assert server.metric("vela_outbox_bytes") == 0
        server.split(topic, epoch)
        await eventually(lambda: view.epoch == epoch + 1)
    await assert_serving(server)


def times_cut(server: VelaServer) -> float:
    """A peer that takes nothing answers no PING either: on a busy machine the keep-alive may come first."""
    return closes(server, "stalled") + closes(server, "dead")


class View:
    """What one who reads everything at once has seen."""

    epoch = -1


@asynccontextmanager
async def keeping_up(server: VelaServer, topic: str) -> AsyncIterator[View]:
    """A watcher beside the rude one that reads and answers PINGs; it must never be cut."""
    view = View()

    async def read(client: Client) -> None:
        while True:
            command = await client.receive(within=30)
            if command.type == BaseCommand.PING:
                await client.send(encode(replies.pong()))
            else:
                assert command.type == BaseCommand.SCALABLE_TOPIC_UPDATE
                view.epoch = command.scalableTopicUpdate.dag.epoch

    async with greeted(server) as client, trio.open_nursery() as nursery:
        await client.send(watch(1, full(topic)))
        nursery.start_soon(read, client)
        yield view
        nursery.cancel_scope.cancel()


async def test_peer_that_reads_on_in_time_finds_the_newest_state_and_few_before_it(
    server: VelaServer, topic: str
) -> None:
    server.create(topic, MANY_SEGMENTS)
    async with greeted(server, receive_buffer=4096) as client:
        await client.send(watch(1, full(topic)))
        epoch = until_blocked(server, topic)
        replaced = server.metric("vela_pushes_total", way="replaced")
        for _ in range(20):
            server.split(topic, epoch)
            epoch += 1
        # Changes that come close together are read, and pushed, as one.
        await eventually(lambda: server.metric("vela_pushes_total", way="replaced") - replaced >= 10)
        last = await until_epoch(client, epoch)
        assert len(last.dag.segments) == MANY_SEGMENTS + 2 * epoch
        assert await client.is_alive()


async def test_peer_that_sends_pings_without_reading_is_not_read_and_cut(strict_server: VelaServer) -> None:
    server = strict_server
    before, stalls = memory(server), server.metric("vela_stalls_total")
    async with greeted(server, receive_buffer=4096) as client:

        async def send_for_ever() -> None:
            try:
                while True:
                    await client.send(PING * 1_000)
            except OSError:
                pass  # cut, as it should be

        with trio.fail_after(30):
            await send_for_ever()
    await eventually(lambda: server.metric("vela_stalls_total") == stalls + 1)
    assert server.metric("vela_outbox_bytes") == 0
    assert memory(server) - before < 5 * MEGABYTE
    await assert_serving(server)


async def trickle(client: Client, data: bytes) -> None:
    """A byte now and then, until the server has had enough."""
    try:
        for position in range(len(data)):
            await client.send(data[position : position + 1])
            await trio.sleep(0.1)
    except OSError:
        pass


async def test_peer_that_trickles_its_handshake_is_cut_at_the_timeout(strict_server: VelaServer) -> None:
    cut = closes(strict_server, "handshake_timeout")
    async with dialled(strict_server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(trickle, client, b"\0\0\4\0" + bytes(1_000))
        assert await client.is_hung_up()
        nursery.cancel_scope.cancel()
    assert closes(strict_server, "handshake_timeout") == cut + 1
    await assert_serving(strict_server)


async def test_peer_that_says_nothing_at_all_is_cut_at_the_timeout(strict_server: VelaServer) -> None:
    cut = closes(strict_server, "handshake_timeout")
    async with dialled(strict_server) as client:
        assert await client.is_hung_up()
    assert closes(strict_server, "handshake_timeout") == cut + 1


async def test_slow_handshake_within_the_timeout_is_a_handshake(server: VelaServer) -> None:
    async with dialled(server) as client:
        await trickle(client, connect_frame())
        assert (await client.receive()).type == BaseCommand.CONNECTED


async def test_peer_that_trickles_after_its_handshake_counts_as_dead(strict_server: VelaServer) -> None:
    dead = closes(strict_server, "dead")
    async with greeted(strict_server) as client, trio.open_nursery() as nursery:
        nursery.start_soon(trickle, client, b"\0\0\4\0" + bytes(1_000))
        assert (await client.receive()).type == BaseCommand.PING
        assert await client.is_hung_up()
        nursery.cancel_scope.cancel()
    assert closes(strict_server, "dead") == dead + 1
    await assert_serving(strict_server)


async def test_connections_past_the_limit_are_told_so_and_do_not_hurt_the_others(strict_server: VelaServer) -> None:
    await eventually(lambda: strict_server.metric("vela_connections") == 0)
    refused = strict_server.metric("vela_connections_refused_total")
    with trio.CancelScope() as holding:
        async with trio.open_nursery() as nursery:
            held: list[Client] = []

            async def hold() -> None:
                async with greeted(strict_server) as client:
                    held.append(client)
                    await trio.sleep_forever()

            for _ in range(MAX_CONNECTIONS):
                nursery.start_soon(hold)
            await eventually(lambda: len(held) == MAX_CONNECTIONS)
            async with dialled(strict_server) as client:
                error = (await client.receive()).error
                assert (error.error, error.request_id) == (api.NotAllowedError, replies.CONNECTION_REQUEST_ID)
                assert await client.is_hung_up()
            assert strict_server.metric("vela_connections_refused_total") == refused + 1
            for client in held:
                assert await client.is_alive()
            holding.cancel()
    await eventually(lambda: strict_server.metric("vela_connections") == 0)
    await assert_serving(strict_server)


async def test_burst_of_connections_that_leave_at_once_is_forgotten(server: VelaServer) -> None:
    warm = memory(server)
    for _ in range(1_000):
        async with dialled(server):
            pass
    await eventually(lambda: server.metric("vela_connections") == 0)
    assert memory(server) - warm < 5 * MEGABYTE
    await assert_serving(server)
