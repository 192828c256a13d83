"""Whole tasks of a replay, side by side in threads, against a real node and store, and against servers at fault."""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest
import redis
import trio
from pyspark.sql.pandas.types import to_arrow_schema

from gateway.node import Node
from layout import records as stored
from layout.layouts import Layout
from protocol.hashing import topic_set_hash
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from spark import schemas
from spark.errors import JobError
from spark.profiles import ReconnectPattern
from spark.replay.observing import OBSERVATION_SCHEMA
from spark.replay.plans import Progress
from spark.replay.task import check_open_files, run_task
from tests.faults.namespace_views import viewing_namespaces
from tests.spark.replay.replays import NAMESPACE, OTHER, Later, plan_for, replay, scripted_server
from tests.spark.replay.rows import TIMELINE_SCHEMA, Row, of_kind, timeline
from tests.spark.replay.turnstile import Turnstile
from tests.support.nodes import running_node
from tests.support.ports import ReservedPort
from tests.support.processes import ValkeyProcess
from tests.support.valkeys import Topology
from tests.support.waiting import eventually

SEEDS: list[Row] = [
    (0, 1, NAMESPACE, "orders", "seed", "i1", 4, None),
    (0, 2, NAMESPACE, "carts", "seed", "i2", 0, None),
    (0, 3, OTHER, "shelves", "seed", "i3", 0, None),
]
CHANGES: list[Row] = [
    (0, 10, NAMESPACE, "returns", "create", "i4", 0, None),
    (20_000, 11, NAMESPACE, "orders", "change", "i1", 5, None),
    (60_000, 12, OTHER, "boxes", "create", "i5", 0, None),
    (80_000, 13, OTHER, "boxes", "change", "i5", 1, None),
    (120_000, 14, NAMESPACE, "carts", "delete", "i2", None, None),
    (160_000, 15, NAMESPACE, "returns", "delete", "i4", None, None),
    (200_000, 16, NAMESPACE, "returns", "create", "i6", 0, None),
]
FINAL = {NAMESPACE: {"orders", "returns"}, OTHER: {"shelves", "boxes"}}


@pytest.fixture
async def node(valkey: ValkeyProcess) -> AsyncIterator[Node]:
    async with running_node(valkey.url, coalesce=0.01) as node:
        yield node


def totals(rows: Sequence[dict[str, Any]], *columns: str) -> tuple[int, ...]:
    return tuple(sum(row[column] for row in rows) for column in columns)


def test_rows_have_the_columns_of_the_pipeline() -> None:
    assert _types(to_arrow_schema(schemas.OBSERVATIONS)) == _types(OBSERVATION_SCHEMA)
    assert TIMELINE_SCHEMA.names == schemas.TIMELINE.names


def _types(schema: Any) -> list[tuple[str, str]]:
    # The two name the elements of a list differently, which no reader looks at.
    return [(field.name, str(field.type).replace("element", "item")) for field in schema]


async def test_every_watcher_converges_and_every_change_is_seen(valkey: ValkeyProcess, node: Node) -> None:
    plan = plan_for(node.pulsar_url, valkey.url)
    found = await replay(plan, [*SEEDS, *CHANGES])
    writes, watchers, tasks = (of_kind(found, record) for record in ("write", "watcher", "task"))
    assert Counter(write["op"] for write in writes) == {"create": 3, "change": 2, "delete": 2}
    assert not [write for write in writes if write["error"]]
    start = {task["started_us"] for task in tasks}
    assert len(start) == 1
    due = sorted(write["due_us"] - min(start) for write in writes)
    assert due == [at_us for at_us, *_ in CHANGES]
    assert all(write["due_us"] <= write["sent_us"] <= write["done_us"] for write in writes)
    assert sorted(watcher["watcher"] for watcher in watchers) == list(range(8))
    assert all(watcher["converged"] and watcher["watches"] == "namespace" for watcher in watchers)
    assert totals(watchers, "missing", "duplicate", "out_of_order", "reconnects") == (0, 0, 0, 0)
    assert sorted(task["task"] for task in tasks) == [0, 1]
    assert all(task["settled_us"] > task["started_us"] and task["offset_error_us"] >= 0 for task in tasks)


async def test_replay_works_on_every_kind_of_store(topology: Topology) -> None:
    async with running_node(topology.url) as node:
        found = await replay(plan_for(node.pulsar_url, topology.url, topic_share=0.5), [*SEEDS, *CHANGES])
    assert all(watcher["converged"] for watcher in of_kind(found, "watcher"))
    assert not [write for write in of_kind(found, "write") if write["error"]]


async def test_pushes_add_up_to_the_final_state(valkey: ValkeyProcess, node: Node) -> None:
    found = await replay(plan_for(node.pulsar_url, valkey.url), [*SEEDS, *CHANGES])
    pushes, watchers, tasks = (of_kind(found, record) for record in ("push", "watcher", "task"))
    for watcher in watchers:
        shown = {topic for _, _, namespace, topic, *_ in SEEDS if namespace == watcher["namespace"]}
        own = [push for push in pushes if push["watcher"] == watcher["watcher"]]
        for push in sorted(own, key=lambda push: push["arrival_us"]):
            shown = (shown - set(push["removed"])) | set(push["added"])
            assert push["arrival_us"] > tasks[0]["started_us"]
            assert not push["after_reconnect"]
        assert shown == FINAL[watcher["namespace"]]
        assert (len(own), sum(push["bytes"] for push in own)) == (watcher["pushes"], watcher["bytes"])


async def test_dag_watchers_follow_their_topic_and_its_deletion(valkey: ValkeyProcess, node: Node) -> None:
    found = await replay(plan_for(node.pulsar_url, valkey.url, topic_share=1.0), [*SEEDS, *CHANGES])
    watchers, pushes = of_kind(found, "watcher"), of_kind(found, "push")
    assert {(watcher["namespace"], watcher["topic"]) for watcher in watchers} == {
        (NAMESPACE, "orders"),
        (NAMESPACE, "carts"),
        (OTHER, "shelves"),
    }
    assert all(watcher["converged"] and watcher["watches"] == "topic" for watcher in watchers)
    assert {(push["topic"], push["epoch"]) for push in pushes} == {("orders", 5)}


async def test_watch_of_a_topic_that_was_made_anew_is_opened_again_and_is_no_reconnect(valkey: ValkeyProcess) -> None:
    rows: list[Row] = [
        (0, 1, NAMESPACE, "orders", "seed", "i1", 4, None),
        (0, 2, NAMESPACE, "orders", "delete", "i1", None, None),
        # Long after the notice, which ends the watch.
        (1_500_000, 3, NAMESPACE, "orders", "create", "i2", 0, None),
    ]
    async with running_node(valkey.url, deletion_notice=0.1) as node:
        plan = plan_for(node.pulsar_url, valkey.url, namespaces=(NAMESPACE,), tasks=1, topic_share=1.0)
        watchers = of_kind(await replay(plan, rows), "watcher")
    assert {watcher["watches"] for watcher in watchers} == {"topic"}
    assert totals(watchers, "converged", "pushes", "reconnects") == (8, 8, 0)


async def test_namespace_without_a_topic_at_the_start_is_watched_as_a_whole(valkey: ValkeyProcess, node: Node) -> None:
    plan = plan_for(node.pulsar_url, valkey.url, topic_share=1.0, tasks=1)
    found = await replay(plan, CHANGES[:1])
    assert {watcher["watches"] for watcher in of_kind(found, "watcher")} == {"namespace"}


async def test_recorded_values_reach_the_store(valkey: ValkeyProcess, node: Node) -> None:
    value = stored.encode(stored.TopicRecord(Layout.create(3, 1), {"team": "blue"}))
    rows: list[Row] = [
        (0, 1, NAMESPACE, "orders", "seed", "i1", 0, value),
        (0, 2, NAMESPACE, "broken", "create", "i2", 0, b"no record"),
    ]
    found = await replay(plan_for(node.pulsar_url, valkey.url, topic_share=1.0, tasks=1), rows)
    assert all(watcher["converged"] for watcher in of_kind(found, "watcher"))
    [task] = of_kind(found, "task")
    assert task["error"] == "1 recorded values are no records: made ones were written instead."


async def test_namespaces_and_progress_are_in_the_store(valkey: ValkeyProcess, node: Node) -> None:
    await replay(plan_for(node.pulsar_url, valkey.url), [*SEEDS, *CHANGES])
    with redis.Redis(port=valkey.port) as client:
        assert {b"public/replay-r1-shop", b"public/replay-r1-store"} <= set(client.hkeys("/namespaces"))
        told = [msgspec.json.decode(text, type=Progress) for text in client.hgetall("/replay/r1").values()]
        assert 0 < client.ttl("/replay/r1") <= 3_600
    assert [progress.phase for progress in told] == ["done", "done"]
    assert (sum(p.seeded for p in told), sum(p.written for p in told), sum(p.connected for p in told)) == (3, 7, 8)


async def test_task_without_topics_or_watchers_takes_part(valkey: ValkeyProcess, node: Node) -> None:
    plan = plan_for(node.pulsar_url, valkey.url, tasks=3, watchers=1, connections=3)
    found = await replay(plan, [(0, 1, NAMESPACE, "only", "create", "i1", 0, None)])
    assert sorted(task["task"] for task in of_kind(found, "task")) == [0, 1, 2]
    assert [watcher["converged"] for watcher in of_kind(found, "watcher")] == [True]


async def test_dropped_connections_come_back_with_what_they_know(valkey: ValkeyProcess, node: Node) -> None:
    """The first storm drops them all, and they are kept away until everything is written and the node knows of it."""
    early: list[Row] = [(0, 20 + n, NAMESPACE, f"t{n}", "create", f"c{n}", 0, None) for n in range(8)]
    written = threading.Event()
    found: list[dict[str, Any]] = []

    async def replay_all(turnstile: Turnstile) -> None:
        def met(said: str) -> None:
            if said.isdigit():
                turnstile.shut()
            elif said == "written":
                written.set()

        storms = ReconnectPattern(storm_every_s=0.2, downtime_ms=(20, 60))
        plan = plan_for(turnstile.url, valkey.url, reconnect=storms, topic_share=0.4, patience_s=60.0, settle_s=60.0)
        later = Later(CHANGES, after=turnstile.is_empty)
        batches = await replay(plan, [*SEEDS, *early], later=later, met=met)
        found.extend(row for batch in batches for row in batch.to_pylist())

    async with (
        viewing_namespaces(node) as viewer,
        Turnstile.before(node.pulsar_url) as turnstile,
        trio.open_nursery() as nursery,
    ):
        witness, other = await viewer.watch("public/replay-r1-shop"), await viewer.watch("public/replay-r1-store")
        nursery.start_soon(replay_all, turnstile)
        await eventually(written.is_set)
        shop = {f"t{number}" for number in range(8)} | FINAL[NAMESPACE]
        await eventually(lambda: witness.held == {f"topic://public/replay-r1-shop/{topic}" for topic in shop})
        await eventually(lambda: other.held == {f"topic://public/replay-r1-store/{topic}" for topic in FINAL[OTHER]})
        turnstile.open()
    watchers = [row for row in found if row["record"] == "watcher"]
    assert sorted(watcher["watcher"] for watcher in watchers) == list(range(8))
    assert all(watcher["converged"] and watcher["reconnects"] for watcher in watchers)
    assert totals(watchers, "duplicate", "out_of_order") == (0, 0)
    told = {row["watcher"]: row for row in found if row["record"] == "push" and row["after_reconnect"]}
    # Whoever watched a topic that was deleted meanwhile is told that it is gone, which is no push.
    assert set(told) == {watcher["watcher"] for watcher in watchers if watcher["topic"] != "carts"}
    assert {watcher["topic"] for watcher in watchers} == {None, "orders", "carts", "shelves"}
    first_seen = {NAMESPACE: "returns", OTHER: "boxes"}
    for push in told.values():
        assert push["topic"] or first_seen[push["namespace"]] in push["added"]


def snapshot_and(command: BaseCommand, topics: Sequence[str], *updates: BaseCommand) -> list[BaseCommand]:
    first = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
    first.watchScalableTopicsUpdate.watch_id = command.watchScalableTopics.watch_id
    first.watchScalableTopicsUpdate.snapshot.topics.extend(
        f"topic://{command.watchScalableTopics.namespace}/{topic}" for topic in topics
    )
    return [first, *updates]


async def test_faults_of_a_server_are_found(valkey: ValkeyProcess) -> None:
    """It repeats an addition, removes what is not there, and then falls silent."""

    def faulty(command: BaseCommand) -> Sequence[BaseCommand]:
        wrong = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
        wrong.watchScalableTopicsUpdate.watch_id = command.watchScalableTopics.watch_id
        prefix = f"topic://{command.watchScalableTopics.namespace}/"
        wrong.watchScalableTopicsUpdate.diff.added.append(prefix + "orders")
        wrong.watchScalableTopicsUpdate.diff.removed.append(prefix + "nobody")
        return snapshot_and(command, ["orders", "carts"], wrong)

    async with scripted_server(faulty) as target:
        plan = plan_for(target, valkey.url, namespaces=(NAMESPACE,), watchers=3, connections=2, settle_s=0.2)
        found = await replay(plan, [*SEEDS[:2], *(row for row in CHANGES if row[2] == NAMESPACE)])
    watchers = of_kind(found, "watcher")
    assert totals(watchers, "converged", "missing", "duplicate") == (0, 3 * 2, 3 * 2)


async def test_layout_that_goes_back_is_found(valkey: ValkeyProcess) -> None:
    def update(session_id: int, epoch: int) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE)
        command.scalableTopicUpdate.session_id = session_id
        dag = command.scalableTopicUpdate.dag
        dag.epoch = epoch
        dag.segments.add(
            segment_id=0, hash_start=0, hash_end=0xFFFF, state=api.ACTIVE, created_at_epoch=0, created_at_ms=1
        )
        return command

    def faulty(command: BaseCommand) -> Sequence[BaseCommand]:
        session_id = command.scalableTopicLookup.session_id
        return [update(session_id, epoch) for epoch in (7, 5, 0)]

    async with scripted_server(faulty) as target:
        plan = plan_for(target, valkey.url, namespaces=(NAMESPACE,), watchers=2, connections=2, topic_share=1.0)
        value = stored.encode(stored.TopicRecord(Layout.create(1, 1)))
        found = await replay(plan, [(0, 1, NAMESPACE, "carts", "seed", "i2", 0, value)])
    watchers = of_kind(found, "watcher")
    assert totals(watchers, "converged", "missing", "out_of_order") == (2, 0, 4)


async def test_target_that_is_down_is_named_before_the_start(valkey: ValkeyProcess) -> None:
    port = ReservedPort()
    plan = plan_for(f"pulsar://127.0.0.1:{port.number}", valkey.url)
    with pytest.raises(JobError, match=rf"^The target cannot be watched: Nothing answers at .*:{port.number}"):
        await replay(plan, SEEDS)
    port.release()


async def test_target_of_another_store_is_found_out(valkey: ValkeyProcess) -> None:
    async with scripted_server(lambda command: snapshot_and(command, [])) as target:
        plan = plan_for(target, valkey.url, namespaces=(NAMESPACE,), tasks=1, settle_s=0.1, first_state_s=0.3)
        with pytest.raises(JobError, match=r"^8 of 8 watchers do not show what is in the store after 0\.3 s: see"):
            await replay(plan, SEEDS[:2])


async def test_target_that_refuses_a_watch_is_quoted(valkey: ValkeyProcess) -> None:
    def refusing(command: BaseCommand) -> Sequence[BaseCommand]:
        answer = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
        answer.watchScalableTopicsUpdate.watch_id = command.watchScalableTopics.watch_id
        answer.watchScalableTopicsUpdate.error = api.TooManyRequests
        answer.watchScalableTopicsUpdate.message = "no more watches"
        return [answer]

    async with scripted_server(refusing) as target:
        with pytest.raises(JobError, match="The target cannot be watched: no more watches"):
            await replay(plan_for(target, valkey.url, tasks=1), SEEDS)


def rows_for_seconds(seconds: int) -> list[Row]:
    return [(n * 50_000, n, NAMESPACE, f"t{n}", "create", "i", 0, None) for n in range(20 * seconds)]


async def test_target_that_goes_away_in_the_middle_ends_the_replay_with_the_reason(valkey: ValkeyProcess) -> None:
    started = threading.Event()
    failures: list[JobError] = []

    async def replay_and_fail(target: str) -> None:
        plan = plan_for(target, valkey.url, namespaces=(NAMESPACE,), tasks=1, patience_s=0.5)
        with pytest.raises(JobError) as caught:
            await replay(plan, rows_for_seconds(60), met=partial(_set_if_number, started))
        failures.append(caught.value)

    # The server ends first, and the replay goes on against nothing.
    async with trio.open_nursery() as nursery, scripted_server(lambda command: snapshot_and(command, [])) as target:
        nursery.start_soon(replay_and_fail, target)
        await eventually(started.is_set, within=30)
    [failure] = failures
    assert str(failure).startswith("The target has been away for more than 0.5 s: ")


async def test_lost_connections_come_back_with_the_hash_of_what_they_show(valkey: ValkeyProcess) -> None:
    port = ReservedPort()
    started, back = threading.Event(), threading.Event()
    hashes: list[str] = []
    found: list[dict[str, Any]] = []

    def silent(command: BaseCommand) -> Sequence[BaseCommand]:
        hashes.append(command.watchScalableTopics.current_hash)
        if len(hashes) == 2:
            back.set()
        return []

    def met(said: str) -> None:
        if said.isdigit():
            started.set()
        elif said == "written":
            assert back.wait(30)

    async def replay_all() -> None:
        target = f"pulsar://127.0.0.1:{port.number}"
        plan = plan_for(target, valkey.url, namespaces=(NAMESPACE,), tasks=1, connections=1, watchers=2)
        found.extend(of_kind(await replay(plan, SEEDS[:2], met=met), "watcher"))

    async with trio.open_nursery() as nursery:
        async with scripted_server(lambda command: snapshot_and(command, ["orders", "carts"]), port.number):
            nursery.start_soon(replay_all)
            await eventually(started.is_set, within=30)
        async with scripted_server(silent, port.number):
            await eventually(lambda: bool(found), within=30)
    port.release()
    assert hashes == [topic_set_hash(f"topic://public/replay-r1-shop/{topic}" for topic in ("orders", "carts"))] * 2
    assert totals(found, "converged", "reconnects") == (2, 2)


def _set_if_number(event: threading.Event, said: str) -> None:
    """What they say when they agree on the start."""
    if said.isdigit():
        event.set()


async def test_store_that_is_not_there_is_named() -> None:
    port = ReservedPort()
    plan = plan_for("pulsar://127.0.0.1:1", f"redis://127.0.0.1:{port.number}", tasks=1, patience_s=0.5)
    with pytest.raises(JobError, match=rf"{port.number}"):
        await replay(plan, SEEDS)
    port.release()


async def test_store_that_goes_away_in_the_middle_ends_the_replay_with_the_reason() -> None:
    with ValkeyProcess() as own:
        own.start()

        def met(said: str) -> None:
            if said.isdigit():
                own.kill()

        async with scripted_server(lambda command: snapshot_and(command, [])) as target:
            plan = plan_for(target, own.url, namespaces=(NAMESPACE,), tasks=1, patience_s=0.5)
            with pytest.raises(JobError, match=r"^The store has taken no write for more than 0\.5 s: "):
                await replay(plan, rows_for_seconds(60), met=met)


def test_connections_beyond_the_open_files_are_refused_with_the_number_that_fits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with pytest.raises(JobError, match=r"use at most \d+ connections for each task"):
            check_open_files(hard + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_task_refuses_its_connections_before_it_does_anything() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    plan = plan_for("pulsar://nowhere", "redis://nowhere", tasks=1, watchers=hard + 1, connections=hard + 1)
    try:
        with pytest.raises(JobError, match="open files"):
            next(run_task(plan, 0, timeline(SEEDS), lambda message: [message]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
