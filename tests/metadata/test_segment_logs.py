"""Logs of segments: what their owner appends is there as it was, in order and once, and goes from the beginning."""

from __future__ import annotations

import random
from bisect import bisect_left
from pathlib import Path

import pytest
import trio

from metadata.errors import LogFenced, LogSealed, StoreError, StoreFull, TooFewReplicas
from metadata.segment_holders import Holder, SegmentHolders
from metadata.segment_logs import Claim, Entry, LogPlace, ProducerMark, SegmentLogs, StoredEntry
from tests.support.logs import PLACE, TOPIC, B, LogBench, entries, log_bench, timed
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology
from tests.support.valkeys import Cluster
from tests.support.waiting import eventually


async def bodies(b: LogBench, claim: Claim) -> list[bytes]:
    return [entry.body for entry in await b.logs.read(claim, 0, 1_000)]


def calls(valkey: ValkeyProcess, command: str) -> int:
    return int(valkey.info("commandstats")[f"cmdstat_{command}"]["calls"])


async def test_what_was_appended_is_read_back_in_order_by_the_next_owner(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        opened = await b.open()
        written = [
            Entry(1_000, 1, b"one"),
            Entry(1_000, 20, b"\x00\xff" * 500),
            Entry(1_001, 3, b"", (2**64 - 1, 7), (0, 65_535)),
        ]
        await b.logs.append(opened.claim, 0, written, {"p": ProducerMark(-1, 2)}, 1_003)
        await b.logs.append(opened.claim, 3, entries(b"four", time_ms=1_002), {"ä q": ProducerMark(9, 3)}, 1_007)
        await b.logs.save(opened.claim, {"s": b"\x01\x02", "t": b"x", "ü": b""})
        await b.logs.save(opened.claim, {"t": None, "u": None})
        await b.logs.set_topic_epoch(opened.claim, 3)
        await b.logs.set_topic_epoch(opened.claim, 2)

        again = await b.open(B)
        assert (again.state.first, again.state.next, again.state.size) == (0, 4, 1_007)
        assert (again.state.sealed, again.state.topic_epoch) == (False, 3)
        assert (again.last_time_ms, again.largest) == (1_002, 1_000)
        assert again.cursors == {"s": b"\x01\x02", "ü": b""}
        assert again.producers == {"p": ProducerMark(-1, 2), "ä q": ProducerMark(9, 3)}
        found = await b.logs.read(again.claim, 0, 10)
        assert found == [
            *(StoredEntry(index, *entry) for index, entry in enumerate(written)),
            StoredEntry(3, 1_002, 1, b"four"),
        ]
        assert await b.logs.read(again.claim, 2, 1) == found[2:3]
        assert await b.logs.read(again.claim, 4, 1) == []
        assert await b.logs.read_some(again.claim, [3, 0, 1, 17, 3]) == [found[0], found[1], found[3]]
        assert await b.logs.read_some(again.claim, []) == []


async def test_producers_are_forgotten_by_name(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        marks = {name: ProducerMark(1, 0) for name in "abc"}
        await b.logs.append(claim, 0, entries(b"one"), marks, 3)
        await b.logs.forget_producers(claim, ["a", "c", "d"])
        await b.logs.forget_producers(claim, [])
        assert (await b.open()).producers == {"b": ProducerMark(1, 0)}


@pytest.mark.parametrize("first", [0, 1, 3, 100])
async def test_entries_that_do_not_follow_the_last_one_are_refused(valkey: ValkeyProcess, first: int) -> None:
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        await b.logs.append(claim, 0, entries(b"one", b"two"), {}, 6)
        with pytest.raises(LogFenced):
            await b.logs.append(claim, first, entries(b"three"), {"p": ProducerMark(1, first)}, 11)
        again = await b.open()
        assert (again.state.next, again.state.size, again.producers) == (2, 6, {})
        assert await bodies(b, again.claim) == [b"one", b"two"]


async def test_a_sealed_log_takes_no_entries_and_everything_else(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        claim = (await b.open()).claim
        await b.logs.append(claim, 0, entries(b"one", b"two"), {}, 6)
        await b.transitions.split(TOPIC, 0)
        with pytest.raises(LogSealed):
            await b.logs.append(claim, 2, entries(b"three"), {}, 11)
        await b.logs.save(claim, {"s": b"1"})
        await b.logs.trim(claim, 1, 3)
        after = await b.open(B)
        assert (after.state.sealed, after.state.first, after.state.next) == (True, 1, 2)
        assert after.cursors == {"s": b"1"}
        assert await bodies(b, after.claim) == [b"two"]
        with pytest.raises(LogSealed):
            await b.logs.append(after.claim, 2, entries(b"three"), {}, 11)


async def test_times_never_go_back_within_a_log(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        await b.logs.append(claim, 0, timed([5, 5, 6]), {}, 3)
        for times in ([5], [6, 7, 6]):
            with pytest.raises(ValueError, match="go back"):
                await b.logs.append(claim, 3, timed(times), {}, 9)
        await b.logs.append(claim, 3, timed([6]), {}, 4)
        assert (await b.state()).next == 4


async def test_nothing_is_stored_where_a_part_of_it_cannot_be(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        client = valkey.client()
        before = await b.state()
        for key in (PLACE.producers(claim.incarnation), PLACE.log(claim.incarnation)):
            client.rpush(key, "a list")
            with pytest.raises(StoreError):
                await b.logs.append(claim, 0, entries(b"one"), {"p": ProducerMark(0, 0)}, 3)
            client.delete(key)
        assert await b.state() == before
        assert client.exists(PLACE.log(claim.incarnation), PLACE.producers(claim.incarnation)) == 0
        await b.logs.append(claim, 0, entries(b"one"), {"p": ProducerMark(0, 0)}, 3)


async def test_a_full_store_refuses_entries_and_nothing_else(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        marks = {"p": ProducerMark(1, 1), "q": ProducerMark(1, 1)}
        await b.logs.append(claim, 0, entries(b"one", b"two"), marks, 6)
        valkey.client().config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreFull):
                await b.logs.append(claim, 2, entries(b"three"), {}, 11)
            await b.logs.save(claim, {"s": b"1"}, drained=True)
            await b.logs.trim(claim, 1, 3)
            await b.logs.forget_producers(claim, ["p"])
            await b.logs.set_topic_epoch(claim, 1)
            assert await bodies(b, claim) == [b"two"]
            assert await b.logs.read(claim, 0, 10, max_bytes=1) == [StoredEntry(1, 1_000, 1, b"two")]
            assert await b.logs.index_at(claim, 0) == 1
            await b.logs.release(claim)
            opened = await b.open(B)
        finally:
            valkey.client().config_set("maxmemory", 0)
        assert (opened.state.first, opened.state.next, opened.state.topic_epoch) == (1, 2, 1)
        assert (opened.cursors, opened.producers) == ({"s": b"1"}, {"q": ProducerMark(1, 1)})
        await b.logs.append(opened.claim, 2, entries(b"three"), {}, 8)


async def test_a_log_is_trimmed_from_its_beginning_only(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        claim = (await b.open()).claim
        await b.logs.append(claim, 0, timed(range(10)), {}, 10)
        await b.logs.trim(claim, 4, 6)
        await b.logs.trim(claim, 2, 8)
        state = await b.state()
        assert (state.first, state.next, state.size) == (4, 10, 6)
        assert [entry.index for entry in await b.logs.read(claim, 0, 3)] == [4, 5, 6]
        assert [entry.index for entry in await b.logs.read_some(claim, [1, 3, 4, 9])] == [4, 9]
        assert await b.logs.index_at(claim, 0) == 4
        await b.logs.trim(claim, 1_000, 0)
        state = await b.state()
        assert (state.first, state.next, state.size) == (10, 10, 0)
        assert await b.logs.read(claim, 0, 3) == []
        assert await b.logs.index_at(claim, 5) == 10
        await b.logs.append(claim, 10, timed([10]), {}, 1)
        assert [entry.index for entry in await b.logs.read(claim, 0, 3)] == [10]


async def test_much_is_trimmed_in_slices(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        for start in range(0, 25_000, 5_000):
            await b.logs.append(claim, start, timed([0] * 5_000), {}, start + 5_000)
        await b.logs.trim(claim, 1, 24_999)
        before = calls(valkey, "xtrim")
        await b.logs.trim(claim, 24_999, 1)
        assert calls(valkey, "xtrim") - before == 3
        assert valkey.client().xlen(PLACE.log(claim.incarnation)) == 1
        state = await b.state()
        assert (state.first, state.size) == (24_999, 1)


@pytest.mark.parametrize("seed", range(5))
async def test_the_first_entry_of_a_time_is_found(valkey: ValkeyProcess, seed: int) -> None:
    chance = random.Random(seed)
    times = sorted(chance.randrange(1_700_000_000_000, 1_700_000_000_050) for _ in range(chance.randrange(1, 120)))
    trimmed = chance.randrange(len(times))
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        assert await b.logs.index_at(claim, 5) == 0
        await b.logs.append(claim, 0, timed(times), {}, len(times))
        await b.logs.trim(claim, trimmed, len(times) - trimmed)
        for wanted in (-1, 0, *range(times[0] - 1, times[-1] + 2)):
            assert await b.logs.index_at(claim, wanted) == max(bisect_left(times, wanted), trimmed)


async def test_a_read_takes_no_more_than_fits_and_one_entry_at_least(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        sizes = [10, 10, 300, 10, 1_000, 10, 10]
        await b.logs.append(claim, 0, [Entry(0, 1, bytes(size)) for size in sizes], {}, sum(sizes))

        async def read(first: int, count: int, max_bytes: int) -> list[int]:
            return [entry.index for entry in await b.logs.read(claim, first, count, max_bytes=max_bytes)]

        assert await read(0, 100, 10_000) == [0, 1, 2, 3, 4, 5, 6]
        assert await read(0, 100, 1_330) == [0, 1, 2, 3, 4]
        assert await read(0, 100, 319) == [0, 1]
        assert await read(0, 1, 329) == [0]
        assert await read(3, 2, 0) == [3]
        assert await read(4, 100, 20) == [4]
        assert await read(0, 0, 20) == []
        assert await read(0, -1, 20) == []
        some = await b.logs.read_some(claim, [6, 5, 0, 2, 3, 1], max_bytes=335)
        assert [entry.index for entry in some] == [0, 1, 2, 3]


async def test_a_new_owner_knows_how_large_entries_can_be(valkey: ValkeyProcess) -> None:
    """Or else its first read would take as many large ones as small ones."""
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        await b.logs.append(claim, 0, entries(bytes(500), bytes(500)), {}, 1_000)
        await b.logs.append(claim, 2, entries(b"", b""), {}, 1_000)
        again = await b.open(B)
        assert again.largest == 500
        assert len(await b.logs.read(again.claim, 0, 4, max_bytes=999)) == 1
        # Who has not made the claim does not know, and looks.
        assert len(await SegmentLogs(b.store).read(again.claim, 0, 4, max_bytes=999)) == 1


async def test_many_entries_are_read_by_as_few_commands_as_possible(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        await b.logs.append(claim, 0, timed(range(100)), {}, 100)
        wanted = [*range(10, 40), 50, *range(60, 90)]

        await b.logs.read(claim, 0, 1)
        before = calls(valkey, "xrange")
        assert [entry.index for entry in await b.logs.read_some(claim, wanted)] == wanted
        assert calls(valkey, "xrange") - before == 3


async def test_a_save_that_comes_late_does_not_take_acknowledgements_back(valkey: ValkeyProcess) -> None:
    """A call whose connection is lost may still be on its way when the next one has been answered."""
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        await b.logs.save(claim, {"s": b"1"})
        late = next(b.logs._numbers)
        await b.logs.save(claim, {"s": b"2"})
        b.logs._numbers = iter([late])  # type: ignore[assignment]  # as if that call had been sent before
        with pytest.raises(LogFenced):
            await b.logs.save(claim, {"s": b"1"})
        assert (await b.open()).cursors == {"s": b"2"}


async def test_appends_follow_a_slot_on_its_way_and_happen_once(fresh_cluster: Cluster) -> None:
    async with log_bench(fresh_cluster.url) as b:
        claim = (await b.open()).claim
        await b.logs.append(claim, 0, entries(b"one"), {}, 3)
        source = fresh_cluster.owner(PLACE.slot)
        [target, *_] = [node for node in fresh_cluster.shards() if node is not source]
        move = await trio.to_thread.run_sync(fresh_cluster.begin_move, PLACE.slot, target)
        await trio.to_thread.run_sync(move.migrate, PLACE.key)
        async with trio.open_nursery() as nursery:
            # Half of its keys here, half there.
            nursery.start_soon(b.logs.append, claim, 1, entries(b"two"), {}, 6)
            await eventually(lambda: b.store.appends.counters.retries > 0)
            await trio.to_thread.run_sync(move.migrate)
        # There, and the old server says so for each call.
        redirects = b.store.appends.counters.redirects
        await b.logs.append(claim, 2, entries(b"three"), {}, 11)
        assert b.store.appends.counters.redirects > redirects
        await b.logs.append(claim, 3, entries(b"four"), {}, 15, replicas=1, replica_timeout=5)
        await trio.to_thread.run_sync(move.finish)
        await b.logs.append(claim, 4, entries(b"five"), {}, 19)
        assert await bodies(b, claim) == [b"one", b"two", b"three", b"four", b"five"]


async def test_the_documented_rights_are_enough(fresh_valkey: ValkeyProcess) -> None:
    documented = Path(__file__).parents[2].joinpath("docs/store.md").read_text("utf-8")
    [rights] = [line for line in documented.splitlines() if line.startswith("ACL SETUSER vela")]
    fresh_valkey.command(*rights.split())
    host, port = fresh_valkey.address
    async with log_bench(f"redis://vela:PASSWORD@{host}:{port}") as b:
        claim = (await b.open()).claim
        with pytest.raises(TooFewReplicas):
            await b.logs.append(
                claim, 0, entries(b"one", b"two"), {"p": ProducerMark(0, 0)}, 6, replicas=1, replica_timeout=0.01
            )
        await b.logs.save(claim, {"s": b"1"}, drained=True)
        await b.logs.forget_producers(claim, ["p"])
        await b.logs.trim(claim, 1, 3)
        assert await b.logs.index_at(claim, 0) == 1
        assert await bodies(b, claim) == [b"two"]
        await b.logs.release(claim)


async def test_standings_of_many_logs_are_read_at_once_and_only_those_of_this_topic(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        claim = (await b.open()).claim
        await b.logs.append(claim, 0, timed([1, 2]), {}, 2)
        await b.logs.save(claim, {"s": b"1", "t": b"2"})
        await b.transitions.split(TOPIC, 0)
        child, unknown = (LogPlace.of_segment(TOPIC, descriptor) for descriptor in ("0000-7fff-1", "0000-7fff-9"))
        lane, incarnation = b.store.commands, claim.incarnation
        found = await b.logs.standings(lane, incarnation, [PLACE, child, unknown], ["t", "s", "u"])
        assert [standing.cursors for standing in found] == [{"t": b"2", "s": b"1"}, {}, {}]
        assert found[0].state == await b.state()
        assert found[1].state == await b.state(child)
        assert found[2].state is None
        [alone] = await b.logs.standings(lane, incarnation, [PLACE], [])
        assert (alone.state, alone.cursors) == (found[0].state, {})
        [foreign] = await b.logs.standings(lane, "0" * 16, [PLACE], ["s"])
        assert foreign.state is None
        assert await b.logs.standings(lane, incarnation, [], ["s"]) == []


async def test_who_had_a_log_for_a_forgotten_subscription_at_a_dead_owner_is_forgotten_with_it(
    topology: Topology,
) -> None:
    async with log_bench(topology.url) as b:
        holders = SegmentHolders(b.store)
        dead = (await b.open()).claim
        for subscription in ("deleted", "kept"):
            assert await holders.tell(dead, subscription, "c")
        claim = (await b.open(B)).claim
        assert await holders.tell(claim, "again", "c")
        await b.logs.save(claim, {"deleted": None, "again": None, "kept": b"1"})
        fields = await b.store.commands.call(PLACE.slot, "HKEYS", PLACE.key)
        # Of the living owner's own it is said by itself when they go.
        assert {field for field in fields if field.startswith(b"holder:")} == {b"holder:kept", b"holder:again"}
        assert await holders.holders(b.store.commands, [PLACE], "again") == [Holder(claim.session, "c")]
