"""Whether data that were written with one Avro schema can be read with another: Avro's rules of schema resolution.

As in Pulsar, and unlike in the text of Avro, records may have different names: classes are moved and renamed.
"""

from __future__ import annotations

from typing import Any, Final

from protocol.schemas import InvalidSchema
from segments.avro_schemas import AvroSchema, Node

# What a reader's type also takes.
_PROMOTED: Final = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
# A thousand fields take as many steps; unions of records against each other can take the square of that.
_MAX_STEPS: Final = 20_000


def obstacle(*, reader: AvroSchema, writer: AvroSchema) -> str | None:
    """Why not, as part of a sentence; None where it can be read."""
    try:
        return _Comparison(reader, writer).obstacle(reader.root, writer.root)
    except RecursionError:
        raise InvalidSchema("The types of the schema use each other too deeply: make them flatter.") from None


class _Comparison:
    def __init__(self, reader: AvroSchema, writer: AvroSchema) -> None:
        self._reader = reader
        self._writer = writer
        self._steps = 0
        # Pairs of records, which may contain themselves. Good ones are good as long as those are that they were
        # found in; bad ones are bad for ever.
        self._good: dict[tuple[str, str], None] = {}
        self._bad: dict[tuple[str, str], str] = {}

    def obstacle(self, reader: Node, writer: Node) -> str | None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise InvalidSchema("The schema is too large to be compared with the one before: make it simpler.")
        if isinstance(writer, list):
            found = (self.obstacle(reader, branch) for branch in writer)
            return next((reason for reason in found if reason is not None), None)
        if isinstance(reader, list):
            if any(self.obstacle(branch, writer) is None for branch in reader):
                return None
            return f"{_words(writer)} is in no branch of the union"
        return self._single(self._reader.definition(reader), self._writer.definition(writer))

    def _single(self, reader: Any, writer: Any) -> str | None:
        match reader, writer:
            case {"type": "record"}, {"type": "record"}:
                return self._records(reader, writer)
            case {"type": "array", "items": wanted}, {"type": "array", "items": given}:
                return self.obstacle(wanted, given)
            case {"type": "map", "values": wanted}, {"type": "map", "values": given}:
                return self.obstacle(wanted, given)
            case {"type": "enum"}, {"type": "enum"}:
                return _names(reader, writer) or _symbols(reader, writer)
            case {"type": "fixed"}, {"type": "fixed"}:
                return _names(reader, writer) or _sizes(reader, writer)
            case str(), str() if reader == writer or writer in _PROMOTED.get(reader, ()):
                return None
        return f"{_words(writer)} cannot be read as {_words(reader)}"

    def _records(self, reader: dict[str, Any], writer: dict[str, Any]) -> str | None:
        pair = reader["name"], writer["name"]
        if pair in self._good:
            return None
        if pair in self._bad:
            return self._bad[pair]
        sure = len(self._good)
        self._good[pair] = None
        reason = self._fields(reader, writer)
        if reason is not None:
            while len(self._good) > sure:
                self._good.popitem()
            self._bad[pair] = reason
        return reason

    def _fields(self, reader: dict[str, Any], writer: dict[str, Any]) -> str | None:
        given = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            source = next((given[name] for name in names if name in given), None)
            if source is None:
                if not field["hasDefault"]:
                    return f"field {field['name']}: it is missing where it has no default"
            elif (reason := self.obstacle(field["type"], source["type"])) is not None:
                return f"field {field['name']}: {reason}"
        return None


def _names(reader: dict[str, Any], writer: dict[str, Any]) -> str | None:
    known = {_short(name) for name in (reader["name"], *reader.get("aliases", ()))}
    if _short(writer["name"]) in known:
        return None
    return f"{reader['type']} {writer['name']} is not {reader['name']}"


def _symbols(reader: dict[str, Any], writer: dict[str, Any]) -> str | None:
    if "default" in reader:
        return None
    unknown = sorted(set(writer["symbols"]) - set(reader["symbols"]))
    return f"enum {reader['name']} lacks {', '.join(unknown[:3])} and has no default" if unknown else None


def _sizes(reader: dict[str, Any], writer: dict[str, Any]) -> str | None:
    if reader["size"] == writer["size"]:
        return None
    return f"fixed {reader['name']} has {reader['size']} bytes and not {writer['size']}"


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _words(node: Node) -> str:
    match node:
        case str():
            return node
        case {"name": name, "type": kind}:
            return f"{kind} {name}"
        case {"type": kind}:
            return str(kind)
        case _:
            return "a union"
