"""Messages as they arrive: MESSAGE frames taken apart, batches into their messages."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from google.protobuf.message import DecodeError

from protocol.client.errors import UnreadableMessage
from protocol.client.message_ids import MessageId, scalable_topic_of
from protocol.errors import ProtocolError
from protocol.framing import parse_payload
from protocol.wire import pulsar_api_pb2 as api

_SIZE = struct.Struct(">I")
# Far above the largest message that servers accept, far below what a small bomb could unfold to.
_MAX_UNCOMPRESSED = 128 * 1024 * 1024


@dataclass(slots=True)
class ReceivedMessage:
    """A message that was delivered. One that comes again is another object, with the same id."""

    message_id: MessageId
    value: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    publish_time_ms: int = 0
    event_time_ms: int | None = None
    ordering_key: bytes | None = None
    producer_name: str = ""
    sequence_id: int = 0
    redelivery_count: int = 0
    is_null: bool = False  # as in tombstones; the value is empty then
    taken: int = field(default=0, compare=False)  # how many were taken before from the same consumer, and this one

    @property
    def topic(self) -> str:
        """The segment or partition it came from."""
        return self.message_id.topic

    @property
    def scalable_topic(self) -> str:
        """The `topic://` name that this segment belongs to."""
        return scalable_topic_of(self.message_id.topic)


Item: TypeAlias = ReceivedMessage | UnreadableMessage


@dataclass(frozen=True, slots=True)
class ReceivedEntry:
    """What one MESSAGE holds. Its `cost` is how many messages the server may count it as, taken ones included."""

    items: Sequence[Item]
    cost: int
    left: int | None = None  # the messages of a batch that were not acknowledged before, as bits; None for all


class _Unreadable(Exception):
    """What is wrong with an entry, in the words of a sentence."""


def parse_entry(topic: str, command: api.CommandMessage, body: bytes) -> ReceivedEntry:
    """The messages of a MESSAGE, without those of a batch that were acknowledged before.

    What cannot be read stands as one item that says why: only the user can decide to skip it.
    """
    message_id = MessageId.from_wire(topic, command.message_id)
    cost = 1
    try:
        metadata, payload = _open(body)
        cost = max(1, min(metadata.num_messages_in_batch, len(payload)))
        if metadata.HasField("num_messages_in_batch"):
            items: Sequence[Item] = list(_split(message_id, command, metadata, payload))
        else:
            items = [_whole(message_id, command.redelivery_count, metadata, payload)]
    except _Unreadable as error:
        items = [UnreadableMessage(message_id, str(error))]
    except ProtocolError as error:
        items = [UnreadableMessage(message_id, str(error))]
    except DecodeError:
        items = [UnreadableMessage(message_id, "its metadata are damaged.")]
    return ReceivedEntry(items, cost, bits_of(command.ack_set) if command.ack_set else None)


def _open(body: bytes) -> tuple[api.MessageMetadata, bytes]:
    parsed = parse_payload(body)
    parsed.verify()
    metadata = api.MessageMetadata.FromString(parsed.metadata)
    if metadata.encryption_keys:
        raise _Unreadable("it is encrypted, and this client has no keys.")
    if metadata.num_chunks_from_msg > 1:
        raise _Unreadable(f"it is one of {metadata.num_chunks_from_msg} chunks, which this client does not join.")
    return metadata, _decompressed(metadata, parsed.payload)


def _decompressed(metadata: api.MessageMetadata, payload: bytes) -> bytes:
    match metadata.compression:
        case api.NONE:
            return payload
        case api.ZLIB:
            if metadata.uncompressed_size > _MAX_UNCOMPRESSED:
                raise _Unreadable("it claims to be larger than any message.")
            try:
                unfolded = zlib.decompressobj().decompress(payload, metadata.uncompressed_size)
            except zlib.error:
                unfolded = b""
            if len(unfolded) != metadata.uncompressed_size:
                raise _Unreadable("its compression is damaged.")
            return unfolded
        case other:
            raise _Unreadable(f"it is compressed with {api.CompressionType.Name(other)}, which this client lacks.")


def _whole(message_id: MessageId, redeliveries: int, metadata: api.MessageMetadata, value: bytes) -> ReceivedMessage:
    return ReceivedMessage(
        message_id,
        value,
        _key(metadata),
        _properties(metadata),
        metadata.publish_time,
        metadata.event_time if metadata.HasField("event_time") else None,
        metadata.ordering_key if metadata.HasField("ordering_key") else None,
        _text(metadata.producer_name),
        metadata.sequence_id,
        redeliveries,
        metadata.null_value,
    )


def _split(
    entry: MessageId, command: api.CommandMessage, metadata: api.MessageMetadata, payload: bytes
) -> Iterator[ReceivedMessage]:
    size = metadata.num_messages_in_batch
    remaining = bits_of(command.ack_set) if command.ack_set else -1
    position = 0
    for index in range(size):
        single, position, value = _next(payload, position)
        if not remaining >> index & 1 or single.compacted_out:
            continue
        yield ReceivedMessage(
            MessageId(entry.topic, entry.ledger, entry.index, index, size, entry.partition),
            value,
            _key(single),
            _properties(single),
            metadata.publish_time,
            single.event_time if single.HasField("event_time") else None,
            single.ordering_key if single.HasField("ordering_key") else None,
            _text(metadata.producer_name),
            single.sequence_id if single.HasField("sequence_id") else metadata.sequence_id,
            command.redelivery_count,
            single.null_value,
        )


def _next(payload: bytes, position: int) -> tuple[api.SingleMessageMetadata, int, bytes]:
    """One message of a batch: its metadata, where the next one begins, and its value."""
    start = position + _SIZE.size
    if start <= len(payload):
        end = start + _SIZE.unpack_from(payload, position)[0]
        if end <= len(payload):
            single = api.SingleMessageMetadata.FromString(payload[start:end])
            after = end + max(0, single.payload_size)
            if after <= len(payload):
                return single, after, payload[end:after]
    raise _Unreadable("the batch ends inside of a message.")


def _key(metadata: api.MessageMetadata | api.SingleMessageMetadata) -> str | None:
    return _text(metadata.partition_key) if metadata.HasField("partition_key") else None


def _properties(metadata: api.MessageMetadata | api.SingleMessageMetadata) -> Mapping[str, str]:
    return {_text(pair.key): _text(pair.value) for pair in metadata.properties}


def _text(value: str | bytes) -> str:
    """Servers pass metadata on unseen, and what is not UTF-8 in there is handed out as bytes."""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def bits_of(words: Sequence[int]) -> int:
    """A set of bits from its 64-bit words, lowest first, as they travel."""
    return sum((word & 0xFFFF_FFFF_FFFF_FFFF) << (64 * index) for index, word in enumerate(words))


def words_of(bits: int) -> list[int]:
    """The other way round; words are signed, and there are none above the highest bit."""
    words = []
    while bits:
        word = bits & 0xFFFF_FFFF_FFFF_FFFF
        words.append(word - 2**64 if word >> 63 else word)
        bits >>= 64
    return words
