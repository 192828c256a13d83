"""What follows the command in SEND and MESSAGE frames."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.framing import (
    BadFrame,
    ChecksumMismatch,
    Frame,
    FrameDecoder,
    Payload,
    encode_payload,
    metadata_in,
    parse_payload,
)
from protocol.wire import pulsar_api_pb2 as api

METADATA = api.MessageMetadata(producer_name="p", sequence_id=7, publish_time=1).SerializeToString()


def message() -> api.BaseCommand:
    command = api.BaseCommand(type=api.BaseCommand.MESSAGE)
    command.message.consumer_id = 1
    command.message.message_id.ledgerId = 2
    command.message.message_id.entryId = 3
    return command


def body_of(data: bytes) -> bytes:
    (frame,) = FrameDecoder().receive(data)
    assert isinstance(frame, Frame)
    return frame.body


@given(st.binary(max_size=300), st.binary(max_size=300), st.booleans(), st.none() | st.binary(max_size=30))
def test_payload_comes_out_as_it_went_in(
    metadata: bytes, payload: bytes, checksum: bool, broker_entry_metadata: bytes | None
) -> None:
    data = encode_payload(message(), metadata, payload, checksum=checksum, broker_entry_metadata=broker_entry_metadata)
    parsed = parse_payload(body_of(data))
    assert (parsed.metadata, parsed.payload) == (metadata, payload)
    assert parsed.broker_entry_metadata == broker_entry_metadata
    assert (parsed.checksum is not None) == checksum
    parsed.verify()


def test_checksum_does_not_cover_the_broker_entry_metadata() -> None:
    plain = parse_payload(body_of(encode_payload(message(), METADATA, b"x")))
    stamped = parse_payload(body_of(encode_payload(message(), METADATA, b"x", broker_entry_metadata=b"\x08\x01")))
    assert plain.checksum == stamped.checksum


@pytest.mark.parametrize(
    "damaged",
    [
        Payload(None, 0x50D50072, bytes.fromhex("0a017010071880d0eab6b733"), b"hellO"),
        Payload(None, 0x50D50072, bytes.fromhex("0a017010061880d0eab6b733"), b"hello"),
        Payload(None, 0x50D50073, bytes.fromhex("0a017010071880d0eab6b733"), b"hello"),
        # The same bytes, but with another boundary between metadata and payload.
        Payload(None, 0x50D50072, bytes.fromhex("0a017010071880d0eab6b7"), b"\x33hello"),
    ],
    ids=["payload", "metadata", "checksum", "metadata size"],
)
def test_damage_is_found(damaged: Payload) -> None:
    assert not damaged.checksum_ok
    with pytest.raises(ChecksumMismatch) as caught:
        damaged.verify()
    assert caught.value.server_error == api.ChecksumError == 9


def test_absent_checksum_is_accepted() -> None:
    parsed = parse_payload(b"\0\0\0\1mrest")
    assert parsed == Payload(None, None, b"m", b"rest")
    assert parsed.checksum_ok


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\5four",
        b"\xff\xff\xff\xff",
        b"\x0e\x01",
        b"\x0e\x01\0\0\0",
        b"\x0e\x01\0\0\0\0",
        b"\x0e\x01\0\0\0\0\0\0\0\2m",
        b"\x0e\x02",
        b"\x0e\x02\0\0\0\5four",
        b"\x0e\x02\0\0\0\0",
        b"\x0e\x02\0\0\0\0\x0e\x01",
    ],
)
def test_truncated_body_is_a_bad_frame(body: bytes) -> None:
    with pytest.raises(BadFrame) as caught:
        parse_payload(body)
    assert caught.value.kind == "payload"
    with pytest.raises(BadFrame):
        metadata_in(body)


@given(st.binary(max_size=64))
def test_garbage_is_parsed_or_a_bad_frame(body: bytes) -> None:
    with suppress(BadFrame):
        parsed = parse_payload(body)
        assert body.endswith(parsed.metadata + parsed.payload)
        assert metadata_in(body) == parsed.metadata
