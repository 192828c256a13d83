"""A connection over a real socket: handshake, requests, keep-alive, and everything a server can do wrong."""

import socket
import struct
from collections.abc import Callable

import pytest
import trio
import trio.testing

from protocol import replies
from protocol.client import (
    BadServiceUrl,
    ConnectionLost,
    RequestTimedOut,
    ScalableTopicsUnsupported,
    ServerMisbehaved,
    ServerRefused,
    connect,
)
from protocol.errors import ProtocolError
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.scripted_server import TOPIC, Peer, Script, layout, scripted_server


async def greet_and_wait(peer: Peer) -> None:
    await peer.greet()
    await peer.until_gone()


async def test_the_handshake_tells_both_sides_about_the_other() -> None:
    async def script(peer: Peer) -> None:
        hello = await peer.greet(max_message_size=1_000_000)
        assert hello.client_version == "test 7"
        assert hello.protocol_version == replies.PROTOCOL_VERSION
        assert hello.feature_flags.supports_scalable_topics
        assert not hello.HasField("proxy_to_broker_url")
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url, client_version="test 7") as connection:
        assert connection.server_version == "Scripted 1"
        assert connection.feature_flags.supports_scalable_topics
        assert connection.max_message_size == 1_000_000


async def test_a_ping_during_the_handshake_is_answered() -> None:
    async def script(peer: Peer) -> None:
        await peer.expect(BaseCommand.CONNECT)
        await peer.send(replies.ping())
        await peer.expect(BaseCommand.PONG)
        await peer.send(replies.connected("Scripted 1", 21, 1000, replies.Features()))
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        assert connection.server_version == "Scripted 1"


async def test_a_refused_handshake_raises_the_servers_code_and_words() -> None:
    async def script(peer: Peer) -> None:
        await peer.expect(BaseCommand.CONNECT)
        await peer.send(replies.error(replies.CONNECTION_REQUEST_ID, api.AuthenticationError, "Failed to authenticate"))

    async with scripted_server(script) as server:
        with pytest.raises(ServerRefused, match="Failed to authenticate") as caught:
            async with connect(server.url):
                pass
    assert caught.value.server_error == api.AuthenticationError
    assert caught.value.message == "Failed to authenticate"


async def test_a_server_that_asks_for_credentials_is_refused_with_a_clear_message() -> None:
    async def script(peer: Peer) -> None:
        await peer.expect(BaseCommand.CONNECT)
        challenge = BaseCommand(type=BaseCommand.AUTH_CHALLENGE)
        challenge.authChallenge.protocol_version = 21
        await peer.send(challenge)
        await peer.until_gone()

    async with scripted_server(script) as server:
        with pytest.raises(ServerRefused, match="asks for credentials"):
            async with connect(server.url):
                pass


async def test_a_server_that_closes_during_the_handshake_is_a_lost_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.expect(BaseCommand.CONNECT)

    async with scripted_server(script) as server:
        with pytest.raises(ConnectionLost, match="closed the connection"):
            async with connect(server.url):
                pass


async def test_a_server_that_never_greets_times_out() -> None:
    async with scripted_server(Peer.until_gone) as server:
        with pytest.raises(RequestTimedOut, match="did not answer CONNECT"):
            async with connect(server.url, timeout=0.05):
                pass


async def test_nobody_listening_is_an_os_error_that_names_the_address() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # without listen: the port is taken, and connecting is refused
        url = f"pulsar://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(OSError, match="refused") as caught:
            async with connect(url):
                pass
    assert isinstance(caught.value, ConnectionLost)
    assert url in str(caught.value)


async def test_an_impossible_host_name_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLost, match="no host can have that name"):
        async with connect(f"pulsar://{'a' * 300}:6650"):
            pass


async def test_a_bad_url_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(BadServiceUrl, match=r"pulsar://127\.0\.0\.1:6650"):
        async with connect("http://127.0.0.1:8080"):
            pass


async def test_an_exception_of_the_body_comes_out_as_it_is() -> None:
    async with scripted_server(greet_and_wait) as server:
        with pytest.raises(KeyError, match="mine"):
            async with connect(server.url):
                raise KeyError("mine")


async def test_requests_get_their_own_answers_in_whatever_order_they_come() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        first = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
        second = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
        for request in (second, first):
            await peer.send(replies.lookup_connect(request.request_id, f"pulsar://{request.topic}:1"))
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        found: dict[str, str] = {}

        async def ask(topic: str) -> None:
            found[topic] = (await connection.lookup(topic)).brokerServiceUrl

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "a")
            nursery.start_soon(ask, "b")
        assert found == {"a": "pulsar://a:1", "b": "pulsar://b:1"}


async def test_partitions_are_asked_with_the_wish_to_create() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = (await peer.expect(BaseCommand.PARTITIONED_METADATA)).partitionMetadata
        assert not request.metadata_auto_creation_enabled
        await peer.send(replies.partitioned_metadata(request.request_id, 3))
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        assert await connection.partitions("t", create_if_missing=False) == 3


@pytest.mark.parametrize("in_own_type", [True, False])
async def test_a_refused_request_fails_alone(in_own_type: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await peer.expect(BaseCommand.LOOKUP)
        refusal = replies.refusal(request, api.TopicNotFound, "no such namespace")
        assert refusal is not None
        plain = replies.error(request.lookupTopic.request_id, api.TopicNotFound, "no such namespace")
        await peer.send(refusal if in_own_type else plain)
        await peer.point_to("pulsar://n:1")
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        with pytest.raises(ServerRefused, match=r"no such namespace \(TopicNotFound\)") as caught:
            await connection.lookup(TOPIC)
        assert caught.value.server_error == api.TopicNotFound
        assert (await connection.lookup(TOPIC)).brokerServiceUrl == "pulsar://n:1"


async def test_a_request_without_an_answer_times_out_and_a_late_answer_does_no_harm() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        late = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
        request = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
        await peer.send(
            replies.lookup_connect(late.request_id, "pulsar://late:1"),
            replies.lookup_connect(request.request_id, "pulsar://n:1"),
        )
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url, timeout=0.2) as connection:
        with pytest.raises(RequestTimedOut, match="did not answer LOOKUP"):
            await connection.lookup(TOPIC)
        assert (await connection.lookup(TOPIC)).brokerServiceUrl == "pulsar://n:1"


async def test_an_answer_of_the_wrong_type_is_the_servers_fault() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
        await peer.send(replies.partitioned_metadata(request.request_id))
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        with pytest.raises(ServerMisbehaved, match="answered LOOKUP with PARTITIONED_METADATA_RESPONSE"):
            await connection.lookup(TOPIC)


async def test_pings_of_the_server_are_answered() -> None:
    answered = trio.Event()

    async def script(peer: Peer) -> None:
        await peer.greet()
        for _ in range(3):
            await peer.send(replies.ping())
            await peer.expect(BaseCommand.PONG)
        answered.set()
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url):
        with trio.fail_after(30):
            await answered.wait()


async def test_a_quiet_but_living_server_is_kept() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)
        for _ in range(5):
            await peer.expect(BaseCommand.PING)
            await peer.send(replies.pong())
        await peer.send(layout(1, request.scalableTopicLookup.session_id))
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url, keep_alive=0.1) as connection:
        watch = await connection.open_watch(TOPIC)
        with trio.fail_after(30):
            assert (await watch.next()).dag.epoch == 1


async def test_a_dead_server_is_noticed_by_every_waiting_task() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await trio.sleep_forever()

    async with scripted_server(script) as server, connect(server.url, keep_alive=0.05) as connection:
        watches = [await connection.open_watch(TOPIC) for _ in range(3)]
        with trio.fail_after(30):
            for watch in watches:
                with pytest.raises(ConnectionLost, match="Nothing was heard"):
                    await watch.next()
            with pytest.raises(ConnectionLost, match="Nothing was heard"):
                await connection.lookup(TOPIC)


async def test_a_lost_connection_ends_a_waiting_request() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect(BaseCommand.LOOKUP)

    async with scripted_server(script) as server, connect(server.url) as connection:
        with trio.fail_after(30), pytest.raises(ConnectionLost, match="closed the connection"):
            await connection.lookup(TOPIC)


async def test_an_error_about_the_connection_is_the_reason_of_its_end() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect(BaseCommand.LOOKUP)
        await peer.send(replies.error(replies.CONNECTION_REQUEST_ID, api.NotAllowedError, "too many connections"))

    async with scripted_server(script) as server, connect(server.url) as connection:
        for _ in range(2):
            with pytest.raises(ServerRefused, match="too many connections"):
                await connection.lookup(TOPIC)


async def test_a_connection_is_unusable_after_its_body() -> None:
    async with scripted_server(greet_and_wait) as server:
        async with connect(server.url) as connection:
            watch = await connection.open_watch(TOPIC)
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await connection.lookup(TOPIC)
        with pytest.raises(ConnectionLost, match="closed on this side"):
            await watch.next()


def misbehaving(data: Callable[[], bytes]) -> Script:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.expect(BaseCommand.SCALABLE_TOPIC_LOOKUP)
        await peer.send_bytes(data())
        await peer.until_gone()

    return script


def empty_update() -> bytes:
    command = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_UPDATE)
    command.scalableTopicUpdate.session_id = 1
    return encode(command)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (lambda: b"HTTP/1.1 400 Bad Request\r\n\r\n", "right address.*exceeds the limit"),
        (lambda: struct.pack(">II", 8, 4) + b"\xff" * 4, "not valid protobuf"),
        (lambda: struct.pack(">II", 6, 2) + b"\x08\x47", "SCALABLE_TOPIC_UPDATE lacks its message"),
        (empty_update, "neither content nor an error"),
    ],
    ids=["http", "garbage", "no body", "empty update"],
)
async def test_nonsense_from_the_server_raises_where_an_update_is_awaited(
    data: Callable[[], bytes], complaint: str
) -> None:
    async with scripted_server(misbehaving(data)) as server, connect(server.url) as connection:
        watch = await connection.open_watch(TOPIC)
        with trio.fail_after(30), pytest.raises(ServerMisbehaved, match=complaint):
            await watch.next()


async def test_what_came_before_a_bad_frame_still_counts() -> None:
    script = misbehaving(lambda: encode(layout(4)) + b"\xff" * 8)
    async with scripted_server(script) as server, connect(server.url) as connection:
        watch = await connection.open_watch(TOPIC)
        assert (await watch.next()).dag.epoch == 4
        with pytest.raises(ServerMisbehaved):
            await watch.next()


async def test_commands_of_a_later_protocol_are_ignored() -> None:
    unknown = struct.pack(">II", 7, 3) + b"\x08\xe7\x07"
    async with (
        scripted_server(misbehaving(lambda: unknown + encode(layout(4)))) as server,
        connect(server.url) as connection,
    ):
        watch = await connection.open_watch(TOPIC)
        assert (await watch.next()).dag.epoch == 4


async def test_a_send_that_is_cancelled_in_the_middle_of_its_frame_leaves_the_connection_whole() -> None:
    cancelled = trio.Event()

    async def script(peer: Peer) -> None:
        await peer.greet(max_message_size=64_000_000)
        await cancelled.wait()
        assert len((await peer.expect(BaseCommand.LOOKUP)).lookupTopic.topic) == 32_000_000
        await peer.point_to("pulsar://n:1")
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        command = BaseCommand(type=BaseCommand.LOOKUP)
        # More than the buffers of both sockets hold, so that the write is still going on when it is cancelled.
        command.lookupTopic.topic = "x" * 32_000_000
        command.lookupTopic.request_id = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.send, command)
            await trio.testing.wait_all_tasks_blocked(0.05)
            nursery.cancel_scope.cancel()
        cancelled.set()
        with trio.fail_after(30):
            assert (await connection.lookup(TOPIC)).brokerServiceUrl == "pulsar://n:1"


async def test_a_cancelled_send_that_wrote_nothing_leaves_the_connection_whole() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.point_to("pulsar://n:1")
        await peer.until_gone()

    async with scripted_server(script) as server, connect(server.url) as connection:
        with trio.CancelScope() as scope:
            scope.cancel()
            await connection.open_watch(TOPIC)
        assert scope.cancelled_caught
        assert (await connection.lookup(TOPIC)).brokerServiceUrl == "pulsar://n:1"


def test_every_error_of_the_client_is_one_of_the_protocol() -> None:
    for error in (BadServiceUrl, ConnectionLost, RequestTimedOut, ScalableTopicsUnsupported, ServerMisbehaved):
        assert issubclass(error, ProtocolError)
    assert str(ServerRefused(api.TopicNotFound, "")) == "The server refused with TopicNotFound and no explanation."
