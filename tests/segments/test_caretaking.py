"""Logs that no client uses: who opens them, so that they are trimmed, and which of them are left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import pytest
import trio

from controller.migration import Migrations
from controller.transitions import TopicLimits
from metadata import keys
from metadata.errors import StoreUnavailable
from metadata.log_places import LogPlace
from metadata.log_states import Claim, LogState, Opened
from metadata.registrations import RegistrationLimits, Registrations
from metadata.store import TopicStore
from metadata.subscriptions import SubscriptionType
from protocol.client.consuming import open_consumer
from protocol.client.pool import open_pool
from protocol.client.producing import open_producer
from protocol.names import NamespaceName, TopicName
from segments.caretaking import Caretaker
from segments.cursors import Cursor
from segments.keeping import Keeping, OverQuota, Quota
from segments.upkeep import Upkeep
from tests.segments.test_hosting import LIMIT, THERE, FalteringLogs, HostBench, host_bench
from tests.segments.test_messages import received, send_numbers
from tests.segments.test_retained_messages import consumed
from tests.support.logs import PLACE, TOPIC, A, B, entries
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

GONE: Final = "c" * 16  # a node that was there once
GOES_AT_ONCE: Final = Keeping()
FOR_EVER: Final = Keeping(-1)
NO_QUOTA: Final = Quota()


async def abandoned(b: HostBench, marks: Sequence[int], session: str = GONE) -> Claim:
    """A log of three messages, with subscriptions that have consumed it so far."""
    claim = (await b.bench.open(session)).claim
    await b.bench.logs.append(claim, 0, entries(b"one", b"two", b"three"), {}, 11)
    cursors = {f"s{number}": Cursor(mark).encode() for number, mark in enumerate(marks)}
    await b.bench.logs.save(claim, cursors)
    b.subscribed.update(cursors)
    return claim


def caretaker(
    b: HostBench,
    *,
    logs_in: Callable[[], Sequence[LogPlace]] = lambda: [PLACE],
    keep: Keeping = GOES_AT_ONCE,
    quota: Quota = NO_QUOTA,
) -> Caretaker:
    async def listed(_: int) -> AsyncIterator[Sequence[LogPlace]]:
        await trio.lowlevel.checkpoint()
        yield logs_in()

    async def subscriptions(_: TopicName) -> Mapping[str, str | None]:
        await trio.lowlevel.checkpoint()
        return dict.fromkeys(b.subscribed, "")

    async def keeping(_: LogPlace) -> Keeping:
        await trio.lowlevel.checkpoint()
        return keep

    return Caretaker(b.hosting, b.logs, listed, subscriptions, keeping, quota=quota, interval=3600)


@pytest.mark.parametrize("marks", [[2], [0, 2], []])
async def test_log_of_which_a_part_is_consumed_is_opened_when_its_owner_is_gone(
    valkey: ValkeyProcess, marks: Sequence[int]
) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, marks)
        await caretaker(b).visit(PLACE.bucket)
        assert [owned.place for owned in b.hosting.logs] == [PLACE]
        assert (await b.bench.state()).session == A


async def test_log_that_was_given_up_is_opened(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await b.bench.logs.release(await abandoned(b, [1], B))
        b.cluster.nodes.append(THERE)
        b.cluster.nodes.reverse()
        await caretaker(b).visit(PLACE.bucket)
        b.cluster.nodes.reverse()
        await caretaker(b).visit(PLACE.bucket)
        assert len(b.hosting.logs) == 1, "by one of the two"


async def test_log_of_a_living_node_is_left_to_it(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [2], B)
        b.cluster.unseen.add(B)
        await caretaker(b).visit(PLACE.bucket)
        assert not b.hosting.logs


@pytest.mark.parametrize("marks", [[-1], [-1, 2]])
async def test_log_that_somebody_has_still_to_consume_is_left_alone(
    valkey: ValkeyProcess, marks: Sequence[int]
) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, marks)
        await caretaker(b).visit(PLACE.bucket)
        assert not b.hosting.logs


async def test_log_is_left_alone_that_a_subscription_has_still_to_come_to(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [2])
        b.subscribed.add("late")
        await caretaker(b).visit(PLACE.bucket)
        assert not b.hosting.logs


async def test_log_is_left_alone_while_nothing_of_it_can_go(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [2])
        await caretaker(b, keep=FOR_EVER).visit(PLACE.bucket)
        assert not b.hosting.logs


async def test_log_over_an_evicting_quota_is_opened_although_nobody_has_consumed_it(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [-1])
        await caretaker(b, quota=Quota(5, OverQuota.REFUSE)).visit(PLACE.bucket)
        assert not b.hosting.logs
        await caretaker(b, quota=Quota(5, OverQuota.EVICT)).visit(PLACE.bucket)
        assert len(b.hosting.logs) == 1


async def test_what_a_deleted_subscription_has_left_holds_up_nothing(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [-1, 2])
        b.subscribed.remove("s0")
        await caretaker(b).visit(PLACE.bucket)
        [owned] = b.hosting.logs
        await eventually(lambda: set(owned.subscriptions) == {"s1"}, LIMIT)


async def test_log_that_this_node_could_not_give_up_is_opened_again(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [2], A)
        await caretaker(b).visit(PLACE.bucket)
        assert len(b.hosting.logs) == 1


async def test_log_is_given_up_again_when_what_can_go_is_gone(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [1])
        await caretaker(b).visit(PLACE.bucket)
        [owned] = b.hosting.logs
        await owned.keep(GOES_AT_ONCE)
        assert (owned.first, owned.next) == (2, 3)
        await b.upkeep.give_up_unused()
        assert b.hosting.logs == [owned], "somebody may come soon"
        await b.upkeep.give_up_unused()
        assert not b.hosting.logs
        await caretaker(b).visit(PLACE.bucket)
        assert not b.hosting.logs, "nothing more can go"


async def test_damaged_log_costs_only_itself(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url, segments=2) as b:
        damaged, whole = [LogPlace.of_segment(TOPIC, descriptor) for descriptor in ("0000-7fff-0", "8000-ffff-1")]
        for place, cursor in ((damaged, b"no cursor"), (whole, Cursor(0).encode())):
            claim = (await b.bench.open(GONE, place)).claim
            await b.bench.logs.append(claim, 0, entries(b"one"), {}, 3)
            cursors = place.cursors(claim.incarnation)
            await b.bench.store.commands.call(place.slot, "HSET", cursors, "s", cursor)
        b.subscribed.add("s")
        await caretaker(b, logs_in=lambda: [damaged, whole]).visit(damaged.bucket)
        assert [owned.place for owned in b.hosting.logs] == [whole]


async def test_log_that_cannot_be_opened_costs_only_itself(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url, segments=2) as b:
        damaged, whole = [LogPlace.of_segment(TOPIC, descriptor) for descriptor in ("0000-7fff-0", "8000-ffff-1")]
        b.subscribed.add("s")
        for place, mark in ((damaged, b"no mark"), (whole, b"0 0")):
            claim = (await b.bench.open(GONE, place)).claim
            await b.bench.logs.append(claim, 0, entries(b"one"), {}, 3)
            await b.bench.logs.save(claim, {"s": Cursor(0).encode()})
            producers = place.producers(claim.incarnation)
            await b.bench.store.commands.call(place.slot, "HSET", producers, "p", mark)
        for first in (damaged, whole):
            await caretaker(b, logs_in=partial(list, (first,))).visit(first.bucket)
        assert [owned.place for owned in b.hosting.logs] == [whole]
        assert (await b.bench.state(damaged)).session == ""


async def test_log_that_cannot_be_trimmed_costs_only_itself(
    valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with host_bench(valkey.url, segments=2) as b:
        places = [LogPlace.of_segment(TOPIC, descriptor) for descriptor in ("0000-7fff-0", "8000-ffff-1")]
        logs = [await b.hosting.open(place.name) for place in places]
        kept = []

        async def keeping(place: LogPlace) -> Keeping:
            await trio.lowlevel.checkpoint()
            if place == places[0]:
                raise ValueError("not foreseen")
            kept.append(place)
            return GOES_AT_ONCE

        async def nobody(_: TopicName) -> Mapping[str, str | None]:
            return {}

        await Upkeep(b.hosting, b.cluster, nobody, keeping, interval=3600).trim()
        assert kept == [logs[1].place]
        assert "not foreseen" in caplog.text


async def test_empty_log_is_left_alone(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await b.bench.open(GONE)
        await caretaker(b).visit(PLACE.bucket)
        assert not b.hosting.logs


async def test_log_is_claimed_only_as_it_was_seen(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [2])
        seen = await b.bench.state()
        await b.bench.open(B)
        await b.hosting.adopt(PLACE, seen)
        assert not b.hosting.logs
        assert (await b.bench.state()).session == B


async def test_store_that_does_not_answer_is_asked_again_in_the_next_round(valkey: ValkeyProcess) -> None:
    def unknown() -> Sequence[LogPlace]:
        raise StoreUnavailable("The store does not answer now.")

    async with host_bench(valkey.url) as b:
        await abandoned(b, [2])
        await caretaker(b, logs_in=unknown).visit(PLACE.bucket)
        b.logs.failures = 1
        await caretaker(b).visit(PLACE.bucket)
        assert not b.hosting.logs
        await caretaker(b).visit(PLACE.bucket)
        assert len(b.hosting.logs) == 1


async def test_fault_in_one_bucket_does_not_hold_up_the_others(
    valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> Sequence[LogPlace]:
        raise RuntimeError("not foreseen")

    async with host_bench(valkey.url) as b:
        await caretaker(b, logs_in=broken).visit(PLACE.bucket)
    assert "not foreseen" in caplog.text


async def test_node_that_stops_opens_nothing(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        await abandoned(b, [2])
        seen: LogState = await b.bench.state()
        await b.hosting.release_all()
        await b.hosting.adopt(PLACE, seen)
        assert not b.hosting.logs


class SlowClaims(FalteringLogs):
    """Logs are claimed when that is allowed."""

    def __init__(self, store: TopicStore) -> None:
        super().__init__(store)
        self.claiming, self.allowed = trio.Event(), trio.Event()

    async def claim(self, place: LogPlace, expected: LogState, session: str) -> Opened | None:
        self.claiming.set()
        await self.allowed.wait()
        return await super().claim(place, expected, session)


async def test_log_that_was_being_opened_when_the_node_stopped_is_given_up(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url, logs_of=SlowClaims) as b:
        assert isinstance(b.logs, SlowClaims)
        await abandoned(b, [2])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.hosting.adopt, PLACE, await b.bench.state())
            await b.logs.claiming.wait()
            await b.hosting.release_all()
            b.logs.allowed.set()
        assert not b.hosting.logs
        assert (await b.bench.state()).session == ""


async def test_messages_go_that_no_client_has_touched_since_the_node_started(valkey: ValkeyProcess) -> None:
    namespace = NamespaceName("acme", "eu")
    scalable = TopicName.scalable("acme", "eu", "orders")
    classic = [TopicName.classic("acme", "eu", name) for name in ("single", "several")]
    async with (
        running_node(valkey.url, message_age=0.0, rebalance_interval=3600.0) as before,
        open_pool(before.pulsar_url) as pool,
    ):
        await before.store.create_namespace(namespace, b"{}")
        await transitions_of(before).create(scalable, 2)
        await created_classic(before, classic[0])
        await created_classic(before, classic[1], 3)
        for topic in (scalable, *classic):
            await consumed(before, pool, topic)
        used = {owned.name for owned in before.data.hosting.logs if owned.next}
    async with running_node(valkey.url, message_age=0.0, rebalance_interval=3600.0) as after:
        assert not after.data.hosting.logs
        for bucket in range(keys.BUCKETS):
            await after.data.caretaker.visit(bucket)
        logs = after.data.hosting.logs
        assert {owned.name for owned in logs} == used
        await after.data.upkeep.trim()
        assert [owned.next - owned.first for owned in logs] == [0] * len(logs)


@pytest.mark.parametrize("partitions", [0, 3])
async def test_messages_of_a_migrated_topic_stay_for_a_subscription_that_is_still_to_come(
    valkey: ValkeyProcess, partitions: int
) -> None:
    topic = TopicName.classic("acme", "eu", "orders")
    async with (
        running_node(valkey.url, message_age=0.0, rebalance_interval=3600.0) as before,
        open_pool(before.pulsar_url) as pool,
    ):
        await before.store.create_namespace(NamespaceName("acme", "eu"), b"{}")
        classic = await created_classic(before, topic, partitions)
        async with open_producer(pool, str(topic)) as producer:
            await send_numbers(producer, range(20))
        await Migrations(before.store, classic, TopicLimits()).migrate(topic)
        registrations = Registrations(before.store, RegistrationLimits())
        await registrations.create_subscription(topic.canonical, "late", SubscriptionType.QUEUE, 0, from_start=True)
        await before.data.upkeep.trim()
    async with running_node(valkey.url, message_age=0.0, rebalance_interval=3600.0) as after:
        for bucket in range(keys.BUCKETS):
            await after.data.caretaker.visit(bucket)
        assert not after.data.hosting.logs
        async with (
            open_pool(after.pulsar_url) as pool,
            open_consumer(pool, str(topic.canonical), "late", initial_position="earliest") as consumer,
        ):
            assert len(await received(consumer, 20)) == 20
