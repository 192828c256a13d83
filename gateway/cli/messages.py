"""How messages are shown, to people and to programs, and how they are read from lines."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gateway.cli.failures import CommandError
from gateway.cli.graph_words import printable

if TYPE_CHECKING:
    from protocol.client import Message, MessageId, ReceivedMessage

# Longer than any message that a server accepts.
MAX_LINE = 64 * 1024 * 1024


class BadInput(CommandError):
    """Something that cannot become a message."""


def message_of(text: bytes, separator: bytes | None, key: str | None, properties: Mapping[str, str]) -> Message:
    """A message of one line, whose key is before the separator where there is one."""
    from protocol.client import Message

    if separator is not None and separator in text:
        before, _, text = text.partition(separator)
        try:
            key = before.decode()
        except UnicodeDecodeError:
            raise BadInput(f"The key {_escaped(before)} is not valid UTF-8.") from None
    return Message(text, key, properties)


class Lines:
    """Cuts what is read, in whatever pieces, into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise BadInput(f"A line is longer than {MAX_LINE} bytes: no server would accept it.")
        yield from (line.removesuffix(b"\r") for line in lines)

    def finish(self) -> Iterator[bytes]:
        """The last line if nothing ended it."""
        if self._rest:
            yield self._rest


def describe_stored(message: Message, message_id: MessageId) -> str:
    """One line that says where a message was stored."""
    return "  ".join([str(message_id), _place(message_id.topic), *_of_key(message.key)])


def stored_as_object(message: Message, message_id: MessageId) -> dict[str, Any]:
    return _id_as_object(message_id) | {"key": message.key}


def describe(message: ReceivedMessage, *, names_topic: bool = False) -> str:
    """One line for people: the topic where that is not clear, where it was stored, its key, its value."""
    parts = [printable(message.scalable_topic)] if names_topic else []
    parts += [str(message.message_id), _place(message.topic), *_of_key(message.key), _value(message)]
    if message.redelivery_count:
        parts.append(f"(delivered again, {message.redelivery_count})")
    return "  ".join(parts)


def as_object(message: ReceivedMessage, *, names_topic: bool = False) -> dict[str, Any]:
    """A message for programs; a value that is no text is in base64."""
    shown: dict[str, Any] = {"topic": message.scalable_topic} if names_topic else {}
    shown |= _id_as_object(message.message_id) | {"key": message.key}
    if message.is_null:
        shown["value"] = None
    else:
        try:
            shown["value"] = message.value.decode()
        except UnicodeDecodeError:
            shown["valueBase64"] = base64.b64encode(message.value).decode()
    shown |= {
        "properties": dict(message.properties),
        "publishTime": _time(message.publish_time_ms),
        "eventTime": None if message.event_time_ms is None else _time(message.event_time_ms),
        "producerName": message.producer_name,
        "sequenceId": message.sequence_id,
        "redeliveryCount": message.redelivery_count,
    }
    return shown


def _id_as_object(message_id: MessageId) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "messageId": str(message_id),
        "segment": message_id.topic,
        "ledgerId": message_id.ledger,
        "entryId": message_id.index,
    }
    return shown if message_id.batch_index < 0 else shown | {"batchIndex": message_id.batch_index}


def _place(topic: str) -> str:
    """The last part of its name: that of a segment has its range and id, the others are known to who reads this."""
    return printable(topic.rpartition("/")[2])


def _of_key(key: str | None) -> Iterator[str]:
    if key is not None:
        yield f"[{printable(key)}]"


def _value(message: ReceivedMessage) -> str:
    if message.is_null:
        return "(null)"
    try:
        return printable(message.value.decode())
    except UnicodeDecodeError:
        return _escaped(message.value)


def _escaped(value: bytes) -> str:
    return repr(value)[2:-1]


def _time(at_ms: int) -> str | int:
    try:
        shown = datetime.fromtimestamp(at_ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):  # whatever a producer has written
        return at_ms
    return shown.isoformat(timespec="milliseconds").replace("+00:00", "Z")
