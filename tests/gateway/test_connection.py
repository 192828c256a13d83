"""One connection to a real listener: handshake, bad input, slow peers, faults behind it."""

import logging
import socket

import pytest
import trio

from gateway.connection import FRAMES_PER_TURN, TINY_FRAMES_WINDOW, Connection, Service
from gateway.keepalive import Roster
from gateway.listener import ListenerLimits
from protocol import replies
from protocol.framing import FRAME_PADDING, Buffer, Frame, FrameDecoder, UnknownCommand, encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.counters import CloseReason, Counters
from sessions.dialogue import Terms
from sessions.hubs import Hubs
from sessions.outbox import OutboxLimits
from tests.gateway.served import Client, Server, connect_frame, serving, watch_frame
from tests.sessions.stub_hub import StubClassic, StubConsumers, StubHub, StubNamespaces
from tests.support.waiting import eventually

PING = encode(replies.ping())


def frame_of(*body: int | bytes) -> bytes:
    """A frame around a raw command."""
    command = b"".join(bytes([part]) if isinstance(part, int) else part for part in body)
    return (len(command) + 4).to_bytes(4) + len(command).to_bytes(4) + command


async def test_handshake_then_watch_then_update() -> None:
    async with serving() as server:
        client = await server.greet()
        await client.send(watch_frame(7))
        update = (await client.receive()).scalableTopicUpdate
        assert (update.session_id, update.resolved_topic_name) == (7, "topic://t/n/a")
        (watch,) = server.hub.watches
        watch.tell(epoch=1)
        assert (await client.receive()).scalableTopicUpdate.dag.epoch == 1


async def test_commands_are_understood_byte_by_byte_and_all_at_once() -> None:
    async with serving() as server:
        stream = connect_frame() + PING + watch_frame(1) + PING
        expected = [
            BaseCommand.CONNECTED,
            BaseCommand.PONG,
            BaseCommand.SCALABLE_TOPIC_UPDATE,
            BaseCommand.PONG,
        ]
        for step in (1, len(stream)):
            client = await server.connect()
            for start in range(0, len(stream), step):
                await client.send(stream[start : start + step])
            assert [(await client.receive()).type for _ in expected] == expected


async def test_of_a_flood_of_tiny_frames_little_is_parsed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing is one step, and all others wait for its end."""
    sizes: list[int] = []
    receive = FrameDecoder.receive

    def noted(self: FrameDecoder, data: Buffer) -> list[Frame | UnknownCommand]:
        if self is not client._decoder:
            sizes.append(len(data))
        return receive(self, data)

    async with serving() as server:
        client = await server.greet()
        monkeypatch.setattr(FrameDecoder, "receive", noted)
        count = 20_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, PING * count)
            for _ in range(count):
                assert (await client.receive()).type == BaseCommand.PONG
        assert sum(sizes) == len(PING) * count
        # What is too little to tell by is no flood, and the first of one comes before it is known.
        little = sum(size <= FRAMES_PER_TURN * len(PING) for size in sizes)
        assert sum(size > TINY_FRAMES_WINDOW for size in sizes) <= little + 1


async def test_watches_go_with_their_connection() -> None:
    async with serving() as server:
        client = await server.greet()
        for session_id in range(10):
            await client.send(watch_frame(session_id))
            await client.receive()
        assert len(server.hub.watches) == 10
        client.close()
        await eventually(lambda: not server.hub.watches)
        await eventually(lambda: server.counters.connections == 0)
        assert server.counters.closes[CloseReason.PEER] == 1


GARBAGE = [
    ("oversize", b"GET / HTTP/1.1\r\n\r\n"),
    ("oversize", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),  # a TLS hello
    ("oversize", b"\xff\xff\xff\xff"),
    ("short", bytes(4)),
    ("short", b"\0\0\0\3abc"),
    ("command_size", b"\0\0\0\5\0\0\0\2\x08"),
    ("protobuf", frame_of(b"\xff\xff\xff\xff")),
    ("protobuf", frame_of(0x08, 0x12, 0x92, 0x01, 0x7F)),  # PING whose message is longer than the frame
    ("missing_field", frame_of(b"")),
    ("missing_field", frame_of(0x08, 0x46, 0xB2, 0x04, 0x00)),  # a lookup without its session and topic
    ("missing_body", frame_of(0x08, 0x12)),  # PING without its message
    ("text", frame_of(0x08, 0x46, 0xB2, 0x04, 0x06, 0x08, 0x01, 0x12, 0x02, 0xC3, 0x28)),
    ("direction", encode(replies.error(1, api.UnknownError, "I am a client"))),
    ("second_connect", connect_frame()),
]


@pytest.mark.parametrize(("kind", "data"), GARBAGE)
async def test_bad_frame_closes_is_counted_by_kind_and_logged_once_with_the_peer(
    kind: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server:
        bystander = await server.greet()
        client = await server.greet()
        await client.send(PING + data + PING)
        assert (await client.receive()).type == BaseCommand.PONG  # what came before it was served
        assert await client.is_hung_up()
        assert server.counters.bad_frames == {kind: 1}
        assert len(caplog.records) == 1
        host, port = client.sock.getsockname()
        assert f"{host}:{port}" in caplog.records[0].getMessage()
        assert await bystander.is_alive()
        await eventually(lambda: server.counters.connections == 1)


@pytest.mark.parametrize("command", [watch_frame(1), encode(replies.success(1))])
async def test_command_before_connect_closes(command: bytes) -> None:
    async with serving() as server:
        client = await server.connect()
        await client.send(command)
        assert await client.is_hung_up()
        assert server.counters.closes[CloseReason.PROTOCOL] == 1
        assert not server.hub.opened


async def test_stranger_may_not_announce_a_large_frame() -> None:
    async with serving() as server:
        stranger = await server.connect()
        await stranger.send((16 * 1024 - 3).to_bytes(4))
        assert await stranger.is_hung_up()
        assert server.counters.bad_frames == {"oversize": 1}


async def test_after_connect_frames_may_be_as_large_as_was_told() -> None:
    size = 100_000
    async with serving(terms=Terms("pulsar://h:1", max_message_size=size)) as server:
        client = await server.greet()
        largest = size + FRAME_PADDING - 4
        ping = b"\x08\x12\x92\x01\x00"
        await client.send(frame_of(ping, unknown_field(largest - 4 - len(ping))))
        assert (await client.receive()).type == BaseCommand.PONG
        await client.send((largest + 1).to_bytes(4))
        assert await client.is_hung_up()


def unknown_field(total: int) -> bytes:
    """A field of exactly `total` bytes that no command has."""
    tag = varint(1023 << 3 | 2)
    for length_size in range(1, 6):
        content = total - len(tag) - length_size
        if len(varint(content)) == length_size:
            return tag + varint(content) + bytes(content)
    raise AssertionError("no length fits")


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


async def test_unknown_command_type_is_ignored_and_counted() -> None:
    async with serving() as server:
        client = await server.greet()
        await client.send(frame_of(0x08, 0xE7, 0x07))  # type 999
        assert await client.is_alive()
        assert server.counters.unknown_commands == 1


async def test_fault_behind_a_connection_ends_only_that_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        bystander, unlucky = await server.greet(), await server.greet()
        await bystander.send(watch_frame(1))
        await unlucky.send(watch_frame(2))
        await unlucky.receive()
        server.hub.fault = ZeroDivisionError("the hub stumbled")
        await unlucky.send(watch_frame(3, "topic://t/n/faulty"))
        assert await unlucky.is_hung_up()
        await eventually(lambda: server.counters.errors == 2)  # in the command, and then when its watches ended
        assert server.counters.closes[CloseReason.ERROR] == 1
        assert "the hub stumbled" in caplog.text
        assert "ZeroDivisionError" in caplog.text
        assert await bystander.is_alive()
        assert server.counters.connections == 1
        server.hub.fault = None


async def test_reset_by_the_peer_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as server:
        client = await server.greet()
        await client.send(watch_frame(1))
        await eventually(lambda: server.hub.watches)
        client.close()  # with the update unread: the kernel resets the connection
        await eventually(lambda: server.counters.connections == 0)
        assert server.counters.errors == 0
        assert not caplog.records


async def block(server: Server, client: Client) -> None:
    """Make the client a peer that is owed bytes and takes none."""
    await client.send(watch_frame(1))
    await eventually(lambda: server.hub.watches)
    (watch,) = server.hub.watches
    epoch = 0
    while watch.outbox.queued_bytes == 0:
        epoch += 1
        watch.tell(epoch, padding=50_000)
        await trio.lowlevel.checkpoint()


async def test_peer_that_stops_reading_is_cut_after_the_stall_limit() -> None:
    async with serving(outbox_limits=OutboxLimits(stall_limit=0.1)) as server:
        bystander = await server.greet()
        client = await server.greet(receive_buffer=4096)
        await block(server, client)
        await eventually(lambda: server.counters.stalls == 1)
        await eventually(lambda: not server.hub.watches)
        assert server.counters.closes[CloseReason.STALLED] == 1
        assert server.counters.outbox_bytes == 0
        assert await bystander.is_alive()


async def test_peer_that_pings_without_reading_is_read_no_further() -> None:
    limits = OutboxLimits(reply_backlog=20_000)
    async with serving(outbox_limits=limits) as server:
        client = await server.greet(receive_buffer=4096)
        await client.send(watch_frame(1))
        await client.receive()
        (watch,) = server.hub.watches
        pings = 0
        while not watch.outbox.congested:
            await client.send(PING * 100)
            pings += 100
        queued = server.counters.outbox_bytes
        await client.send(PING * 10_000)
        pings += 10_000
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert server.counters.outbox_bytes == queued < limits.reply_backlog
        # It reads after all, and finds every answer.
        for _ in range(pings):
            assert (await client.receive()).type == BaseCommand.PONG
        assert server.counters.outbox_bytes == 0


async def test_handshake_must_be_done_in_time() -> None:
    async with serving(limits=ListenerLimits(handshake_timeout=0.5)) as server:
        connected = await server.greet()
        silent = await server.connect()
        pinging = await server.connect()
        await pinging.send(PING)  # answered, but no CONNECT
        assert await silent.is_hung_up()
        assert await pinging.is_hung_up()
        assert await connected.is_alive()
        assert server.counters.closes[CloseReason.HANDSHAKE_TIMEOUT] == 2


async def test_trickling_a_byte_at_a_time_does_not_prolong_the_handshake() -> None:
    async with serving(limits=ListenerLimits(handshake_timeout=0.2)) as server:
        client = await server.connect()

        async def trickle() -> None:
            try:
                for byte in connect_frame() * 1_000:
                    await client.sock.send(bytes([byte]))
                    await trio.sleep(0.02)
            except OSError:
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trickle)
            assert await client.is_hung_up()
            nursery.cancel_scope.cancel()
        assert server.counters.closes[CloseReason.HANDSHAKE_TIMEOUT] == 1


async def test_silent_peer_is_pinged_and_then_cut() -> None:
    async with serving(limits=ListenerLimits(keep_alive=0.1)) as server:
        client = await server.greet()
        assert (await client.receive()).type == BaseCommand.PING
        assert await client.is_hung_up()
        assert server.counters.closes[CloseReason.DEAD] == 1


async def test_peer_that_answers_pings_stays() -> None:
    async with serving(limits=ListenerLimits(keep_alive=1.0)) as server:
        client = await server.greet()
        for _ in range(2):
            assert (await client.receive()).type == BaseCommand.PING
            await client.send(encode(replies.pong()))
        assert await client.is_alive()


async def test_any_whole_command_is_a_sign_of_life_but_bytes_are_not() -> None:
    async with serving(limits=ListenerLimits(keep_alive=1.0)) as server:
        busy, trickling = await server.greet(), await server.greet()

        async def send_regularly(client: Client, data: bytes) -> None:
            while True:
                await client.send(data)
                await trio.sleep(0.03)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_regularly, busy, watch_frame(1))
            # The start of a frame that would be 1,000 bytes long, and then its bytes one by one.
            await trickling.send((1_000).to_bytes(4))

            async def trickle() -> None:
                try:
                    await send_regularly(trickling, b"\0")
                except OSError:
                    pass

            nursery.start_soon(trickle)
            assert await trickling.is_hung_up()
            assert server.counters.closes[CloseReason.DEAD] == 1
            nursery.cancel_scope.cancel()
        assert await busy.is_alive()


async def test_sign_of_life_that_we_did_not_get_to_read_counts(nursery: trio.Nursery) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        service = Service(
            nursery,
            Hubs(StubHub(), StubNamespaces(), StubConsumers(), StubClassic()),
            Terms("pulsar://h:1"),
            OutboxLimits(),
            set(),
            Counters(),
            Roster(10, 30),
            memoryview(bytearray(1_000)),
        )
        connection = Connection(ours, service)
        theirs.send(connect_frame())
        connection.start()
        await trio.testing.wait_all_tasks_blocked()
        connection.beat()
        theirs.send(encode(replies.pong()))
        connection.beat()  # the reader had no chance to run
        assert not connection.outbox.closed
        await trio.testing.wait_all_tasks_blocked()
        connection.beat()
        connection.beat()
        assert connection.outbox.closed


async def test_peer_that_does_not_know_ping_is_left_alone() -> None:
    async with serving(limits=ListenerLimits(keep_alive=0.05)) as server:
        pinged = await server.greet()
        old = await server.connect()
        await old.send(connect_frame(version=0))
        assert (await old.receive()).type == BaseCommand.CONNECTED
        assert await pinged.is_hung_up()  # two intervals have passed
        await old.send(watch_frame(1))
        assert (await old.receive()).type == BaseCommand.SCALABLE_TOPIC_UPDATE


async def test_peer_whose_commands_we_do_not_read_is_not_taken_for_dead() -> None:
    limits = ListenerLimits(keep_alive=1.0)
    async with serving(limits=limits, outbox_limits=OutboxLimits(reply_backlog=0)) as server:
        client = await server.greet(receive_buffer=4096)
        await block(server, client)
        await client.send(PING * 10)  # their answers queue behind the state, so reading stops
        (watch,) = server.hub.watches
        await eventually(lambda: watch.outbox.congested)
        await trio.sleep(3 * limits.keep_alive)
        assert server.counters.connections == 1
        assert await client.is_alive()
