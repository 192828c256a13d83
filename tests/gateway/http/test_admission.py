"""Bodies, turns and patience, over real connections and without the rest of the API."""

from contextlib import AsyncExitStack

import httpx
import trio
from litestar.types import Receive, Scope, Send

from gateway.http.admission import DISCARDED_BOUNDS, Admission, AdmissionLimits
from gateway.quantities import HostPort
from tests.gateway.http.running import raw_exchange, reason_of, served
from tests.support.waiting import eventually


class Echo:
    """Answers with its body once it may; counts who is inside."""

    def __init__(self, *, held: bool = False) -> None:
        self.inside = 0
        self.most = 0
        self.done = 0
        self.release = trio.Event()
        if not held:
            self.release.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            message = await receive()
            assert message["type"] == "http.request"
            if scope["path"] != "/healthz":
                await self.release.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": message["body"], "more_body": False})
            self.done += 1
        finally:
            self.inside -= 1


def client_of(address: HostPort) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://{address}", timeout=30, verify=False, limits=httpx.Limits(max_connections=None)
    )


async def test_only_so_many_are_worked_on_at_once_and_all_are_answered() -> None:
    echo = Echo(held=True)
    async with (
        served(Admission(echo, AdmissionLimits(concurrency=3))) as address,
        client_of(address) as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(20):
            nursery.start_soon(client.get, "/")
        await eventually(lambda: echo.inside == 3)
        assert (await client.get("/healthz")).status_code == 200
        echo.release.set()
    assert (echo.most, echo.done) == (4, 21)


async def test_too_many_waiting_are_turned_away() -> None:
    echo = Echo(held=True)
    async with (
        served(Admission(echo, AdmissionLimits(concurrency=1, waiting=1, max_body=4_000_000))) as address,
        client_of(address) as client,
        trio.open_nursery() as nursery,
    ):
        statuses: list[int] = []

        async def post() -> None:
            response = await client.post("/", content=b"x" * 2_000_000)
            statuses.append(response.status_code)
            if response.status_code == 503:
                assert response.headers["retry-after"] == "1"
                reason_of(response)

        for _ in range(6):
            nursery.start_soon(post)
        await eventually(lambda: statuses == [503] * 4)
        assert (await client.get("/healthz")).status_code == 200
        echo.release.set()
    assert sorted(statuses) == [200, 200, 503, 503, 503, 503]


async def test_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    limits = AdmissionLimits(max_body=100_000)
    async with served(Admission(Echo(), limits)) as address, client_of(address) as client:
        assert (await client.post("/", content=b"x" * 100_000)).content == b"x" * 100_000
        response = await client.post("/", content=b"x" * 100_001)
        assert response.status_code == 413
        assert "100000" in reason_of(response)

        async def chunks() -> object:
            for _ in range(11):
                yield b"x" * 10_000

        assert (await client.post("/", content=chunks())).status_code == 413  # type: ignore[arg-type]
        assert (await client.post("/", content=b"small")).content == b"small"


async def test_endless_body_is_cut_and_leaves_nothing_behind() -> None:
    echo = Echo()
    limits = AdmissionLimits(max_body=10_000, concurrency=1, waiting=0)
    async with served(Admission(echo, limits)) as address, client_of(address) as client:
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
            sent = 0
            try:
                while sent < 1_000_000_000:
                    await stream.send_all(b"x" * 65_536)
                    sent += 65_536
            except trio.BrokenResourceError:
                pass
        assert 1_000_000_000 > sent >= limits.max_body * DISCARDED_BOUNDS
        # There is one place, so this only works if the other request gave it back.
        assert (await client.post("/", content=b"next")).content == b"next"
    assert echo.done == 1


async def test_body_that_trickles_is_given_up() -> None:
    limits = AdmissionLimits(body_timeout=0.2)
    async with served(Admission(Echo(), limits)) as address:
        answer = await raw_exchange(address, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'{"reason":' in answer


async def test_bodies_that_trickle_keep_nobody_out() -> None:
    limits = AdmissionLimits(concurrency=1, waiting=0, body_timeout=600)
    async with served(Admission(Echo(), limits)) as address, client_of(address) as client, AsyncExitStack() as slow:
        for _ in range(5):
            stream = await slow.enter_async_context(await trio.open_tcp_stream(address.host, address.port))
            await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
            # By then its body is waited for.
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
            await stream.send_all(b"abc")
        assert (await client.post("/", content=b"mine")).content == b"mine"


async def test_body_that_is_kept_for_longest_gives_way_when_all_bodies_together_are_too_large() -> None:
    limits = AdmissionLimits(body_timeout=600, max_body=1_000_000, all_bodies=1_000_000)
    admission = Admission(Echo(), limits)
    async with (
        served(admission) as address,
        client_of(address) as client,
        await trio.open_tcp_stream(address.host, address.port) as slow,
    ):
        await slow.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" + b"x" * 800_000)
        await eventually(lambda: admission.kept_bytes == 800_000)
        # Less than the other holds, and not for as long.
        assert (await client.post("/", content=b"y" * 400_000)).content == b"y" * 400_000
        answer = b"".join([part async for part in slow])
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"at the same time" in answer
        assert admission.kept_bytes == 0


async def test_bodies_for_health_checks_are_not_kept() -> None:
    async with served(Admission(Echo(), AdmissionLimits())) as address, client_of(address) as client:
        assert (await client.request("GET", "/healthz", content=b"x" * 1_000)).content == b""


async def test_client_that_leaves_in_the_middle_of_its_body_is_forgotten() -> None:
    echo = Echo()
    limits = AdmissionLimits(concurrency=1, waiting=0)
    async with served(Admission(echo, limits)) as address, client_of(address) as client:
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")

        async def has_room() -> bool:
            return (await client.get("/")).status_code == 200

        await eventually(has_room)
    assert echo.done == 1


async def test_request_that_takes_too_long_is_answered_with_what_is_known() -> None:
    limits = AdmissionLimits(request_timeout=0.1)
    async with served(Admission(Echo(held=True), limits)) as address, client_of(address) as client:
        response = await client.post("/")
        assert response.status_code == 503
        assert "may or may not" in reason_of(response)


async def test_web_sockets_are_refused() -> None:
    async with served(Admission(Echo(), AdmissionLimits())) as address:
        answer = await raw_exchange(
            address,
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        assert answer.startswith(b"HTTP/1.1 403 ")
