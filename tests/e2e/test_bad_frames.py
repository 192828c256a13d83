"""What cannot be a frame, or not here, closes its connection and is counted by kind; the server goes on."""

from __future__ import annotations

import socket

import pytest

from protocol import replies
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.e2e.peers import assert_serving, dialled, frame, full, greeted, watch
from tests.e2e.vela_process import VelaServer
from tests.gateway.served import connect_frame
from tests.protocol import vectors
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

PING = encode(replies.ping())
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
# In a frame, the field of a command carries its own number, which is also its type.
LOOKUP_TAG = b"\x08\x46\xb2\x04"

BEFORE_CONNECT = {
    "length-of-all-ones": ("oversize", b"\xff\xff\xff\xff"),
    "http-request": ("oversize", b"GET / HTTP/1.1\r\nHost: vela\r\n\r\n"),
    "tls-hello": ("oversize", TLS_HELLO),
    "more-than-a-stranger-may-send": ("oversize", (16 * 1024).to_bytes(4)),
    "watch": ("before_connect", watch(1, full("stranger"))),
    "reply": ("direction", encode(replies.success(1))),
}

AFTER_CONNECT = {
    "length-of-all-ones": ("oversize", b"\xff\xff\xff\xff"),
    "http-request": ("oversize", b"GET / HTTP/1.1\r\nHost: vela\r\n\r\n"),
    "tls-hello": ("oversize", TLS_HELLO),
    "just-over-the-limit": ("oversize", (5 * 1024 * 1024 + 10 * 1024 - 3).to_bytes(4)),
    **{f"total-size-{size}": ("short", size.to_bytes(4) + bytes(size)) for size in range(4)},
    "command-size-one-too-large": ("command_size", b"\0\0\0\5\0\0\0\2\x08"),
    "command-size-negative": ("command_size", b"\0\0\0\5\x80\0\0\0\x08"),
    "command-size-of-all-ones": ("command_size", b"\0\0\0\5\xff\xff\xff\xff\x08"),
    "garbage": ("protobuf", frame(b"\xff" * 64)),
    "body-longer-than-frame": ("protobuf", frame(b"\x08\x12\x92\x01\x7f")),
    "endless-varint": ("protobuf", frame(b"\x08" + b"\x80" * 20)),
    "nested-without-end": ("protobuf", frame(b"\x9b\x06" * 5_000)),
    "empty-command": ("missing_field", frame(b"")),
    "type-as-text": ("missing_field", frame(b"\x0a\x01\x12")),
    "session-id-as-text": ("missing_field", frame(LOOKUP_TAG + b"\x06\x0a\x01\x31\x12\x01\x61")),
    "topic-as-number": ("missing_field", frame(LOOKUP_TAG + b"\x04\x08\x01\x10\x01")),
    "lookup-without-its-fields": ("missing_field", frame(LOOKUP_TAG + b"\x00")),
    "required-enum-with-unknown-value": ("missing_field", b""),
    "ping-without-its-message": ("missing_body", frame(b"\x08\x12")),
    "text-that-is-not-utf-8": ("text", frame(LOOKUP_TAG + b"\x06\x08\x01\x12\x02\xc3\x28")),
    "reply": ("direction", encode(replies.error(1, api.UnknownError, "I am a client"))),
    "push": ("direction", frame(b"\x08\x47\xba\x04\x02\x08\x01")),
    "second-connect": ("second_connect", connect_frame()),
}


def subscribe_with_unknown_type() -> bytes:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    subscribe = command.subscribe
    subscribe.topic, subscribe.subscription = full("a"), "s"
    subscribe.subType = api.CommandSubscribe.Shared
    subscribe.consumer_id, subscribe.request_id = 1, 2
    known, unknown = b"\x18\x01\x20\x01", b"\x18\x4d\x20\x01"
    data = command.SerializeToString()
    assert data.count(known) == 1
    return frame(data.replace(known, unknown))


AFTER_CONNECT["required-enum-with-unknown-value"] = ("missing_field", subscribe_with_unknown_type())


@pytest.mark.parametrize(("kind", "data"), BEFORE_CONNECT.values(), ids=BEFORE_CONNECT)
async def test_stranger_is_cut_and_counted(server: VelaServer, kind: str, data: bytes) -> None:
    counted = server.metric("vela_bad_frames_total", kind=kind)
    async with dialled(server) as client:
        await client.send(data)
        assert await client.is_hung_up()
    assert server.metric("vela_bad_frames_total", kind=kind) == counted + 1
    await assert_serving(server)


@pytest.mark.parametrize(("kind", "data"), AFTER_CONNECT.values(), ids=AFTER_CONNECT)
async def test_bad_frame_is_cut_counted_by_kind_and_logged_with_its_peer(
    server: VelaServer, kind: str, data: bytes
) -> None:
    counted = server.metric("vela_bad_frames_total", kind=kind)
    async with greeted(server) as client:
        host, port = client.sock.getsockname()
        await client.send(PING + data + PING)
        assert (await client.receive()).type == BaseCommand.PONG  # what came before it was served
        assert await client.is_hung_up()
    assert server.metric("vela_bad_frames_total", kind=kind) == counted + 1
    assert len([line for line in server.err.splitlines() if f"{host}:{port}" in line]) == 1
    await assert_serving(server)


@pytest.mark.parametrize("cut", [1, 3, 4, 7, 8, 20])
async def test_half_a_frame_and_then_the_end_is_an_ordinary_goodbye(server: VelaServer, topic: str, cut: int) -> None:
    bad = server.metric("vela_connections_closed_total", reason="bad_frame")
    left = server.metric("vela_connections_closed_total", reason="peer")
    async with greeted(server) as client:
        await client.send(watch(1, full(topic))[:cut])
        client.sock.shutdown(socket.SHUT_WR)
        assert await client.is_hung_up()
    await eventually(lambda: server.metric("vela_connections_closed_total", reason="peer") == left + 1)
    assert server.metric("vela_connections_closed_total", reason="bad_frame") == bad


FUTURE = {
    "without-body": frame(b"\x08\xe7\x07"),
    "with-body": frame(b"\x08\x5a\xd2\x05\x04\x08\x01\x10\x02"),
    "largest-int": frame(b"\x08\xff\xff\xff\xff\x07"),
    "negative": frame(b"\x08" + b"\xff" * 9 + b"\x01"),
    "zero": frame(b"\x08\x00"),
}


@pytest.mark.parametrize("data", FUTURE.values(), ids=FUTURE)
async def test_command_of_a_future_protocol_is_ignored_and_counted(server: VelaServer, data: bytes) -> None:
    counted = server.metric("vela_unknown_commands_total")
    async with dialled(server) as client:
        await client.send(data + connect_frame() + data + PING)
        assert (await client.receive()).type == BaseCommand.CONNECTED
        assert (await client.receive()).type == BaseCommand.PONG
    assert server.metric("vela_unknown_commands_total") == counted + 2


async def test_unknown_value_of_an_optional_enum_counts_as_left_out(server: VelaServer) -> None:
    async with dialled(server) as client:
        # CONNECT with auth_method 99.
        await client.send(frame(b"\x08\x02\x12\x05\x0a\x01\x61\x10\x63"))
        assert (await client.receive()).type == BaseCommand.CONNECTED


async def test_largest_frame_is_read_and_its_unknown_fields_are_no_burden(server: VelaServer) -> None:
    # Two million fields that no command has, in the largest frame that is accepted.
    room = 5 * 1024 * 1024 + 10 * 1024 - 8
    ping = b"\x08\x12\x92\x01\x00"
    filling = b"\xf8\x3f\x00" * ((room - len(ping)) // 3)
    async with greeted(server) as client:
        await client.send(frame(ping + filling))
        assert (await client.receive(within=30)).type == BaseCommand.PONG
    await assert_serving(server)


async def test_every_command_that_a_client_may_send_is_answered_or_ignored_but_never_cut(server: VelaServer) -> None:
    unfit = {BaseCommand.CONNECT, *replies.SERVER_TO_CLIENT}
    known = [line for line in vectors.lines("frames.jsonl") if BaseCommand.Type.Value(line["command"]) not in unfit]
    assert len(known) > 50
    async with greeted(server) as client:
        for line in known:
            await client.send(bytes.fromhex(line["hex"]))
            assert await client.is_alive(), line["command"]
        await client.send(watch(2**40, full("after-all-commands")))
        while (await client.receive()).scalableTopicUpdate.session_id != 2**40:
            pass
