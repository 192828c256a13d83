"""Messages as they are sent: what a caller gives, and the SEND frames made of it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.framing import encode_payload
from protocol.hashing import bucket_hash
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

_SIZE = struct.Struct(">I")
# What metadata and bookkeeping of a message take at least, so that empty messages are not free.
_OVERHEAD = 128


@dataclass(frozen=True, slots=True)
class Message:
    """One message. Those with the same key stay in order; the ordering key takes its place where there is one."""

    value: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    event_time_ms: int | None = None
    ordering_key: bytes | None = None

    @property
    def size(self) -> int:
        """Roughly the memory that it takes on its way."""
        size = _OVERHEAD + len(self.value) + len(self.key or "") + len(self.ordering_key or b"")
        return size + sum(len(name) + len(value) for name, value in self.properties.items())

    @property
    def bucket_hash(self) -> int:
        if self.ordering_key is not None:
            return bucket_hash(self.ordering_key)
        return 0 if self.key is None else bucket_hash(self.key.encode())


@dataclass(frozen=True, slots=True)
class Envelope:
    """What the producer adds: the same again when a message is sent again to the same topic."""

    producer_id: int
    producer_name: str
    sequence_id: int  # of the last message
    publish_time_ms: int


def send_frame(envelope: Envelope, messages: Sequence[Message], *, is_batch: bool) -> bytes:
    """The SEND of one message, or of several as one entry."""
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = envelope.producer_id
    command.send.sequence_id = envelope.sequence_id
    command.send.num_messages = len(messages)
    metadata = api.MessageMetadata(
        producer_name=envelope.producer_name,
        sequence_id=envelope.sequence_id,
        publish_time=envelope.publish_time_ms,
    )
    if is_batch:
        payload = _batch(metadata, messages)
    else:
        (message,) = messages
        _describe(metadata, message)
        payload = message.value
    return encode_payload(command, metadata.SerializeToString(), payload)


def _batch(metadata: api.MessageMetadata, messages: Sequence[Message]) -> bytes:
    parts: list[bytes] = []
    first = metadata.sequence_id - len(messages) + 1
    for number, message in enumerate(messages):
        single = api.SingleMessageMetadata(payload_size=len(message.value), sequence_id=first + number)
        _describe(single, message)
        described = single.SerializeToString()
        parts += [_SIZE.pack(len(described)), described, message.value]
    payload = b"".join(parts)
    metadata.num_messages_in_batch = len(messages)
    metadata.uncompressed_size = len(payload)
    # Servers that dispatch by key do not look into batches: this says which keys are inside.
    hashes = [message.bucket_hash for message in messages]
    metadata.entry_hash_min, metadata.entry_hash_max = min(hashes), max(hashes)
    if messages[0].key is not None:
        metadata.partition_key = messages[0].key
    return payload


def _describe(metadata: api.MessageMetadata | api.SingleMessageMetadata, message: Message) -> None:
    if message.key is not None:
        metadata.partition_key = message.key
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    if message.event_time_ms is not None:
        metadata.event_time = message.event_time_ms
    for name, value in message.properties.items():
        metadata.properties.add(key=name, value=value)
