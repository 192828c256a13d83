"""The frame decoder, however the bytes are cut and whatever they contain."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.framing import (
    DEFAULT_MAX_MESSAGE_SIZE,
    FRAME_PADDING,
    BadFrame,
    Frame,
    FrameDecoder,
    UnknownCommand,
    encode,
)
from protocol.wire import pulsar_api_pb2 as api
from tests.protocol import vectors

PING = bytes.fromhex("00000009000000050812920100")
LARGEST_SIZE = DEFAULT_MAX_MESSAGE_SIZE + FRAME_PADDING - 4
RECORDED = [bytes.fromhex(row["hex"]) for row in vectors.lines("frames.jsonl")]


def simple(command: bytes, tail: bytes = b"") -> bytes:
    """A frame around any bytes that claim to be a command."""
    return struct.pack(">II", 4 + len(command) + len(tail), len(command)) + command + tail


def unknown_command(number: int) -> bytes:
    varint = b""
    while number > 0x7F:
        varint += bytes([number & 0x7F | 0x80])
        number >>= 7
    return simple(b"\x08" + varint + bytes([number]) + bytes.fromhex("a23f020801"))


def text(frames: list[Frame | UnknownCommand]) -> list[object]:
    """Frames as values that compare by content."""
    return [
        frame if isinstance(frame, UnknownCommand) else (frame.command.SerializeToString(), frame.body)
        for frame in frames
    ]


def refused(data: bytes) -> BadFrame:
    with pytest.raises(BadFrame) as caught:
        FrameDecoder().receive(data)
    return caught.value


streams = st.lists(st.sampled_from([*RECORDED, PING, unknown_command(200)]), min_size=1, max_size=6)


# ---- Cutting


@given(streams)
def test_whole_stream_gives_the_same_frames_as_single_bytes(frames: list[bytes]) -> None:
    stream = b"".join(frames)
    whole, single = FrameDecoder(), FrameDecoder()
    expected = text(whole.receive(stream))
    assert len(expected) == len(frames)
    got = [frame for byte in stream for frame in single.receive(bytes([byte]))]
    assert text(got) == expected
    assert whole.pending == single.pending == 0


@given(streams, st.data())
def test_random_pieces_give_the_same_frames(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder = FrameDecoder()
    got: list[Frame | UnknownCommand] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.receive(stream[start:end])
    assert text(got) == text(FrameDecoder().receive(stream))


@given(streams, st.sampled_from(RECORDED), st.data())
def test_tail_of_an_unfinished_frame_waits_for_the_rest(frames: list[bytes], last: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(last) - 1))
    decoder = FrameDecoder()
    assert len(decoder.receive(b"".join(frames) + last[:cut])) == len(frames)
    assert decoder.pending == cut
    assert text(decoder.receive(last[cut:])) == text(FrameDecoder().receive(last))
    assert decoder.pending == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_accepted(kind: type[bytes] | type[bytearray] | type[memoryview]) -> None:
    assert len(FrameDecoder().receive(kind(PING + PING))) == 2


def test_caller_may_reuse_its_buffer() -> None:
    send = next(frame for frame in RECORDED if frame[9] == api.BaseCommand.SEND)
    buffer = bytearray(send + PING[:7])
    decoder = FrameDecoder()
    (frame,) = decoder.receive(buffer)
    buffer[:] = b"\xff" * len(buffer)
    assert text([frame]) == text(FrameDecoder().receive(send))
    assert text(decoder.receive(PING[7:])) == text(FrameDecoder().receive(PING))


def test_nothing_is_a_piece_too() -> None:
    decoder = FrameDecoder()
    assert decoder.receive(b"") == []
    decoder.receive(PING[:5])
    assert decoder.receive(b"") == []
    assert decoder.pending == 5


# ---- Memory


def test_announced_size_is_not_allocated() -> None:
    tracemalloc.start()
    try:
        decoders = [FrameDecoder() for _ in range(20)]
        for decoder in decoders:
            decoder.receive(struct.pack(">I", LARGEST_SIZE) + b"\0\0")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_decoder_lets_go_of_the_memory_of_a_finished_frame() -> None:
    command = api.BaseCommand(type=api.BaseCommand.ERROR)
    command.error.request_id, command.error.error, command.error.message = 1, api.UnknownError, "x" * 1_000_000
    data = encode(command)
    del command
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        decoder.receive(data[:500_000])
        assert tracemalloc.get_traced_memory()[0] > 400_000
        decoder.receive(data[500_000:])
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


def test_large_frame_arrives_whole_from_single_bytes() -> None:
    command = api.BaseCommand(type=api.BaseCommand.ERROR)
    command.error.request_id, command.error.error, command.error.message = 1, api.UnknownError, "x" * 200_000
    data = encode(command)
    decoder = FrameDecoder()
    pieces = [decoder.receive(data[index : index + 1]) for index in range(len(data))]
    assert sum(map(len, pieces)) == 1
    assert len(pieces[-1]) == 1


# ---- Sizes


def test_largest_legal_size_is_awaited() -> None:
    decoder = FrameDecoder()
    assert decoder.receive(struct.pack(">I", LARGEST_SIZE)) == []
    assert LARGEST_SIZE == 5_253_116
    assert decoder.pending == 4


@pytest.mark.parametrize(
    "header",
    [struct.pack(">I", LARGEST_SIZE + 1), b"\xff\xff\xff\xff", b"GET ", b"\x16\x03\x01\x02"],
    ids=["one too many", "largest number", "HTTP", "TLS"],
)
def test_oversize_frame_is_refused_from_its_length_alone(header: bytes) -> None:
    assert refused(header).kind == "oversize"
    decoder = FrameDecoder()
    for byte in header[:3]:
        assert decoder.receive(bytes([byte])) == []
    with pytest.raises(BadFrame, match="exceeds the limit"):
        decoder.receive(header[3:])


@pytest.mark.parametrize("size", range(4))
def test_frame_without_room_for_a_command_is_refused(size: int) -> None:
    assert refused(struct.pack(">I", size)).kind == "short"


def test_limit_can_be_raised_between_frames() -> None:
    size = 20_000
    decoder = FrameDecoder(max_message_size=1_000)
    with pytest.raises(BadFrame):
        decoder.receive(struct.pack(">I", size))
    decoder = FrameDecoder(max_message_size=1_000)
    decoder.receive(PING)
    decoder.max_message_size = 100_000
    assert decoder.receive(struct.pack(">I", size)) == []


@pytest.mark.parametrize("command_size", [6, 2**31, 2**32 - 1])
def test_command_larger_than_its_frame_is_refused(command_size: int) -> None:
    assert refused(struct.pack(">II", 9, command_size) + PING[8:]).kind == "command_size"


# ---- Content


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (b"", "missing_field"),
        (bytes.fromhex("0812"), "missing_body"),
        (bytes.fromhex("0812 9a0100"), "missing_body"),
        (bytes.fromhex("920100"), "missing_field"),
        (bytes.fromhex("0a0112"), "missing_field"),
        (bytes.fromhex("0846"), "missing_body"),
        (bytes.fromhex("0846 b20400"), "missing_field"),
        (bytes.fromhex("0846 b2040208 01"), "missing_field"),
        (bytes.fromhex("0846 b20403 0801"), "protobuf"),
        (bytes.fromhex("0846 b20408 0801 1203 61ff62 00"), "protobuf"),
        (bytes.fromhex("08"), "protobuf"),
        (bytes.fromhex("0f"), "protobuf"),
        (bytes.fromhex("08ffffffffffffffffffff01"), "protobuf"),
        (bytes.fromhex("0846 b20407 0801 1203 61ff62"), "text"),
        (bytes.fromhex("0812 920100") + b"GET / HTTP/1.1\r\n", "protobuf"),
    ],
    ids=[
        "empty command",
        "PING without its message",
        "PING with the message of PONG",
        "no type",
        "type that is not a number",
        "lookup without its message",
        "lookup without fields",
        "lookup without topic",
        "message cut short",
        "message with an impossible field",
        "tag without value",
        "wire type that does not exist",
        "varint without end",
        "topic that is not UTF-8",
        "garbage behind a command",
    ],
)
def test_bad_command_is_refused(command: bytes, kind: str) -> None:
    assert refused(simple(command)).kind == kind


def test_required_field_is_missed_however_deep_it_stands() -> None:
    command = api.BaseCommand(type=api.BaseCommand.SCALABLE_TOPIC_UPDATE)
    command.scalableTopicUpdate.session_id = 1
    command.scalableTopicUpdate.dag.epoch = 3
    command.scalableTopicUpdate.dag.segments.add(segment_id=1, hash_start=0, hash_end=1)
    assert refused(simple(command.SerializePartialToString())).kind == "missing_field"


def test_text_is_checked_however_deep_it_stands() -> None:
    command = api.BaseCommand(type=api.BaseCommand.WATCH_SCALABLE_TOPICS)
    command.watchScalableTopics.watch_id, command.watchScalableTopics.namespace = 1, "public/default"
    command.watchScalableTopics.property_filters.add(key="team", value="XXXX")
    data = encode(command)
    assert len(FrameDecoder().receive(data)) == 1
    assert refused(data.replace(b"XXXX", b"X\xc3XX")).kind == "text"


def test_every_string_of_an_accepted_command_is_text() -> None:
    (frame,) = FrameDecoder().receive(simple(bytes.fromhex("0846 b20407 0801 1203 e38182")))
    assert isinstance(frame, Frame)
    assert frame.command.scalableTopicLookup.topic == "あ"


def test_unknown_value_of_an_optional_enum_reads_as_absent() -> None:
    (frame,) = FrameDecoder().receive(simple(bytes.fromhex("0847 ba0404 0801 1863")))
    assert isinstance(frame, Frame)
    assert not frame.command.scalableTopicUpdate.HasField("error")


def test_unknown_value_of_a_required_enum_is_a_missing_field() -> None:
    command = api.BaseCommand(type=api.BaseCommand.SCALABLE_TOPIC_SUBSCRIBE)
    subscribe = command.scalableTopicSubscribe
    subscribe.request_id, subscribe.consumer_id, subscribe.consumer_type = 1, 2, api.STREAM
    subscribe.topic, subscribe.subscription, subscribe.consumer_name = "t", "s", "c"
    data = encode(command)
    assert data.endswith(b"\x30\x00")
    assert refused(data[:-1] + b"\x07").kind == "missing_field"


def test_unknown_fields_are_skipped() -> None:
    (frame,) = FrameDecoder().receive(simple(PING[8:] + bytes.fromhex("a23f020801")))
    assert isinstance(frame, Frame)
    assert frame.command.type == api.BaseCommand.PING


def test_packed_numbers_are_read_too() -> None:
    message = "4a0d 0801 1204 08021003 2203 010203"
    (frame,) = FrameDecoder().receive(simple(bytes.fromhex("0809" + message)))
    assert isinstance(frame, Frame)
    assert list(frame.command.message.ack_set) == [1, 2, 3]


@pytest.mark.parametrize("number", [0, 1, 41, 69, 83, 127, 128, 200, 2**21, 2**31 - 1])
def test_future_command_type_is_not_an_error(number: int) -> None:
    frames = FrameDecoder().receive(PING + unknown_command(number) + PING)
    assert frames[1] == UnknownCommand(number)
    assert len(frames) == 3


def test_bytes_behind_a_simple_command_are_ignored() -> None:
    frames = FrameDecoder().receive(simple(PING[8:], tail=b"whatever") + PING)
    assert text(frames) == text(FrameDecoder().receive(PING + PING))


def test_bytes_behind_a_payload_command_are_kept() -> None:
    send = bytes.fromhex("0806320408001007")
    (frame,) = FrameDecoder().receive(simple(send, tail=b"\x0e\x01whatever"))
    assert isinstance(frame, Frame)
    assert frame.body == b"\x0e\x01whatever"


def watch_of(namespace: str) -> bytes:
    command = api.BaseCommand(type=api.BaseCommand.WATCH_SCALABLE_TOPICS)
    command.watchScalableTopics.watch_id = 1
    command.watchScalableTopics.namespace = namespace
    return encode(command)


def test_peers_that_open_the_same_watch_share_the_parsed_command_and_others_do_not() -> None:
    (one,), (same,), (other,) = (FrameDecoder().receive(watch_of(name)) for name in ("t/a", "t/a", "t/b"))
    assert isinstance(one, Frame)
    assert one is same
    assert isinstance(other, Frame)
    assert other.command.watchScalableTopics.namespace == "t/b"


def test_what_other_commands_say_is_not_kept() -> None:
    command = api.BaseCommand(type=api.BaseCommand.CONNECT)
    command.connect.client_version = "c"
    command.connect.auth_data = b"secret"
    first, second = (FrameDecoder().receive(encode(command))[0] for _ in range(2))
    assert isinstance(first, Frame)
    assert isinstance(second, Frame)
    assert first.command is not second.command


def test_frames_before_a_bad_one_are_not_lost() -> None:
    error = refused(PING + unknown_command(99) + simple(b"\x0f") + PING)
    assert text(error.preceding) == text(FrameDecoder().receive(PING + unknown_command(99)))


def test_frame_of_unknown_fields_is_refused_without_looking_at_them() -> None:
    # The type comes behind a million of them: no writer does that.
    assert refused(simple(b"\x98\x3e\x00" * 1_000_000 + b"\x08\xc8\x01")).kind == "missing_field"


@given(st.lists(st.binary(max_size=64), max_size=8))
def test_garbage_is_refused_or_awaited_but_never_another_error(pieces: list[bytes]) -> None:
    decoder = FrameDecoder()
    with suppress(BadFrame):
        for piece in pieces:
            decoder.receive(piece)


@given(st.binary(max_size=200))
def test_garbage_in_a_frame_is_refused_or_a_whole_command(command: bytes) -> None:
    try:
        (frame,) = FrameDecoder().receive(simple(command))
    except BadFrame:
        return
    if isinstance(frame, Frame):
        assert frame.command.IsInitialized()


@given(st.sampled_from(RECORDED), st.data())
def test_damaged_frame_is_refused_or_a_whole_command(original: bytes, data: st.DataObject) -> None:
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(4, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        frames = FrameDecoder().receive(damaged)
    except BadFrame:
        return
    for frame in frames:
        if isinstance(frame, Frame):
            encode(frame.command)


def test_forgotten_frame_leaves_nothing_and_the_next_is_read_from_its_beginning() -> None:
    decoder = FrameDecoder()
    decoder.receive(PING[:7])
    decoder.forget()
    assert decoder.pending == 0
    assert len(decoder.receive(PING)) == 1
