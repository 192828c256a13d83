"""Schemas of classic topics over every topology: shared by partitions, and gone with the topic."""

import pytest

from controller.classic import ClassicTransitions
from controller.garbage import GarbageCollector
from controller.transitions import TopicLimits
from metadata.errors import TopicMissing
from metadata.schemas import SchemaPlace, Schemas
from metadata.store import open_store
from protocol.names import TopicName
from protocol.schemas import Schema, SchemaType, version_bytes
from segments.schemas import SchemaRegistry
from tests.support.topology import Topology

TOPIC = TopicName.classic("public", "default", "orders")
PARTITIONS = [TopicName.classic("public", "default", f"orders-partition-{index}") for index in range(3)]
STRING, NUMBER = Schema(SchemaType.STRING), Schema(SchemaType.INT64)


@pytest.mark.parametrize("partitions", [0, 3])
async def test_a_classic_topic_takes_its_schemas_along_when_it_is_deleted(topology: Topology, partitions: int) -> None:
    async with open_store(topology.url) as store:
        classic, registry = ClassicTransitions(store, TopicLimits()), SchemaRegistry(store)

        async def create() -> None:
            await (classic.create_partitioned(TOPIC, partitions) if partitions else classic.create(TOPIC))

        await create()
        for name in PARTITIONS[:partitions] or [TOPIC]:
            assert await registry.get_or_create(name, STRING) == version_bytes(0)
        head = await Schemas(store).head(SchemaPlace.of(TOPIC))
        await (classic.delete_partitioned(TOPIC) if partitions else classic.delete(TOPIC))
        with pytest.raises(TopicMissing):
            await registry.get_or_create(TOPIC, STRING)
        await create()
        assert await registry.get(TOPIC, None) is None
        assert await registry.get_or_create(TOPIC, NUMBER) == version_bytes(0)
        await GarbageCollector(store, interval=3600).collect()
        assert await store.commands.call(head.place.slot, "EXISTS", head.key) == 0
        assert await registry.get(TOPIC, version_bytes(0)) == (NUMBER, version_bytes(0))
