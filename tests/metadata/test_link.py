"""One connection on the loop: answers find their callers, and a lost link fails every call at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import hiredis
import pytest
import trio

from metadata import link as link_module
from metadata.link import Link, LinkLost
from metadata.urls import StoreUrl
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually


@asynccontextmanager
async def linked(url: str, timeout: float = 10.0) -> AsyncIterator[Link]:
    parsed = StoreUrl.parse(url)
    link = await Link.open(parsed, parsed.endpoints[0], connect_timeout=2, timeout=timeout)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        yield link
        nursery.cancel_scope.cancel()


async def test_concurrent_callers_get_their_own_answers(valkey: ValkeyProcess) -> None:
    async with linked(valkey.url) as link:

        async def ask(n: int) -> None:
            assert await link.call("ECHO", str(n)) == str(n).encode()

        async with trio.open_nursery() as nursery:
            for n in range(2_000):
                nursery.start_soon(ask, n)


async def test_cancelled_callers_leave_no_answer_to_others(valkey: ValkeyProcess) -> None:
    async with linked(valkey.url) as link:
        answers = 0

        async def ask(n: int) -> None:
            nonlocal answers
            with trio.CancelScope() as scope:
                if n % 3 == 0:
                    scope.deadline = trio.current_time()
                assert await link.call("ECHO", str(n)) == str(n).encode()
                answers += 1

        for _ in range(5):
            async with trio.open_nursery() as nursery:
                for n in range(500):
                    nursery.start_soon(ask, n)
        assert answers >= 5 * 333


async def test_an_error_reply_is_a_value_among_the_others(valkey: ValkeyProcess) -> None:
    async with linked(valkey.url) as link:
        first, second, third = await link.execute([("PING",), ("NONSENSE",), ("ECHO", "x")])
        assert (first, third) == (b"PONG", b"x")
        assert isinstance(second, hiredis.ReplyError)


async def test_nulls_and_booleans_are_answers_too(valkey: ValkeyProcess) -> None:
    async with linked(valkey.url) as link:
        script = "redis.setresp(3); return {false, true, 1}"
        assert await link.execute([("GET", "absent"), ("EVAL", script, 0)]) == [None, [False, True, 1]]


async def test_a_lost_link_fails_all_waiting_calls_at_once(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, linked(proxy.url, timeout=60) as link:
        proxy.stall()
        failures = 0

        async def ask() -> None:
            nonlocal failures
            with pytest.raises(LinkLost):
                await link.call("PING")
            failures += 1

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                proxy.cut()
        assert failures == 100
        assert not link.usable
        with pytest.raises(LinkLost):
            await link.call("PING")


async def test_a_silent_server_counts_as_lost_and_an_idle_one_does_not(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, linked(proxy.url) as link:
        await link.call("PING")
        # Only now, when nothing is asked any more that a busy machine could answer too late.
        link._timeout = 0.2
        await trio.sleep(0.5)
        assert link.usable
        proxy.stall()
        with trio.fail_after(30), pytest.raises(LinkLost, match="no answer for"):
            await link.call("PING")


async def test_replies_larger_than_any_buffer_arrive_whole(valkey: ValkeyProcess) -> None:
    async with linked(valkey.url, timeout=5) as link:
        large = bytes(range(256)) * 40_000
        await link.call("SET", "large", large)
        assert await link.execute([("GET", "large"), ("PING",)]) == [large, b"PONG"]


async def test_pushes_come_before_the_reply_of_a_read_that_sees_their_write(valkey: ValkeyProcess) -> None:
    valkey.client().config_set("notify-keyspace-events", "K$")
    seen: list[bytes] = []
    parsed = StoreUrl.parse(valkey.url)
    link = await Link.open(
        parsed,
        parsed.endpoints[0],
        connect_timeout=2,
        timeout=5,
        on_push=lambda _, message: seen.append(message[2]) if message[0] == b"pmessage" else None,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        await link.call("PSUBSCRIBE", "__keyspace@0__:/x/*")
        for n in range(100):
            valkey.client().set(f"/x/{n}", n)
            assert await link.call("GET", f"/x/{n}") == str(n).encode()
            assert seen[-1] == f"__keyspace@0__:/x/{n}".encode()
        nursery.cancel_scope.cancel()


async def test_a_refused_subscription_is_an_answer_like_any_other(fresh_valkey: ValkeyProcess) -> None:
    fresh_valkey.command("ACL", "SETUSER", "vela", "on", ">p", "~*", "resetchannels", "+@all")
    host, port = fresh_valkey.address
    async with linked(f"redis://vela:p@{host}:{port}/0") as link:
        refusal, pong = await link.execute([("PSUBSCRIBE", "x*"), ("PING",)])
        assert isinstance(refusal, hiredis.ReplyError)
        assert pong == b"PONG"


async def test_what_cannot_be_packed_leaves_no_call_behind(valkey: ValkeyProcess) -> None:
    async with linked(valkey.url) as link:
        with pytest.raises(UnicodeEncodeError):
            await link.execute([("PING",), ("ECHO", "\ud800")])
        assert await link.call("ECHO", "x") == b"x"


async def test_more_commands_than_anybody_could_want_are_refused(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "MAX_OUTSTANDING", 10)
    async with linked(valkey.url) as link:
        with pytest.raises(LinkLost, match="more than 10 commands"):
            await link.execute([("PING",)] * 11)
        assert await link.execute([("PING",)] * 10) == [b"PONG"] * 10


async def test_a_cast_is_executed_before_what_follows_it(valkey: ValkeyProcess) -> None:
    async with linked(valkey.url) as link:
        link.cast([("SET", "a", "1"), ("NONSENSE",)])
        link.cast([])
        assert await link.call("GET", "a") == b"1"


async def test_leaving_a_link_closes_its_socket(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy:
        async with linked(proxy.url) as link:
            await link.call("PING")
            assert proxy.open_connections == 1
        await eventually(lambda: proxy.open_connections == 0)
