"""The front door: addresses, limits, many connections, and leaving in good order."""

import errno
import socket
from collections import Counter

import pytest
import trio

from gateway.binding import CannotListen, open_sockets
from gateway.listener import Listener, ListenerLimits
from protocol import replies
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.counters import CloseReason, Counters
from sessions.dialogue import Terms
from sessions.hubs import Hubs
from sessions.outbox import OutboxLimits
from tests.gateway.served import Client, connect_frame, serving, watch_frame
from tests.sessions.stub_hub import StubClassic, StubConsumers, StubHub, StubNamespaces
from tests.support.waiting import eventually


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


async def test_all_addresses_of_a_host_share_one_port() -> None:
    async with serving(host="localhost") as server:
        assert len({port for _, port in server.addresses}) == 1
        assert server.port != 0
        for address, port in server.addresses:
            stream = await trio.open_tcp_stream(address, port)
            await stream.send_all(connect_frame())
            assert await stream.receive_some()
            await stream.aclose()


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_bad_frame_over_ipv6_is_logged_with_its_peer(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(host="::1") as server:
        stream = await trio.open_tcp_stream("::1", server.port)
        port = stream.socket.getsockname()[1]
        await stream.send_all(b"\xff\xff\xff\xff")
        await eventually(lambda: server.counters.bad_frames == {"oversize": 1})
        assert f"[::1]:{port}" in caplog.text
        await stream.aclose()


async def test_empty_host_means_all_interfaces() -> None:
    async with serving(host="") as server:
        assert await (await server.greet()).is_alive()


async def test_taken_port_is_one_clear_sentence() -> None:
    async with serving() as server:
        with pytest.raises(CannotListen, match=rf"^Cannot listen on 127\.0\.0\.1:{server.port}: .*in use\. "):
            await open_sockets("127.0.0.1", server.port, 1)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "x" * 300, "203.0.113.7"])
async def test_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(CannotListen, match="Cannot listen on"):
        await open_sockets(host, 0, 1)


async def test_accepted_sockets_are_set_up_for_small_prompt_frames() -> None:
    async with serving() as server:
        client = await server.greet()
        await client.send(watch_frame(1))
        await client.receive()
        (watch,) = server.hub.watches
        sock = watch.outbox._sock
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 16 * 1024
        assert not sock.getblocking()


async def test_connection_over_the_limit_is_told_so_and_closed() -> None:
    async with serving(limits=ListenerLimits(max_connections=2)) as server:
        first, second = await server.greet(), await server.greet()
        third = await server.connect()
        refusal = await third.receive()
        assert refusal.error.request_id == 2**64 - 1
        assert refusal.error.error == api.NotAllowedError
        assert refusal.error.message == "Reached the maximum number of connections"
        assert await third.is_hung_up()
        assert (server.counters.accepted, server.counters.refused) == (2, 1)
        assert await first.is_alive()
        second.close()
        await eventually(lambda: server.counters.connections == 1)
        assert await (await server.greet()).is_alive()


async def test_connections_of_one_address_are_bounded() -> None:
    async with serving(limits=ListenerLimits(max_connections_per_address=2)) as server:
        first, _ = await server.greet(), await server.greet()
        refused = await server.connect()
        assert (await refused.receive()).error.error == api.NotAllowedError
        elsewhere = trio.socket.socket()
        await elsewhere.bind(("127.0.0.9", 0))
        await elsewhere.connect(("127.0.0.1", server.port))
        other = Client(elsewhere)
        await other.send(connect_frame())
        assert await other.is_alive()
        first.close()
        await eventually(lambda: server.counters.connections == 2)
        assert await (await server.greet()).is_alive()


async def test_watches_opened_too_fast_are_read_slowly_and_never_refused() -> None:
    async with serving(limits=ListenerLimits(opens_per_second=200)) as server:
        client = await server.greet()
        begun = trio.current_time()
        await client.send(b"".join(watch_frame(number) for number in range(300)))
        answers = [await client.receive() for _ in range(300)]
        # A second's worth at once, the other hundred at the rate: never faster than that.
        assert trio.current_time() - begun >= 0.45
        assert [answer.scalableTopicUpdate.session_id for answer in answers] == list(range(300))
        assert not any(answer.scalableTopicUpdate.HasField("error") for answer in answers)


async def test_when_too_much_waits_on_all_connections_some_are_cut() -> None:
    async with serving(outbox_limits=OutboxLimits(total_bytes=1_000_000)) as server:
        healthy = await server.greet()
        blocked = [await server.greet(receive_buffer=4096) for _ in range(4)]
        for client in blocked:
            await client.send(watch_frame(1))
            await client.receive()
        for watch in list(server.hub.watches):
            watch.tell(epoch=1, padding=900_000)
        await eventually(lambda: server.counters.closes[CloseReason.OVERLOAD] >= 1)
        assert server.counters.outbox_bytes <= 1_000_000
        assert await healthy.is_alive()


async def test_client_that_speaks_first_still_reads_why_it_is_turned_away() -> None:
    async with serving(limits=ListenerLimits(max_connections=0)) as server:
        client = await server.connect()
        try:
            await client.send(connect_frame())
        except OSError:
            pass  # turned away faster than it could speak
        assert (await client.receive()).error.error == api.NotAllowedError


async def test_thousand_connections_are_served_and_gone_without_a_trace() -> None:
    async with serving() as server:
        clients: list[Client] = []

        async def join(number: int) -> None:
            client = await server.greet()
            clients.append(client)
            await client.send(watch_frame(number))
            assert (await client.receive()).scalableTopicUpdate.session_id == number

        async with trio.open_nursery() as nursery:
            for number in range(1_000):
                nursery.start_soon(join, number)
        assert server.counters.connections == len(server.hub.watches) == 1_000
        for watch in list(server.hub.watches):
            watch.tell(epoch=1)
        for client in clients:
            assert (await client.receive()).scalableTopicUpdate.dag.epoch == 1
            client.close()
        await eventually(lambda: server.counters.connections == 0)
        assert not server.hub.watches
        assert server.counters.outbox_bytes == 0
        assert len(server.listener._roster) == 0


async def test_running_out_of_descriptors_delays_new_connections_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shortage = Counter[str]()
    accept = socket.socket.accept

    def short_of_descriptors(self: socket.socket) -> object:
        if shortage["left"] > 0:
            shortage["left"] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    async with serving() as server:
        present = await server.greet()
        monkeypatch.setattr(socket.socket, "accept", short_of_descriptors)
        shortage["left"] = 3
        late = await server.connect()
        await late.send(connect_frame())
        await eventually(lambda: server.counters.accept_errors > 0)
        assert await present.is_alive()
        assert (await late.receive()).type == BaseCommand.CONNECTED
        assert server.counters.accept_errors == 3
        assert len(caplog.records) == 1  # once for the shortage, not once per attempt


async def test_connection_that_cannot_be_taken_in_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as server:
        with monkeypatch.context() as patched:
            patched.setattr("gateway.connection.Connection.start", lambda self: 1 / 0)
            await server.connect()
            await eventually(lambda: server.counters.errors == 1)
        await server.greet()


async def test_connection_that_was_aborted_before_it_was_accepted_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aborted = [OSError(errno.ECONNABORTED, "Software caused connection abort")]
    accept = socket.socket.accept

    def aborting(self: socket.socket) -> object:
        if aborted:
            raise aborted.pop()
        return accept(self)

    async with serving() as server:
        monkeypatch.setattr(socket.socket, "accept", aborting)
        assert await (await server.greet()).is_alive()
        assert server.counters.accept_errors == 1


class Stoppable:
    """A listener whose serving can be waited for."""

    def __init__(self, grace: float) -> None:
        self.hub, self.counters = StubHub(), Counters()
        self.listener = Listener(
            Hubs(self.hub, StubNamespaces(), StubConsumers(), StubClassic()),
            Terms("pulsar://h:1"),
            ListenerLimits(shutdown_grace=grace),
            OutboxLimits(),
            self.counters,
        )
        self.finished = trio.Event()
        self.port = 0

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with trio.open_nursery() as nursery:
            listening = await open_sockets("127.0.0.1", 0)
            self.port = listening[0].getsockname()[1]
            nursery.start_soon(self.listener.serve, listening)
            task_status.started()
        self.finished.set()

    async def join(self, receive_buffer: int = 65_536) -> Client:
        sock = trio.socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect(("127.0.0.1", self.port))
        client = Client(sock)
        await client.send(connect_frame() + watch_frame(1))
        for _ in range(2):
            await client.receive()
        return client


async def test_stop_ends_idle_connections_at_once_and_frees_the_port(nursery: trio.Nursery) -> None:
    stoppable = Stoppable(grace=60)
    await nursery.start(stoppable.serve)
    clients = [await stoppable.join() for _ in range(5)]
    stoppable.listener.stop()
    with trio.fail_after(30):
        await stoppable.finished.wait()
    for client in clients:
        assert await client.is_hung_up()
    assert stoppable.counters.closes[CloseReason.SHUTDOWN] == 5
    assert stoppable.counters.connections == 0
    assert not stoppable.hub.watches
    with pytest.raises(OSError):
        await trio.open_tcp_stream("127.0.0.1", stoppable.port)


async def test_stop_lets_a_peer_finish_reading_what_it_is_owed(nursery: trio.Nursery) -> None:
    stoppable = Stoppable(grace=60)
    await nursery.start(stoppable.serve)
    client = await stoppable.join(receive_buffer=4096)
    (watch,) = stoppable.hub.watches
    watch.tell(epoch=1, padding=2_000_000)
    assert watch.outbox.queued_bytes
    stoppable.listener.stop()
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert not stoppable.finished.is_set()
    assert (await client.receive()).scalableTopicUpdate.dag.epoch == 1
    with trio.fail_after(30):
        await stoppable.finished.wait()
    assert await client.is_hung_up()


async def test_stop_cuts_a_peer_that_does_not_read_when_the_grace_is_over(nursery: trio.Nursery) -> None:
    stoppable = Stoppable(grace=0.1)
    await nursery.start(stoppable.serve)
    client = await stoppable.join(receive_buffer=4096)
    (watch,) = stoppable.hub.watches
    watch.tell(epoch=1, padding=2_000_000)
    stoppable.listener.stop()
    with trio.fail_after(30):
        await stoppable.finished.wait()
    client.close()
    assert stoppable.counters.closes[CloseReason.SHUTDOWN] == 1
    assert stoppable.counters.outbox_bytes == 0


async def test_cancelling_the_server_leaves_nothing_open() -> None:
    async with serving() as server:
        client = await server.greet()
        await client.send(watch_frame(1))
        await client.receive()
    assert await client.is_hung_up()
    assert server.counters.connections == 0
    assert not server.hub.watches


async def test_ten_thousand_watches_opened_and_closed_leave_nothing() -> None:
    async with serving() as server:
        client = await server.greet()
        close = BaseCommand(type=BaseCommand.SCALABLE_TOPIC_CLOSE)
        async with trio.open_nursery() as nursery:

            async def churn() -> None:
                for session_id in range(10_000):
                    close.scalableTopicClose.session_id = session_id
                    await client.send(watch_frame(session_id) + encode(close))
                await client.send(encode(replies.ping()))

            nursery.start_soon(churn)
            while (await client.receive()).type != BaseCommand.PONG:
                pass
        assert not server.hub.watches
        assert server.counters.outbox_bytes == 0
