"""What a schema of each type must look like, and when a new one fits an old one. Pure.

Avro schemas, and those for JSON, which are written like them, are compared by what can be read with which. Of other
types Vela knows less, as Pulsar does: a native Protobuf schema must keep its root message, and any other its type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from protocol.errors import ProtocolError
from protocol.schemas import InvalidSchema, Schema, SchemaType, split_key_value
from protocol.wire import pulsar_api_pb2 as api
from segments import avro_reading, avro_schemas
from segments.schema_policies import Strategy

_LONGEST_REASON: Final = 300


class IncompatibleSchema(ProtocolError):
    """A schema that a topic, with the ones it has, does not take."""

    server_error = api.IncompatibleSchema
    http_status = 409


class _NativeJson(msgspec.Struct, frozen=True):
    root: str = msgspec.field(name="rootMessageTypeName")


class _OldJson(msgspec.Struct, frozen=True):
    """A JSON schema as clients wrote it before they wrote those of Avro: of an object, where Avro has records."""

    type: str
    id: str | None = None


def validate(schema: Schema) -> None:
    """Raise InvalidSchema for what cannot be the schema of a topic."""
    if not schema.type.is_stored:
        raise InvalidSchema(f"{schema.type.name} is not the type of a schema: leave the schema out, or give another.")
    if schema.type.is_primitive:
        if schema.data:
            raise InvalidSchema(f"A schema of the type {schema.type.name} has no definition: leave it empty.")
        return
    match schema.type:
        case SchemaType.AVRO:
            if isinstance(avro_schemas.parse(schema.data).root, list):
                raise InvalidSchema("The schema of a topic cannot be a union: put it into a record.")
        case SchemaType.PROTOBUF:
            avro_schemas.parse(schema.data)
        case SchemaType.JSON:
            if _old_json(schema) is None:
                avro_schemas.parse(schema.data)
        case SchemaType.PROTOBUF_NATIVE:
            _native_root(schema)
        case SchemaType.KEY_VALUE:
            for half in halves(schema):
                if half.type is not SchemaType.BYTES:
                    validate(half)


def check(strategy: Strategy, old: Schema, new: Schema) -> None:
    """Raise IncompatibleSchema unless the new schema fits the old one, another one than itself."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    if old.type is not new.type:
        raise IncompatibleSchema(f"The topic has a schema of the type {old.type.name}, and this is {new.type.name}.")
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchema("The topic has a schema, and its namespace allows no other (ALWAYS_INCOMPATIBLE).")
    if strategy.reads_old and (reason := _obstacle(reader=new, writer=old)):
        raise _unfit(strategy, "what was written before cannot be read with it", reason)
    if strategy.is_read_by_old and (reason := _obstacle(reader=old, writer=new)):
        raise _unfit(strategy, "what is written with it cannot be read with the one before", reason)


def halves(schema: Schema) -> tuple[Schema, Schema]:
    """The schemas of key and value."""
    key, value = split_key_value(schema.data)
    return _half(schema, "key", key), _half(schema, "value", value)


def _half(schema: Schema, side: str, data: bytes) -> Schema:
    name = schema.properties.get(f"{side}.schema.type", SchemaType.BYTES.name)
    try:
        kind = SchemaType[name]
    except KeyError:
        kind = SchemaType.NONE
    if kind is SchemaType.KEY_VALUE or not (kind.is_stored or kind is SchemaType.BYTES):
        raise InvalidSchema(f"The type of the {side} of a key/value schema cannot be {name[:80]!a}.")
    return Schema(kind, data)


def _obstacle(*, reader: Schema, writer: Schema) -> str | None:
    compare = _COMPARED.get(reader.type)
    return None if compare is None else compare(reader, writer)


def _avro(reader: Schema, writer: Schema) -> str | None:
    return avro_reading.obstacle(reader=avro_schemas.parse(reader.data), writer=avro_schemas.parse(writer.data))


def _json(reader: Schema, writer: Schema) -> str | None:
    wanted, given = _old_json(reader), _old_json(writer)
    if wanted is None and given is None:
        return _avro(reader, writer)
    if wanted is None or given is None:
        # One of each form: nothing can be compared, and clients must be able to move on.
        return None
    return None if wanted.id == given.id else f"its id is {wanted.id} and not {given.id}"


def _native(reader: Schema, writer: Schema) -> str | None:
    wanted, given = _native_root(reader), _native_root(writer)
    return None if wanted == given else f"its root message is {wanted} and not {given}"


def _key_value(reader: Schema, writer: Schema) -> str | None:
    for side, wanted, given in zip(("key", "value"), halves(reader), halves(writer), strict=True):
        if wanted.type is not given.type:
            return f"{side}: {given.type.name} is not {wanted.type.name}"
        if (reason := _obstacle(reader=wanted, writer=given)) is not None:
            return f"{side}: {reason}"
    return None


_COMPARED: Final[Mapping[SchemaType, Callable[[Schema, Schema], str | None]]] = {
    SchemaType.AVRO: _avro,
    SchemaType.JSON: _json,
    SchemaType.PROTOBUF_NATIVE: _native,
    SchemaType.KEY_VALUE: _key_value,
}


def _old_json(schema: Schema) -> _OldJson | None:
    try:
        found = msgspec.json.decode(schema.data, type=_OldJson)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.type == "object" else None


def _native_root(schema: Schema) -> str:
    try:
        return msgspec.json.decode(schema.data, type=_NativeJson).root
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidSchema("A native Protobuf schema has to be JSON with its rootMessageTypeName.") from None


def _unfit(strategy: Strategy, what: str, reason: str) -> IncompatibleSchema:
    shown = reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + "..."
    return IncompatibleSchema(f"The schema does not fit the topic's ({strategy}): {what}: {shown}.")
