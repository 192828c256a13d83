"""MESSAGE frames taken apart: batches, compression, damage, and the sets of bits that batches are acknowledged with."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.client import Message, MessageId, ReceivedMessage, UnreadableMessage
from protocol.client.entries import ReceivedEntry, bits_of, parse_entry, words_of
from protocol.client.outgoing import Envelope, send_frame
from protocol.framing import Frame, FrameDecoder, encode_payload, parse_payload
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

TOPIC = "segment://t/n/x/0000-ffff-0"


def command(*ack_set: int) -> api.CommandMessage:
    message = api.CommandMessage(consumer_id=1, redelivery_count=3)
    message.message_id.ledgerId, message.message_id.entryId = 7, 4
    message.ack_set.extend(ack_set)
    return message


def body(*messages: Message, is_batch: bool = True) -> bytes:
    (frame,) = FrameDecoder().receive(send_frame(Envelope(1, "p", 100, 5), messages, is_batch=is_batch))
    assert isinstance(frame, Frame)
    return frame.body


def body_of(metadata: api.MessageMetadata, payload: bytes) -> bytes:
    empty = BaseCommand(type=BaseCommand.MESSAGE)
    empty.message.CopyFrom(command())
    (frame,) = FrameDecoder().receive(encode_payload(empty, metadata.SerializeToString(), payload))
    assert isinstance(frame, Frame)
    return frame.body


def metadata(**fields: object) -> api.MessageMetadata:
    return api.MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, **fields)  # type: ignore[arg-type]  # any of its fields


def complaint(entry: ReceivedEntry) -> str:
    (item,) = entry.items
    assert isinstance(item, UnreadableMessage)
    assert item.message_id == MessageId(TOPIC, 7, 4)
    return str(item)


messages = st.builds(
    Message,
    value=st.binary(max_size=50),
    key=st.none() | st.text(max_size=5),
    properties=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    event_time_ms=st.none() | st.integers(0, 2**40),
    ordering_key=st.none() | st.binary(max_size=5),
)


@given(st.lists(messages, min_size=1, max_size=10))
def test_a_batch_comes_out_as_it_went_in(batch: list[Message]) -> None:
    entry = parse_entry(TOPIC, command(), body(*batch))
    assert entry.cost == len(batch)
    for index, (sent, got) in enumerate(zip(batch, entry.items, strict=True)):
        assert isinstance(got, ReceivedMessage)
        assert (got.value, got.key, got.properties) == (sent.value, sent.key, sent.properties)
        assert (got.event_time_ms, got.ordering_key) == (sent.event_time_ms, sent.ordering_key)
        assert got.message_id == MessageId(TOPIC, 7, 4, index)
        assert got.message_id.batch_size == len(batch)
        assert got.sequence_id == 100 - len(batch) + 1 + index
        assert got.redelivery_count == 3


@given(messages)
def test_a_single_message_has_no_place_in_a_batch(sent: Message) -> None:
    (got,) = parse_entry(TOPIC, command(), body(sent, is_batch=False)).items
    assert isinstance(got, ReceivedMessage)
    assert (got.value, got.key, got.ordering_key) == (sent.value, sent.key, sent.ordering_key)
    assert got.message_id == MessageId(TOPIC, 7, 4)


def test_only_what_is_left_of_a_batch_comes_out_but_it_costs_the_whole() -> None:
    entry = parse_entry(TOPIC, command(0b0110), body(*(Message(b"%d" % index) for index in range(4))))
    assert [item.message_id.batch_index for item in entry.items] == [1, 2]
    assert (entry.cost, entry.left) == (4, 0b0110)


def test_what_was_compacted_away_is_left_out() -> None:
    single = api.SingleMessageMetadata(payload_size=1, compacted_out=True).SerializeToString()
    payload = len(single).to_bytes(4, "big") + single + b"x"
    entry = parse_entry(TOPIC, command(), body_of(metadata(num_messages_in_batch=1), payload))
    assert (list(entry.items), entry.cost) == ([], 1)


def test_zlib_is_known() -> None:
    squeezed = metadata(compression=api.ZLIB, uncompressed_size=1_000)
    (got,) = parse_entry(TOPIC, command(), body_of(squeezed, zlib.compress(bytes(1_000)))).items
    assert isinstance(got, ReceivedMessage)
    assert got.value == bytes(1_000)


@pytest.mark.parametrize(
    ("fields", "payload", "text"),
    [
        ({"compression": api.ZLIB, "uncompressed_size": 1_000}, b"nonsense", "compression is damaged"),
        ({"compression": api.ZLIB, "uncompressed_size": 10}, zlib.compress(b"x" * 5), "compression is damaged"),
        ({"compression": api.ZLIB, "uncompressed_size": 2**32 - 1}, b"", "larger than any message"),
        ({"compression": api.ZSTD, "uncompressed_size": 10}, b"", "compressed with ZSTD"),
        ({"num_chunks_from_msg": 3}, b"", "one of 3 chunks"),
        ({"num_messages_in_batch": 2}, b"\0\0\0\1", "ends inside of a message"),
        ({"num_messages_in_batch": 2**31 - 1}, b"", "ends inside of a message"),
    ],
)
def test_what_cannot_be_read_says_why(fields: dict[str, object], payload: bytes, text: str) -> None:
    entry = parse_entry(TOPIC, command(), body_of(metadata(**fields), payload))
    assert text in complaint(entry)
    assert entry.cost < 100


def test_no_more_is_unfolded_than_was_announced() -> None:
    bomb = metadata(compression=api.ZLIB, uncompressed_size=10)
    (got,) = parse_entry(TOPIC, command(), body_of(bomb, zlib.compress(bytes(10_000_000)))).items
    assert isinstance(got, ReceivedMessage)
    assert len(got.value) == 10


def test_encrypted_messages_are_not_handed_out_as_they_are() -> None:
    secret = metadata()
    secret.encryption_keys.add(key="k", value=b"v")
    assert "encrypted" in complaint(parse_entry(TOPIC, command(), body_of(secret, b"x")))


def test_names_that_are_not_utf8_become_text() -> None:
    odd = bytearray(body_of(metadata(partition_key="key"), b""))
    place = odd.index(b"key")
    odd[place : place + 3] = b"\xff\xfe!"
    parsed = parse_payload(bytes(odd))
    empty = BaseCommand(type=BaseCommand.MESSAGE)
    empty.message.CopyFrom(command())
    (frame,) = FrameDecoder().receive(encode_payload(empty, parsed.metadata, b""))
    assert isinstance(frame, Frame)
    (got,) = parse_entry(TOPIC, command(), frame.body).items
    assert isinstance(got, ReceivedMessage)
    assert got.key == "\\xff\\xfe!"


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_unreadable(data: bytes) -> None:
    assert len(parse_entry(TOPIC, command(), data).items) == 1


@given(st.integers(0, 2**300))
def test_bits_travel_in_words(bits: int) -> None:
    words = words_of(bits)
    assert bits_of(words) == bits
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert not words or words[-1] != 0
