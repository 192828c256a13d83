"""The registry on a real store: what producers and consumers bring is taken, found again, or refused."""

import json
from collections.abc import AsyncIterator
from typing import cast

import pytest
import trio

from metadata import keys
from metadata.errors import TopicMissing
from metadata.schemas import SchemaLimits
from metadata.store import TopicStore, open_store
from protocol import replies
from protocol.names import NamespaceName, TopicName
from protocol.schemas import InvalidSchema, Schema, SchemaType, version_bytes
from segments.schema_policies import Strategy
from segments.schema_rules import IncompatibleSchema
from segments.schemas import SchemaRegistry, name_of
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology

TOPIC = TopicName.parse("topic://public/default/orders")
SEGMENT = TopicName.parse("segment://public/default/orders/0000-7fff-1")
OTHER_SEGMENT = TopicName.parse("segment://public/default/orders/8000-ffff-2")
NAMESPACE = NamespaceName("public", "default")
STRING = Schema(SchemaType.STRING)


def avro(*fields: str, default: bool = True) -> Schema:
    made = [{"name": name, "type": "int", **({"default": 0} if default else {})} for name in fields]
    return Schema(SchemaType.AVRO, json.dumps({"type": "record", "name": "Order", "fields": made}).encode())


A, AB, ABC = avro("a"), avro("a", "b"), avro("a", "b", "c")
NEEDS_AB = avro("a", "b", default=False)


@pytest.fixture
async def store(valkey: ValkeyProcess) -> AsyncIterator[TopicStore]:
    async with open_store(valkey.url) as store:
        await store.create_namespace(NAMESPACE)
        await store.create(TOPIC, b"{}", [])
        yield store


@pytest.fixture
def registry(store: TopicStore) -> SchemaRegistry:
    return SchemaRegistry(store)


async def choose(store: TopicStore, **policies: object) -> None:
    stored = await store.get_namespace(NAMESPACE)
    assert stored is not None
    await store.replace_namespace(NAMESPACE, stored, json.dumps(policies).encode())


async def test_all_segments_of_a_topic_share_its_schemas(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        await store.create(TOPIC, b"{}", [])
        registry = SchemaRegistry(store)
        assert await registry.get_or_create(SEGMENT, A) == version_bytes(0)
        assert await registry.get_or_create(OTHER_SEGMENT, AB) == version_bytes(1)
        for name in (TOPIC, SEGMENT, OTHER_SEGMENT):
            assert await registry.get(name, None) == (AB, version_bytes(1))
            assert await registry.get(name, version_bytes(0)) == (A, version_bytes(0))


async def test_all_partitions_of_a_classic_topic_share_its_schemas(
    valkey: ValkeyProcess, registry: SchemaRegistry
) -> None:
    valkey.command("HSET", keys.classic_key("public/default/events"), "incarnation", "1")
    first, second = (TopicName.parse(f"persistent://public/default/events-partition-{i}") for i in range(2))
    assert await registry.get_or_create(first, A) == version_bytes(0)
    assert await registry.get(second, b"") == (A, version_bytes(0))


async def test_another_node_sees_what_was_registered_here(valkey: ValkeyProcess, registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    async with open_store(valkey.url) as other:
        assert await SchemaRegistry(other).get(TOPIC, None) == (A, version_bytes(0))


async def test_a_producer_that_comes_again_gets_the_version_it_had(registry: SchemaRegistry) -> None:
    for schema, version in ((A, 0), (AB, 1), (A, 0), (AB, 1)):
        assert await registry.get_or_create(TOPIC, schema) == version_bytes(version)


async def test_producers_that_come_together_get_one_version(registry: SchemaRegistry) -> None:
    versions = []

    async def produce(schema: Schema) -> None:
        versions.append(await registry.get_or_create(SEGMENT, schema))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            for schema in (A, AB, ABC):
                nursery.start_soon(produce, schema)
    assert sorted(set(versions)) == [version_bytes(number) for number in range(3)]
    assert len(await registry.history(TOPIC)) == 3


async def test_a_schema_that_does_not_fit_is_refused_and_nothing_is_added(registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    for schema in (NEEDS_AB, STRING):
        with pytest.raises(IncompatibleSchema):
            await registry.get_or_create(TOPIC, schema)
    assert [stored.version for stored in await registry.history(TOPIC)] == [0]


async def test_what_is_no_schema_is_refused_even_where_everything_fits(
    store: TopicStore, registry: SchemaRegistry
) -> None:
    await choose(store, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    with pytest.raises(InvalidSchema):
        await registry.get_or_create(TOPIC, Schema(SchemaType.AVRO, b"{}"))


async def test_the_namespace_decides_what_fits(store: TopicStore, registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    await choose(store, schema_compatibility_strategy="FORWARD")
    assert await registry.get_or_create(TOPIC, NEEDS_AB) == version_bytes(1)
    await choose(store, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    assert await registry.get_or_create(TOPIC, STRING) == version_bytes(2)


@pytest.mark.parametrize(("strategy", "fits"), [("BACKWARD", True), ("BACKWARD_TRANSITIVE", False)])
async def test_only_transitive_strategies_look_at_all_versions(
    store: TopicStore, registry: SchemaRegistry, strategy: str, fits: bool
) -> None:
    await choose(store, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    for schema in (A, NEEDS_AB):
        await registry.get_or_create(TOPIC, schema)
    await choose(store, schema_compatibility_strategy=strategy)
    needs_b = avro("b", default=False)
    assert await registry.fits(TOPIC, needs_b) == (fits, Strategy(strategy))
    if fits:
        assert await registry.get_or_create(TOPIC, needs_b) == version_bytes(2)
    else:
        with pytest.raises(IncompatibleSchema):
            await registry.get_or_create(TOPIC, needs_b)


async def test_without_automatic_updates_only_uploads_add_versions(store: TopicStore, registry: SchemaRegistry) -> None:
    await choose(store, is_allow_auto_update_schema=False)
    for attempt in (registry.get_or_create(TOPIC, A), registry.check_consumer(TOPIC, A)):
        with pytest.raises(IncompatibleSchema, match="upload it first"):
            await attempt
    assert await registry.upload(TOPIC, A) == 0
    assert await registry.get_or_create(TOPIC, A) == version_bytes(0)


async def test_plain_bytes_are_taken_unless_the_namespace_demands_a_schema(
    store: TopicStore, registry: SchemaRegistry
) -> None:
    await registry.get_or_create(TOPIC, A)
    assert await registry.get_or_create(TOPIC, None) == b""
    await choose(store, schema_validation_enforced=True)
    with pytest.raises(IncompatibleSchema, match="schemaValidationEnforced"):
        await registry.get_or_create(TOPIC, None)
    await registry.delete(TOPIC)
    assert await registry.get_or_create(TOPIC, None) == b""


async def test_a_consumer_must_be_able_to_read_what_was_written_last(registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    assert await registry.check_consumer(TOPIC, avro("a", "z")) == version_bytes(0)
    assert await registry.check_consumer(TOPIC, A) == version_bytes(0)
    for schema in (NEEDS_AB, STRING):
        with pytest.raises(IncompatibleSchema):
            await registry.check_consumer(TOPIC, schema)
    assert len(await registry.history(TOPIC)) == 1


async def test_the_first_consumer_brings_the_schema_and_the_second_one_finds_it(registry: SchemaRegistry) -> None:
    for name in (SEGMENT, OTHER_SEGMENT):
        assert await registry.check_consumer(name, STRING) == version_bytes(0)
    with pytest.raises(IncompatibleSchema):
        await registry.get_or_create(TOPIC, A)


async def test_consumers_that_take_what_comes_are_not_asked(registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    assert await registry.check_consumer(TOPIC, None) == b""
    assert await registry.check_consumer(TOPIC, Schema(SchemaType.AUTO_CONSUME)) == b""


async def test_where_everything_fits_consumers_do_so_too(store: TopicStore, registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    await choose(store, schema_compatibility_strategy="ALWAYS_COMPATIBLE")
    assert await registry.check_consumer(TOPIC, STRING) == version_bytes(0)


async def test_deleted_schemas_can_be_read_by_version_only(registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    assert await registry.delete(TOPIC) == 1
    assert await registry.get(TOPIC, None) is None
    assert await registry.get(TOPIC, version_bytes(0)) == (A, version_bytes(0))
    assert await registry.history(TOPIC) == []
    assert await registry.get_or_create(TOPIC, STRING) == version_bytes(2)


async def test_purged_schemas_cannot_be_read_although_they_were_cached(registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    assert await registry.get(TOPIC, version_bytes(0)) is not None
    await registry.delete(TOPIC, purge=True)
    assert await registry.get(TOPIC, version_bytes(0)) is None


@pytest.mark.parametrize("version", [version_bytes(7), version_bytes(-1), b"x", bytes(64)])
async def test_a_version_that_there_is_not_is_none(registry: SchemaRegistry, version: bytes) -> None:
    await registry.get_or_create(TOPIC, A)
    assert await registry.get(TOPIC, version) is None


async def test_a_topic_created_anew_knows_nothing_of_old_schemas(store: TopicStore, registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    assert await registry.get(TOPIC, version_bytes(0)) is not None
    stored = await store.get(TOPIC)
    assert stored is not None
    await store.delete(TOPIC, stored.version, [])
    with pytest.raises(TopicMissing):
        await registry.get(TOPIC, version_bytes(0))
    await store.create(TOPIC, b"{}", [])
    assert await registry.get(TOPIC, version_bytes(0)) is None
    assert await registry.get_or_create(TOPIC, STRING) == version_bytes(0)


async def test_large_definitions_are_judged_all_the_same(registry: SchemaRegistry) -> None:
    large = [avro(*(f"field{i}" for i in range(count))) for count in (1_000, 1_001)]
    for number, schema in enumerate(large):
        assert await registry.get_or_create(TOPIC, schema) == version_bytes(number)
    with pytest.raises(IncompatibleSchema):
        await registry.get_or_create(TOPIC, avro(*(f"field{i}" for i in range(1_000)), "new", default=False))


async def test_the_size_of_a_schema_is_bounded(store: TopicStore) -> None:
    registry = SchemaRegistry(store, SchemaLimits(size=100))
    with pytest.raises(InvalidSchema, match="too long"):
        await registry.get_or_create(TOPIC, ABC)


async def test_a_cache_without_room_changes_no_answer(store: TopicStore) -> None:
    registry = SchemaRegistry(store, cached=0)
    for number, schema in enumerate((A, AB, ABC)):
        assert await registry.get_or_create(TOPIC, schema) == version_bytes(number)
    assert [stored.schema for stored in await registry.history(TOPIC)] == [A, AB, ABC]


async def test_versions_are_read_from_the_store_once(valkey: ValkeyProcess, registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    before = await registry.stored(TOPIC)
    path = keys.path_of(TOPIC)
    incarnation = valkey.command("HGET", keys.record_key(path), "incarnation")
    assert isinstance(incarnation, bytes)
    valkey.command("HDEL", keys.schemas_key(path, incarnation.decode()), "v:0")
    assert await registry.stored(TOPIC) == before


async def test_a_registered_schema_is_found_by_its_content(registry: SchemaRegistry) -> None:
    await registry.get_or_create(TOPIC, A)
    assert await registry.number_of(TOPIC, A) == 0
    assert await registry.number_of(TOPIC, AB) is None


async def test_replies_carry_what_the_registry_found(registry: SchemaRegistry) -> None:
    version = await registry.get_or_create(SEGMENT, A)
    created = replies.schema_registered(7, version).getOrCreateSchemaResponse
    assert (created.request_id, created.schema_version) == (7, version_bytes(0))
    assert replies.schema_registered(7, b"").getOrCreateSchemaResponse.HasField("schema_version")
    found = await registry.get(SEGMENT, None)
    assert found is not None
    got = replies.got_schema(8, found[0].to_wire(name_of(SEGMENT)), found[1]).getSchemaResponse
    assert (got.request_id, got.schema.name, got.schema_version) == (8, "public/default/orders", version_bytes(0))
    assert Schema.from_wire(got.schema) == A


async def test_of_schemas_that_come_together_one_is_judged_in_a_turn_of_the_loop() -> None:
    registry = SchemaRegistry(cast(TopicStore, None))
    turn = 0
    judged: list[int] = []
    async with trio.open_nursery() as nursery:

        async def count_turns() -> None:
            nonlocal turn
            while len(judged) < 40:
                turn += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(count_turns)
        for _ in range(40):
            nursery.start_soon(registry._judge, A, lambda: judged.append(turn))
    # The count may be before or behind a schema of the same turn.
    assert len(judged) == 40
    assert len(set(judged)) >= 20
