"""A watch that survives its connections: what is delivered, what is not, and what ends it."""

import pytest
import trio
import trio.testing

from protocol import replies
from protocol.client import (
    BadServiceUrl,
    ConnectionLost,
    ScalableTopicsUnsupported,
    ServerMisbehaved,
    ServerRefused,
    WatchState,
    watch_topic,
)
from protocol.errors import InvalidName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.scripted_server import TOPIC, Peer, deleted, layout, scripted_server
from tests.support.waiting import eventually

# Generous: it only decides how long a failing test takes.
LIMIT = 30.0


async def test_updates_are_delivered_as_they_come() -> None:
    told = trio.Event()

    async def script(peer: Peer) -> None:
        request = await peer.open_watch()
        assert (request.topic, request.create_if_missing) == (TOPIC, False)
        await peer.send(layout(0, request.session_id))
        await told.wait()
        await peer.send(layout(1, request.session_id))
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, TOPIC, create_if_missing=False) as updates:
                first = await anext(updates)
                told.set()
                assert [first.dag.epoch, (await anext(updates)).dag.epoch] == [0, 1]


async def test_an_error_before_the_first_layout_raises() -> None:
    async def script(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(deleted(request.session_id))
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT), pytest.raises(ServerRefused, match="The topic was deleted") as caught:
            async with watch_topic(server.url, TOPIC) as updates:
                await anext(updates)
    assert caught.value.server_error == api.TopicNotFound


async def test_a_deletion_is_delivered_and_ends_the_iteration() -> None:
    async def script(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(0, request.session_id))
        await delivered.wait()
        await peer.send(deleted(request.session_id))
        await peer.until_gone()

    delivered = trio.Event()
    seen = []
    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, TOPIC) as updates:
                async for update in updates:
                    seen.append(update)
                    delivered.set()
    assert [update.HasField("error") for update in seen] == [False, True]
    assert seen[1].error == api.TopicNotFound


async def test_a_deletion_replaces_a_layout_that_nobody_took() -> None:
    async def script(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(0, request.session_id), deleted(request.session_id))
        assert await peer.receive() is None
        left.set()

    left = trio.Event()
    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, TOPIC) as updates:
                await left.wait()
                assert [update.error async for update in updates] == [api.TopicNotFound]


async def test_a_slow_iterator_sees_only_the_newest_layout() -> None:
    sent = trio.Event()

    async def script(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(*(layout(epoch, request.session_id) for epoch in range(100)))
        # The answer shows that the client has read everything before the question.
        await peer.send(replies.ping())
        await peer.expect(BaseCommand.PONG)
        sent.set()
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, TOPIC) as updates:
                await sent.wait()
                await trio.testing.wait_all_tasks_blocked()
                assert (await anext(updates)).dag.epoch == 99
                with trio.move_on_after(0.05) as nothing_more:
                    await anext(updates)
                assert nothing_more.cancelled_caught


async def test_a_lost_connection_is_replaced_and_the_same_session_reopened() -> None:
    sessions: list[int] = []
    states: list[WatchState] = []

    async def lost(peer: Peer) -> None:
        request = await peer.open_watch()
        sessions.append(request.session_id)
        await peer.send(layout(0, request.session_id))
        await delivered.wait()

    async def kept(peer: Peer) -> None:
        request = await peer.open_watch()
        sessions.append(request.session_id)
        await peer.send(layout(1, request.session_id))
        await peer.until_gone()

    delivered = trio.Event()
    async with scripted_server(lost, kept) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, TOPIC, on_state=states.append) as updates:
                assert (await anext(updates)).dag.epoch == 0
                delivered.set()
                assert (await anext(updates)).dag.epoch == 1
                assert updates.state == "connected"
    assert sessions == [sessions[0]] * 2
    assert states == ["connected", "reconnecting", "connected"]


async def test_a_known_layout_is_not_delivered_again_after_a_reconnect() -> None:
    async def lost(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(3, request.session_id))
        await delivered.wait()

    async def kept(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(3, request.session_id))
        await peer.send(replies.ping())
        await peer.expect(BaseCommand.PONG)
        repeated.set()
        await go_on.wait()
        await peer.send(layout(4, request.session_id))
        await peer.until_gone()

    delivered, repeated, go_on = trio.Event(), trio.Event(), trio.Event()
    epochs: list[int] = []
    async with scripted_server(lost, kept) as server, trio.open_nursery() as nursery:

        async def follow() -> None:
            async with watch_topic(server.url, TOPIC) as updates:
                async for update in updates:
                    epochs.append(update.dag.epoch)
                    delivered.set()

        nursery.start_soon(follow)
        with trio.fail_after(LIMIT):
            await repeated.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert epochs == [3]
            go_on.set()
            await eventually(lambda: epochs == [3, 4])
        nursery.cancel_scope.cancel()


async def test_a_silent_server_is_left_and_connected_to_again() -> None:
    async def silent(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(0, request.session_id))
        await trio.sleep_forever()

    async def alive(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(1, request.session_id))
        while (command := await peer.receive()) is not None:
            if command.type == BaseCommand.PING:
                await peer.send(replies.pong())

    async with scripted_server(silent, alive) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, TOPIC, keep_alive=0.2) as updates:
                assert [(await anext(updates)).dag.epoch, (await anext(updates)).dag.epoch] == [0, 1]


async def test_refusals_while_reconnecting_are_tried_again() -> None:
    async def first(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(0, request.session_id))

    async def not_ready(peer: Peer) -> None:
        await peer.expect(BaseCommand.CONNECT)
        await peer.send(replies.error(replies.CONNECTION_REQUEST_ID, api.ServiceNotReady, "not ready"))

    async def failed_lookup(peer: Peer) -> None:
        await peer.greet()
        reply = replies.refusal(await peer.expect(BaseCommand.LOOKUP), api.ServiceNotReady, "not yet")
        assert reply is not None
        await peer.send(reply)
        await peer.until_gone()

    async def last(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(1, request.session_id))
        await peer.until_gone()

    async with scripted_server(first, not_ready, failed_lookup, last) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, TOPIC) as updates:
                assert [(await anext(updates)).dag.epoch, (await anext(updates)).dag.epoch] == [0, 1]


async def test_a_topic_deleted_while_the_connection_was_away_ends_the_iteration() -> None:
    async def lost(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(0, request.session_id))
        await delivered.wait()

    async def gone(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(deleted(request.session_id))
        await peer.until_gone()

    delivered = trio.Event()
    errors: list[bool] = []
    async with scripted_server(lost, gone) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, TOPIC) as updates:
                async for update in updates:
                    errors.append(update.HasField("error"))
                    delivered.set()
    assert errors == [False, True]


async def test_a_connection_lost_before_the_first_layout_raises() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_watch()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT), pytest.raises(ConnectionLost, match="closed the connection"):
            async with watch_topic(server.url, TOPIC) as updates:
                await anext(updates)


async def test_a_server_without_scalable_topics_raises() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet(replies.Features())
        await peer.point_to(peer.server.url)
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT), pytest.raises(ScalableTopicsUnsupported):
            async with watch_topic(server.url, TOPIC) as updates:
                await anext(updates)


async def test_nonsense_from_the_server_raises_also_on_a_running_watch() -> None:
    async def script(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(0, request.session_id))
        await peer.send_bytes(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, TOPIC) as updates:
                assert (await anext(updates)).dag.epoch == 0
                for _ in range(2):
                    with pytest.raises(ServerMisbehaved, match="right address"):
                        await anext(updates)


async def test_a_short_name_is_sent_in_full() -> None:
    async def script(peer: Peer) -> None:
        request = await peer.open_watch()
        assert request.topic == "persistent://public/default/orders"
        await peer.send(layout(0, request.session_id))
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, "orders") as updates:
                await anext(updates)


async def test_bad_arguments_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(BadServiceUrl):
        async with watch_topic("localhost", TOPIC):
            pass
    with pytest.raises(InvalidName):
        async with watch_topic("pulsar://localhost", "topic://a/b"):
            pass


async def test_leaving_the_body_leaves_the_server() -> None:
    left = trio.Event()

    async def script(peer: Peer) -> None:
        request = await peer.open_watch()
        await peer.send(layout(0, request.session_id))
        assert await peer.receive() is None
        left.set()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_topic(server.url, TOPIC) as updates:
                await anext(updates)
            await left.wait()


async def test_an_exception_of_the_body_comes_out_as_it_is() -> None:
    async with scripted_server(Peer.until_gone) as server:
        with pytest.raises(KeyError, match="mine"):
            async with watch_topic(server.url, TOPIC):
                raise KeyError("mine")
