"""Who asks for what only a dead leader may do is told to wait, and is served when the lease is over."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from tests.e2e.controller_cluster import running_cluster
from tests.e2e.vela_process import SCALABLE, run_vela
from tests.support.consumers import registering

TOPIC = "orders"
pytestmark = pytest.mark.slow


async def test_a_split_at_another_node_outlives_the_lease_of_a_killed_leader(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 2) as cluster, AsyncExitStack() as connections:
        await cluster.create(TOPIC)
        # A topic is led for as long as it has consumers.
        for index, node in enumerate(cluster.nodes):
            connection = await connections.enter_async_context(registering(node.pulsar_url, may_be_cut=True))
            await connection.subscribed(f"topic://public/default/{TOPIC}", "s", f"c{index}")
        assert (await cluster.operate(TOPIC, "split/0")).is_success
        dead = await cluster.until_led(TOPIC)
        alive = cluster.nodes[1 - dead]
        cluster.nodes[dead].kill()
        async with httpx.AsyncClient(base_url=alive.http_url, timeout=30.0) as plain:
            answer = await plain.post(f"{SCALABLE}/{TOPIC}/split/1")
        # Never a way to an address where nobody is; it may have taken the lead by now on a slow machine.
        assert answer.status_code in (503, 204), answer.text
        segment = 1
        if answer.status_code == 503:
            assert int(answer.headers["retry-after"]) > 0
            assert "does not answer" in answer.json()["reason"]
        else:
            segment = 2
        command = ["topics", "split", TOPIC, str(segment), "--admin-url", alive.http_url]
        outcome = await trio.to_thread.run_sync(partial(run_vela, *command))
        assert outcome.code == 0, outcome
        assert await cluster.until_led(TOPIC) == 1 - dead
        # Each split was made once.
        assert cluster.look(TOPIC).layout.next_segment_id == (5 if segment == 1 else 7)
