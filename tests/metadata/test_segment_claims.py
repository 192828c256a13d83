"""Who owns a log: one node at a time, told in the topic's record, and nobody who was deposed."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from controller.garbage import GarbageCollector
from metadata import keys
from metadata.errors import LogFenced, LogMissing, RecordDamaged, StoreError, StoreLost
from metadata.segment_logs import LogPlace, Opened, ProducerMark, SegmentLogs
from metadata.store import open_store
from protocol.names import TopicName
from tests.support.logs import PLACE, TOPIC, A, B, entries, log_bench
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology
from tests.support.waiting import eventually

PATH = keys.path_of(TOPIC)
CLASSIC = LogPlace.of_classic(TopicName.parse("persistent://public/default/orders"))


def kinds(topology: Topology) -> list[bytes]:
    changes = keys.changes_key(keys.bucket_of(PATH))
    log: Any = topology.client_for(changes).xrange(changes)
    return [fields[b"kind"] for _, fields in log]


def milliseconds(time: tuple[int, int]) -> int:
    """What a store says is the time, which is in seconds and microseconds."""
    return time[0] * 1_000 + time[1] // 1_000


async def test_of_many_nodes_that_saw_the_same_owner_exactly_one_claims(topology: Topology) -> None:
    async with log_bench(topology.url) as b, open_store(topology.url) as other:
        for _ in range(3):
            seen = await b.state()
            taken: list[Opened] = []

            async def claim(session: str, logs: SegmentLogs, seen: Any = seen, taken: Any = taken) -> None:
                opened = await logs.claim(PLACE, seen, session)
                if opened is not None:
                    taken.append(opened)

            async with trio.open_nursery() as nursery:
                for number in range(20):
                    logs = b.logs if number % 2 else SegmentLogs(other)
                    nursery.start_soon(claim, f"{number:016x}", logs)
            [opened] = taken
            state = await b.state()
            assert state == opened.state
            assert (state.session, state.term) == (opened.claim.session, opened.claim.term)
            assert state.term > seen.term


async def test_every_write_of_a_deposed_owner_is_refused_and_changes_nothing(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        old = (await b.open()).claim
        await b.logs.append(old, 0, entries(b"one", b"two"), {"p": ProducerMark(0, 0)}, 6)
        await b.logs.save(old, {"s": b"1"})
        now = await b.open(B)
        for write in (
            b.logs.append(old, 2, entries(b"three"), {"p": ProducerMark(1, 2)}, 11),
            b.logs.save(old, {"s": b"2"}, drained=True),
            b.logs.forget_producers(old, ["p"]),
            b.logs.set_topic_epoch(old, 7),
            b.logs.tell(old, b"[]", 60),
            b.logs.trim(old, 1, 3),
        ):
            with pytest.raises(LogFenced):
                await write
        await b.logs.release(old)
        after = await b.open(B)
        assert (after.cursors, after.producers) == (now.cursors, now.producers) == ({"s": b"1"}, {"p": (0, 0)})
        assert (after.state.first, after.state.next, after.state.topic_epoch) == (0, 2, None)
        assert b"drained" not in kinds(topology)


async def test_an_owner_that_claims_anew_shuts_out_what_it_sent_before(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        first = (await b.open()).claim
        second = (await b.open()).claim
        with pytest.raises(LogFenced):
            await b.logs.append(first, 0, entries(b"late"), {}, 4)
        await b.logs.append(second, 0, entries(b"now"), {}, 3)


async def test_owners_that_take_a_log_from_each_other_lose_and_double_nothing(topology: Topology) -> None:
    """Whatever was confirmed stands at the index that was said, and nothing stands there that nobody sent."""
    async with log_bench(topology.url) as b, open_store(topology.url) as other:
        # The first is alone when it writes, and the last is fenced by nobody: there are two at least.
        alone = b"f" * 16 + b" alone"
        await b.logs.append((await b.open()).claim, 0, entries(alone), {}, len(alone))
        confirmed: dict[int, bytes] = {0: alone}
        sent = {alone}

        async def own(session: str, logs: SegmentLogs) -> None:
            for turn in range(10):
                state = await logs.state(PLACE)
                assert state is not None
                opened = await logs.claim(PLACE, state, session)
                if opened is None:
                    continue
                index, size = opened.state.next, opened.state.size
                for number in range(5):
                    bodies = [f"{session} {turn} {number} {part}".encode() for part in range(number + 1)]
                    sent.update(bodies)
                    size += sum(map(len, bodies))
                    try:
                        await logs.append(opened.claim, index, entries(*bodies), {}, size)
                    except LogFenced:
                        break
                    for body in bodies:
                        assert index not in confirmed
                        confirmed[index] = body
                        index += 1

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(own, f"{number:016x}", SegmentLogs(b.store if number % 2 else other))
        last = await b.open()
        stored = await b.logs.read(last.claim, 0, 1_000)
        assert [entry.index for entry in stored] == list(range(last.state.next))
        assert len({entry.body for entry in stored}) == len(stored)
        assert sum(len(entry.body) for entry in stored) == last.state.size
        assert {entry.body for entry in stored} <= sent
        assert {entry.index: entry.body for entry in stored} == confirmed
        assert len({body.split()[0] for body in confirmed.values()}) > 1


async def test_a_released_log_can_be_claimed_by_anybody_and_written_by_nobody(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        released = (await b.open()).claim
        await b.logs.release(released)
        await b.logs.release(released)
        state = await b.state()
        assert (state.session, state.term, state.ledger) == ("", released.term, released.ledger)
        with pytest.raises(LogFenced):
            await b.logs.append(released, 0, entries(b"late"), {}, 4)
        again = await b.open(B)
        assert again.claim.term > released.term
        assert again.claim.ledger == released.ledger


async def test_terms_grow_even_if_the_store_has_forgotten_the_last_one(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        seen = await b.state()
        first = (await b.open()).claim
        valkey.client().hdel(PLACE.key, "owner", "term")
        second = await b.logs.claim(PLACE, seen, A)
        assert second is not None
        assert second.claim.term > first.term
        with pytest.raises(LogFenced):
            await b.logs.append(first, 0, entries(b"late"), {}, 4)


async def test_the_record_says_who_owns_which_segment_and_the_log_of_changes_when_that_changes(
    topology: Topology,
) -> None:
    other = LogPlace.of_segment(TOPIC, "8000-ffff-1")
    place = LogPlace.of_segment(TOPIC, "0000-7fff-0")
    async with log_bench(topology.url, segments=2) as b:
        assert (await b.topic()).owners == {}
        before = (await b.topic()).version
        await b.open(A, place)
        claim = (await b.open(A, place)).claim
        assert (await b.topic()).owners == {0: A}
        await b.open(B, other)
        assert (await b.topic()).owners == {0: A, 1: B}
        assert kinds(topology) == [b"created", b"owner", b"owner"]
        await b.logs.release(claim)
        assert (await b.topic()).owners == {1: B}
        await b.open(B, place)
        assert (await b.topic()).owners == {0: B, 1: B}
        assert kinds(topology) == [b"created", b"owner", b"owner", b"owner", b"owner"]
        assert (await b.topic()).version == before


async def test_the_owner_of_a_pruned_segment_is_forgotten_and_nobody_claims_it_again(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        opened = await b.open()
        await b.transitions.split(TOPIC, 0)
        child = LogPlace.of_segment(TOPIC, "0000-7fff-1")
        await b.open(B, child)
        seen = await b.state()
        await b.transitions.prune(await b.topic(), [0])
        assert (await b.topic()).owners == {1: B}
        assert await b.logs.state(PLACE) is None
        assert await b.logs.claim(PLACE, seen, B) is None
        await GarbageCollector(b.store, interval=1).collect()
        assert await b.logs.state(PLACE) is None
        assert await b.logs.claim(PLACE, seen, B) is None
        with pytest.raises(LogMissing):
            await b.logs.save(opened.claim, {"s": b"1"})
        assert (await b.topic()).owners == {1: B}
        assert (await b.state(child)).session == B


async def test_what_is_left_of_a_deleted_topic_is_claimed_by_nobody(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        seen = await b.state()
        await b.transitions.delete(TOPIC)
        assert topology.client_for(PLACE.key).exists(PLACE.key)
        assert await b.logs.state(PLACE) is None
        assert await b.logs.claim(PLACE, seen, A) is None


async def test_a_topic_created_again_starts_with_an_empty_log_of_another_ledger(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        ledgers = []
        for _ in range(3):
            opened = await b.open()
            assert (opened.state.next, opened.cursors, opened.producers) == (0, {}, {})
            assert await b.logs.read(opened.claim, 0, 10) == []
            await b.logs.append(opened.claim, 0, entries(b"old"), {"p": ProducerMark(5, 0)}, 3)
            await b.logs.save(opened.claim, {"s": b"1"})
            await b.transitions.delete(TOPIC)
            await b.transitions.create(TOPIC, 1)
            with pytest.raises(LogMissing):
                await b.logs.append(opened.claim, 1, entries(b"late"), {}, 7)
            with pytest.raises(LogMissing):
                await b.logs.index_at(opened.claim, 0)
            ledgers.append(opened.claim.ledger)
        assert ledgers == sorted(set(ledgers))


async def test_the_storage_of_deleted_topics_is_collected_and_that_of_the_living_is_not(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        incarnations = []
        for _ in range(2):
            opened = await b.open()
            await b.logs.append(opened.claim, 0, entries(b"one"), {"p": ProducerMark(0, 0)}, 3)
            await b.logs.save(opened.claim, {"s": b"1"})
            incarnations.append(opened.claim.incarnation)
            if len(incarnations) == 1:
                await b.transitions.delete(TOPIC)
                await b.transitions.create(TOPIC, 1)
        client = topology.client_for(PLACE.key)
        gone, living = (keys.storage_keys(PLACE.key, incarnation) for incarnation in incarnations)
        assert client.exists(*gone) == client.exists(*living) == 3
        await GarbageCollector(b.store, interval=1).collect()
        assert (client.exists(*gone), client.exists(*living)) == (0, 3)
        await b.transitions.delete(TOPIC)
        await GarbageCollector(b.store, interval=1).collect()
        assert client.exists(PLACE.key, *living) == 0


async def test_no_two_logs_have_the_same_ledger(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        topics = [TopicName.scalable("public", "default", f"topic-{number}") for number in range(60)]
        found: list[int] = []

        async def claim(topic: TopicName) -> None:
            await b.transitions.create(topic, 4)
            for number in range(4):
                place = LogPlace.of_segment(topic, f"{number * 0x4000:04x}-{number * 0x4000 + 0x3FFF:04x}-{number}")
                opened = await b.open(place=place)
                assert opened.claim.ledger % keys.BUCKETS == place.bucket
                found.append(opened.claim.ledger)

        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(claim, topic)
        assert len(set(found)) == len(found) == 240
        assert max(found) < 2**53


async def test_ledgers_grow_where_the_clock_went_back_and_where_the_counter_was_lost(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url, segments=3) as b:
        [first, second, third] = (
            LogPlace.of_segment(TOPIC, descriptor) for descriptor in ("0000-5554-0", "5555-aaa9-1", "aaaa-ffff-2")
        )
        counter, client = keys.ledgers_key(first.bucket), valkey.client()
        before = (await b.open(place=first)).claim.ledger
        client.delete(counter)
        # Whoever has lost the counter goes by the clock, which may still show the tick of the first claim.
        await eventually(lambda: milliseconds(client.time()) > before // keys.BUCKETS)
        after = (await b.open(place=second)).claim.ledger
        assert before < after
        client.set(counter, 10**14)
        assert (await b.open(place=third)).claim.ledger == (10**14 + 1) * keys.BUCKETS + first.bucket


async def test_a_classic_topic_is_claimed_like_a_segment_and_only_its_draining_is_told(topology: Topology) -> None:
    async with log_bench(topology.url) as b:
        assert await b.logs.state(CLASSIC) is None
        topology.client_for(CLASSIC.key).hset(CLASSIC.key, mapping={"state": "ACTIVE", "incarnation": "f" * 16})
        opened = await b.open(place=CLASSIC)
        await b.logs.append(opened.claim, 0, entries(b"one"), {}, 3)
        await b.logs.save(opened.claim, {"s": b"1"}, drained=True)
        assert [entry.body for entry in await b.logs.read(opened.claim, 0, 9)] == [b"one"]
        await b.logs.release(opened.claim)
        assert (await b.open(B, CLASSIC)).cursors == {"s": b"1"}
        assert kinds(topology) == [b"created", b"drained"]
        assert (await b.topic()).owners == {}


async def test_the_absence_of_a_segment_counts_only_in_our_store(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        claim = (await b.open()).claim
        valkey.client().flushall()
        with pytest.raises(StoreLost):
            await b.logs.state(PLACE)
        with pytest.raises(StoreLost):
            await b.logs.append(claim, 0, entries(b"one"), {}, 3)
        with pytest.raises(StoreLost):
            await b.logs.standings(b.store.commands, claim.incarnation, [PLACE], ["s"])


@pytest.mark.parametrize(
    ("field", "value"),
    [("next", b"many"), ("ledger", b"\xff"), ("incarnation", b"\xff"), ("owner", b"\xff:1"), ("epoch", b"")],
)
async def test_a_state_that_cannot_be_read_is_called_damaged(valkey: ValkeyProcess, field: str, value: bytes) -> None:
    async with log_bench(valkey.url) as b:
        valkey.client().hset(PLACE.key, field, value)
        with pytest.raises(RecordDamaged):
            await b.logs.state(PLACE)


async def test_a_claim_among_keys_of_other_types_changes_nothing(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        seen = await b.state()
        client = valkey.client()
        for key in (
            PLACE.cursors(seen.incarnation),
            PLACE.producers(seen.incarnation),
            keys.ledgers_key(PLACE.bucket),
        ):
            client.rpush(key, "a list")
            with pytest.raises(StoreError):
                await b.logs.claim(PLACE, seen, A)
            client.delete(key)
        assert await b.state() == seen
        assert (await b.topic()).owners == {}
        await b.open()
