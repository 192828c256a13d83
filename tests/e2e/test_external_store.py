"""Servers on a Redis or Valkey that is there already: logging in, TLS, and what happens while it is away."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
import redis
import trio

from tests.e2e.peers import assert_serving, full, greeted, next_update, until_epoch, watch
from tests.e2e.vela_process import SCALABLE, VelaServer, run_vela
from tests.support.ports import HOST
from tests.support.processes import ValkeyProcess
from tests.support.proxy import TlsProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

USER = "vela"
PASSWORD = "s3/kr?t@:%#"
IMPATIENT = ("--store-timeout", "500ms", "--store-connect-timeout", "500ms", "--probe-interval", "200ms")


def with_login(server: ValkeyProcess, password: str, database: int) -> str:
    return f"redis://{USER}:{quote(password, safe='')}@{HOST}:{server.port}/{database}"


@pytest.fixture
def guarded_valkey(fresh_valkey: ValkeyProcess) -> ValkeyProcess:
    """A server that lets nobody but `USER` in; connections from before stay."""
    fresh_valkey.command("ACL", "SETUSER", USER, "on", f">{PASSWORD}", "~*", "&*", "+@all")
    fresh_valkey.command("ACL", "SETUSER", "default", "off")
    return fresh_valkey


async def test_login_and_database_come_from_the_url_and_the_password_stays_there(
    tmp_path: Path, guarded_valkey: ValkeyProcess
) -> None:
    store = with_login(guarded_valkey, PASSWORD, 3)
    with VelaServer.start(tmp_path, "--store", store, "--log-level", "debug") as server:
        server.create("orders")
        async with greeted(server) as client:
            await client.send(watch(1, full("orders")))
            await next_update(client)
            server.split("orders", 0)
            await until_epoch(client, 1)
        assert set(guarded_valkey.info("keyspace")) == {"db3"}
        said = server.request("GET", "/metrics").text
        outcome = server.stop()
    shown = run_vela("config", "show", "--store", store)
    examined = run_vela("doctor", "--store", store)
    for text in (outcome.out, outcome.err, said, shown.out, shown.err, examined.out, examined.err):
        assert PASSWORD not in text
        assert quote(PASSWORD, safe="") not in text
    assert f"{HOST}:{guarded_valkey.port}/3" in outcome.err
    assert not server.data_dir.exists(), "no embedded store was made"


def test_wrong_password_is_one_sentence_without_it(tmp_path: Path, guarded_valkey: ValkeyProcess) -> None:
    flags = ("--listen", f"{HOST}:0", "--http", f"{HOST}:0", *IMPATIENT)
    refused = run_vela("serve", *flags, "--store", with_login(guarded_valkey, "wr0ng-one", 0), cwd=tmp_path)
    assert (refused.code, refused.out) == (1, "")
    assert "wr0ng-one" not in refused.err
    assert "password" in refused.sentence.lower()


async def test_store_behind_tls_is_served_and_its_certificate_is_checked(
    tmp_path: Path, fresh_valkey: ValkeyProcess
) -> None:
    async with TlsProxy.open(HOST, fresh_valkey.port) as proxy:
        with VelaServer(tmp_path, "--store", proxy.url) as server:
            await eventually(lambda: server.is_ready, within=30)
            await trio.to_thread.run_sync(server.create, "orders")
            async with greeted(server) as client:
                await client.send(watch(1, full("orders")))
                await next_update(client)
                await trio.to_thread.run_sync(server.split, "orders", 0)
                await until_epoch(client, 1)
            assert fresh_valkey.command("DBSIZE") > 0

            def start_without_trust() -> None:
                distrusted = f"rediss://{HOST}:{proxy.port}/0"
                flags = ("--listen", f"{HOST}:0", "--http", f"{HOST}:0", *IMPATIENT)
                refused = run_vela("serve", *flags, "--store", distrusted, cwd=tmp_path)
                assert (refused.code, refused.out) == (1, "")
                assert "certificate" in refused.sentence

            await trio.to_thread.run_sync(start_without_trust)


async def test_node_is_not_ready_while_its_store_is_away_and_its_watches_go_on_after(
    tmp_path: Path, fresh_valkey: ValkeyProcess
) -> None:
    with VelaServer.start(tmp_path, "--store", fresh_valkey.url, *IMPATIENT) as server:
        async with greeted(server) as client:
            await client.send(watch(1, full("orders")))
            await next_update(client)
            for epoch, (leave, come_back) in enumerate(
                [
                    (fresh_valkey.stop, fresh_valkey.start),
                    (fresh_valkey.kill, fresh_valkey.start),
                    (fresh_valkey.pause, fresh_valkey.resume),
                ],
                start=1,
            ):
                leave()
                await eventually(lambda: readiness(server) == 503, within=30)
                answer = server.request("GET", f"{SCALABLE}/orders")
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert answer.json()["reason"]
                assert server.request("GET", "/healthz").status_code == 200
                come_back()
                await eventually(lambda: readiness(server) == 200, within=30)
                server.split("orders", epoch - 1)
                await until_epoch(client, epoch)
        await assert_serving(server)


def readiness(server: VelaServer) -> int:
    return server.request("GET", "/readyz").status_code


async def test_watch_that_is_opened_while_the_store_is_away_is_answered_when_it_is_back(
    tmp_path: Path, fresh_valkey: ValkeyProcess
) -> None:
    with VelaServer.start(tmp_path, "--store", fresh_valkey.url, *IMPATIENT) as server:
        fresh_valkey.stop()
        await eventually(lambda: readiness(server) == 503, within=30)
        async with greeted(server) as client:
            await client.send(watch(1, full("orders")))
            assert await client.is_alive()
            fresh_valkey.start()
            assert (await next_update(client, within=30)).dag.epoch == 0


async def test_store_that_was_emptied_under_the_node_is_reported_as_lost(
    tmp_path: Path, fresh_valkey: ValkeyProcess
) -> None:
    with VelaServer.start(tmp_path, "--store", fresh_valkey.url, *IMPATIENT) as server:
        server.create("orders")
        async with greeted(server) as client:
            await client.send(watch(1, full("orders")))
            await next_update(client)
            with redis.Redis(host=HOST, port=fresh_valkey.port) as other:
                other.flushall()
            await eventually(lambda: readiness(server) == 503, within=30)
            reason = server.request("GET", "/readyz").json()["reason"]
            assert "lost its identity" in reason
            # Nobody is told that its topic is gone: the store is, and that is for people to decide.
            assert await client.is_alive()
            assert server.metric("vela_deletions_told_total") == 0
