"""Appends that wait for replicas: confirmed when these have them, refused when not, and never one behind the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from layout import records
from metadata.errors import LogFenced, OutcomeUnknown, StoreUnavailable, TooFewReplicas
from metadata.link import Link
from metadata.replication import Replication
from metadata.segment_logs import LogPlace, SegmentLogs
from metadata.store import open_store
from tests.conftest import Stores
from tests.support.logs import PLACE, TOPIC, LogBench, entries, log_bench
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.valkeys import Replicated
from tests.support.waiting import eventually


@pytest.fixture
def replicated(stores: Stores) -> Replicated:
    found = stores.clean("replica")
    assert isinstance(found, Replicated)
    return found


def waits(server: ValkeyProcess) -> int:
    stats = server.info("commandstats")
    return int(stats["cmdstat_wait"]["calls"]) if "cmdstat_wait" in stats else 0


async def until_replicated(write: Callable[[], Awaitable[None]]) -> None:
    """Repeat what wants replicas until it has them."""

    async def done() -> bool:
        try:
            await write()
        except TooFewReplicas:
            return False
        return True

    await eventually(done, within=30)


async def link_of(b: LogBench, place: LogPlace = PLACE) -> Link:
    endpoint = b.store.directory.owner(place.slot)
    assert endpoint is not None
    return await b.store.appends.link(endpoint)


@pytest.mark.slow
async def test_an_append_is_confirmed_once_the_replica_has_it(replicated: Replicated) -> None:
    async with log_bench(replicated.url) as b:
        claim = (await b.open()).claim
        await b.logs.append(claim, 0, entries(b"one"), {}, 3, replicas=1, replica_timeout=5)
        assert replicated.replica.client().xlen(PLACE.log(claim.incarnation)) == 1


@pytest.mark.slow
async def test_what_was_stored_on_another_connection_is_confirmed_once_the_replica_has_it(
    replicated: Replicated,
) -> None:
    async with log_bench(replicated.url) as before:
        claim = (await before.open()).claim
        replicated.cut_replication()
        await before.logs.append(claim, 0, entries(b"one"), {}, 3)
    async with open_store(replicated.url) as store:
        logs = SegmentLogs(store)
        with pytest.raises(TooFewReplicas, match="0 of 1"):
            await logs.confirm(claim, 1, replica_timeout=0.05)
        replicated.restore_replication()
        await until_replicated(lambda: logs.confirm(claim, 1, replica_timeout=0.2))
        assert replicated.replica.client().xlen(PLACE.log(claim.incarnation)) == 1
        with pytest.raises(LogFenced):
            await logs.confirm(dataclasses.replace(claim, term=claim.term + 1), 1)


@pytest.mark.slow
async def test_entries_are_stored_even_if_too_few_replicas_confirm_them(replicated: Replicated) -> None:
    async with log_bench(replicated.url) as b:
        claim = (await b.open()).claim
        with pytest.raises(TooFewReplicas, match="of 2"):
            await b.logs.append(claim, 0, entries(b"one"), {}, 3, replicas=2, replica_timeout=0.05)
        replicated.cut_replication()
        with pytest.raises(TooFewReplicas, match="0 of 1"):
            await b.logs.append(claim, 1, entries(b"two"), {}, 6, replicas=1, replica_timeout=0.05)
        replicated.restore_replication()
        assert [entry.body for entry in await b.logs.read(claim, 0, 9)] == [b"one", b"two"]

        async def append_more() -> None:
            state = await b.state()
            await b.logs.append(claim, state.next, entries(b"more"), {}, 9, replicas=1, replica_timeout=0.2)

        await until_replicated(append_more)


@pytest.mark.slow
async def test_an_owner_whose_entries_were_lost_by_a_fail_over_learns_of_it_before_it_appends(
    replicated: Replicated,
) -> None:
    """Otherwise the log would have a hole, or an old index a new meaning under the same claim."""
    async with log_bench(replicated.url) as b:
        claim = (await b.open()).claim
        await b.logs.append(claim, 0, entries(b"one"), {}, 3, replicas=1, replica_timeout=5)
        replicated.cut_replication()
        await b.logs.append(claim, 1, entries(b"two", b"three"), {}, 11)
        replicated.fail_over()

        async def refused() -> bool:
            try:
                await b.logs.append(claim, 3, entries(b"four"), {}, 15)
            except LogFenced:
                return True
            except StoreUnavailable:
                return False
            raise RuntimeError("stored behind a hole")

        await eventually(refused, within=30)
        again = await b.open()
        assert (again.state.next, again.state.size) == (1, 3)
        await b.logs.append(again.claim, 1, entries(b"four"), {}, 7)
        assert [entry.body for entry in await b.logs.read(again.claim, 0, 9)] == [b"one", b"four"]


async def test_many_logs_ask_for_replicas_together(valkey: ValkeyProcess) -> None:
    """Each by itself would take a hundred times the limit, and seem to be a dead store."""
    async with log_bench(valkey.url, segments=100) as b:
        segments = records.decode_layout((await b.topic()).value).segments.values()
        places = [LogPlace.of_segment(TOPIC, segment.descriptor) for segment in segments]
        claims = [(await b.open(place=place)).claim for place in places]
        before, refused = waits(valkey), 0

        async def append(number: int) -> None:
            nonlocal refused
            with pytest.raises(TooFewReplicas):
                await b.logs.append(claims[number], 0, entries(b"one"), {}, 3, replicas=1, replica_timeout=0.1)
            refused += 1

        async with trio.open_nursery() as nursery:
            for number in range(len(claims)):
                nursery.start_soon(append, number)
        assert refused == 100
        assert 1 <= waits(valkey) - before <= 10
        assert b.store.appends.counters.lost == 0


async def test_those_who_wait_with_one_that_is_cancelled_get_their_answer(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        link = await link_of(b)
        replication = Replication(longest=5)
        answers: dict[int, int] = {}
        scopes = [trio.CancelScope() for _ in range(4)]

        async def ask(number: int) -> None:
            with scopes[number]:
                answers[number] = await replication.confirmed(link, 1, 0.3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, 0)
            await eventually(lambda: link in replication._lines and replication._lines[link].asking)
            for number in (1, 2, 3):
                nursery.start_soon(ask, number)
            # Whoever of them asks for all after the first has gone: if it goes, too, another one asks.
            for number in (0, 1, 2):
                await trio.testing.wait_all_tasks_blocked()
                scopes[number].cancel()
        assert answers[3] == 0


async def test_a_lost_connection_leaves_it_open_who_has_what(valkey: ValkeyProcess) -> None:
    async with FaultProxy.open(*valkey.address) as proxy, log_bench(proxy.url) as b:
        claim = (await b.open()).claim
        proxy.cut_before_reply(lambda request: b"WAIT" in request)
        with pytest.raises(OutcomeUnknown):
            await b.logs.append(claim, 0, entries(b"one"), {}, 3, replicas=1, replica_timeout=0.05)
        again = await b.open()
        assert again.state.next == 1
        # Nothing of it is left for the next one.
        with pytest.raises(TooFewReplicas):
            await b.logs.append(again.claim, 1, entries(b"two"), {}, 6, replicas=1, replica_timeout=0.05)


async def test_a_limit_beyond_that_of_the_connection_is_cut(valkey: ValkeyProcess) -> None:
    async with log_bench(valkey.url) as b:
        link = await link_of(b)
        with trio.fail_after(30):
            assert await Replication(longest=0.05).confirmed(link, 1, 3_600) == 0
        assert link.usable
