"""Recording every kind of store: one server, one with a replica under Sentinel, and a cluster of three shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import trio

from gateway.recorder.following import following
from gateway.recorder.recording import Plan
from metadata import keys
from metadata.records import Version
from metadata.store import TopicStore, open_store
from metadata.traces.directories import open_trace
from metadata.traces.events import Kind, TraceEvent
from protocol.names import NamespaceName, TopicName
from tests.gateway.recorder.recorded import events_of, value_of
from tests.support.nodes import running_node
from tests.support.valkeys import Cluster, Topology
from tests.support.waiting import eventually

NAMESPACE = NamespaceName("acme", "shop")
VALUES = {Kind.CREATED: value_of(0), Kind.CHANGED: value_of(1)}
# What happens to a topic: kind and version.
Life = list[tuple[str, int]]


def one_in_each_bucket() -> list[TopicName]:
    found: dict[int, TopicName] = {}
    number = 0
    while len(found) < keys.BUCKETS:
        topic = TopicName.scalable(NAMESPACE.tenant, NAMESPACE.namespace, f"topic-{number}")
        found.setdefault(bucket_of(topic), topic)
        number += 1
    return list(found.values())


def bucket_of(topic: TopicName) -> int:
    return keys.bucket_of(keys.path_of(topic))


async def live_together(store: TopicStore, topics: Sequence[TopicName], directory: Path) -> dict[str, Life]:
    """Create all, change all and delete all, each once what came before is in the trace; what has happened."""
    versions: dict[TopicName, Version] = {}
    lives: dict[str, Life] = {topic.local: [] for topic in topics}

    async def create(topic: TopicName) -> None:
        versions[topic] = await store.create(topic, VALUES[Kind.CREATED], [])

    async def change(topic: TopicName) -> None:
        versions[topic] = await store.replace(topic, versions[topic], VALUES[Kind.CHANGED])

    async def delete(topic: TopicName) -> None:
        await store.delete(topic, versions[topic], [])

    for kind, step in ((Kind.CREATED, create), (Kind.CHANGED, change), (Kind.DELETED, delete)):
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(step, topic)
        for topic in topics:
            lives[topic.local].append((kind, versions[topic].number))
        await eventually(lambda: lives_in(events_of(directory)) == lives, within=30)
    return lives


def lives_in(events: Sequence[TraceEvent]) -> dict[str, Life]:
    """What the trace says that happened; it also says where."""
    told: dict[str, Life] = defaultdict(list)
    for event in events:
        if event.kind in (Kind.CREATED, Kind.CHANGED, Kind.DELETED):
            assert event.topic is not None
            assert event.version is not None
            topic = TopicName.scalable(NAMESPACE.tenant, NAMESPACE.namespace, event.topic)
            assert (event.namespace, event.bucket) == (str(NAMESPACE), bucket_of(topic))
            told[event.topic].append((event.kind, event.version))
    return told


def check_values(events: Sequence[TraceEvent]) -> None:
    """There are some, and none is wrong. On a busy machine any number is read too late, which is allowed."""
    values = [event for event in events if event.kind in VALUES and event.value is not None]
    assert all(event.value == VALUES[Kind(event.kind)] for event in values)
    assert values


def buckets_of(events: Sequence[TraceEvent], kind: Kind) -> set[int]:
    """The buckets that gaps, or the ends of bases, are about; an event without one is about all."""
    found = [event.bucket for event in events if event.kind == kind]
    return set(range(keys.BUCKETS)) if None in found else {bucket for bucket in found if bucket is not None}


def is_based(directory: Path) -> bool:
    return len(buckets_of(events_of(directory), Kind.BASE_END)) == keys.BUCKETS


async def test_every_change_in_every_bucket_is_recorded_in_order(topology: Topology, tmp_path: Path) -> None:
    topics = one_in_each_bucket()
    async with open_store(topology.url) as store, following(topology.url, Plan(tmp_path)) as recorder:
        await store.ensure_namespace(NAMESPACE)
        await eventually(lambda: is_based(tmp_path), within=30)
        lives = await live_together(store, topics, tmp_path)
        assert (recorder.counters.dropped, recorder.counters.values_missing) == (0, 0)
    events = events_of(tmp_path)
    assert lives_in(events) == lives
    check_values(events)
    assert {event.detail for event in events if event.kind == Kind.GAP} == {"start"}
    assert buckets_of(events, Kind.GAP) == set(range(keys.BUCKETS))
    assert [event.seq for event in events] == list(range(len(events)))
    assert all(before.taken_us <= after.taken_us for before, after in pairwise(events))
    assert open_trace(tmp_path).logs == ()


async def test_topics_of_every_server_are_the_base(topology: Topology, tmp_path: Path) -> None:
    topics = one_in_each_bucket()
    async with open_store(topology.url) as store:
        await store.ensure_namespace(NAMESPACE)
        for topic in topics:
            await store.create(topic, value_of(1), [])
    async with following(topology.url, Plan(tmp_path)):
        await eventually(lambda: is_based(tmp_path), within=30)
    base = [event for event in events_of(tmp_path) if event.kind == Kind.BASE]
    assert {(event.topic, event.epoch, event.value) for event in base} == {
        (topic.local, 1, value_of(1)) for topic in topics
    }


async def test_a_server_records_every_kind_of_store(topology: Topology, tmp_path: Path) -> None:
    topics = one_in_each_bucket()[::8]
    async with running_node(topology.url, record=tmp_path) as node:
        await node.store.ensure_namespace(NAMESPACE)
        await eventually(lambda: is_based(tmp_path), within=30)
        lives = await live_together(node.store, topics, tmp_path)
    assert lives_in(events_of(tmp_path)) == lives
    check_values(events_of(tmp_path))


async def test_a_shard_that_fails_over_is_a_gap_of_its_buckets_and_a_base_of_them(
    fresh_cluster: Cluster, tmp_path: Path
) -> None:
    topics = one_in_each_bucket()
    doomed = fresh_cluster.owner(keys.BUCKET_SLOTS[bucket_of(topics[0])])
    buckets = {bucket for bucket in range(keys.BUCKETS) if fresh_cluster.owner(keys.BUCKET_SLOTS[bucket]) is doomed}
    async with open_store(fresh_cluster.url) as store, following(fresh_cluster.url, Plan(tmp_path)):
        await store.ensure_namespace(NAMESPACE)
        await eventually(lambda: is_based(tmp_path), within=30)
        for topic in topics:
            await store.create(topic, value_of(), [])
        await eventually(lambda: len(lives_in(events_of(tmp_path))) == len(topics), within=30)
        before = len(events_of(tmp_path))
        await trio.to_thread.run_sync(fresh_cluster.fail_over, doomed)
        await eventually(lambda: buckets_of(events_of(tmp_path)[before:], Kind.BASE_END) >= buckets, within=30)
        stored = await store.get(topics[0])
        assert stored is not None
        await store.replace(topics[0], stored.version, value_of(1))
        changed = (Kind.CHANGED, stored.version.number + 1)
        await eventually(lambda: changed in lives_in(events_of(tmp_path))[topics[0].local], within=30)
    after = events_of(tmp_path)[before:]
    assert buckets_of(after, Kind.GAP) >= buckets
    based = {event.topic for event in after if event.kind == Kind.BASE}
    assert based >= {topic.local for topic in topics if bucket_of(topic) in buckets}
