"""The versions of schemas over every topology: numbered once, shared by all parts of a topic, gone with it."""

import pytest
import trio

from metadata import scripts
from metadata.errors import SchemasFull, StoreLost, TopicMissing
from metadata.schemas import SchemaHead, SchemaLimits, SchemaPlace, Schemas, digest
from metadata.store import TopicStore, open_store
from protocol.names import TopicName
from protocol.schemas import InvalidSchema, Schema, SchemaType, join_key_value
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.topology import Topology

TOPIC = TopicName.parse("topic://public/default/orders")
PLACE = SchemaPlace.of(TOPIC)
STRING = Schema(SchemaType.STRING)
NUMBER = Schema(SchemaType.AVRO, b'{"type":"int"}', {"written by": "a test"})


async def create(store: TopicStore, topic: TopicName = TOPIC) -> None:
    await store.create(topic, b"{}", [])


async def register(schemas: Schemas, schema: Schema, place: SchemaPlace = PLACE) -> int:
    number = await schemas.register(await schemas.head(place, schema), schema)
    assert number is not None
    return number


async def test_versions_are_numbered_from_nought_and_read_back_as_written(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        await create(store)
        schemas = Schemas(store)
        assert [await register(schemas, schema) for schema in (STRING, NUMBER)] == [0, 1]
        head = await schemas.head(PLACE)
        assert head.in_force == range(2)
        first, second = await schemas.read(head, head.in_force)
        assert (first.version, first.schema) == (0, STRING)
        assert (second.version, second.schema) == (1, NUMBER)
        assert second.created_at_ms > 1_600_000_000_000


async def test_the_same_content_is_the_same_version(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        await create(store)
        schemas = Schemas(store)
        for schema in (STRING, NUMBER, STRING, NUMBER):
            await register(schemas, schema)
        assert (await schemas.head(PLACE)).next == 2
        assert (await schemas.head(PLACE, NUMBER)).known == 1


async def test_who_has_judged_old_versions_must_judge_again(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        await create(store)
        schemas = Schemas(store)
        stale = await schemas.head(PLACE)
        await register(schemas, STRING)
        assert await schemas.register(stale, NUMBER) is None
        assert await schemas.register(stale, STRING) == 0


async def test_many_who_register_the_same_get_one_version(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        await create(store)
        schemas = Schemas(store)
        numbers = []

        async def go() -> None:
            numbers.append(await register(schemas, NUMBER))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(go)
        assert numbers == [0] * 20


async def test_deleted_versions_do_not_count_but_can_be_read(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        await create(store)
        schemas = Schemas(store)
        await register(schemas, STRING)
        assert await schemas.delete(PLACE) == 1
        head = await schemas.head(PLACE, STRING)
        assert head.in_force == range(2, 2)
        assert head.known is None
        assert [stored.version for stored in await schemas.read(head, [0, 1, 2])] == [0]
        assert await schemas.delete(PLACE) is None
        assert await register(schemas, STRING) == 2


async def test_purged_versions_are_gone_and_their_numbers_are_not_given_again(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        await create(store)
        schemas = Schemas(store)
        await register(schemas, STRING)
        assert await schemas.delete(PLACE, purge=True) == 1
        head = await schemas.head(PLACE)
        assert head.purged == 2
        assert await schemas.read(head, [0, 1]) == []
        assert await register(schemas, NUMBER) == 2


async def test_a_topic_of_the_same_name_starts_without_schemas(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        version = await store.create(TOPIC, b"{}", [])
        schemas = Schemas(store)
        old = await schemas.head(PLACE, STRING)
        await register(schemas, STRING)
        await store.delete(TOPIC, version, [])
        with pytest.raises(TopicMissing):
            await schemas.head(PLACE)
        await create(store)
        assert (await schemas.head(PLACE)).next == 0
        with pytest.raises(TopicMissing):
            await schemas.register(old, STRING)
        assert await store.commands.call(PLACE.slot, "EXISTS", old.key) == 0


async def test_a_topic_that_there_is_not_has_no_schemas(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        schemas = Schemas(store)
        for attempt in (
            schemas.head(PLACE),
            schemas.delete(PLACE),
            schemas.register(SchemaHead(PLACE, PLACE.anchors[0], "gone"), STRING),
        ):
            with pytest.raises(TopicMissing):
                await attempt


async def test_a_flushed_store_does_not_say_that_there_is_no_topic(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        await create(store)
        valkey.command("FLUSHALL")
        with pytest.raises(StoreLost):
            await Schemas(store).head(PLACE)


@pytest.mark.parametrize(
    ("name", "shares_with"),
    [
        ("segment://t/n/orders/0000-7fff-1", "topic://t/n/orders"),
        ("segment://t/n/a/b/8000-ffff-2", "topic://t/n/a/b"),
        ("persistent://t/n/orders-partition-3", "persistent://t/n/orders"),
    ],
)
def test_parts_of_a_topic_share_its_schemas(name: str, shares_with: str) -> None:
    assert SchemaPlace.of(TopicName.parse(name)) == SchemaPlace.of(TopicName.parse(shares_with))


@pytest.mark.parametrize("anchor", range(3))
async def test_topics_of_every_kind_have_schemas(valkey: ValkeyProcess, anchor: int) -> None:
    place = SchemaPlace.of(TopicName.parse("persistent://public/default/orders"))
    valkey.command("HSET", place.anchors[anchor], "incarnation", "1")
    async with open_store(valkey.url) as store:
        assert await register(Schemas(store), STRING, place) == 0
        assert await Schemas(store).delete(place) == 1


def test_nothing_is_kept_about_topics_that_are_not_persistent() -> None:
    with pytest.raises(TopicMissing):
        SchemaPlace.of(TopicName.parse("non-persistent://t/n/x"))


async def test_a_schema_past_the_bound_is_refused(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        await create(store)
        schemas = Schemas(store, SchemaLimits(size=10))
        with pytest.raises(InvalidSchema, match="10 are allowed"):
            await register(schemas, NUMBER)
        assert (await schemas.head(PLACE)).next == 0


@pytest.mark.parametrize("limits", [SchemaLimits(versions=2), SchemaLimits(total=20)])
async def test_a_topic_with_enough_versions_takes_no_more(valkey: ValkeyProcess, limits: SchemaLimits) -> None:
    async with open_store(valkey.url) as store:
        await create(store)
        schemas = Schemas(store, limits)
        for kind in (SchemaType.STRING, SchemaType.INT8):
            await register(schemas, Schema(kind))
        with pytest.raises(SchemasFull):
            await register(schemas, NUMBER)
        assert await register(schemas, STRING) == 0


@pytest.mark.parametrize("script", [scripts.REGISTER_SCHEMA, scripts.DELETE_SCHEMAS])
async def test_a_lost_reply_neither_adds_nor_deletes_twice(valkey: ValkeyProcess, script: scripts.Script) -> None:
    for each in scripts.ALL:
        valkey.command("SCRIPT", "LOAD", each.source)
    async with FaultProxy.open(*valkey.address) as proxy, open_store(proxy.url) as store:
        await create(store)
        schemas = Schemas(store)
        proxy.cut_before_reply(lambda request: script.sha.encode() in request, 2)
        assert await register(schemas, STRING) == 0
        assert await schemas.delete(PLACE) == 1
        assert (await schemas.head(PLACE)).next == 2


async def test_an_entry_that_is_none_hides_only_itself(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        await create(store)
        schemas = Schemas(store)
        for schema in (STRING, NUMBER):
            await register(schemas, schema)
        head = await schemas.head(PLACE)
        for damaged in ("", "nonsense", "1 nonsense"):
            valkey.command("HSET", head.key, "v:0", damaged)
            assert [stored.version for stored in await schemas.read(head, head.in_force)] == [1]


def test_spaces_and_the_order_of_members_do_not_make_another_schema() -> None:
    written = [b'{"type": "fixed", "name": "f", "size": 2}', b'{"name":"f","size":2,"type":"fixed"}']
    assert len({digest(Schema(SchemaType.AVRO, data)) for data in written}) == 1


def test_what_is_not_the_same_has_another_digest() -> None:
    pair = join_key_value(b"", b"")
    different = [
        Schema(SchemaType.STRING),
        Schema(SchemaType.INT8),
        Schema(SchemaType.JSON, b'{"type":"int"}'),
        Schema(SchemaType.AVRO, b'{"type":"int"}'),
        Schema(SchemaType.AVRO, b'{"type":"long"}'),
        Schema(SchemaType.AVRO, b"not json"),
        Schema(SchemaType.KEY_VALUE, pair, {"key.schema.type": "STRING"}),
        Schema(SchemaType.KEY_VALUE, pair, {"key.schema.type": "INT8"}),
        Schema(SchemaType.KEY_VALUE, pair, {"value.schema.type": "INT8"}),
    ]
    assert len({digest(schema) for schema in different}) == len(different)
