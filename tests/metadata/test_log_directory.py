"""All logs of a bucket, as whoever looks after them finds them."""

from __future__ import annotations

import pytest

from controller.transitions import TopicLimits, Transitions
from metadata import keys
from metadata.classic_topics import ClassicTopics
from metadata.errors import StoreLost
from metadata.log_directory import logs_in
from metadata.store import TopicStore, open_store
from protocol.names import NamespaceName, TopicName
from tests.support.processes import ValkeyProcess


async def all_logs(store: TopicStore) -> list[str]:
    return [place.name for bucket in range(keys.BUCKETS) async for some in logs_in(store, bucket) for place in some]


async def test_every_log_is_found_once(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        made = []
        for number in range(70):  # more than are read together
            await store.create_namespace(NamespaceName("acme", f"n{number}"))
            topic = TopicName.scalable("acme", f"n{number}", "a/b ä")
            await Transitions(store, TopicLimits()).create(topic, 2)
            made += [f"segment://acme/n{number}/a/b ä/{it}" for it in ("0000-7fff-0", "8000-ffff-1")]
        for number in range(5):
            classic = TopicName.classic("acme", "n1", f"c{number}")
            await ClassicTopics(store).create_log(classic, {})
            made.append(str(classic))
        found = await all_logs(store)
        assert sorted(found) == sorted(made)


async def test_damaged_record_hides_only_itself(valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture) -> None:
    async with open_store(valkey.url) as store:
        await store.create_namespace(NamespaceName("acme", "eu"))
        for name in ("whole", "damaged", "strange"):
            await Transitions(store, TopicLimits()).create(TopicName.scalable("acme", "eu", name), 1)
        for name, field, value in (("damaged", "version", "x"), ("strange", "value", "{}")):
            path = keys.path_of(TopicName.scalable("acme", "eu", name))
            slot = keys.BUCKET_SLOTS[keys.bucket_of(path)]
            await store.commands.call(slot, "HSET", keys.record_key(path), field, value)
        assert await all_logs(store) == ["segment://acme/eu/whole/0000-ffff-0"]
        assert "strange" in caplog.text


async def test_absence_in_a_foreign_bucket_says_nothing(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        await store.create_namespace(NamespaceName("acme", "eu"))
        await store.commands.call(keys.BUCKET_SLOTS[7], "DEL", keys.marker_key(7))
        with pytest.raises(StoreLost):
            assert [some async for some in logs_in(store, 7)]
