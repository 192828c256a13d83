"""The probe of a leader's address: one question for many, an answer for those who are silent, none for nonsense."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from gateway.leader_probe import LeaderProbe
from tests.support.ports import HOST


async def url_of(listener: trio.SocketListener) -> str:
    return f"http://{HOST}:{listener.socket.getsockname()[1]}"


async def test_many_who_ask_at_once_cost_one_connection() -> None:
    async def healthy(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, healthy, 0, host=HOST))
        url = await url_of(listener)
        probe = LeaderProbe(limit=30.0)
        found: list[bool] = []

        async def ask() -> None:
            found.append(await probe.answers(url))

        async with trio.open_nursery() as asking:
            for _ in range(50):
                asking.start_soon(ask)
        assert (found, probe.asked) == ([True] * 50, 1)
        nursery.cancel_scope.cancel()


async def test_a_closed_port_and_a_silent_node_do_not_answer() -> None:
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host=HOST)
        url = await url_of(listener)
        # It takes connections and never looks at them, as a node does that is paused.
        assert not await LeaderProbe(limit=0.05).answers(url)
        await listener.aclose()
        assert not await LeaderProbe(limit=30.0).answers(url)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("url", ["", "nonsense", "http://", "http://host:99999"])
async def test_what_is_no_address_is_left_to_the_client(url: str) -> None:
    assert await LeaderProbe().answers(url)
