"""Several watches on one connection: told apart, replaced, ended and closed."""

import pytest
import trio

from protocol import replies
from protocol.client import ConnectionLost, ScalableTopicsUnsupported, connect
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.scripted_server import TOPIC, Peer, deleted, layout, scripted_server


async def test_a_server_without_scalable_topics_cannot_be_watched() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet(replies.Features())
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        with pytest.raises(ScalableTopicsUnsupported, match=r"Scripted 1.*has no scalable topics"):
            await connection.open_watch(TOPIC)


async def test_watches_on_one_connection_are_told_apart() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        opened = [(await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)).scalableTopicLookup for _ in range(3)]
        assert [request.topic for request in opened] == ["a", "b", "c"]
        assert [request.create_if_missing for request in opened] == [True, False, True]
        await peer.send(layout(99, session_id=12345), *(layout(i, opened[i].session_id) for i in (2, 0, 1)))
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        watches = [
            await connection.open_watch("a", 2),
            await connection.open_watch("b", create_if_missing=False),
            await connection.open_watch("c"),
        ]
        assert [watch.session_id for watch in watches] == [2, 1, 3]
        assert [(await watch.next()).dag.epoch for watch in watches] == [0, 1, 2]


async def test_a_slow_reader_of_a_watch_finds_the_newest_update_and_the_number_of_all() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)
        await peer.send(*map(layout, range(50)))
        await peer.point_to("pulsar://n:1")
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        watch = await connection.open_watch(TOPIC)
        await connection.lookup(TOPIC)  # its answer comes after all updates
        assert (await watch.next()).dag.epoch == 49
        assert watch.received == 50


async def test_an_error_update_is_the_last_of_its_watch() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)
        await peer.send(deleted(), layout(1))
        assert await peer.receive() is None, "a watch that the server ended needs no CLOSE"

    async with scripted_server(script) as server, connect(server.url) as connection:
        watch = await connection.open_watch(TOPIC)
        assert (await watch.next()).error == api.TopicNotFound
        with pytest.raises(trio.EndOfChannel):
            await watch.next()
        await watch.close()


async def test_closing_a_watch_tells_the_server_once_and_late_updates_do_no_harm() -> None:
    closed = trio.Event()

    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)
        await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)
        command = await peer.expect(BaseCommand.SCALABLE_TOPIC_CLOSE)
        assert command.scalableTopicClose.session_id == 1
        await peer.send(layout(1, session_id=1), layout(2, session_id=2))
        assert await peer.receive() is None
        closed.set()

    async with scripted_server(script) as server:
        async with connect(server.url) as connection:
            watch, other = await connection.open_watch(TOPIC), await connection.open_watch(TOPIC)
            await watch.close()
            await watch.close()
            assert (await other.next()).dag.epoch == 2
            with pytest.raises(trio.ClosedResourceError):
                await watch.next()
        with trio.fail_after(30):
            await closed.wait()


async def test_closing_a_watch_of_a_lost_connection_is_no_error() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)

    async with scripted_server(script) as server, connect(server.url) as connection:
        watch = await connection.open_watch(TOPIC)
        with pytest.raises(ConnectionLost):
            await watch.next()
        await watch.close()


async def test_a_reused_session_id_passes_to_the_new_watch() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)
        await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)
        await peer.send(layout(5, session_id=7))
        assert await peer.receive() is None, "the replaced watch must not close its successor"

    async with scripted_server(script) as server, connect(server.url) as connection:
        old = await connection.open_watch(TOPIC, 7)
        new = await connection.open_watch(TOPIC, 7)
        with pytest.raises(trio.ClosedResourceError):
            await old.next()
        await old.close()
        assert (await new.next()).dag.epoch == 5
