"""Two servers on one store: what one is told, watchers of both see."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import trio

from tests.e2e.peers import assert_serving, full, greeted, next_update, until_epoch, watch
from tests.e2e.vela_process import SCALABLE, VelaServer
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

Pair = tuple[VelaServer, VelaServer]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with ValkeyProcess().start() as store:
        # Without probes, what arrives was announced by the store itself.
        flags = ("--store", store.url, "--probe-interval", "1h", "--deletion-notice", "200ms")
        with (
            VelaServer.start(tmp_path_factory.mktemp("first"), *flags) as first,
            VelaServer.start(tmp_path_factory.mktemp("second"), *flags) as second,
        ):
            yield first, second


async def test_split_on_one_node_is_pushed_by_both_with_the_same_owners(pair: Pair, topic: str) -> None:
    first, second = pair
    first.create(topic)
    async with greeted(first) as near, greeted(second) as far:
        for client in (near, far):
            await client.send(watch(1, full(topic), create=False))
            assert (await next_update(client)).dag.epoch == 0
        for epoch, node in enumerate([first, second, first, second], start=1):
            node.split(topic, epoch - 1)
            # That somebody leads the topic now is pushed as well, by the node that does not.
            pushed = [(server, await until_epoch(client, epoch)) for server, client in ((first, near), (second, far))]
            for _, update in pushed:
                urls = {broker.broker_url for broker in update.dag.segment_brokers}
                assert urls <= {first.pulsar_url, second.pulsar_url}
            assert pushed[0][1].dag.segments == pushed[1][1].dag.segments


async def test_deletion_and_creation_on_one_node_are_told_by_the_other(pair: Pair, topic: str) -> None:
    first, second = pair
    first.create(topic)
    async with greeted(second) as client:
        await client.send(watch(1, full(topic), create=False))
        await next_update(client)
        assert first.request("DELETE", f"{SCALABLE}/{topic}").status_code == 204
        assert (await next_update(client)).HasField("error")
        first.create(topic, segments=3)
        await client.send(watch(1, full(topic), create=False))
        assert len((await next_update(client)).dag.segments) == 3


async def test_of_many_splits_of_one_segment_exactly_one_wins(pair: Pair, topic: str) -> None:
    pair[0].create(topic)
    statuses: Counter[int] = Counter()

    async def split(client: httpx.AsyncClient, server: VelaServer) -> None:
        answer = await client.post(f"{server.http_url}{SCALABLE}/{topic}/split/0")
        statuses[answer.status_code] += 1
        if answer.status_code != 204:
            assert answer.json()["reason"]

    async with greeted(pair[0]) as near, greeted(pair[1]) as far:
        for client in (near, far):
            await client.send(watch(1, full(topic)))
            await next_update(client)
        async with (
            httpx.AsyncClient(timeout=30, trust_env=False, follow_redirects=True) as http,
            trio.open_nursery() as nursery,
        ):
            for number in range(20):
                nursery.start_soon(split, http, pair[number % 2])
        assert statuses[204] == 1
        assert statuses[409] + statuses[412] == 19
        for client in (near, far):
            update = await until_epoch(client, 1)
            assert len(update.dag.segments) == 3
    assert {server.epoch(topic) for server in pair} == {1}


async def test_of_many_creations_of_one_topic_exactly_one_wins(pair: Pair, topic: str) -> None:
    statuses: Counter[int] = Counter()

    async def create(client: httpx.AsyncClient, server: VelaServer) -> None:
        answer = await client.put(f"{server.http_url}{SCALABLE}/{topic}")
        statuses[answer.status_code] += 1

    async with (
        httpx.AsyncClient(timeout=30, trust_env=False, follow_redirects=True) as http,
        trio.open_nursery() as nursery,
    ):
        for number in range(20):
            nursery.start_soon(create, http, pair[number % 2])
    assert statuses == {204: 1, 409: 19}


async def test_death_of_one_node_is_nothing_to_the_other(tmp_path: Path, fresh_valkey: ValkeyProcess) -> None:
    flags = ("--store", fresh_valkey.url, "--session-lease", "1s")
    with VelaServer.start(tmp_path / "one", *flags) as one, VelaServer.start(tmp_path / "other", *flags) as other:
        one.create("orders")
        async with greeted(one) as doomed, greeted(other) as client:
            for peer in (doomed, client):
                await peer.send(watch(1, full("orders")))
                await next_update(peer)
            one.signal(signal.SIGKILL)
            assert await doomed.is_hung_up()
            other.split("orders", 0)
            await until_epoch(client, 1)
        await eventually(lambda: other.request("GET", "/readyz").status_code == 200)
        await assert_serving(other)
