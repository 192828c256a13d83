"""Bytes to commands and back: a decoder that is fed whatever arrived, and the encoders of simple and payload
frames. Nothing in here reads or writes a socket.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from crc32c import crc32c
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import Edition, FeatureSet, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from protocol.errors import ProtocolError
from protocol.long_commands import LONG_COMMAND, cut
from protocol.wire import pulsar_api_pb2 as api

# What Pulsar's brokers and clients assume until CONNECTED says otherwise.
DEFAULT_MAX_MESSAGE_SIZE = 5 * 1024 * 1024
# A frame may exceed the largest message by this much, for its length field, command and metadata.
FRAME_PADDING = 10 * 1024
_ANY_SIZE = 2**32

_CHECKSUM_MAGIC = b"\x0e\x01"
_BROKER_ENTRY_MAGIC = b"\x0e\x02"
_SIZE = struct.Struct(">I")
_TWO_SIZES = struct.Struct(">II")
_CHECKED_HEAD = len(_CHECKSUM_MAGIC) + _TWO_SIZES.size  # magic, checksum, size of the metadata
# Field 1 as a varint: its tag, then groups of seven bits, lowest first.
_TYPE_FIRST = re.compile(rb"\x08(?P<number>[\x80-\xff]{0,9}[\x00-\x7f])", re.DOTALL)

_BODY_FIELDS = {
    number: field.name for number, field in api.BaseCommand.DESCRIPTOR.fields_by_number.items() if number > 1
}
_PAYLOAD_COMMANDS = frozenset({api.BaseCommand.SEND, api.BaseCommand.MESSAGE})
# Clients that come back at once open the same watches, byte for byte. Nothing else repeats itself so, and what other
# commands say, credentials above all, is not kept.
_OPENINGS = tuple(
    bytes((0x08, number)) for number in (api.BaseCommand.SCALABLE_TOPIC_LOOKUP, api.BaseCommand.WATCH_SCALABLE_TOPICS)
)
_REMEMBERED_LENGTH = 512

BadFrameKind: TypeAlias = Literal[
    "oversize",  # announces more than the size limit
    "short",  # announces less than the size of a command
    "command_size",  # the command would reach past the end of its frame
    "protobuf",  # the command does not parse
    "text",  # a string that is not UTF-8
    "missing_field",  # a required field is absent, or is an enum with an unknown value
    "missing_body",  # a command type without the message that belongs to it
    "payload",  # metadata or payload of a SEND or MESSAGE do not fit together
]
Buffer: TypeAlias = bytes | bytearray | memoryview


class Frame(NamedTuple):
    """One command; `body` is what follows it in SEND and MESSAGE frames, byte for byte.

    `rest` is for a decoder that cuts: the other parts of a long list, each parsed when it is taken. It raises BadFrame.
    """

    command: api.BaseCommand
    body: bytes = b""
    rest: Iterator[Frame | UnknownCommand] | None = None


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """A command type this version does not know: to be ignored and counted, never a reason to close."""

    type_number: int


class BadFrame(ProtocolError):
    """The stream cannot be followed any further: close the connection.

    `preceding` holds the frames that were complete before the bad one, so that what a peer achieves does not
    depend on how its bytes were cut into packets.
    """

    def __init__(self, kind: BadFrameKind, message: str) -> None:
        super().__init__(message)
        self.kind: BadFrameKind = kind
        self.preceding: list[Frame | UnknownCommand] = []


class ChecksumMismatch(ProtocolError):
    """Metadata and payload are not what their sender computed the checksum of."""

    server_error = api.ChecksumError


class FrameDecoder:
    """Turns the bytes of one connection into frames.

    Between whole frames it holds no buffer, and inside one it holds what has really arrived, never what was
    only announced. `max_message_size` may be changed at any time and holds from the next length field on.
    """

    __slots__ = ("_expected", "_longest", "_partial", "max_message_size")

    def __init__(self, max_message_size: int = DEFAULT_MAX_MESSAGE_SIZE, *, cuts: bool = False) -> None:
        """Whoever serves others meanwhile `cuts` long lists, and takes what follows as the `rest` of a frame."""
        self.max_message_size = max_message_size
        self._longest = LONG_COMMAND if cuts else _ANY_SIZE
        self._partial: bytearray | None = None
        self._expected = 0

    @property
    def pending(self) -> int:
        """How many bytes of an unfinished frame are waiting for the rest."""
        return 0 if self._partial is None else len(self._partial)

    def forget(self) -> None:
        """Let go of an unfinished frame: the rest of it will not come."""
        self._partial = None

    def receive(self, data: Buffer) -> list[Frame | UnknownCommand]:
        """Return the frames that `data` completes; raise BadFrame at the first that cannot be accepted.

        Nothing of `data` is kept, so the caller may reuse its buffer.
        """
        frames: list[Frame | UnknownCommand] = []
        view = memoryview(data)
        position, end = 0, len(view)
        try:
            while position < end:
                if self._partial is None and end - position >= _TWO_SIZES.size:
                    # Nearly all frames arrive whole: these few lines are the way of all messages.
                    size, command_size = _TWO_SIZES.unpack_from(view, position)
                    following = position + _SIZE.size + self._checked(size)
                    if following <= end:
                        content = view[position + _TWO_SIZES.size : following]
                        parse = _parse if command_size <= self._longest else _parse_long
                        frames.append(parse(content, command_size))
                        position = following
                        continue
                position += self._collect(view[position:])
                if self._partial is not None and len(self._partial) == self._expected:
                    whole, self._partial = memoryview(self._partial), None
                    [command_size] = _SIZE.unpack_from(whole, _SIZE.size)
                    parse = _parse if command_size <= self._longest else _parse_long
                    frames.append(parse(whole[_TWO_SIZES.size :], command_size))
        except BadFrame as error:
            self._partial = None
            error.preceding = frames
            raise
        return frames

    def _collect(self, view: memoryview) -> int:
        """Keep what of an unfinished frame has arrived; how many bytes of `view` that is."""
        if self._partial is None:
            self._partial, self._expected = bytearray(), _SIZE.size
        taken = 0
        if len(self._partial) < _SIZE.size:
            taken = min(len(view), _SIZE.size - len(self._partial))
            self._partial += view[:taken]
            if len(self._partial) < _SIZE.size:
                return taken
            # Judged at once: nobody should wait for a body that will be refused.
            self._expected = _SIZE.size + self._checked(*_SIZE.unpack(self._partial))
        piece = view[taken : taken + self._expected - len(self._partial)]
        self._partial += piece
        return taken + len(piece)

    def _checked(self, size: int) -> int:
        """A length field, if it is acceptable."""
        if size + _SIZE.size > self.max_message_size + FRAME_PADDING:
            limit = self.max_message_size + FRAME_PADDING - _SIZE.size
            raise BadFrame("oversize", f"A frame of {size} bytes exceeds the limit of {limit}.")
        if size < _SIZE.size:
            raise BadFrame("short", f"A frame of {size} bytes has no room for a command.")
        return size


def _parse(content: memoryview, command_size: int) -> Frame | UnknownCommand:
    """A frame from all that follows its two length fields."""
    data = _command_in(content, command_size)
    if command_size <= _REMEMBERED_LENGTH and data.startswith(_OPENINGS):
        return _opening(data)
    command = _command(data)
    if isinstance(command, UnknownCommand):
        return command
    return Frame(command, content[command_size:].tobytes() if command.type in _PAYLOAD_COMMANDS else b"")


def _parse_long(content: memoryview, command_size: int) -> Frame | UnknownCommand:
    """The same, with long lists cut: the first part, and the rest as it is asked for."""
    try:
        parts = cut(_command_in(content, command_size))
    except DecodeError as error:
        raise BadFrame("protobuf", "The command is not valid protobuf.") from error
    command = _command(next(parts))
    if isinstance(command, UnknownCommand):
        return command
    body = content[command_size:].tobytes() if command.type in _PAYLOAD_COMMANDS else b""
    return Frame(command, body, _frames(parts))


def _frames(commands: Iterator[bytes]) -> Iterator[Frame | UnknownCommand]:
    for data in commands:
        command = _command(data)
        yield command if isinstance(command, UnknownCommand) else Frame(command)


def _command_in(content: memoryview, command_size: int) -> bytes:
    if command_size > len(content):
        raise BadFrame(
            "command_size", f"A command of {command_size} bytes does not fit a frame of {_SIZE.size + len(content)}."
        )
    return content[:command_size].tobytes()


@lru_cache(maxsize=1_024)
def _opening(data: bytes) -> Frame | UnknownCommand:
    """The same object for everybody who says the same: nobody may change it."""
    command = _command(data)
    return command if isinstance(command, UnknownCommand) else Frame(command)


def _command(data: bytes) -> api.BaseCommand | UnknownCommand:
    try:
        command = api.BaseCommand.FromString(data)
    except DecodeError as error:
        raise BadFrame("protobuf", "The command is not valid protobuf.") from error
    kind = command.type
    # An absent or unknown type reads as CONNECT, the first of its enum.
    if kind == api.BaseCommand.CONNECT and not command.HasField("type"):
        return UnknownCommand(_unknown_type(data))
    field = _BODY_FIELDS[kind]
    if not command.HasField(field):  # type: ignore[arg-type]  # one of 70 literals
        raise BadFrame("missing_body", f"{_type_name(command)} lacks its message.")
    # Only the message that belongs to the type: nobody looks at others, and to go through all 70 takes longer than to
    # parse. The missing fields are not named: a frame full of empty messages would make that list huge.
    if not getattr(command, field).IsInitialized():
        raise BadFrame("missing_field", f"{_type_name(command)} lacks a required field.")
    if kind in _WITHOUT_TEXT:
        return command
    try:
        _TextCheck().ParseFromString(data)
    except DecodeError as error:
        raise BadFrame("text", f"{_type_name(command)} contains a string that is not UTF-8.") from error
    return command


def _unknown_type(data: bytes) -> int:
    # Fields are written in the order of their numbers, so the type of any real command comes first. To look
    # further would let one frame of tiny unknown fields keep the process busy for seconds.
    match = _TYPE_FIRST.match(data)
    if match is None:
        raise BadFrame("missing_field", "A command without a type.")
    return sum((byte & 0x7F) << (7 * index) for index, byte in enumerate(match["number"]))


def _type_name(command: api.BaseCommand) -> str:
    return api.BaseCommand.Type.Name(command.type)


def _text_checking_class() -> type[Message]:
    """BaseCommand once more, but with strings that must be UTF-8 to be parsed.

    Proto2 lets broken strings pass and then hands them out as `bytes`, which no code behind us should meet.
    Walking the fields in Python would take a second for a large frame; a second parse takes a microsecond.
    """
    file = FileDescriptorProto()
    api.DESCRIPTOR.CopyToProto(file)
    file.syntax, file.edition = "editions", Edition.EDITION_2023
    file.options.features.utf8_validation = FeatureSet.VERIFY
    file.options.features.enum_type = FeatureSet.CLOSED
    for message in file.message_type:
        for field in message.field:
            # Editions know no such label, and what is required has been checked already.
            if field.label == FieldDescriptorProto.LABEL_REQUIRED:
                field.label = FieldDescriptorProto.LABEL_OPTIONAL
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(api.BaseCommand.DESCRIPTOR.full_name))


def _has_text(message: Descriptor | None, seen: frozenset[str] = frozenset()) -> bool:
    if message is None or message.full_name in seen:  # some hold themselves
        return False
    within = seen | {message.full_name}
    return any(field.type == field.TYPE_STRING or _has_text(field.message_type, within) for field in message.fields)


_TextCheck = _text_checking_class()
# Messages and what answers them among them: the check would be the larger half of what taking them in costs.
_WITHOUT_TEXT = frozenset(
    number
    for number, name in _BODY_FIELDS.items()
    if not _has_text(api.BaseCommand.DESCRIPTOR.fields_by_name[name].message_type)
)


def encode(command: api.BaseCommand) -> bytes:
    """The frame of a command without payload."""
    data = command.SerializeToString()
    return _TWO_SIZES.pack(_SIZE.size + len(data), len(data)) + data


def encode_payload(
    command: api.BaseCommand,
    metadata: bytes,
    payload: bytes,
    *,
    checksum: bool = True,
    broker_entry_metadata: bytes | None = None,
) -> bytes:
    """The frame of a SEND or MESSAGE; `metadata` is a serialized MessageMetadata."""
    data = command.SerializeToString()
    parts = [data]
    if broker_entry_metadata is not None:
        parts += [_BROKER_ENTRY_MAGIC, _SIZE.pack(len(broker_entry_metadata)), broker_entry_metadata]
    if checksum:
        parts += [_CHECKSUM_MAGIC, _SIZE.pack(_checksum(metadata, payload))]
    parts += [_SIZE.pack(len(metadata)), metadata, payload]
    total_size = _SIZE.size + sum(map(len, parts))
    return _TWO_SIZES.pack(total_size, len(data)) + b"".join(parts)


@dataclass(frozen=True, slots=True)
class Payload:
    """What follows the command in a SEND or MESSAGE frame, taken apart."""

    broker_entry_metadata: bytes | None
    checksum: int | None
    metadata: bytes
    payload: bytes

    @property
    def checksum_ok(self) -> bool:
        """Whether the checksum matches; senders may leave it out, which is accepted."""
        return self.checksum is None or self.checksum == _checksum(self.metadata, self.payload)

    def verify(self) -> None:
        if not self.checksum_ok:
            raise ChecksumMismatch("The checksum does not match the message: it was damaged, send it again.")


def parse_payload(body: bytes) -> Payload:
    """Take the body of a SEND or MESSAGE frame apart; raise BadFrame when its sizes do not add up."""
    broker_entry_metadata = checksum = None
    position = 0
    try:
        if body.startswith(_BROKER_ENTRY_MAGIC):
            broker_entry_metadata, position = _sized(body, len(_BROKER_ENTRY_MAGIC))
        if body.startswith(_CHECKSUM_MAGIC, position):
            position += len(_CHECKSUM_MAGIC)
            (checksum,) = _SIZE.unpack_from(body, position)
            position += _SIZE.size
        metadata, position = _sized(body, position)
    except struct.error:
        raise BadFrame("payload", "The frame ends inside the headers of its payload.") from None
    return Payload(broker_entry_metadata, checksum, metadata, body[position:])


def metadata_in(body: bytes) -> bytes:
    """The metadata of what `parse_payload` takes apart, without a copy of what follows it."""
    position = 0
    try:
        if body.startswith(_BROKER_ENTRY_MAGIC):
            _, position = _sized(body, len(_BROKER_ENTRY_MAGIC))
        if body.startswith(_CHECKSUM_MAGIC, position):
            position += len(_CHECKSUM_MAGIC) + _SIZE.size
        return _sized(body, position)[0]
    except struct.error:
        raise BadFrame("payload", "The frame ends inside the headers of its payload.") from None


def check_payload(body: bytes) -> None:
    """Raise BadFrame or ChecksumMismatch unless a body holds what its sender sent."""
    if body.startswith(_CHECKSUM_MAGIC) and len(body) >= _CHECKED_HEAD:
        # As nearly all do. What the checksum covers is all that follows it, with nothing to take apart.
        checksum, size = _TWO_SIZES.unpack_from(body, len(_CHECKSUM_MAGIC))
        if size <= len(body) - _CHECKED_HEAD and crc32c(memoryview(body)[_CHECKED_HEAD - _SIZE.size :]) == checksum:
            return
    parse_payload(body).verify()


def _sized(body: bytes, position: int) -> tuple[bytes, int]:
    (size,) = _SIZE.unpack_from(body, position)
    start = position + _SIZE.size
    if start + size > len(body):
        raise BadFrame("payload", f"Metadata of {size} bytes reach past the end of the frame.")
    return body[start : start + size], start + size


def _checksum(metadata: bytes, payload: bytes) -> int:
    # The size field of the metadata is covered too.
    value: int = crc32c(payload, crc32c(metadata, crc32c(_SIZE.pack(len(metadata)))))
    return value
