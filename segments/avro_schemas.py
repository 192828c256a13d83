"""Avro schemas from their JSON, with all names resolved. It comes from anybody, so every part of it is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from protocol.schemas import InvalidSchema

# A name, a primitive type or the full name of one that was defined; a union; or a definition.
Node = str | list[Any] | dict[str, Any]

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
# Deeper than any class that somebody wrote; nodes are walked by recursion.
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """Definitions hold what reading depends on and nothing else: no documentation, no logical types."""

    root: Node
    names: Mapping[str, Any]

    def definition(self, node: Node) -> Node:
        return self.names[node] if isinstance(node, str) and node not in PRIMITIVES else node


def parse(data: bytes) -> AvroSchema:
    try:
        sent = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidSchema("The definition of the schema is not JSON: send that of an Avro schema.") from None
    except RecursionError:
        raise _too_deep() from None
    # What we do not know stays behind: some members would make the library believe that it has checked this already.
    plain = _plain(sent, 0)
    # As the items of an array, because the branches of a union would be checked one by one otherwise.
    whole = {"type": "array", "items": plain}
    names: dict[str, Any] = {}
    try:
        return AvroSchema(cast("dict[str, Any]", parse_schema(whole, names))["items"], names)
    except UnknownType as error:
        raise InvalidSchema(f"The schema uses a type that it does not define: {_shown(error.name)}.") from None
    except SchemaParseException as error:
        raise InvalidSchema(f"The schema is not one of Avro: {_shown(str(error), 300)}.") from None


def _plain(node: Any, depth: int) -> Node:
    if depth > _MAX_DEPTH:
        raise _too_deep()
    match node:
        case str():
            return node
        case list():
            if any(isinstance(branch, list) for branch in node):
                raise InvalidSchema("The schema has a union right inside a union: Avro does not know that.")
            return [_plain(branch, depth + 1) for branch in node]
        case {"type": str(kind)}:
            build = _DEFINITIONS.get(kind)
            return kind if build is None else build(node, depth + 1)
        case {"type": list() | dict() as inner}:
            return _plain(inner, depth + 1)
    raise InvalidSchema(f"The schema has something in it that is no type of Avro: {_shown(repr(node))}.")


def _record(node: dict[str, Any], depth: int) -> Node:
    fields = node.get("fields")
    if not isinstance(fields, list):
        raise InvalidSchema(f"The record {_shown(repr(node.get('name')))} has no list of fields.")
    plain = [_field(field, depth) for field in fields]
    if len({field["name"] for field in plain}) < len(plain):
        raise InvalidSchema(f"The record {_shown(repr(node.get('name')))} has two fields of the same name.")
    return _named(node, "record") | {"fields": plain}


def _field(field: Any, depth: int) -> dict[str, Any]:
    match field:
        case {"name": str(name), "type": kind}:
            # Whether there is a default counts, not what it is; the library would refuse some that Pulsar takes.
            return {
                "name": name,
                "type": _plain(kind, depth),
                "aliases": _aliases(field),
                "hasDefault": "default" in field,
            }
    raise InvalidSchema(f"The schema has a field without a name or a type: {_shown(repr(field))}.")


def _enum(node: dict[str, Any], _: int) -> Node:
    symbols = node.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise InvalidSchema(f"The enum {_shown(repr(node.get('name')))} has no list of symbols.")
    default = {"default": node["default"]} if isinstance(node.get("default"), str) else {}
    return _named(node, "enum") | {"symbols": symbols} | default


def _fixed(node: dict[str, Any], _: int) -> Node:
    size = node.get("size")
    if type(size) is not int or size < 0:
        raise InvalidSchema(f"The type {_shown(repr(node.get('name')))} of a fixed size does not say which.")
    return _named(node, "fixed") | {"size": size}


def _array(node: dict[str, Any], depth: int) -> Node:
    return {"type": "array", "items": _plain(node.get("items"), depth)}


def _map(node: dict[str, Any], depth: int) -> Node:
    return {"type": "map", "values": _plain(node.get("values"), depth)}


_DEFINITIONS: Final[Mapping[str, Callable[[dict[str, Any], int], Node]]] = {
    "record": _record,
    "error": _record,
    "enum": _enum,
    "fixed": _fixed,
    "array": _array,
    "map": _map,
}


def _named(node: dict[str, Any], kind: str) -> dict[str, Any]:
    name, namespace = node.get("name"), node.get("namespace")
    if not isinstance(name, str) or not name:
        raise InvalidSchema(f"The schema has a type of the kind {kind} without a name.")
    if name in PRIMITIVES:
        raise InvalidSchema(f"A type of the kind {kind} cannot be called {name}: Avro has a type of that name.")
    plain: dict[str, Any] = {"type": kind, "name": name, "aliases": _aliases(node)}
    return plain | {"namespace": namespace} if isinstance(namespace, str) and namespace else plain


def _aliases(node: dict[str, Any]) -> list[str]:
    aliases = node.get("aliases")
    return [alias for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list) else []


def _too_deep() -> InvalidSchema:
    return InvalidSchema("The definition of the schema is nested too deeply: make it flatter.")


def _shown(text: str, longest: int = 80) -> str:
    return text if len(text) <= longest else text[:longest] + "..."
