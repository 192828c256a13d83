"""The versions of the schema of each topic: a list that only grows, in which the same content stands once.

Whoever adds a version says which number it must get, and so that nothing has changed since it was judged against the
others. Versions before `first` were deleted: messages may still name them, nothing else does.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from metadata import keys, scripts
from metadata.complaints import complain
from metadata.errors import RecordDamaged, SchemasFull, StoreLost, TopicMissing
from metadata.store import TopicStore, operation_id
from metadata.stored_values import UNREADABLE, number
from protocol.names import NON_PERSISTENT, TopicName
from protocol.schemas import InvalidSchema, Schema, SchemaType

log = logging.getLogger(__name__)

_KEY_VALUE_PROPERTIES: Final = ("key.schema.type", "value.schema.type", "kv.encoding.type")
_JSON_TYPES: Final = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE})


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    size: int = 512 * 1024  # of one definition with its properties
    versions: int = 1_000  # of a topic, deleted ones included
    total: int = 16 * 1024 * 1024  # bytes of all versions of a topic


_DEFAULT_LIMITS: Final = SchemaLimits()
# Beyond what any limit allows. A number that is damaged must not make anybody ask for billions of versions.
_MOST_NUMBERS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SchemaPlace:
    """Whose schemas: one place for all segments of a topic, and one for all partitions of a classic one."""

    name: str
    path: str

    @classmethod
    def of(cls, topic: TopicName) -> SchemaPlace:
        if topic.domain == NON_PERSISTENT:
            raise TopicMissing(f"{topic} is not persistent, so nothing is kept about it: use a persistent topic.")
        base = topic.canonical
        return cls(f"{base.tenant}/{base.namespace}/{base.local}", keys.path_of(base))

    @property
    def anchors(self) -> tuple[bytes, ...]:
        """The hashes that may say which incarnation of the topic there is: it is scalable, partitioned, or one log."""
        return keys.record_key(self.path), keys.partitioned_key(self.path), keys.classic_key(self.path)

    @property
    def bucket(self) -> int:
        return keys.bucket_of(self.path)

    @property
    def slot(self) -> int:
        return keys.BUCKET_SLOTS[self.bucket]


@dataclass(frozen=True, slots=True)
class SchemaHead:
    """How far the schemas of a topic go: `first` to `next` are in force, and `known` is the one that was looked for."""

    place: SchemaPlace
    anchor: bytes
    incarnation: str
    first: int = 0
    next: int = 0
    purged: int = 0  # versions below it were taken away
    known: int | None = None

    @property
    def in_force(self) -> range:
        return range(self.first, self.next)

    @property
    def key(self) -> bytes:
        return keys.schemas_key(self.place.path, self.incarnation)


@dataclass(frozen=True, slots=True)
class StoredSchema:
    version: int
    created_at_ms: int
    schema: Schema


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    type: int
    data: bytes
    properties: dict[str, str]


class Schemas:
    def __init__(self, store: TopicStore, limits: SchemaLimits = _DEFAULT_LIMITS) -> None:
        self._store = store
        self._limits = limits

    async def head(self, place: SchemaPlace, schema: Schema | None = None) -> SchemaHead:
        """Where the schemas stand now, and the version in force that has this content."""
        if schema is not None and schema.size > self._limits.size:
            raise InvalidSchema(f"A schema of {schema.size} bytes is too long: {self._limits.size} are allowed.")
        anchor, incarnation = await self._incarnation(place)
        head = SchemaHead(place, anchor, incarnation)
        fields = ["first", "next", "purged", *([] if schema is None else [f"d:{digest(schema)}"])]
        first, following, purged, *known = await self._store.commands.call(place.slot, "HMGET", head.key, *fields)
        if following is None:
            return head
        try:
            start, end, gone = number(first), number(following), number(purged or 0)
            found = number(known[0]) if known and known[0] is not None else -1
            if not start <= end <= _MOST_NUMBERS:
                raise ValueError(f"there are no versions from {start} to {end}")
        except (TypeError, ValueError) as error:
            raise RecordDamaged(
                f"The schemas of {place.name}, under {head.key.decode()}, cannot be read ({error}): restore them."
            ) from None
        return SchemaHead(place, anchor, incarnation, start, end, gone, found if found >= start else None)

    async def read(self, head: SchemaHead, numbers: Sequence[int]) -> list[StoredSchema]:
        """Those of these versions that there are; a number may also be that of a deletion."""
        if not numbers:
            return []
        entries = await self._store.commands.call(head.place.slot, "HMGET", head.key, *(f"v:{n}" for n in numbers))
        read = (_stored(head, number, entry) for number, entry in zip(numbers, entries, strict=True) if entry)
        return [stored for stored in read if stored is not None]

    async def register(self, head: SchemaHead, schema: Schema) -> int | None:
        """Add a version; None where the schemas are not what `head` says any more, so that it must be judged anew."""
        entry = msgspec.msgpack.encode(_Entry(int(schema.type), schema.data, dict(schema.properties)))
        outcome, number = await self._store.commands.script(
            head.place.slot,
            scripts.REGISTER_SCHEMA,
            [head.anchor, head.key],
            [head.incarnation, digest(schema), entry, head.next, self._limits.versions, self._limits.total],
            repeatable=True,
        )
        if outcome == b"missing":
            raise _missing(head.place)
        if outcome == b"full":
            raise SchemasFull(
                f"{head.place.name} has as many versions of its schema as there may be, {self._limits.versions} or "
                f"{self._limits.total} bytes: give the topic a new name, or create it anew."
            )
        return None if outcome == b"conflict" else int(number)

    async def delete(self, place: SchemaPlace, *, purge: bool = False) -> int | None:
        """The number that the deletion took, None where there was nothing to delete."""
        anchor, incarnation = await self._incarnation(place)
        outcome, number = await self._store.commands.script(
            place.slot,
            scripts.DELETE_SCHEMAS,
            [anchor, keys.schemas_key(place.path, incarnation)],
            [operation_id(), incarnation, "1" if purge else ""],
            repeatable=True,
        )
        if outcome == b"missing":
            raise _missing(place)
        return int(number) if outcome == b"done" else None

    async def _incarnation(self, place: SchemaPlace) -> tuple[bytes, str]:
        """Which topic there is, with the hash that says so."""
        anchors = place.anchors
        # The mark behind them: a flush in between is then noticed, too.
        *found, mark = await self._store.commands.gather(
            [
                *((place.slot, ("HGET", anchor, "incarnation")) for anchor in anchors),
                (place.slot, ("GET", keys.marker_key(place.bucket))),
            ]
        )
        for anchor, incarnation in zip(anchors, found, strict=True):
            if incarnation is not None:
                return anchor, incarnation.decode(errors="replace")
        if mark != self._store.identity.mark:
            raise StoreLost("The store has lost its identity (flushed, or another data set): restore it.")
        raise _missing(place)


def digest(schema: Schema) -> str:
    """What schemas of the same content share, however their JSON is spaced and ordered."""
    content = hashlib.sha256(f"{schema.type.name} ".encode())
    if schema.type is SchemaType.KEY_VALUE:
        # The definitions say nothing about primitive types: only here a key of one is told from a key of another.
        content.update(msgspec.json.encode([schema.properties.get(name, "") for name in _KEY_VALUE_PROPERTIES]))
    content.update(_normal(schema.data) if schema.type in _JSON_TYPES else schema.data)
    return content.hexdigest()


def _normal(data: bytes) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(data), order="sorted")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Not JSON, which is for others to refuse.
        return data


def _stored(head: SchemaHead, version: int, stored: bytes) -> StoredSchema | None:
    try:
        created, _, packed = stored.partition(b" ")
        entry = msgspec.msgpack.decode(packed, type=_Entry)
        return StoredSchema(version, number(created), Schema(SchemaType(entry.type), entry.data, entry.properties))
    except UNREADABLE as error:
        complain(log, "version %d of the schema of %s cannot be read: %s; restore it", version, head.place.name, error)
        return None


def _missing(place: SchemaPlace) -> TopicMissing:
    return TopicMissing(f"Topic not found: {place.name}. Check its name, or create it.")
