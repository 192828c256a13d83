"""The change feed over every topology: bells, lost bells, gaps, and stores that are not what they were."""

from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import cache
from itertools import count, islice

import pytest
import trio

from metadata import keys
from metadata.classic_topics import ClassicTopics
from metadata.feed import ChangeFeed
from metadata.lanes import Timeouts
from metadata.segment_logs import LogPlace, SegmentLogs
from metadata.store import TopicStore, open_store
from protocol.names import TopicName
from tests.support.nodes import topics_in_buckets
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.topology import Topology
from tests.support.valkeys import Cluster, Replicated
from tests.support.waiting import eventually

pytestmark = pytest.mark.also_on_redis

TOPIC = TopicName.parse("topic://public/default/orders")
PATH = keys.path_of(TOPIC)
BUCKET = keys.bucket_of(PATH)
TIMEOUTS = Timeouts(connect=3.0, silence=5.0, patience=20.0)
# So long that whatever arrives in a test came by a bell, and so short that a test can wait for it.
NEVER, SOON = 600.0, 0.1


class Recorder:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.changes: Counter[str] = Counter()
        self.registrations: Counter[str] = Counter()
        self.classic_changes: Counter[str] = Counter()
        self.gaps: Counter[int] = Counter()
        self.gaps_before_rollbacks: list[int] = []

    def registered(self, bucket: int, path: str) -> None:
        assert bucket == keys.bucket_of(path)
        self.registrations[path] += 1

    def orphaned(self, bucket: int, path: str) -> None:
        """Nobody leads here."""

    def classic(self, bucket: int, path: str) -> None:
        assert bucket == keys.bucket_of(path)
        self.classic_changes[path] += 1

    def changed(self, bucket: int, path: str) -> None:
        assert bucket == keys.bucket_of(path)
        self.changes[path] += 1

    def gap(self, buckets: Collection[int]) -> None:
        self.gaps.update(buckets)

    def rolled_back(self, buckets: Collection[int]) -> None:
        assert BUCKET in buckets
        self.gaps_before_rollbacks.append(self.gaps[BUCKET])


@asynccontextmanager
async def following(url: str, probe_interval: float) -> AsyncIterator[tuple[TopicStore, ChangeFeed, Recorder]]:
    async with open_store(url, timeouts=TIMEOUTS) as store:
        recorder = Recorder()
        feed = ChangeFeed(store, recorder, probe_interval=probe_interval, on_rollback=recorder.rolled_back)
        async with trio.open_nursery() as nursery:
            await nursery.start(feed.run)
            await eventually(lambda: feed.whole)
            yield store, feed, recorder
            nursery.cancel_scope.cancel()


@cache
def crowd() -> list[TopicName]:
    """Three thousand topics in eight of the buckets. To find them takes longer than to create them."""
    names = (TopicName("topic", "t", "n", f"topic-{n}") for n in count())
    return list(islice((name for name in names if keys.bucket_of(keys.path_of(name)) % 16 == 3), 3_000))


async def test_the_start_is_a_gap_of_every_bucket(topology: Topology) -> None:
    async with following(topology.url, NEVER) as (_, feed, recorder):
        assert set(recorder.gaps) == set(range(keys.BUCKETS))
        assert all(feed.trusted(bucket) for bucket in range(keys.BUCKETS))


async def test_every_kind_of_change_is_told_by_its_bell(topology: Topology) -> None:
    async with following(topology.url, NEVER) as (store, _, recorder):
        version = await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH] == 1)
        version = await store.replace(TOPIC, version, b"1")
        await eventually(lambda: recorder.changes[PATH] == 2)
        await store.delete(TOPIC, version, [])
        await eventually(lambda: recorder.changes[PATH] == 3)


async def test_owners_of_segments_are_changes_and_drained_segments_concern_who_is_registered(
    topology: Topology,
) -> None:
    place = LogPlace.of_segment(TOPIC, "0000-ffff-0")
    async with following(topology.url, NEVER) as (store, _, recorder):
        logs = SegmentLogs(store)
        await store.create(TOPIC, b"0", ["0000-ffff-0"])
        await eventually(lambda: recorder.changes[PATH] == 1)
        state = await logs.state(place)
        assert state is not None
        opened = await logs.claim(place, state, "a" * 16)
        assert opened is not None
        await eventually(lambda: recorder.changes[PATH] == 2)
        await logs.save(opened.claim, {"s": b"1"})
        await logs.save(opened.claim, {"s": b"2"}, drained=True)
        await eventually(lambda: recorder.registrations[PATH] == 1)
        assert recorder.changes[PATH] == 2
        await logs.release(opened.claim)
        await eventually(lambda: recorder.changes[PATH] == 3)
        assert recorder.registrations[PATH] == 1


async def test_changes_by_another_node_in_every_bucket_are_told(topology: Topology) -> None:
    topics = topics_in_buckets(range(keys.BUCKETS))
    async with following(topology.url, NEVER) as (_, feed, recorder), open_store(topology.url) as other:
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(other.create, topic, b"0", [])
        await eventually(lambda: len(recorder.changes) == len(topics))
        assert feed.counters.lost_bells == 0


async def test_a_burst_is_told_completely(topology: Topology) -> None:
    topics = crowd()
    async with following(topology.url, NEVER) as (store, _, recorder):
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(store.create, topic, b"0", [])
        await eventually(lambda: len(recorder.changes) == len(topics), within=30)


@pytest.mark.parametrize(("before", "after"), [("", "Kt"), ("Ex", "xE"), ("K$", "$K"), ("AKE", "AKE")])
async def test_missing_flags_are_added_to_those_that_are_set(valkey: ValkeyProcess, before: str, after: str) -> None:
    valkey.client().config_set("notify-keyspace-events", before)
    async with following(valkey.url, NEVER) as (store, _, recorder):
        await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH] == 1)
    flags = set(str(valkey.client().config_get("notify-keyspace-events")["notify-keyspace-events"]))
    assert set(after) <= flags
    assert "K" in flags
    assert flags & {"t", "A"}


async def test_flags_cleared_later_are_found_and_put_back(topology: Topology) -> None:
    async with following(topology.url, SOON) as (store, feed, recorder):
        for server in topology.primaries():
            server.client().config_set("notify-keyspace-events", "")
        version = await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH] == 1)
        await eventually(lambda: feed.counters.lost_bells >= 1 and feed.counters.flag_repairs >= 1)
        lost = feed.counters.lost_bells
        await store.replace(TOPIC, version, b"1")
        await eventually(lambda: recorder.changes[PATH] == 2)
        assert feed.counters.lost_bells == lost


async def test_lost_bells_are_found_by_comparing_tails(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, following(proxy.url, SOON) as (store, feed, recorder):
        proxy.swallow_pushes()
        await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH] == 1)
        assert feed.counters.lost_bells >= 1
        assert recorder.gaps[BUCKET] == 1


async def test_without_the_right_to_configure_changes_are_found_by_looking(fresh_valkey: ValkeyProcess) -> None:
    fresh_valkey.client().config_set("notify-keyspace-events", "")
    fresh_valkey.command("ACL", "SETUSER", "vela", "on", ">secret", "~*", "&*", "+@all", "-config")
    host, port = fresh_valkey.address
    async with following(f"redis://vela:secret@{host}:{port}/0", SOON) as (store, feed, recorder):
        await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH] == 1)
        assert feed.counters.lost_bells >= 1


async def test_without_the_right_to_subscribe_changes_are_found_by_looking(fresh_valkey: ValkeyProcess) -> None:
    fresh_valkey.command("ACL", "SETUSER", "vela", "on", ">secret", "~*", "resetchannels", "+@all", "-role")
    host, port = fresh_valkey.address
    async with following(f"redis://vela:secret@{host}:{port}/0", SOON) as (store, _, recorder):
        await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH] == 1)


async def test_a_server_that_became_a_replica_is_not_followed(fresh_replicated: Replicated) -> None:
    primary, replica = fresh_replicated.primary, fresh_replicated.replica
    async with following(primary.url, SOON) as (_, feed, _):
        fresh_replicated.sentinel.kill()
        primary.command("REPLICAOF", *replica.address)
        await eventually(lambda: not feed.whole)
        assert not feed.trusted(BUCKET)


async def test_a_key_of_another_kind_in_the_place_of_a_log_costs_one_bucket_only(valkey: ValkeyProcess) -> None:
    async with following(valkey.url, SOON) as (store, feed, recorder):
        valkey.client().set(keys.changes_key((BUCKET + 1) % keys.BUCKETS), "not a log")
        await eventually(lambda: feed.foreign_buckets == 1)
        await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH] == 1)
        assert feed.trusted(BUCKET)


async def test_a_cluster_node_that_lost_its_memory_does_not_blank_the_map(fresh_cluster: Cluster) -> None:
    async with following(fresh_cluster.url, SOON) as (store, feed, _):
        known = store.directory.primaries()
        victim = fresh_cluster.owner(keys.BUCKET_SLOTS[BUCKET])
        healthy = [b for b in range(keys.BUCKETS) if fresh_cluster.owner(keys.BUCKET_SLOTS[b]) is not victim]
        victim.command("FLUSHALL")
        victim.command("CLUSTER", "RESET", "HARD")
        for _ in range(20):
            await store.directory.refresh()
            await trio.sleep(0.06)
            assert len(store.directory.primaries()) >= len(known) - 1
        assert all(feed.trusted(bucket) for bucket in healthy)


async def test_a_lost_connection_is_a_gap_of_its_buckets(topology: Topology) -> None:
    async with following(topology.url, NEVER) as (store, _, recorder):
        [server, *others] = topology.primaries()
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        await eventually(lambda: any(count == 2 for count in recorder.gaps.values()))
        assert (max(recorder.gaps.values()), min(recorder.gaps.values())) == (2, 1 if others else 2)
        await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH] == 1)


async def test_a_restarted_store_is_a_gap_and_goes_on(fresh_valkey: ValkeyProcess) -> None:
    async with following(fresh_valkey.url, NEVER) as (store, feed, recorder):
        await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH] == 1)
        fresh_valkey.kill()
        await eventually(lambda: not feed.whole)
        assert not feed.trusted(BUCKET)
        fresh_valkey.start()
        await eventually(lambda: feed.whole)
        assert recorder.gaps[BUCKET] == 2
        assert not recorder.gaps_before_rollbacks, "nothing was lost"
        stored = await store.get(TOPIC)
        assert stored is not None
        await store.replace(TOPIC, stored.version, b"1")
        await eventually(lambda: recorder.changes[PATH] == 2)


async def test_a_silent_store_is_noticed_and_a_gap_follows(fresh_valkey: ValkeyProcess) -> None:
    async with following(fresh_valkey.url, SOON) as (_, feed, recorder):
        fresh_valkey.pause()
        await eventually(lambda: not feed.whole)
        fresh_valkey.resume()
        await eventually(lambda: feed.whole)
        assert recorder.gaps[BUCKET] >= 2


async def test_a_log_trimmed_past_the_position_is_a_gap_of_its_bucket(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, following(proxy.url, SOON) as (store, feed, recorder):
        version = await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH] == 1)
        proxy.stall()
        async with open_store(valkey.url) as other:
            for value in (b"1", b"2"):
                version = await other.replace(TOPIC, version, value)
        valkey.client().xtrim(keys.changes_key(BUCKET), maxlen=1, approximate=False)
        proxy.resume()
        await eventually(lambda: feed.counters.gaps["log"] + feed.counters.gaps["connection"] >= 1)
        assert recorder.gaps[BUCKET] == 2
        assert not recorder.gaps_before_rollbacks, "what was trimmed is not lost"


async def test_a_flushed_store_is_not_trusted_until_its_data_are_back(fresh_valkey: ValkeyProcess) -> None:
    async with following(fresh_valkey.url, SOON) as (store, feed, recorder):
        await store.create(TOPIC, b"0", [])
        identity = store.identity.id
        fresh_valkey.client().flushall()
        await eventually(lambda: feed.foreign_buckets == keys.BUCKETS)
        assert not feed.whole
        assert not feed.trusted(BUCKET)
        for bucket in range(keys.BUCKETS):
            fresh_valkey.client().set(keys.marker_key(bucket), identity)
        before = recorder.gaps[BUCKET]
        await eventually(lambda: feed.whole)
        assert recorder.gaps[BUCKET] > before


async def test_a_slot_that_moves_to_a_new_primary_stays_followed(fresh_cluster: Cluster) -> None:
    slot = keys.BUCKET_SLOTS[BUCKET]
    async with following(fresh_cluster.url, SOON) as (store, feed, recorder):
        version = await store.create(TOPIC, b"0", [])
        target = await trio.to_thread.run_sync(fresh_cluster.add_primary)
        move = await trio.to_thread.run_sync(fresh_cluster.begin_move, slot, target)
        # Half way: the log is at the new server already, the record still at the old one.
        move.migrate(keys.changes_key(BUCKET))
        before = recorder.changes[PATH]
        moved = [key for key in list(move.keys()) if key != keys.changes_key(BUCKET)]
        await trio.to_thread.run_sync(lambda: move.migrate(*moved))
        version = await store.replace(TOPIC, version, b"1")
        await eventually(lambda: recorder.changes[PATH] > before)
        gaps = recorder.gaps[BUCKET]
        await trio.to_thread.run_sync(move.finish)
        await eventually(lambda: recorder.gaps[BUCKET] > gaps and feed.whole)
        before = recorder.changes[PATH]
        await store.replace(TOPIC, version, b"2")
        await eventually(lambda: recorder.changes[PATH] > before)


async def test_a_shard_that_fails_over_is_a_gap_of_its_buckets_only(fresh_cluster: Cluster) -> None:
    async with following(fresh_cluster.url, SOON) as (store, feed, recorder):
        version = await store.create(TOPIC, b"0", [])
        before = dict(recorder.gaps)
        owner = fresh_cluster.owner(keys.BUCKET_SLOTS[BUCKET])
        others = [b for b in range(keys.BUCKETS) if fresh_cluster.owner(keys.BUCKET_SLOTS[b]) is not owner]
        await trio.to_thread.run_sync(fresh_cluster.fail_over, owner)
        await eventually(lambda: feed.whole and recorder.gaps[BUCKET] > before[BUCKET], within=30)
        assert [recorder.gaps[bucket] for bucket in others] == [before[bucket] for bucket in others]
        changes = recorder.changes[PATH]
        await store.replace(TOPIC, version, b"1")
        await eventually(lambda: recorder.changes[PATH] > changes)


async def test_a_fail_over_that_loses_writes_is_a_gap(fresh_replicated: Replicated) -> None:
    async with following(fresh_replicated.url, SOON) as (store, feed, recorder):
        version = await store.create(TOPIC, b"kept", [])
        await eventually(lambda: recorder.changes[PATH] == 1)
        await trio.to_thread.run_sync(fresh_replicated.cut_replication)
        await store.replace(TOPIC, version, b"lost")
        await eventually(lambda: recorder.changes[PATH] == 2)
        before = recorder.gaps[BUCKET]
        await trio.to_thread.run_sync(fresh_replicated.fail_over)
        await eventually(lambda: recorder.gaps[BUCKET] > before and feed.whole, within=30)
        assert recorder.gaps_before_rollbacks == [before], "it is told first, and once"
        stored = await store.get(TOPIC)
        assert stored is not None
        assert stored.value == b"kept"


async def test_entries_that_are_lost_under_a_standing_connection_are_a_rollback_of_the_store(
    valkey: ValkeyProcess,
) -> None:
    async with following(valkey.url, SOON) as (store, feed, recorder):
        version = await store.create(TOPIC, b"0", [])
        await store.replace(TOPIC, version, b"1")
        await eventually(lambda: recorder.changes[PATH] >= 1 and feed.counters.changes == 2)
        [[last, _]] = valkey.command("XREVRANGE", keys.changes_key(BUCKET), "+", "-", "COUNT", 1)
        valkey.command("XDEL", keys.changes_key(BUCKET), last)
        await eventually(lambda: recorder.gaps[BUCKET] == 2)
        assert recorder.gaps_before_rollbacks == [1]


async def test_a_change_of_a_classic_topic_is_told_as_such_and_not_as_one_of_a_record(topology: Topology) -> None:
    async with following(topology.url, NEVER) as (store, _, recorder):
        topics = ClassicTopics(store)
        await topics.create_log(TopicName.classic("public", "default", "orders"), {})
        await eventually(lambda: recorder.classic_changes == {PATH: 1})
        await topics.delete_log(TopicName.classic("public", "default", "orders"))
        await store.create(TOPIC, b"{}", [])
        await eventually(lambda: recorder.changes == {PATH: 1})
        assert recorder.classic_changes == {PATH: 2}


async def test_a_damaged_entry_of_a_change_log_is_a_gap_of_its_bucket_and_of_no_other(valkey: ValkeyProcess) -> None:
    async with following(valkey.url, NEVER) as (store, feed, recorder):
        version = await store.create(TOPIC, b"0", [])
        await eventually(lambda: recorder.changes[PATH])
        before, others = recorder.gaps[BUCKET], sum(recorder.gaps.values())
        valkey.client().xadd(keys.changes_key(BUCKET), {b"topic": b"\xff", b"kind": b"changed"})
        await eventually(lambda: recorder.gaps[BUCKET] == before + 1)
        assert sum(recorder.gaps.values()) == others + 1
        changes = recorder.changes[PATH]
        await store.replace(TOPIC, version, b"1")
        await eventually(lambda: recorder.changes[PATH] > changes)
        assert feed.whole
        assert feed.counters.failures == 0


async def test_a_listener_that_fails_makes_its_follower_begin_anew(valkey: ValkeyProcess) -> None:
    async with following(valkey.url, NEVER) as (store, feed, recorder):
        told = recorder.changed
        failing = [ValueError("a fault")]

        def fail_once(bucket: int, path: str) -> None:
            if failing:
                raise failing.pop()
            told(bucket, path)

        recorder.changed = fail_once  # type: ignore[method-assign] # a fault of ours
        version = await store.create(TOPIC, b"0", [])
        await eventually(lambda: feed.counters.failures == 1 and feed.whole)
        await store.replace(TOPIC, version, b"1")
        await eventually(lambda: recorder.changes[PATH])
