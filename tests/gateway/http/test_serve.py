"""Connections: shutting down, standing still, breaking, and bytes that are not HTTP."""

import logging

import h2.connection
import httpx
import pytest
import trio
from litestar.types import Receive, Scope, Send

from gateway.http.admission import Admission, AdmissionLimits
from gateway.http.connection import ConnectionLimits
from gateway.quantities import HostPort
from tests.gateway.http.running import raw_exchange, served
from tests.support.waiting import eventually

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LAST_GET = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
# More than the kernel buffers of both ends of a loopback connection take.
LARGE = b"x" * 64_000_000


async def answer(send: Send, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def hello(_: Scope, __: Receive, send: Send) -> None:
    await answer(send, b"hello")


async def test_idle_connections_close_at_once_when_it_stops() -> None:
    stop = trio.Event()
    with trio.fail_after(30):
        async with (
            served(hello, stop=stop, limits=ConnectionLimits(shutdown_grace=60)) as address,
            httpx.AsyncClient(base_url=f"http://{address}") as client,
        ):
            assert (await client.get("/")).text == "hello"
            stop.set()


async def test_running_request_is_finished_and_no_new_one_taken() -> None:
    stop, started, release = trio.Event(), trio.Event(), trio.Event()

    async def held(_: Scope, __: Receive, send: Send) -> None:
        started.set()
        await release.wait()
        await answer(send, b"done")

    async with trio.open_nursery() as nursery:
        texts: list[str] = []
        async with served(held, stop=stop, limits=ConnectionLimits(shutdown_grace=60)) as address:

            async def get() -> None:
                async with httpx.AsyncClient() as client:
                    texts.append((await client.get(f"http://{address}/")).text)

            nursery.start_soon(get)
            await started.wait()
            stop.set()

            async def is_refused() -> bool:
                try:
                    stream = await trio.open_tcp_stream(address.host, address.port)
                except OSError:
                    return True
                await stream.aclose()
                return False

            await eventually(is_refused)
            release.set()
    assert texts == ["done"]


async def test_request_that_never_ends_is_cut_after_the_grace() -> None:
    stop, started = trio.Event(), trio.Event()

    async def endless(_: Scope, __: Receive, ___: Send) -> None:
        started.set()
        await trio.sleep_forever()

    with trio.fail_after(30):
        async with (
            served(endless, stop=stop, limits=ConnectionLimits(shutdown_grace=0.1)) as address,
            await trio.open_tcp_stream(address.host, address.port) as stream,
        ):
            await stream.send_all(GET)
            await started.wait()
            stop.set()
            assert await stream.receive_some() == b""


@pytest.mark.parametrize("way", ["stop", "cancel"])
async def test_client_who_stops_reading_does_not_hold_up_the_end(way: str) -> None:
    stop = trio.Event()

    async def large(_: Scope, __: Receive, send: Send) -> None:
        await answer(send, LARGE)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            limits = ConnectionLimits(shutdown_grace=0.1, stall_limit=600)
            async with served(large, stop=stop, limits=limits) as address:
                stream = await trio.open_tcp_stream(address.host, address.port)
                await stream.send_all(GET)
                assert await stream.receive_some(1) == b"H"
                if way == "stop":
                    stop.set()
                else:
                    nursery.cancel_scope.cancel()


async def test_client_who_takes_nothing_is_given_up() -> None:
    finished = trio.Event()

    async def large(_: Scope, __: Receive, send: Send) -> None:
        try:
            await answer(send, LARGE)
        finally:
            finished.set()

    with trio.fail_after(30):
        async with (
            served(large, limits=ConnectionLimits(stall_limit=0.2)) as address,
            await trio.open_tcp_stream(address.host, address.port) as stream,
        ):
            await stream.send_all(GET)
            await finished.wait()


async def test_slow_reader_gets_everything() -> None:
    async def large(_: Scope, __: Receive, send: Send) -> None:
        await answer(send, LARGE[:8_000_000])

    async with (
        served(large, limits=ConnectionLimits(stall_limit=5)) as address,
        httpx.AsyncClient() as client,
        client.stream("GET", f"http://{address}/") as response,
    ):
        size = 0
        async for part in response.aiter_raw(65_536):
            size += len(part)
            await trio.sleep(0.001)
    assert size == 8_000_000


async def whole_answer(stream: trio.SocketStream) -> None:
    received = b""
    while not received.endswith(b"0\r\n\r\n"):
        part = await stream.receive_some()
        assert part
        received += part


async def test_connection_past_the_limit_takes_the_place_of_the_one_that_waits_for_longest() -> None:
    async with (
        served(hello, limits=ConnectionLimits(max_connections=2)) as address,
        await trio.open_tcp_stream(address.host, address.port) as silent,
        await trio.open_tcp_stream(address.host, address.port) as speaking,
    ):
        await speaking.send_all(GET)
        await whole_answer(speaking)
        assert (await raw_exchange(address, LAST_GET)).startswith(b"HTTP/1.1 200")
        assert await silent.receive_some() == b""
        await speaking.send_all(GET)
        await whole_answer(speaking)


async def test_connection_past_the_limit_is_closed_while_all_others_are_worked_for() -> None:
    started, release = trio.Event(), trio.Event()

    async def held(_: Scope, receive: Receive, send: Send) -> None:
        await receive()
        started.set()
        await release.wait()
        await answer(send, b"late")

    async with (
        served(held, limits=ConnectionLimits(max_connections=1)) as address,
        await trio.open_tcp_stream(address.host, address.port) as first,
    ):
        await first.send_all(LAST_GET)
        await started.wait()
        assert await raw_exchange(address, b"") == b""
        release.set()
        assert b"late" in b"".join([part async for part in first])


async def not_reading(address: HostPort, request: bytes) -> trio.SocketStream:
    sock = trio.socket.socket()
    # As little as the kernel allows for.
    sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_RCVBUF, 4096)
    await sock.connect((address.host, address.port))
    stream = trio.SocketStream(sock)
    await stream.send_all(request)
    # It has been answered by then.
    assert await stream.receive_some(1) == b"H"
    return stream


async def test_clients_that_do_not_read_their_answers_hold_no_place() -> None:
    async def large_but_for_one(scope: Scope, _: Receive, send: Send) -> None:
        await answer(send, b"small" if scope["path"] == "/small" else LARGE)

    app = Admission(large_but_for_one, AdmissionLimits(concurrency=1, waiting=0))
    limits = ConnectionLimits(stall_limit=600, shutdown_grace=0)
    with trio.fail_after(60):
        async with served(app, limits=limits) as address, httpx.AsyncClient(timeout=None) as client:
            streams = [await not_reading(address, GET) for _ in range(12)]
            assert (await client.get(f"http://{address}/small")).text == "small"
            for stream in streams:
                await stream.aclose()


async def test_answers_that_wait_for_longest_give_way_when_all_together_are_too_large() -> None:
    async def of_size(scope: Scope, _: Receive, send: Send) -> None:
        await answer(send, LARGE[: int(scope["path"].removeprefix("/"))])

    def get(size: int) -> bytes:
        return b"GET /%d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % size

    async def rest_of(stream: trio.SocketStream) -> int:
        size = 1
        try:
            async with stream:
                async for part in stream:
                    size += len(part)
        except trio.BrokenResourceError:
            pass
        return size

    limits = ConnectionLimits(stall_limit=600, answer_bytes=50_000_000)
    with trio.fail_after(60):
        async with served(of_size, limits=limits) as address:
            greedy = await not_reading(address, get(32_000_000))
            modest = await not_reading(address, get(8_000_000))
            newest = await not_reading(address, get(16_000_000))
            assert await rest_of(greedy) < 32_000_000
            assert await rest_of(modest) > 8_000_000
            assert await rest_of(newest) > 16_000_000


async def test_client_whose_window_stays_shut_is_given_up() -> None:
    """Over HTTP/2, where no send of the server stands still meanwhile."""

    async def large(_: Scope, __: Receive, send: Send) -> None:
        await answer(send, LARGE[:1_000_000])

    client = h2.connection.H2Connection()
    client.initiate_connection()
    client.send_headers(
        1, [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "x")], end_stream=True
    )
    with trio.fail_after(30):
        async with (
            served(large, limits=ConnectionLimits(stall_limit=0.2, keep_alive=600)) as address,
            await trio.open_tcp_stream(address.host, address.port) as stream,
        ):
            await stream.send_all(client.data_to_send())
            size = sum([len(part) async for part in stream])
    assert 65_535 <= size < 1_000_000


async def test_answer_comes_through_although_the_body_is_not_taken() -> None:
    """Hypercorn's queue for the body is full by then, and it puts the end of the answer into it."""

    async def not_taking(_: Scope, __: Receive, send: Send) -> None:
        # Each piece of the body takes a turn to be queued, and there is room for ten.
        for _turn in range(100):
            await trio.lowlevel.checkpoint()
        await answer(send, b"hello")

    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with trio.fail_after(30):
        async with served(not_taking, limits=ConnectionLimits(stall_limit=600, keep_alive=600)) as address:
            assert b"hello" in await raw_exchange(address, head + b"1\r\nx\r\n" * 50)


async def test_client_that_is_done_sending_still_gets_its_answer() -> None:
    release = trio.Event()

    async def held(_: Scope, __: Receive, send: Send) -> None:
        await release.wait()
        await answer(send, b"late")

    async with (
        served(held) as address,
        await trio.open_tcp_stream(address.host, address.port) as stream,
    ):
        await stream.send_all(GET)
        await stream.send_eof()
        release.set()
        assert b"late" in b"".join([part async for part in stream])


@pytest.mark.parametrize("first", [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"], ids=["HTTP/1", "HTTP/2"])
async def test_client_that_says_nothing_is_given_up(first: bytes) -> None:
    async with served(hello, limits=ConnectionLimits(keep_alive=0.2)) as address:
        with trio.fail_after(30):
            await raw_exchange(address, first)


async def test_head_of_a_request_that_trickles_is_given_up() -> None:
    async with served(hello, limits=ConnectionLimits(keep_alive=0.2)) as address:
        with trio.fail_after(30):
            assert await raw_exchange(address, b"GET / HTTP/1.1\r\nHo") == b""


async def test_pipelined_requests_are_answered_in_turn() -> None:
    async def path(scope: Scope, _: Receive, send: Send) -> None:
        await answer(send, scope["raw_path"])

    async with served(path) as address:
        text = await raw_exchange(
            address,
            b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        )
    assert text.count(b"HTTP/1.1 200") == 2
    assert text.index(b"/1") < text.index(b"/2")


GARBAGE = {
    "noise": b"\x00\xff\xfe" * 100 + b"\r\n\r\n",
    "binary protocol": b"\x00\x00\x00\x20\x00\x00\x00\x1c" + b"\x08\x02" * 16 + b"\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "not ascii": b"GET /\xc3\xbc HTTP/1.1\r\nHost: x\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "huge head": b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000 + b"\r\n\r\n",
    "http 2 noise": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
    "http 2 upgrade": b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: %%%\r\n\r\n",
}


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_hurts_only_its_own_connection(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with served(hello, limits=ConnectionLimits(keep_alive=0.5, shutdown_grace=1)) as address:
        with caplog.at_level(logging.CRITICAL), trio.fail_after(30):
            await closed_by_server(address.host, address.port, GARBAGE[kind])
        async with httpx.AsyncClient() as client:
            assert (await client.get(f"http://{address}/")).text == "hello"


async def closed_by_server(host: str, port: int, request: bytes) -> None:
    async with await trio.open_tcp_stream(host, port) as stream:
        try:
            await stream.send_all(request)
            async for _ in stream:
                pass
        except trio.BrokenResourceError:
            pass  # a reset is an end, too
