"""Schemas as clients send them: their types, the bytes of a version, and the two halves of a key/value schema."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from protocol.errors import ProtocolError
from protocol.wire import pulsar_api_pb2 as api

if TYPE_CHECKING:
    from typing import TypeAlias

    # Exists in the generated stub only.
    WireType: TypeAlias = api.Schema.Type.ValueType

_VERSION = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_NOTHING: Mapping[str, str] = MappingProxyType({})


class InvalidSchema(ProtocolError):
    """What claims to be a schema is none, or is past its bounds. Clients try again after any other code."""

    server_error = api.IncompatibleSchema
    http_status = 422


class SchemaType(IntEnum):
    """With the names of Pulsar's admin API and the numbers of the wire, where BYTES is the lack of a schema."""

    BYTES = -1
    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22

    @property
    def is_primitive(self) -> bool:
        """Whether the type says everything, so that there is no definition."""
        return self not in _DEFINED and self not in _NOT_STORED

    @property
    def is_stored(self) -> bool:
        """Whether a topic can have a schema of this type."""
        return self not in _NOT_STORED


_DEFINED = frozenset(
    {
        SchemaType.JSON,
        SchemaType.PROTOBUF,
        SchemaType.AVRO,
        SchemaType.KEY_VALUE,
        SchemaType.PROTOBUF_NATIVE,
        SchemaType.EXTERNAL,
    }
)
_NOT_STORED = frozenset({SchemaType.BYTES, SchemaType.NONE, SchemaType.AUTO_CONSUME})


@dataclass(frozen=True, slots=True)
class Schema:
    type: SchemaType
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    @classmethod
    def from_wire(cls, sent: api.Schema) -> Schema | None:
        """None for the type that stands for plain bytes."""
        kind = SchemaType(sent.type)
        if kind is SchemaType.NONE:
            return None
        return cls(kind, sent.schema_data, {entry.key: entry.value for entry in sent.properties})

    def to_wire(self, name: str) -> api.Schema:
        sent = api.Schema(name=name, type=cast("WireType", int(self.type)), schema_data=self.data)
        for key, value in self.properties.items():
            sent.properties.add(key=key, value=value)
        return sent

    @property
    def size(self) -> int:
        """Bytes that others choose."""
        return len(self.data) + sum(len(k.encode()) + len(v.encode()) for k, v in self.properties.items())


def version_bytes(number: int) -> bytes:
    """A version as clients put it into the metadata of their messages."""
    return _VERSION.pack(number)


def version_number(version: bytes) -> int | None:
    """None where the bytes are no version."""
    if len(version) != _VERSION.size:
        return None
    number: int = _VERSION.unpack(version)[0]
    return number


def split_key_value(data: bytes) -> tuple[bytes, bytes]:
    """The definitions of key and value; each stands behind its length, -1 if there is none."""
    parts = []
    rest = memoryview(data)
    for _ in range(2):
        if len(rest) < _LENGTH.size:
            raise _not_key_value()
        length = max(_LENGTH.unpack_from(rest)[0], 0)
        rest = rest[_LENGTH.size :]
        if len(rest) < length:
            raise _not_key_value()
        parts.append(bytes(rest[:length]))
        rest = rest[length:]
    if rest:
        raise _not_key_value()
    return parts[0], parts[1]


def join_key_value(key: bytes, value: bytes) -> bytes:
    return b"".join((_LENGTH.pack(len(key)), key, _LENGTH.pack(len(value)), value))


def _not_key_value() -> InvalidSchema:
    return InvalidSchema("A key/value schema has to hold two definitions, each behind its length, and nothing else.")
