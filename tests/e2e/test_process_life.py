"""The server as a process: it says when it is ready, ends when it is told to, and what it was told survives it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.peers import assert_serving, full, greeted, next_update, until_epoch, watch
from tests.e2e.vela_process import READY, SCALABLE, VelaServer
from tests.support.ports import HOST
from tests.support.processes import is_alive
from tests.support.waiting import eventually, wait_until

pytestmark = pytest.mark.slow

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS)
async def test_signal_ends_it_in_order_though_clients_are_connected(tmp_path: Path, number: signal.Signals) -> None:
    # The grace is longer than the wait: who is owed nothing must not be waited for.
    with VelaServer.start(tmp_path, "--shutdown-grace", "5m") as server:
        store = server.store_pid
        # Leaves an HTTP connection open for a next request.
        assert server.request("GET", "/healthz").status_code == 200
        async with greeted(server) as watcher, greeted(server) as idler:
            await watcher.send(watch(1, full("a")))
            await next_update(watcher)
            server.signal(number)
            assert await watcher.is_hung_up(within=30)
            assert await idler.is_hung_up(within=30)
            outcome = server.wait()
        assert (outcome.code, "Traceback" in outcome.err) == (0, False)
        assert READY.fullmatch(outcome.out), "standard output is the ready line and nothing else"
        assert not is_alive(store)


def stop(server: VelaServer) -> None:
    assert server.stop().code == 0


def kill(server: VelaServer) -> None:
    server.signal(signal.SIGKILL)
    server.wait()


@pytest.mark.parametrize("end", [stop, kill])
async def test_topics_survive_the_process_and_its_store_does_not(
    tmp_path: Path, end: Callable[[VelaServer], None]
) -> None:
    with VelaServer.start(tmp_path) as server:
        server.create("orders", segments=4)
        server.create("clicks")
        server.split("orders", 1)
        server.split("orders", 2)
        before = server.request("GET", f"{SCALABLE}/orders")
        store = server.store_pid
        end(server)
        wait_until(lambda: not is_alive(store))
    with VelaServer.start(tmp_path) as server:
        after = server.request("GET", f"{SCALABLE}/orders")
        assert (after.content, after.headers["etag"]) == (before.content, before.headers["etag"])
        assert (server.epoch("orders"), server.epoch("clicks")) == (2, 0)
        async with greeted(server) as client:
            await client.send(watch(1, full("orders"), create=False))
            assert (await next_update(client)).dag.epoch == 2
            server.split("orders", 3)
            # Before that it may be told who leads the topic now.
            while (update := await next_update(client)).dag.epoch == 2:
                pass
            assert update.dag.epoch == 3


def test_server_can_be_started_at_once_after_its_predecessor_was_killed(tmp_path: Path) -> None:
    with VelaServer.start(tmp_path) as server:
        server.create("orders")
        kill(server)
    with VelaServer.start(tmp_path) as server:
        assert server.epoch("orders") == 0


async def test_embedded_store_that_is_killed_comes_back_and_no_watcher_is_told(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(20)]
    with VelaServer.start(tmp_path) as server:
        async with greeted(server) as client:
            for number, name in enumerate(names):
                await client.send(watch(number, full(name)))
                assert (await next_update(client)).dag.epoch == 0
            for epoch in (1, 2):
                await kill_store(server)
                for name in names:
                    server.split(name, epoch - 1)
                told = {(await until_epoch(client, epoch)).session_id for _ in names}
                assert told == set(range(len(names)))
        assert server.metric("vela_connections_accepted_total") == 1
        await assert_serving(server)
        assert server.stop().code == 0


async def kill_store(server: VelaServer) -> None:
    """End the embedded store as a crash would, and wait until the server is ready on another one."""
    lost = server.metric("vela_store_connections_lost_total", lane="feed")
    os.kill(server.store_pid, signal.SIGKILL)
    await eventually(lambda: server.metric("vela_store_connections_lost_total", lane="feed") > lost, within=30)
    await eventually(lambda: server.request("GET", "/readyz").status_code == 200, within=30)


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_before_it_is_ready_ends_it_and_its_store(tmp_path: Path, number: signal.Signals) -> None:
    with VelaServer(tmp_path) as server:
        # The lock is taken before the store is started, which is before the server listens.
        wait_until(lambda: (server.data_dir / "lock").exists() or not server.running)
        server.signal(number)
        outcome = server.wait()
        assert "Traceback" not in outcome.err
        # As the system ends it, as the shell says it, or in order.
        assert outcome.code in {-number, 128 + number, 0}
    with VelaServer.start(tmp_path) as server:
        server.create("a")


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_while_it_waits_for_a_store_ends_it_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server((HOST, 0)) as silent:
        silent.settimeout(30)
        store = f"redis://{HOST}:{silent.getsockname()[1]}/0"
        with VelaServer(tmp_path, "--store", store, "--store-connect-timeout", "5m", "--store-timeout", "5m") as server:
            connection, _ = silent.accept()
            with connection:
                server.signal(number)
                outcome = server.wait(within=30)
            assert (outcome.out, "Traceback" in outcome.err) == ("", False)
            assert outcome.code in {-number, 128 + number, 0}
