"""A namespace watch that survives its connections: what is delivered, what is not, and what ends it."""

import pytest
import trio
import trio.testing

from protocol import replies
from protocol.backoff import Backoff
from protocol.client import (
    BadServiceUrl,
    Change,
    ConnectionLost,
    NamespaceEvent,
    ServerMisbehaved,
    ServerRefused,
    Snapshot,
    WatchState,
    watch_namespace,
)
from protocol.errors import InvalidName
from protocol.hashing import topic_set_hash
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.scripted_server import NAMESPACE, Peer, diff, scripted_server, snapshot, watch_refused
from tests.support.waiting import eventually

# Generous: it only decides how long a failing test takes.
LIMIT = 30.0


def whole(*topics: str) -> Snapshot:
    return Snapshot(frozenset(topics))


async def test_events_are_delivered_as_they_come_and_topics_follow_them() -> None:
    told = trio.Event()

    async def script(peer: Peer) -> None:
        request = await peer.open_namespace_watch()
        assert request.namespace == NAMESPACE
        assert not request.HasField("current_hash")
        assert [(pair.key, pair.value) for pair in request.property_filters] == [("team", "blue")]
        await peer.send(snapshot(["a", "b"], request.watch_id))
        await told.wait()
        await peer.send(diff(["c"], ["a"], request.watch_id))
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE, properties={"team": "blue"}) as events:
                assert (events.topics, events.hash) == (set(), "00000000")
                assert await anext(events) == whole("a", "b")
                assert (events.topics, events.hash) == ({"a", "b"}, topic_set_hash(["a", "b"]))
                told.set()
                assert await anext(events) == Change(("c",), ("a",))
                assert events.topics == {"b", "c"}


async def test_an_empty_snapshot_is_an_event() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot([]))
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE) as events:
                assert await anext(events) == whole()


async def test_a_slow_iterator_is_given_the_changes_as_one_and_topics_wait_for_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a", "b"]))
        await taken.wait()
        await peer.send(diff(["c"]), diff(["a"], ["a"]), diff(["d"], ["c"]), diff([], ["b"]))
        await peer.until_read()
        sent.set()
        await peer.until_gone()

    taken, sent = trio.Event(), trio.Event()
    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE) as events:
                await anext(events)
                taken.set()
                await sent.wait()
                await trio.testing.wait_all_tasks_blocked()
                assert events.topics == {"a", "b"}
                assert await anext(events) == Change(("a", "d"), ("a", "b"))
                assert events.topics == {"a", "d"}
                with trio.move_on_after(0.05) as nothing_more:
                    await anext(events)
                assert nothing_more.cancelled_caught


async def test_a_flood_of_small_changes_ends_in_the_right_set_whatever_the_pace() -> None:
    """More than the bound of a raw watch, and quicker than one update per turn of the loop."""
    count = 40_000

    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot([]))
        await peer.send(*(diff([f"t{i}"], [f"t{i - 10}"]) for i in range(count)))
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT * 3):
            async with watch_namespace(server.url, NAMESPACE) as events:
                async for _ in events:
                    if f"t{count - 1}" in events.topics:
                        break
                assert events.topics == {f"t{i}" for i in range(count - 10, count)}


async def test_a_set_in_parts_is_a_snapshot_and_changes_that_add_up() -> None:
    topics = [f"topic://public/default/t{i:06}" for i in range(30_000)]

    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(topics[:10_000]), diff(topics[10_000:20_000]), diff(topics[20_000:]))
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE) as events:
                assert isinstance(await anext(events), Snapshot)
                while len(events.topics) < len(topics):
                    await anext(events)
                assert events.hash == topic_set_hash(topics)


async def test_a_lost_connection_is_replaced_and_the_hash_of_the_set_is_sent() -> None:
    requests: list[api.CommandWatchScalableTopics] = []
    states: list[WatchState] = []

    async def lost(peer: Peer) -> None:
        requests.append(await peer.open_namespace_watch())
        await peer.send(snapshot(["a"]), diff(["b"]))
        await delivered.wait()

    async def kept(peer: Peer) -> None:
        requests.append(await peer.open_namespace_watch())
        # The hash is right, so nothing is told until something changes.
        await reopened.wait()
        await peer.send(diff(["c"]))
        await peer.until_gone()

    delivered, reopened = trio.Event(), trio.Event()
    async with scripted_server(lost, kept) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE, on_state=states.append) as events:
                while events.topics != {"a", "b"}:
                    await anext(events)
                delivered.set()
                await eventually(lambda: len(requests) == 2)
                await eventually(lambda: events.state == "connected")
                reopened.set()
                assert await anext(events) == Change(("c",), ())
                assert events.topics == {"a", "b", "c"}
    assert [request.watch_id for request in requests] == [requests[0].watch_id] * 2
    assert not requests[0].HasField("current_hash")
    assert requests[1].current_hash == topic_set_hash(["a", "b"])
    assert states == ["connected", "reconnecting", "connected"]


async def test_many_silent_reconnects_in_a_row_never_make_the_watch_wait_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Noting(Backoff):
        def next(self) -> float:
            was_fresh.append(self.fresh)
            return super().next()

    async def first(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]))
        await delivered.wait()

    async def silent(peer: Peer) -> None:
        hashes.append((await peer.open_namespace_watch()).current_hash)
        await peer.until_read()  # the hash is right, so it is told nothing

    async def last(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["b"]))
        await peer.until_gone()

    was_fresh: list[bool] = []
    hashes: list[str] = []
    delivered = trio.Event()
    monkeypatch.setattr("protocol.client.reconnecting.Backoff", Noting)
    async with scripted_server(first, *[silent] * 6, last) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE) as events:
                assert await anext(events) == whole("a")
                delivered.set()
                assert await anext(events) == whole("b")
    assert hashes == [topic_set_hash(["a"])] * 6
    assert was_fresh == [True] * 7


async def test_the_hash_covers_changes_that_were_not_delivered_yet_and_those_are_not_lost() -> None:
    async def lost(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]))
        await delivered.wait()
        await peer.send(diff(["b"]))

    async def kept(peer: Peer) -> None:
        hashes.append((await peer.open_namespace_watch()).current_hash)
        await peer.until_gone()

    delivered = trio.Event()
    hashes: list[str] = []
    async with scripted_server(lost, kept) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE) as events:
                await anext(events)
                delivered.set()
                await eventually(lambda: hashes == [topic_set_hash(["a", "b"])])
                assert events.topics == {"a"}
                assert await anext(events) == Change(("b",), ())


async def test_an_empty_set_is_known_too_and_its_hash_is_sent() -> None:
    async def lost(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot([]))

    async def kept(peer: Peer) -> None:
        request = await peer.open_namespace_watch()
        assert request.HasField("current_hash")
        assert request.current_hash == "00000000"
        await peer.send(snapshot(["a"]))
        await peer.until_gone()

    async with scripted_server(lost, kept) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE) as events:
                assert [await anext(events), await anext(events)] == [whole(), whole("a")]


async def test_a_snapshot_after_a_reconnect_is_an_event_only_if_the_set_has_changed() -> None:
    async def lost(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a", "b"]))
        await delivered.wait()

    async def forgetful(peer: Peer) -> None:
        """A server that sends the known set in spite of its hash."""
        await peer.open_namespace_watch()
        await peer.send(snapshot(["b", "a"]))
        await peer.until_read()
        repeated.set()
        await go_on.wait()

    async def changed(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["b", "c"]))
        await peer.until_gone()

    delivered, repeated, go_on = trio.Event(), trio.Event(), trio.Event()
    seen: list[NamespaceEvent] = []
    async with scripted_server(lost, forgetful, changed) as server, trio.open_nursery() as nursery:

        async def follow() -> None:
            async with watch_namespace(server.url, NAMESPACE) as events:
                async for event in events:
                    seen.append(event)
                    delivered.set()

        nursery.start_soon(follow)
        with trio.fail_after(LIMIT):
            await repeated.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert seen == [whole("a", "b")]
            go_on.set()
            await eventually(lambda: seen == [whole("a", "b"), whole("b", "c")])
        nursery.cancel_scope.cancel()


async def test_a_refusal_before_the_first_snapshot_raises() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(watch_refused())
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT), pytest.raises(ServerRefused, match="Close some watches first") as caught:
            async with watch_namespace(server.url, NAMESPACE) as events:
                await anext(events)
    assert caught.value.server_error == api.TooManyRequests


async def test_a_later_error_raises_after_what_came_before_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]), diff(["b"]), watch_refused())
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE) as events:
                with pytest.raises(ServerRefused, match="Close some watches first"):
                    async for _ in events:
                        pass
                assert events.topics == {"a", "b"}
                with pytest.raises(ServerRefused):
                    await anext(events)


async def test_a_connection_lost_before_the_first_snapshot_raises() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT), pytest.raises(ConnectionLost, match="closed the connection"):
            async with watch_namespace(server.url, NAMESPACE) as events:
                await anext(events)


async def test_refusals_of_the_connection_while_reconnecting_are_tried_again() -> None:
    async def first(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]))

    async def not_ready(peer: Peer) -> None:
        await peer.expect(BaseCommand.CONNECT)
        await peer.send(replies.error(replies.CONNECTION_REQUEST_ID, api.ServiceNotReady, "not ready"))

    async def last(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["b"]))
        await peer.until_gone()

    async with scripted_server(first, not_ready, last) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE) as events:
                assert [await anext(events), await anext(events)] == [whole("a"), whole("b")]


async def test_a_silent_server_is_left_and_connected_to_again() -> None:
    async def silent(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]))
        await trio.sleep_forever()

    async def alive(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["b"]))
        while (command := await peer.receive()) is not None:
            if command.type == BaseCommand.PING:
                await peer.send(replies.pong())

    async with scripted_server(silent, alive) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE, keep_alive=0.2) as events:
                assert [await anext(events), await anext(events)] == [whole("a"), whole("b")]


async def test_nonsense_from_the_server_raises_also_on_a_running_watch() -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]))
        await peer.send_bytes(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
        await peer.until_gone()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE) as events:
                assert await anext(events) == whole("a")
                with pytest.raises(ServerMisbehaved, match="right address"):
                    await anext(events)


async def test_bad_arguments_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(BadServiceUrl):
        async with watch_namespace("localhost", NAMESPACE):
            pass
    with pytest.raises(InvalidName):
        async with watch_namespace("pulsar://localhost", "no-namespace"):
            pass


async def test_leaving_the_body_leaves_the_server() -> None:
    left = trio.Event()

    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.send(snapshot(["a"]))
        assert await peer.receive() is None
        left.set()

    async with scripted_server(script) as server:
        with trio.fail_after(LIMIT):
            async with watch_namespace(server.url, NAMESPACE) as events:
                await anext(events)
            await left.wait()


async def test_a_second_iteration_at_the_same_time_is_told_that_there_is_one(nursery: trio.Nursery) -> None:
    async def script(peer: Peer) -> None:
        await peer.open_namespace_watch()
        await peer.until_gone()

    async with scripted_server(script) as server, watch_namespace(server.url, NAMESPACE) as events:
        nursery.start_soon(anext, events)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await anext(events)
        nursery.cancel_scope.cancel()
