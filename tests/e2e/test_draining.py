"""SIGTERM with `--drain-delay`: the server is not ready any more, and serves on until the delay is over."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from tests.e2e.peers import full, greeted, next_update, until_epoch, watch
from tests.e2e.vela_process import SCALABLE, VelaServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


async def not_ready(server: VelaServer) -> None:
    await eventually(lambda: server.request("GET", "/readyz").status_code == 503)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_everything_works_while_it_drains_and_a_second_signal_ends_it(
    tmp_path: Path, second: signal.Signals
) -> None:
    with VelaServer.start(tmp_path, "--drain-delay", "1h") as server:
        async with greeted(server) as watcher:
            await watcher.send(watch(1, full("a")))
            await next_update(watcher)
            server.signal(signal.SIGTERM)
            await not_ready(server)
            assert "draining" in server.request("GET", "/readyz").json()["reason"]
            assert server.request("GET", "/healthz").status_code == 200
            # Newcomers on either port, and who was there before.
            async with greeted(server) as newcomer:
                await newcomer.send(watch(1, full("b")))
                assert (await next_update(newcomer)).dag.segments
            async with httpx.AsyncClient(trust_env=False, verify=False, timeout=30) as client:
                assert (await client.post(f"{server.http_url}{SCALABLE}/a/split/0")).status_code == 204
            await until_epoch(watcher, 1)
            server.signal(second)
            assert await watcher.is_hung_up(within=30)
        outcome = server.wait()
        assert (outcome.code, "Traceback" in outcome.err) == (0, False)


async def test_it_ends_by_itself_when_the_delay_is_over(tmp_path: Path) -> None:
    with VelaServer.start(tmp_path, "--drain-delay", "2s") as server:
        server.signal(signal.SIGTERM)
        assert server.wait().code == 0


async def test_ctrl_c_does_not_wait(tmp_path: Path) -> None:
    with VelaServer.start(tmp_path, "--drain-delay", "1h") as server:
        server.signal(signal.SIGINT)
        assert server.wait().code == 0
