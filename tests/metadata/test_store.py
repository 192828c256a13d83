"""The store over every topology: records, indexes, namespaces, and who wins when two write."""

from typing import Any

import msgspec
import pytest
import trio

from controller.garbage import GarbageCollector
from metadata import keys
from metadata.errors import (
    NamespaceExists,
    NamespaceMissing,
    NamespaceNotEmpty,
    RecordDamaged,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    TopicExists,
    TopicMissing,
    VersionConflict,
)
from metadata.identity import FORMAT, StoreRecord
from metadata.lanes import Timeouts
from metadata.records import Version
from metadata.store import open_store
from protocol.names import NamespaceName, TopicName
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology

pytestmark = pytest.mark.also_on_redis

TOPIC = TopicName.parse("topic://public/default/orders")
HASTY = Timeouts(connect=0.5, silence=0.3, patience=1.0)


async def test_a_created_topic_is_read_back_as_written(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        version = await store.create(TOPIC, b'{"epoch":0}', ["0000-ffff-0"])
        stored = await store.get(TOPIC)
        assert stored is not None
        assert (stored.value, stored.version) == (b'{"epoch":0}', version)
        assert version.number == 0
        assert stored.ctime_ms == stored.mtime_ms > 1_600_000_000_000


async def test_names_of_all_shapes_are_listed_as_given(topology: Topology) -> None:
    names = sorted(["a/b", "a b", "ä%2Fö", "日本語", "{b000}", "x" * 1024, "😀", "a+b", "-"])
    namespace = NamespaceName("t=1", "n.s:2")
    async with open_store(topology.url) as store:
        for name in names:
            await store.create(TopicName("topic", namespace.tenant, namespace.namespace, name), b"{}", [])
        assert await store.list_topics(namespace) == names
        assert await store.list_topics(NamespaceName("t=1", "n")) == []


async def test_a_second_create_is_refused_and_changes_nothing(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        version = await store.create(TOPIC, b"first", [])
        with pytest.raises(TopicExists):
            await store.create(TOPIC, b"second", [])
        stored = await store.get(TOPIC)
        assert stored is not None
        assert (stored.value, stored.version) == (b"first", version)


async def test_replace_counts_the_version_up_and_moves_segment_states_with_it(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        first = await store.create(TOPIC, b"1", ["0000-ffff-0"])
        second = await store.replace(TOPIC, first, b"2", created=["0000-7fff-1", "8000-ffff-2"], sealed=["0000-ffff-0"])
        assert second == Version(first.incarnation, 1)
        states = {
            descriptor: _segment(topology, descriptor) for descriptor in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2")
        }
        assert states == {"0000-ffff-0": b"SEALED", "0000-7fff-1": b"ACTIVE", "8000-ffff-2": b"ACTIVE"}
        await store.replace(TOPIC, second, b"3", removed=["0000-ffff-0"])
        await GarbageCollector(store, interval=1).collect()
        assert _segment(topology, "0000-ffff-0") is None


async def test_replace_with_an_old_version_or_incarnation_is_a_conflict(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        first = await store.create(TOPIC, b"1", [])
        second = await store.replace(TOPIC, first, b"2")
        for stale in (first, Version("0" * 16, second.number)):
            with pytest.raises(VersionConflict):
                await store.replace(TOPIC, stale, b"3")
        stored = await store.get(TOPIC)
        assert stored is not None
        assert stored.value == b"2"


async def test_a_deleted_topic_leaves_no_key_and_its_name_is_free_again(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        first = await store.create(TOPIC, b"1", ["0000-ffff-0"])
        await store.delete(TOPIC, first, ["0000-ffff-0"])
        assert await store.get(TOPIC) is None
        assert await store.list_topics(TOPIC.namespace_name) == []
        await GarbageCollector(store, interval=1).collect()
        assert _segment(topology, "0000-ffff-0") is None
        with pytest.raises(TopicMissing):
            await store.delete(TOPIC, first, [])
        with pytest.raises(TopicMissing):
            await store.replace(TOPIC, first, b"2")
        again = await store.create(TOPIC, b"2", [])
        assert again.incarnation != first.incarnation
        with pytest.raises(VersionConflict):
            await store.delete(TOPIC, first, [])


async def test_of_many_concurrent_writers_exactly_one_wins_each_version(topology: Topology) -> None:
    wins = 0
    async with open_store(topology.url) as store, open_store(topology.url) as other:
        version = await store.create(TOPIC, b"0", [])

        async def write(n: int) -> None:
            nonlocal wins
            try:
                await (store if n % 2 else other).replace(TOPIC, version, str(n).encode())
                wins += 1
            except VersionConflict:
                pass

        async with trio.open_nursery() as nursery:
            for n in range(40):
                nursery.start_soon(write, n)
        assert wins == 1


async def test_every_write_is_in_the_change_log_of_its_bucket(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        version = await store.create(TOPIC, b"0", [])
        await store.delete(TOPIC, await store.replace(TOPIC, version, b"1"), [])
    path = keys.path_of(TOPIC)
    log = keys.changes_key(keys.bucket_of(path))
    entries: Any = topology.client_for(log).xrange(log)
    assert [(entry[b"kind"], entry[b"topic"].decode(), entry[b"version"]) for _, entry in entries] == [
        (b"created", path, b"0"),
        (b"changed", path, b"1"),
        (b"deleted", path, b"1"),
    ]


async def test_many_records_are_read_in_the_order_asked_for(topology: Topology) -> None:
    topics = [TopicName("topic", "t", "n", f"topic-{n}") for n in range(700)]
    async with open_store(topology.url) as store:
        async with trio.open_nursery() as nursery:
            for topic in topics[::2]:
                nursery.start_soon(store.create, topic, topic.local.encode(), [])
        found = await store.get_many(topics)
        assert [stored and stored.value.decode() for stored in found] == [
            None if n % 2 else topic.local for n, topic in enumerate(topics)
        ]


async def test_namespaces_are_made_listed_and_removed_once_empty(topology: Topology) -> None:
    ours, theirs = NamespaceName("acme", "eu"), NamespaceName("other", "x")
    async with open_store(topology.url) as store:
        await store.create_namespace(ours, b'{"a":1}')
        await store.ensure_namespace(theirs)
        await store.ensure_namespace(theirs)
        with pytest.raises(NamespaceExists):
            await store.create_namespace(ours)
        assert await store.get_namespace(ours) == b'{"a":1}'
        assert await store.list_namespaces() == [ours, theirs]
        assert await store.list_namespaces("acme") == [ours]
        topic = TopicName("topic", "acme", "eu", "t")
        version = await store.create(topic, b"", [])
        with pytest.raises(NamespaceNotEmpty):
            await store.delete_namespace(ours)
        await store.delete(topic, version, [])
        await store.delete_namespace(ours)
        with pytest.raises(NamespaceMissing):
            await store.delete_namespace(ours)


async def test_all_nodes_see_the_identity_of_the_first(topology: Topology) -> None:
    async with open_store(topology.url) as first, open_store(topology.url) as second:
        assert first.identity.id == second.identity.id
        assert len(first.identity.id) == 16


async def test_a_store_of_a_newer_format_is_refused(valkey: ValkeyProcess) -> None:
    newer = StoreRecord("0" * 16, FORMAT + 1, keys.BUCKETS)
    valkey.client().set(keys.STORE, msgspec.json.encode(newer))
    with pytest.raises(StoreRefused, match="run a newer Vela"):
        async with open_store(valkey.url):
            pass


@pytest.mark.parametrize("number", [0, -1])
async def test_a_store_of_a_format_that_never_was_is_refused(valkey: ValkeyProcess, number: int) -> None:
    valkey.client().set(keys.STORE, msgspec.json.encode(StoreRecord("0" * 16, number, keys.BUCKETS)))
    with pytest.raises(StoreRefused, match=f"has format {number}, which no Vela has ever written"):
        async with open_store(valkey.url):
            pass


async def test_a_store_with_another_number_of_buckets_is_refused(valkey: ValkeyProcess) -> None:
    valkey.client().set(keys.STORE, msgspec.json.encode(StoreRecord("0" * 16, FORMAT, 64)))
    with pytest.raises(StoreRefused, match="64 buckets"):
        async with open_store(valkey.url):
            pass


async def test_something_else_under_the_store_key_is_refused(valkey: ValkeyProcess) -> None:
    valkey.client().set(keys.STORE, "hello")
    with pytest.raises(StoreRefused, match="holds something else"):
        async with open_store(valkey.url):
            pass


async def test_a_store_that_may_evict_is_refused(valkey: ValkeyProcess) -> None:
    valkey.client().config_set("maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreRefused, match="noeviction"):
        async with open_store(valkey.url):
            pass


async def test_a_mixture_of_two_stores_is_refused(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url):
        pass
    valkey.client().set(keys.marker_key(7), "f" * 16)
    with pytest.raises(StoreRefused, match="mixture"):
        async with open_store(valkey.url):
            pass


async def test_a_full_store_refuses_creations_but_not_transitions_and_deletions(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        version = await store.create(TOPIC, b"0", ["0000-ffff-0"])
        client = valkey.client()
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreFull):
            await store.create(TopicName("topic", "t", "n", "x"), b"0", [])
        version = await store.replace(TOPIC, version, b"1", created=["0000-7fff-1"], sealed=["0000-ffff-0"])
        await store.delete(TOPIC, version, ["0000-ffff-0", "0000-7fff-1"])
        client.config_set("maxmemory", 0)
        await store.create(TOPIC, b"2", [])


async def test_a_script_that_meets_a_key_of_another_type_writes_nothing(valkey: ValkeyProcess) -> None:
    path = keys.path_of(TOPIC)
    client = valkey.client()
    async with open_store(valkey.url) as store:
        client.set(keys.segment_key(path, "0000-ffff-0"), "not a hash")
        with pytest.raises(RecordDamaged, match="restore or remove it"):
            await store.create(TOPIC, b"0", ["0000-ffff-0"])
        assert await store.get(TOPIC) is None
        assert not client.exists(keys.changes_key(keys.bucket_of(path)))


async def test_no_server_at_the_address_is_said_within_the_patience() -> None:
    with trio.fail_after(30), pytest.raises(StoreUnavailable, match="cannot connect"):
        async with open_store("redis://127.0.0.1:1/0", timeouts=HASTY):
            pass


async def test_a_wrong_password_is_said_at_once(valkey: ValkeyProcess) -> None:
    host, port = valkey.address
    with pytest.raises(Exception, match="refuses the credentials"):
        async with open_store(f"redis://nobody:wrong@{host}:{port}/0"):
            pass


def _segment(topology: Topology, descriptor: str) -> bytes | None:
    key = keys.segment_key(keys.path_of(TOPIC), descriptor)
    state: bytes | None = topology.client_for(key).hget(key, "state")  # type: ignore[assignment]
    return state


async def test_the_change_log_says_the_epoch_and_the_size_of_what_was_written(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        version = await store.create(TOPIC, b'{"epoch":3,"properties":{}}', [])
        version = await store.replace(TOPIC, version, b'{"epoch":4}', removed=["0000-ffff-0"])
        version = await store.replace(TOPIC, version, b"no record")
        await store.delete(TOPIC, version, [])
        bucket = keys.bucket_of(keys.path_of(TOPIC))
        entries = await store.commands.call(keys.BUCKET_SLOTS[bucket], "XRANGE", keys.changes_key(bucket), "-", "+")
    said = [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in entries]
    assert [(entry.get(b"epoch"), entry.get(b"size")) for entry in said] == [
        (b"3", b"27"),
        (b"4", b"11"),
        (b"", b"9"),
        (None, None),
    ]
