"""A store that takes no writes, or is not what it was: said once, refused at once, and over by itself."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

import httpx
import msgspec
import pytest
import trio

from gateway.node import Node
from metadata import keys
from metadata.complaints import forget_complaints
from metadata.errors import StoreLost, WritesRefused
from metadata.identity import FORMAT, StoreRecord
from protocol.client.consuming import open_consumer
from protocol.client.outgoing import Message
from protocol.client.pool import open_pool
from protocol.client.producing import TopicProducer, open_producer
from protocol.names import TopicName
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually, wait_until

TOPICS: Final = [TopicName.scalable("public", "default", f"orders-{number}") for number in range(8)]
NEW: Final = TopicName.scalable("public", "default", "new")
LIMIT: Final = 30.0
# Longer than a test: whoever is refused at once was not refused because its patience ended.
PATIENT: Final = 60.0


@pytest.fixture(autouse=True)
def _complain_anew() -> Iterator[None]:
    forget_complaints()
    yield
    forget_complaints()


@contextmanager
def unsaved(server: ValkeyProcess) -> Iterator[None]:
    """A server whose saving fails, as on a full disk: from the first try on it refuses writes."""
    client = server.client()
    client.config_set("save", "3600 1")
    # A file cannot take the place of a directory, whoever the user is.
    obstacle = server.directory / str(client.config_get("dbfilename")["dbfilename"])
    obstacle.mkdir()
    client.bgsave()
    wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err")
    yield
    obstacle.rmdir()
    client.bgsave()
    wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "ok")


async def reasons(node: Node) -> list[str]:
    async with httpx.AsyncClient(base_url=node.http_url, timeout=LIMIT, verify=False) as client:
        response = await client.get("/readyz")
        assert response.status_code == (200 if response.json()["ready"] else 503)
        return list(response.json().get("reasons") or [])


@asynccontextmanager
async def producing(node: Node, topic: TopicName) -> AsyncIterator[TopicProducer]:
    async with open_pool(node.pulsar_url) as pool, open_producer(pool, str(topic)) as producer:
        yield producer


async def test_a_store_that_cannot_save_refuses_writers_at_once_and_readyz_says_why(
    fresh_valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(fresh_valkey.url, store_timeout=PATIENT) as node:
        await transitions_of(node).create(TOPICS[0], 1)
        with unsaved(fresh_valkey):
            with trio.fail_after(LIMIT), pytest.raises(WritesRefused, match="make room on its disk"):
                await transitions_of(node).create(NEW, 1)
            with trio.fail_after(LIMIT):
                # Nor do writes that are repeated until they are answered wait for it.
                with pytest.raises(WritesRefused):
                    await node.store.close_namespace(NEW.namespace_name)
                assert await node.store.get(TOPICS[0]) is not None
            [reason] = await eventually(lambda: reasons(node))
            assert "takes no writes" in reason
            assert fresh_valkey.url.split("/")[2] in reason
            await trio.lowlevel.checkpoint()
        await eventually(lambda: not node.readiness())
        await transitions_of(node).create(NEW, 1)
    assert [it for it in caplog.messages if "takes no writes" in it and "was not" not in it][1:] == []
    assert len([it for it in caplog.messages if "takes writes again" in it]) == 1


async def test_a_node_that_nobody_writes_through_notices_by_itself(fresh_valkey: ValkeyProcess) -> None:
    async with running_node(fresh_valkey.url, session_lease=1.0) as node:
        with unsaved(fresh_valkey):
            await eventually(node.readiness)
        await eventually(lambda: not node.readiness())


async def test_messages_to_a_store_that_cannot_save_are_refused_and_stored_once_it_can(
    fresh_valkey: ValkeyProcess,
) -> None:
    async with running_node(fresh_valkey.url, store_timeout=PATIENT, session_lease=PATIENT) as node:
        await transitions_of(node).create(TOPICS[0], 1)
        async with producing(node, TOPICS[0]) as producer:
            await producer.send(Message(b"before"))
            with unsaved(fresh_valkey):
                await producer.post(Message(b"meanwhile"))
                await eventually(lambda: node.data.counters.send_errors)
            with trio.fail_after(LIMIT):
                await producer.flush()
        async with (
            open_pool(node.pulsar_url) as pool,
            open_consumer(pool, str(TOPICS[0]), "sub", initial_position="earliest") as consumer,
        ):
            with trio.fail_after(LIMIT):
                assert [(await consumer.receive()).value for _ in range(2)] == [b"before", b"meanwhile"]


async def test_a_flushed_store_is_one_line_however_many_logs_there_are(
    fresh_valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_node(fresh_valkey.url, rebalance_interval=0.05) as node:
        async with open_pool(node.pulsar_url) as pool, trio.open_nursery() as nursery:
            for topic in TOPICS:
                await transitions_of(node).create(topic, 1)
                producer = await enter(nursery, open_producer(pool, str(topic)))
                await producer.send(Message(b"stored"))
                await producer.post(Message(b"on its way"))
            await eventually(lambda: len(node.data.hosting.logs) == len(TOPICS))
            caplog.clear()
            caplog.set_level(logging.INFO)
            fresh_valkey.client().flushall()
            await eventually(node.readiness)
            probes = node.feed.counters.probes
            await eventually(lambda: node.feed.counters.probes > probes + 3)
            nursery.cancel_scope.cancel()
        told = [it.getMessage() for it in caplog.records if "identity" in it.getMessage()]
        assert len(told) == 1, told


async def enter(nursery: trio.Nursery, manager: object) -> TopicProducer:
    """A producer that stays open until the nursery ends."""

    async def hold(task_status: trio.TaskStatus[TopicProducer] = trio.TASK_STATUS_IGNORED) -> None:
        async with manager as producer:  # type: ignore[attr-defined] # what opens a producer
            task_status.started(producer)
            await trio.sleep_forever()

    producer: TopicProducer = await nursery.start(hold)
    return producer


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"format": FORMAT + 1}, "has format 2", id="another format"),
        pytest.param({"format": 0}, "has format 0", id="format 0"),
        pytest.param({"id": "f" * 16}, "another store stands in the place", id="another id"),
    ],
)
async def test_a_store_that_becomes_another_under_a_running_node_is_not_written_to(
    fresh_valkey: ValkeyProcess, changes: dict[str, str | int], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = fresh_valkey.client()
    async with running_node(fresh_valkey.url) as node:
        await transitions_of(node).create(TOPICS[0], 1)
        stored = client.get(keys.STORE)
        assert isinstance(stored, bytes)
        record = msgspec.json.decode(stored, type=StoreRecord)
        client.set(keys.STORE, msgspec.json.encode(msgspec.structs.replace(record, **changes)))
        await eventually(node.readiness)
        assert any(reason in doubt for doubt in await reasons(node))
        with pytest.raises(StoreLost, match=reason):
            await transitions_of(node).create(NEW, 1)
        assert not client.exists(keys.record_key(keys.path_of(NEW)))
        client.set(keys.STORE, stored)
        await eventually(lambda: not node.readiness())
        await transitions_of(node).create(NEW, 1)
    assert len([it for it in caplog.messages if reason in it and "Nothing is written" not in it]) == 1


async def test_a_store_key_that_is_damaged_under_a_running_node_is_noticed(fresh_valkey: ValkeyProcess) -> None:
    client = fresh_valkey.client()
    async with running_node(fresh_valkey.url) as node:
        stored = client.get(keys.STORE)
        for damage in (b"\xff", b"{}"):
            client.set(keys.STORE, damage)
            await eventually(lambda: any(keys.STORE.decode() in doubt for doubt in node.readiness()))
            with pytest.raises(StoreLost):
                await transitions_of(node).create(NEW, 1)
        client.delete(keys.STORE)
        await eventually(lambda: any("is gone" in doubt for doubt in node.readiness()))
        client.lpush(keys.STORE, "x")
        await eventually(lambda: any("damaged" in doubt for doubt in node.readiness()))
        client.delete(keys.STORE)
        client.set(keys.STORE, stored)  # type: ignore[arg-type] # what was there
        await eventually(lambda: not node.readiness())
