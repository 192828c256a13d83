"""Namespace watches on one connection: every update in order, up to a bound."""

import pytest
import trio

from protocol import replies
from protocol.client import (
    ConnectionLost,
    ScalableTopicsUnsupported,
    ServerMisbehaved,
    UpdatesNotTaken,
    connect,
    connection_watches,
)
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.scripted_server import (
    NAMESPACE,
    TOPIC,
    Peer,
    diff,
    layout,
    scripted_server,
    snapshot,
    watch_refused,
)


async def test_the_command_carries_filters_and_a_hash_only_if_there_is_one() -> None:
    opened: list[api.CommandWatchScalableTopics] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        opened.extend([(await peer.expect(BaseCommand.WATCH_SCALABLE_TOPICS)).watchScalableTopics for _ in range(3)])
        await peer.send(snapshot([], opened[2].watch_id))
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        await connection.open_namespace_watch("t/plain")
        await connection.open_namespace_watch("t/filtered", properties={"team": "blue", "env": "prod"}, watch_id=9)
        last = await connection.open_namespace_watch("t/known", current_hash="")
        assert (await last.next()).HasField("snapshot")
    assert [(request.watch_id, request.namespace) for request in opened] == [
        (1, "t/plain"),
        (9, "t/filtered"),
        (2, "t/known"),
    ]
    assert [(pair.key, pair.value) for pair in opened[1].property_filters] == [("team", "blue"), ("env", "prod")]
    assert [request.HasField("current_hash") for request in opened] == [False, False, True]


async def test_a_server_without_scalable_topics_cannot_be_watched() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet(replies.Features())
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        with pytest.raises(ScalableTopicsUnsupported):
            await connection.open_namespace_watch(NAMESPACE)


async def test_every_update_is_kept_and_taken_in_order() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]), *(diff([str(i)]) for i in range(2_000)))
        await peer.until_read()
        read.set()
        await peer.until_gone()

    read = trio.Event()
    async with scripted_server(script) as server, connect(server.url) as connection:
        watch = await connection.open_namespace_watch(NAMESPACE)
        await read.wait()
        assert watch.received == 2_001
        assert list((await watch.next()).snapshot.topics) == ["a"]
        assert list((await watch.next()).diff.added) == ["0"]
        rest = await watch.next_all()
        assert [name for update in rest for name in update.diff.added] == [str(i) for i in range(1, 2_000)]


async def test_updates_that_nobody_takes_close_the_connection_past_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_watches, "MAX_WAITING_UPDATES", 3)

    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(*(diff([str(i)]) for i in range(4)))
        await peer.until_gone()
        gone.set()

    gone = trio.Event()
    async with scripted_server(script) as server, connect(server.url) as connection:
        watch = await connection.open_namespace_watch(NAMESPACE)
        with trio.fail_after(30):
            await gone.wait()
        for _ in range(3):
            await watch.next()
        with pytest.raises(UpdatesNotTaken, match="3 updates of public/default wait and nobody takes them"):
            await watch.next()
        with pytest.raises(UpdatesNotTaken):
            await connection.lookup(TOPIC)


async def test_numbers_of_topic_and_namespace_watches_do_not_meet() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)
        await peer.expect(BaseCommand.WATCH_SCALABLE_TOPICS)
        await peer.send(snapshot(["a"], watch_id=1), layout(7, session_id=1), snapshot(["nobody's"], watch_id=5))
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        topic, namespace = await connection.open_watch(TOPIC), await connection.open_namespace_watch(NAMESPACE)
        assert (topic.session_id, namespace.watch_id) == (1, 1)
        assert (await topic.next()).dag.epoch == 7
        assert list((await namespace.next()).snapshot.topics) == ["a"]


async def test_an_error_is_the_last_update_and_needs_no_close() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]), watch_refused(), diff(["late"]))
        assert await peer.receive() is None, "a watch that the server ended needs no CLOSE"

    async with scripted_server(script) as server, connect(server.url) as connection:
        watch = await connection.open_namespace_watch(NAMESPACE)
        await watch.next()
        assert (await watch.next()).error == api.TooManyRequests
        with pytest.raises(trio.EndOfChannel):
            await watch.next()
        await watch.close()


async def test_closing_tells_the_server_once_and_drops_what_waits() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]))
        await peer.until_read()
        read.set()
        command = await peer.expect(BaseCommand.WATCH_SCALABLE_TOPICS_CLOSE)
        assert command.watchScalableTopicsClose.watch_id == 1
        await peer.send(diff(["late"]))
        assert await peer.receive() is None
        closed.set()

    read, closed = trio.Event(), trio.Event()
    async with scripted_server(script) as server:
        async with connect(server.url) as connection:
            watch = await connection.open_namespace_watch(NAMESPACE)
            await read.wait()
            await watch.close()
            await watch.close()
            with pytest.raises(trio.ClosedResourceError):
                await watch.next()
        with trio.fail_after(30):
            await closed.wait()


async def test_a_reused_watch_id_passes_to_the_new_watch() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect(BaseCommand.WATCH_SCALABLE_TOPICS)
        await peer.expect(BaseCommand.WATCH_SCALABLE_TOPICS)
        await peer.send(snapshot(["a"], watch_id=7))
        assert await peer.receive() is None, "the replaced watch must not close its successor"

    async with scripted_server(script) as server, connect(server.url) as connection:
        old = await connection.open_namespace_watch(NAMESPACE, watch_id=7)
        new = await connection.open_namespace_watch(NAMESPACE, watch_id=7)
        with pytest.raises(trio.ClosedResourceError):
            await old.next()
        await old.close()
        assert list((await new.next()).snapshot.topics) == ["a"]


async def test_what_arrived_is_taken_before_the_loss_is_told() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]), diff(["b"]))

    async with scripted_server(script) as server, connect(server.url) as connection:
        watch = await connection.open_namespace_watch(NAMESPACE)
        assert list((await watch.next()).snapshot.topics) == ["a"]
        assert list((await watch.next()).diff.added) == ["b"]
        with pytest.raises(ConnectionLost):
            await watch.next()


async def test_an_update_with_nothing_in_it_is_the_servers_fault() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        empty = BaseCommand(type=BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
        empty.watchScalableTopicsUpdate.watch_id = 1
        await peer.send(empty)
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        watch = await connection.open_namespace_watch(NAMESPACE)
        with pytest.raises(ServerMisbehaved, match="neither content nor an error"):
            await watch.next()
