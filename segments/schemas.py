"""The schemas of topics, as whoever answers clients asks for them.

Three calls are the port, each with any name of a topic, of a segment or of a partition:

- GET_SCHEMA: `get`. None is a refusal with TopicNotFound; `name_of` is the name that the reply's schema has.
- PRODUCER and GET_OR_CREATE_SCHEMA: `get_or_create`. What it returns is the `schema_version` of the reply.
- SUBSCRIBE: `check_consumer`. The reply has no place for the version.

`Schema.from_wire` makes the value; a command without a schema is None here. Refusals are IncompatibleSchema and
InvalidSchema, and what the store raises, all with their wire codes. The rest is for the admin API.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import trio

from metadata.errors import RecordDamaged, VersionConflict
from metadata.schemas import SchemaHead, SchemaLimits, SchemaPlace, Schemas, StoredSchema
from metadata.store import TopicStore
from protocol.names import TopicName
from protocol.schemas import Schema, SchemaType, version_bytes, version_number
from segments.schema_policies import SchemaPolicies, Strategy, policies_of
from segments.schema_rules import IncompatibleSchema, check, validate

# How often a version is judged anew because somebody else has added one meanwhile.
_ATTEMPTS: Final = 10
# Definitions from this size on are judged in a thread: milliseconds in which nobody else is served otherwise.
_LARGE: Final = 16 * 1024
_CACHE_BYTES: Final = 32 * 1024 * 1024
# Versions read at a time.
_SLICE: Final = 50


class SchemaRegistry:
    def __init__(self, store: TopicStore, limits: SchemaLimits | None = None, *, cached: int = _CACHE_BYTES) -> None:
        self._store = store
        self._schemas = Schemas(store) if limits is None else Schemas(store, limits)
        self._cache = _Cache(cached)
        # One at a time: two would only take turns.
        self._judges = trio.CapacityLimiter(1)
        self._turn = trio.Lock()

    async def get(self, topic: TopicName, version: bytes | None) -> tuple[Schema, bytes] | None:
        """The version that a message names, deleted or not; without one, or with an empty one, the last in force."""
        number = version_number(version) if version else None
        if version and number is None:
            return None
        stored = await self.stored(topic, number)
        return None if stored is None else (stored.schema, version_bytes(stored.version))

    async def get_or_create(self, topic: TopicName, schema: Schema | None) -> bytes:
        """The version of a producer's schema, which is added if it fits; empty for a producer of plain bytes."""
        place = SchemaPlace.of(topic)
        if schema is not None:
            return version_bytes(await self._add(topic, place, schema, uploaded=False))
        # First: with the default nothing has to be read about the topic.
        if (await self._policies(topic)).producers_need_schema and (await self._schemas.head(place)).in_force:
            raise IncompatibleSchema(
                "The topic has a schema, and its namespace demands one of producers (schemaValidationEnforced): use it."
            )
        return b""

    async def check_consumer(self, topic: TopicName, schema: Schema | None) -> bytes:
        """The version that a consumer's schema was judged by; empty where it takes what comes.

        On a topic without schemas the consumer's is the first. Pulsar refuses it once there are messages or producers,
        and so one of two consumers that start together.
        """
        if schema is None or schema.type is SchemaType.AUTO_CONSUME:
            return b""
        place = SchemaPlace.of(topic)
        head = await self._schemas.head(place, schema)
        if head.known is not None:
            return version_bytes(head.known)
        if not head.in_force:
            return version_bytes(await self._add(topic, place, schema, uploaded=False))
        await self._judge(schema, validate, schema)
        await self._check((await self._policies(topic)).strategy.for_consumers(), head, schema)
        return version_bytes(head.next - 1)

    async def stored(self, topic: TopicName, number: int | None = None) -> StoredSchema | None:
        """A version by its number, deleted or not, or the last one in force."""
        head = await self._schemas.head(SchemaPlace.of(topic))
        if number is None:
            if not head.in_force:
                return None
            number = head.in_force[-1]
        found = await self._read(head, [number])
        return found[0] if found else None

    async def history(self, topic: TopicName) -> list[StoredSchema]:
        """All versions in force, the oldest first."""
        head = await self._schemas.head(SchemaPlace.of(topic))
        return await self._read(head, head.in_force)

    async def upload(self, topic: TopicName, schema: Schema) -> int:
        """As a producer does it, and also where producers must not."""
        return await self._add(topic, SchemaPlace.of(topic), schema, uploaded=True)

    async def fits(self, topic: TopicName, schema: Schema) -> tuple[bool, Strategy]:
        """Whether an upload would be taken now, and what decides it."""
        strategy = (await self._policies(topic)).strategy
        head = await self._schemas.head(SchemaPlace.of(topic), schema)
        await self._judge(schema, validate, schema)
        try:
            if head.known is None:
                await self._check(strategy, head, schema)
        except IncompatibleSchema:
            return False, strategy
        return True, strategy

    async def number_of(self, topic: TopicName, schema: Schema) -> int | None:
        """The version in force with this content."""
        return (await self._schemas.head(SchemaPlace.of(topic), schema)).known

    async def delete(self, topic: TopicName, *, purge: bool = False) -> int | None:
        """Take all versions out of force, or away; the number that this took, None where there was none."""
        return await self._schemas.delete(SchemaPlace.of(topic), purge=purge)

    async def _add(self, topic: TopicName, place: SchemaPlace, schema: Schema, *, uploaded: bool) -> int:
        for _ in range(_ATTEMPTS):
            head = await self._schemas.head(place, schema)
            if head.known is not None:
                return head.known
            await self._judge(schema, validate, schema)
            policies = await self._policies(topic)
            if not (uploaded or policies.producers_may_update):
                raise IncompatibleSchema(
                    "The topic does not have this schema, and its namespace lets no client add one "
                    "(isAllowAutoUpdateSchema): upload it first."
                )
            await self._check(policies.strategy, head, schema)
            number = await self._schemas.register(head, schema)
            if number is not None:
                return number
        raise VersionConflict(f"Others have changed the schemas of {topic} {_ATTEMPTS} times meanwhile: try again.")

    async def _check(self, strategy: Strategy, head: SchemaHead, schema: Schema) -> None:
        numbers = head.in_force if strategy.is_transitive else head.in_force[-1:]
        for start in range(0, len(numbers), _SLICE):
            for old in await self._read(head, numbers[start : start + _SLICE]):
                await self._judge(schema, check, strategy, old.schema, schema)

    async def _judge(self, schema: Schema, function: Callable[..., None], *args: object) -> None:
        if schema.size >= _LARGE:
            await trio.to_thread.run_sync(function, *args, limiter=self._judges)
            return
        # Thousands may have read their heads from one answer of the store. One is judged in a turn of the loop.
        async with self._turn:
            await trio.lowlevel.checkpoint()
            function(*args)

    async def _policies(self, topic: TopicName) -> SchemaPolicies:
        try:
            return policies_of(await self._store.get_namespace(topic.namespace_name))
        except RecordDamaged:
            return policies_of(None)  # as where its own policies cannot be read

    async def _read(self, head: SchemaHead, numbers: Sequence[int]) -> list[StoredSchema]:
        numbers = [number for number in numbers if number >= head.purged]
        found = {number: stored for number in numbers if (stored := self._cache.get((head.key, number)))}
        missing = [number for number in numbers if number not in found]
        for start in range(0, len(missing), _SLICE):
            for stored in await self._schemas.read(head, missing[start : start + _SLICE]):
                self._cache.put((head.key, stored.version), stored)
                found[stored.version] = stored
        return [found[number] for number in numbers if number in found]


def name_of(topic: TopicName) -> str:
    """What the schemas of a topic are called on the wire."""
    return SchemaPlace.of(topic).name


class _Cache:
    """The versions used last, as many as fit. Numbers are given once, so none of them can be out of date."""

    def __init__(self, size: int) -> None:
        self._room = size
        self._entries: OrderedDict[tuple[bytes, int], StoredSchema] = OrderedDict()

    def get(self, key: tuple[bytes, int]) -> StoredSchema | None:
        stored = self._entries.get(key)
        if stored is not None:
            self._entries.move_to_end(key)
        return stored

    def put(self, key: tuple[bytes, int], stored: StoredSchema) -> None:
        if key in self._entries:
            return
        self._entries[key] = stored
        self._room -= _weight(key, stored)
        while self._room < 0 and self._entries:
            self._room += _weight(*self._entries.popitem(last=False))


def _weight(key: tuple[bytes, int], stored: StoredSchema) -> int:
    # The objects around an empty schema take about this much.
    return 1_000 + len(key[0]) + stored.schema.size
