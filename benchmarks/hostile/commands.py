"""Frames of the commands that attacks send, with whatever fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from protocol.framing import encode, encode_payload
from protocol.wire.pulsar_api_pb2 import BaseCommand, CommandSubscribe, KeyValue, MessageMetadata

# The most that a frame of the default settings may have, less what stands around a long field.
LONG = 4_900_000


def command(kind: str, **fields: Any) -> BaseCommand:
    """`kind` is the name of the type, as in the schema, where the message of a type has the same number."""
    number = BaseCommand.Type.Value(kind)
    body: dict[str, Any] = {BaseCommand.DESCRIPTOR.fields_by_number[number].name: fields}
    return BaseCommand(type=number, **body)


def frame(kind: str, **fields: Any) -> bytes:
    return encode(command(kind, **fields))


def subscribe(number: int, topic: str, subscription: str = "hostile", kind: str = "Shared", **fields: Any) -> bytes:
    """A consumer whose id is its request's, too."""
    return frame(
        "SUBSCRIBE",
        topic=topic,
        subscription=subscription,
        subType=CommandSubscribe.SubType.Value(kind),
        consumer_id=number,
        request_id=number,
        **fields,
    )


def producer(number: int, topic: str, **fields: Any) -> bytes:
    """A producer whose id is its request's, too."""
    return frame("PRODUCER", topic=topic, producer_id=number, request_id=number, **fields)


def send(
    number: int, sequence: int, payload: bytes = b"x", *, messages: int = 1, chunk: bool = False, **metadata: Any
) -> bytes:
    """A message with metadata of any kind."""
    around = MessageMetadata(producer_name="hostile", sequence_id=sequence, publish_time=1)
    for name, value in metadata.items():
        field = getattr(around, name)
        if hasattr(field, "extend"):
            field.extend(value)
        else:
            setattr(around, name, value)
    sent = command("SEND", producer_id=number, sequence_id=sequence, num_messages=messages, is_chunk=chunk)
    return encode_payload(sent, around.SerializeToString(), payload)


def flow(number: int, permits: int) -> bytes:
    return frame("FLOW", consumer_id=number, messagePermits=permits)


def pairs(bytes_in_all: int, each: int = 1000) -> list[KeyValue]:
    """Properties that take so many bytes together."""
    return [KeyValue(key=f"{number:08}", value="v" * each) for number in range(bytes_in_all // (each + 16))]


def as_many(one: Message, size: int) -> list[Any]:
    """So many of the same that they take some `size` bytes as a repeated field."""
    return [one] * max(1, size // (one.ByteSize() + 2))


def joined(frames: Iterable[bytes]) -> bytes:
    return b"".join(frames)
