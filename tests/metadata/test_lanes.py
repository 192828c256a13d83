"""Redirects, retries and lanes that do not wait for each other."""

import pytest
import trio

from metadata import keys
from metadata.errors import StoreDenied, StoreError, StoreUnavailable
from metadata.lanes import Timeouts
from metadata.store import open_store
from protocol.names import TopicName
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.valkeys import Cluster, Replicated

TOPIC = TopicName.parse("topic://public/default/orders")
PATH = keys.path_of(TOPIC)
BUCKET = keys.bucket_of(PATH)
SLOT = keys.BUCKET_SLOTS[BUCKET]
HASTY = Timeouts(connect=0.5, silence=0.3, patience=0.6)


async def test_a_moved_slot_is_learnt_from_the_first_refusal(fresh_cluster: Cluster) -> None:
    async with open_store(fresh_cluster.url) as store:
        version = await store.create(TOPIC, b"0", ["0000-ffff-0"])
        source = fresh_cluster.owner(SLOT)
        [target, *_] = [node for node in fresh_cluster.shards() if node is not source]
        await trio.to_thread.run_sync(fresh_cluster.move_slot, SLOT, target)
        await store.replace(TOPIC, version, b"1")
        owner = store.directory.owner(SLOT)
        assert owner is not None
        assert owner.port == target.port
        assert store.commands.counters.redirects >= 1


async def test_a_slot_on_its_way_is_written_where_its_keys_are(fresh_cluster: Cluster) -> None:
    async with open_store(fresh_cluster.url) as store:
        version = await store.create(TOPIC, b"0", ["0000-ffff-0"])
        source = fresh_cluster.owner(SLOT)
        [target, *_] = [node for node in fresh_cluster.shards() if node is not source]
        move = await trio.to_thread.run_sync(fresh_cluster.begin_move, SLOT, target)
        results = []

        async def split() -> None:
            results.append(
                await store.replace(
                    TOPIC, version, b"1", created=["0000-7fff-1", "8000-ffff-2"], sealed=["0000-ffff-0"]
                )
            )

        # With half of its keys here and half there, or naming keys that do not exist yet, a script can run nowhere:
        # TRYAGAIN until the slot has arrived. A read of one key finds it on either side.
        await trio.to_thread.run_sync(move.migrate, keys.record_key(PATH))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(split)
            before = await store.get(TOPIC)
            assert before is not None
            assert before.version == version
            await trio.to_thread.run_sync(move.migrate)
            assert results == []
            await trio.to_thread.run_sync(move.finish)
        assert [version.number for version in results] == [1]
        stored = await store.get(TOPIC)
        assert stored is not None
        assert stored.value == b"1"


async def test_forgotten_scripts_are_loaded_again(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        version = await store.create(TOPIC, b"0", [])
        valkey.client().script_flush()
        await store.replace(TOPIC, version, b"1")


async def test_writes_follow_a_promoted_replica(fresh_replicated: Replicated) -> None:
    async with open_store(fresh_replicated.url) as store:
        version = await store.create(TOPIC, b"0", [])
        await trio.to_thread.run_sync(fresh_replicated.promote)
        await store.replace(TOPIC, version, b"1")
        stored = await store.get(TOPIC)
        assert stored is not None
        assert stored.value == b"1"


async def test_a_call_gives_up_when_its_patience_is_over(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, open_store(proxy.url, timeouts=HASTY) as store:
        proxy.stall()
        with trio.fail_after(30), pytest.raises(StoreUnavailable):
            await store.get(TOPIC)
        proxy.resume()
        assert await store.get(TOPIC) is None


async def test_a_stalled_lane_does_not_hold_up_another(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store, trio.open_nursery() as nursery:
        nursery.start_soon(store.bulk.call, SLOT, "BLPOP", "nothing", 100)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(30):
            assert await store.commands.call(SLOT, "PING") == b"PONG"
        nursery.cancel_scope.cancel()


async def test_a_command_without_permission_is_said_as_such(fresh_valkey: ValkeyProcess) -> None:
    fresh_valkey.command("ACL", "SETUSER", "vela", "on", ">p", "~*", "&*", "+@all", "-xadd")
    host, port = fresh_valkey.address
    async with open_store(f"redis://vela:p@{host}:{port}/0") as store:
        with pytest.raises(StoreDenied, match="denies a command"):
            await store.create(TOPIC, b"0", [])
        with pytest.raises(StoreDenied):
            await store.commands.call(SLOT, "XADD", "x", "*", "a", "b")


async def test_a_refusal_of_one_shard_among_many_is_raised_alone(fresh_cluster: Cluster) -> None:
    async with open_store(fresh_cluster.url) as store:
        requests = [(slot, ("NONSENSE",)) for slot in keys.BUCKET_SLOTS]
        with pytest.raises(StoreError, match="refused a command"):
            await store.commands.gather(requests)
