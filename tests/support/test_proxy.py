import pytest
import redis
import trio
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy, TlsProxy
from tests.support.waiting import eventually


def client_of(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, protocol=3, socket_timeout=5, retry=Retry(NoBackoff(), 0))


async def ask(client: redis.Redis, *command: str | int) -> object:
    def execute() -> object:
        return client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    return await trio.to_thread.run_sync(execute)


async def test_commands_pass_unchanged(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy:
        client = client_of(proxy.url)
        big = "x" * 1_000_000
        await ask(client, "SET", "big", big)
        assert await ask(client, "GET", "big") == big.encode()
        assert proxy.connections == 1
        assert proxy.requests == proxy.answers
        client.close()


async def test_cut_closes_open_connections_and_takes_new_ones(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy:
        stream = await trio.open_tcp_stream(*proxy.address)
        await eventually(lambda: proxy.open_connections == 1)
        proxy.cut()
        with trio.fail_after(30):
            assert await stream.receive_some() == b""
        await eventually(lambda: proxy.open_connections == 0)
        assert await ask(client_of(proxy.url), "PING") is True


async def test_cut_before_reply_executes_the_command_and_loses_its_answer(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy:
        client = client_of(proxy.url)
        await ask(client, "SET", "counter", 1)
        proxy.cut_before_reply(lambda request: b"INCR" in request)
        with pytest.raises(redis.ConnectionError):
            await ask(client, "INCR", "counter")
        assert valkey.client().get("counter") == b"2"
        assert proxy.cuts == 1
        assert await ask(client, "INCR", "counter") == 3


async def test_cut_before_reply_delivers_earlier_answers_and_drops_later_requests(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy:
        proxy.cut_before_reply(lambda request: b"fatal" in request)
        stream = await trio.open_tcp_stream(*proxy.address)
        await stream.send_all(
            b"*1\r\n$4\r\nPING\r\n"
            b"*3\r\n$3\r\nSET\r\n$5\r\nfatal\r\n$1\r\n1\r\n"
            b"*3\r\n$3\r\nSET\r\n$5\r\nlater\r\n$1\r\n1\r\n"
        )
        received = b""
        with trio.fail_after(30):
            while data := await stream.receive_some():
                received += data
        assert received == b"+PONG\r\n"
        assert valkey.client().exists("fatal") == 1
        assert valkey.client().exists("later") == 0


async def test_stall_keeps_connections_open_and_silent_until_resume(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy:
        stream = await trio.open_tcp_stream(*proxy.address)
        proxy.stall()
        await stream.send_all(b"*1\r\n$4\r\nPING\r\n")
        with trio.move_on_after(0.2) as silence:
            await stream.receive_some()
        assert silence.cancelled_caught
        assert proxy.open_connections == 1
        proxy.resume()
        with trio.fail_after(30):
            assert await stream.receive_some() == b"+PONG\r\n"


async def test_cut_ends_a_stalled_connection(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy:
        stream = await trio.open_tcp_stream(*proxy.address)
        await eventually(lambda: proxy.open_connections == 1)
        proxy.stall()
        await stream.send_all(b"*1\r\n$4\r\nPING\r\n")
        proxy.cut()
        await eventually(lambda: proxy.open_connections == 0)


async def test_swallowed_bells_are_lost_while_answers_and_receipts_pass(valkey: ValkeyProcess) -> None:
    valkey.client().config_set("notify-keyspace-events", "KA")
    async with FaultProxy.open(*valkey.address) as proxy:
        proxy.swallow_pushes()
        stream = await trio.open_tcp_stream(*proxy.address)
        await stream.send_all(
            b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n*2\r\n$10\r\nPSUBSCRIBE\r\n$1\r\n*\r\n*1\r\n$4\r\nPING\r\n"
        )
        received = b""

        async def read_until(mark: bytes) -> bytes:
            nonlocal received
            while mark not in received:
                received += await stream.receive_some()
            found, received = received, b""
            return found

        with trio.fail_after(30):
            assert b"psubscribe" in await read_until(b"+PONG\r\n")
            valkey.client().set("k", 1)
            await stream.send_all(b"*2\r\n$4\r\nECHO\r\n$4\r\ndone\r\n")
            assert b"__keyspace@0__:k" not in await read_until(b"done")
            assert proxy.swallowed == 1
            proxy.deliver_pushes()
            valkey.client().set("k", 2)
            await read_until(b"__keyspace@0__:k")


async def test_refuse_turns_new_connections_away_and_leaves_open_ones(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy:
        client = client_of(proxy.url)
        await ask(client, "PING")
        proxy.refuse()
        with pytest.raises(OSError):
            await trio.open_tcp_stream(*proxy.address)
        assert await ask(client, "PING") is True
        proxy.accept()
        assert await ask(client_of(proxy.url), "PING") is True


async def test_tls_proxy_carries_commands_under_a_checked_certificate(valkey: ValkeyProcess) -> None:
    async with TlsProxy.open(*valkey.address) as proxy:
        client = client_of(proxy.url)
        big = "x" * 1_000_000
        await ask(client, "SET", "big", big)
        assert valkey.client().get("big") == big.encode()
        assert await ask(client, "GET", "big") == big.encode()
        client.close()


async def test_tls_proxy_is_not_trusted_without_its_certificate(valkey: ValkeyProcess) -> None:
    async with TlsProxy.open(*valkey.address) as proxy:
        with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(client_of(proxy.url.partition("?")[0]), "PING")
