"""Servers at fault are found out and named, and neither a sound one nor a slow one is accused.

Every kind of server has a replay of its own, at the same time and on the same node, through a proxy that does what
that kind does. What was observed is judged in one go, because Spark takes seconds for any number of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import trio

from spark.replay.fates import GRACE_US, concerned_watchers, unexplained
from spark.replay.latency import shown_writes
from spark.replay.report import verdict_line
from spark.replay.results import Result
from tests.spark.replay import bad_server as bad
from tests.spark.replay.observed import observations
from tests.spark.replay.replays import plan_for, replay
from tests.spark.replay.results import result
from tests.spark.replay.rows import Row
from tests.support.nodes import running_node
from tests.support.processes import ValkeyProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(240)

WATCHERS = 4  # half of them of the namespace, half of the topic `orders`
# Between the coming and the going of the victim, and between two layouts: much more than may become one.
APART_US = 5_000_000
LAST_US = 200_000 + APART_US
ALLOWANCE_US = GRACE_US + round(bad.DELAY_S * 1e6) + 50_000
# Two readings of the store's clock in one process, on a machine that may be busy.
TOLERANCE_US = 20_000

SERVERS: dict[str, tuple[type[bad.Meddler], list[str]]] = {
    "sound": (bad.Meddler, []),
    "late": (bad.Delaying, []),
    "drops one diff": (bad.Dropping, ["lost", "duplicate"]),
    "hides a topic": (bad.Hiding, ["lost"]),
    "hides a layout": (bad.HidingLayout, ["lost"]),
    "sends diffs twice": (bad.Doubling, ["duplicate"]),
    "sends layouts twice": (bad.DoublingLayouts, ["duplicate"]),
    "swaps two diffs": (bad.Swapping, ["missing", "duplicate"]),
    "sends stale layouts": (bad.Stale, ["out of order"]),
    "goes silent": (bad.Silent, ["missing", "lost"]),
}


def rows_of(namespace: str) -> list[Row]:
    return [
        (0, 1, namespace, "orders", "seed", "i1", 4, None),
        (0, 2, namespace, "first", "create", "i2", 0, None),
        (100_000, 3, namespace, bad.VICTIM, "create", "i3", 0, None),
        (200_000, 4, namespace, "orders", "change", "i1", 5, None),
        (100_000 + APART_US, 5, namespace, bad.VICTIM, "delete", "i3", None, None),
        (LAST_US, 6, namespace, "orders", "change", "i1", 6, None),
        (LAST_US, 7, namespace, "last", "create", "i4", 0, None),
    ]


async def run_all(store_url: str) -> dict[str, list[pa.RecordBatch]]:
    found: dict[str, list[pa.RecordBatch]] = {}

    async def run(number: int, server: str, kind: type[bad.Meddler], url: str) -> None:
        async with bad.bad_server(url, kind) as target:
            plan = plan_for(
                target,
                store_url,
                run_id=f"r{number}",
                prefix=f"replay-r{number}-",
                namespaces=(f"public/n{number}",),
                tasks=1,
                watchers=WATCHERS,
                connections=1,
                topic_share=0.5,
                settle_s=1.0 if kind in (bad.Silent, bad.Swapping) else 15.0,
            )
            found[server] = await replay(plan, rows_of(f"public/n{number}"))

    async with running_node(store_url, coalesce=0.05) as node, trio.open_nursery() as nursery:
        for number, (server, (kind, _)) in enumerate(SERVERS.items()):
            nursery.start_soon(run, number, server, kind, node.pulsar_url)
    return found


@pytest.fixture(scope="module")
def judged(spark: SparkSession) -> dict[str, Result]:
    """Of each kind of server the result of its replay."""
    with ValkeyProcess().start() as store:
        found = trio.run(run_all, store.url)
    rows: dict[str, list[dict[str, Any]]] = {}
    for number, server in enumerate(SERVERS):
        rows[server] = [row for batch in found[server] for row in batch.to_pylist()]
        for row in rows[server]:
            if row["watcher"] is not None:
                row["watcher"] += number * WATCHERS  # all are judged together
    seen = observations(spark, *(row for some in rows.values() for row in some))
    shown = shown_writes(seen, TOLERANCE_US)
    lost = Counter(
        row["namespace"]
        for row in unexplained(seen, concerned_watchers(seen, shown), ALLOWANCE_US).where("lost").collect()
    )
    waits_ms: dict[str, list[float]] = {}
    for shown_once in shown.collect():
        wait_us = shown_once["arrival_us"] - shown_once["sent_us"]
        waits_ms.setdefault(shown_once["namespace"], []).append(wait_us / 1e3)
    return {
        server: _result(rows[server], lost[f"public/n{number}"], waits_ms.get(f"public/n{number}", []))
        for number, server in enumerate(SERVERS)
    }


def _result(rows: Sequence[dict[str, Any]], lost: int, waits_ms: Sequence[float]) -> Result:
    watchers = [row for row in rows if row["record"] == "watcher"]
    converged = sum(row["converged"] for row in watchers)
    counts = {name: sum(row[name] for row in watchers) for name in ("missing", "duplicate", "out_of_order")}
    return result(
        watchers=len(watchers),
        converged=converged,
        wrong=len(watchers) - converged,
        failed=sum(row["record"] == "write" and row["error"] is not None for row in rows),
        lost=lost,
        showings=len(waits_ms),
        latency_ms={"min": min(waits_ms, default=0.0), "p99": max(waits_ms, default=0.0)},
        **counts,
    )


@pytest.mark.parametrize("server", SERVERS)
def test_faults_of_a_server_are_found_and_named_and_nothing_else_is(server: str, judged: dict[str, Result]) -> None:
    _, faults = SERVERS[server]
    found = judged[server]
    assert [kind for kind, count in found.faults.items() if count] == faults
    assert found.succeeded is not bool(faults)
    line, state = verdict_line(found)
    if found.wrong:
        assert line.endswith("watchers did not reach the state of the store.")
    else:
        assert all(kind in line for kind in faults)
    assert state == ("bad" if faults else "good")


def test_lateness_of_a_server_shows_in_the_latency_alone(judged: dict[str, Result]) -> None:
    late = judged["late"]
    assert late.showings > 0
    assert late.latency_ms["min"] >= bad.DELAY_S * 1e3 - TOLERANCE_US / 1e3
