"""The event loop is watched: how late it is, which command held it up, and what collections of garbage take."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import httpx
import pytest

from gateway.cycles import CycleCollector, objects_since_full_collection
from gateway.histograms import Durations
from gateway.node import Node
from tests.segments.test_sending import TOPIC, connected
from tests.segments.wire_consumer import WireConsumer
from tests.support.asking import asking
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

# A limit that every turn exceeds: what is slow on a machine says nothing about who is named.
ALL_TURNS = -1.0


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Knot:
    """In a cycle with itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("uncollected")
def test_garbage_is_collected_once_enough_may_have_gathered() -> None:
    collector = CycleCollector(60.0)
    first = weakref.ref(Knot())
    assert not collector.collect_if_worth_it()
    assert first() is not None
    for _ in range(20_000):
        Knot()
    assert objects_since_full_collection() >= 20_000
    assert collector.collect_if_worth_it()
    assert first() is None
    assert not collector.collect_if_worth_it()


@pytest.mark.usefixtures("uncollected")
async def test_timed_collection_runs_in_a_node_and_its_pause_is_in_the_metrics(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, gc_interval=0.1) as node:
        knots = [Knot() for _ in range(20_000)]
        first = weakref.ref(knots[0])
        knots.clear()
        await eventually(lambda: first() is None)
        values = await metrics(node)
        assert values["vela_gc_pause_seconds_count"] >= 1
        assert values["vela_gc_pause_seconds_sum"] > 0
        assert values["vela_gc_pause_longest_seconds"] > 0
    assert not [call for call in gc.callbacks if "CycleCollector" in repr(call)]


async def test_loop_lag_is_in_the_metrics(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, slow_turn=0.1) as node:

        async def measured() -> bool:
            values = await metrics(node)
            assert "vela_loop_lag_longest_seconds" in values
            return values["vela_loop_lag_seconds_count"] == values['vela_loop_lag_seconds_bucket{le="+Inf"}'] > 0

        await eventually(measured)


def test_durations_are_counted_up_to_each_bound_and_the_longest_is_told_once() -> None:
    durations = Durations()
    for seconds in (0.0005, 0.001, 0.07, 60.0):
        durations.add(seconds)
    buckets = dict(durations.buckets())
    assert (buckets["0.001"], buckets["0.05"], buckets["0.1"], buckets["10"], buckets["+Inf"]) == (2, 2, 3, 3, 4)
    assert durations.take_longest() == 60.0
    assert durations.take_longest() == 0.0


async def test_slow_command_is_named_with_its_client(valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture) -> None:
    async with running_node(valkey.url, slow_turn=ALL_TURNS) as node:
        await transitions_of(node).create(TOPIC, 1)
        client = await connected(node)
        host, port = client.sock.getsockname()
        await WireConsumer(client).subscribe()
        # By the connection, which has the port; by the task that lets it in, which goes on after waiting.
        assert f"for CONNECT from {host}:{port}" in caplog.text
        assert f"for SUBSCRIBE from {host}" in caplog.text
        client.close()
        await eventually(lambda: f"for the end of a connection from {host}" in caplog.text)
        values = await metrics(node)
        # In several turns: that of its frame, and one for each answer of the store.
        assert values['vela_slow_turns_total{work="SUBSCRIBE"}'] > 2


async def test_slow_admin_request_is_named_with_its_path(
    valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(valkey.url, slow_turn=ALL_TURNS) as node:
        await metrics(node)
        assert "for HTTP GET /metrics from 127.0.0.1" in caplog.text


async def test_slow_question_about_topics_is_named(valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture) -> None:
    async with running_node(valkey.url, slow_turn=ALL_TURNS) as node, asking(node) as asker:
        await asker.topics()
        assert (await metrics(node))['vela_slow_turns_total{work="GET_TOPICS_OF_NAMESPACE"}'] > 2


async def test_quick_commands_are_not_named(valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture) -> None:
    async with running_node(valkey.url, slow_turn=3_600.0) as node:
        await transitions_of(node).create(TOPIC, 1)
        client = await connected(node)
        await WireConsumer(client).subscribe()
        client.close()
        assert not [name for name in await metrics(node) if name.startswith("vela_slow_turns_total{")]
    assert "one turn of the event loop" not in caplog.text


async def metrics(node: Node) -> dict[str, float]:
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"{node.http_url}/metrics")).text
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}
