"""Assignments in the store: only the leader of now writes them, to who is still there, once, on what it has seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import trio

from metadata.errors import Fenced, SubscriptionMissing, VersionConflict
from metadata.records import Leader
from metadata.registrations import Registrations
from metadata.store import open_store
from metadata.subscriptions import Subscription, TopicState
from tests.metadata.registration_bench import STREAM, TOPIC, bench, by, given, members
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.topology import Topology
from tests.support.waiting import eventually

# Assigning.


async def test_an_assignment_of_another_leader_or_incarnation_is_refused_and_writes_nothing(
    topology: Topology,
) -> None:
    """W2: by equality, so that neither an older nor a newer term passes, nor the same one with another nonce."""
    async with bench(topology.url) as b:
        await b.attach("c")
        first = await b.lead()
        second = await b.lead()
        strangers = [
            first,
            replace_leader(second, term=second.term + 1),
            replace_leader(second, term=second.term - 1),
            replace_leader(second, nonce="0" * 16),
            replace_leader(second, session="0" * 16),
            replace_leader(second, http_url="http://b:2"),
        ]
        consumer = await b.consumer("c")
        for stranger in strangers:
            with pytest.raises(Fenced):
                await b.assign(stranger, {"c": given(0)}, drained=[7])
            with pytest.raises(Fenced):
                await b.assign(stranger, {}, evicted=[consumer])
        state = await b.state()
        with pytest.raises(Fenced):
            await b.assign(second, {"c": given(0)}, seen=of_incarnation(state, "0" * 16))
        assert state.subscriptions["s"] == replace(await b.subscription())
        assert (state.subscriptions["s"].generation, state.subscriptions["s"].drained) == (0, frozenset())
        assert (await b.consumer("c")).assignment is None
        assert await b.assign(second, {"c": given(0)}) == 1


async def test_a_decision_on_an_old_generation_is_a_conflict(topology: Topology) -> None:
    async with bench(topology.url) as b:
        await b.attach("c")
        leader = await b.lead()
        seen = await b.state()
        assert await b.assign(leader, {"c": given(0)}, seen=seen) == 1
        with pytest.raises(VersionConflict):
            await b.assign(leader, {"c": given(1)}, seen=seen)
        assert (await b.consumer("c")).assignment == given(0)


async def test_an_assignment_for_a_subscription_that_is_gone_is_refused(topology: Topology) -> None:
    async with bench(topology.url) as b:
        await b.attach("c")
        leader = await b.lead()
        seen = await b.state()
        await b.registrations.delete_subscription(TOPIC, "s")
        with pytest.raises(SubscriptionMissing):
            await b.assign(leader, {"c": given(0)}, seen=seen)
        assert (await b.state()).subscriptions == {}


async def test_a_decision_about_a_deleted_subscription_says_nothing_of_the_next_one_of_its_name(
    topology: Topology,
) -> None:
    """Least of all what it has drained: nobody would be given those segments again."""
    async with bench(topology.url) as b:
        await b.registrations.create_subscription(TOPIC, "s", STREAM, 0)
        leader = await b.lead()
        seen = await b.state()
        await b.registrations.delete_subscription(TOPIC, "s")
        await b.registrations.create_subscription(TOPIC, "s", STREAM, 0, from_start=True)
        with pytest.raises(SubscriptionMissing):
            await b.assign(leader, {}, drained=[0], seen=seen)
        assert ((await b.subscription()).generation, (await b.subscription()).drained) == (0, frozenset())
        assert await b.assign(leader, {}, drained=[0]) == 1


async def test_nothing_is_assigned_to_who_left_meanwhile(topology: Topology) -> None:
    async with bench(topology.url) as b:
        attachment = await b.attach("gone")
        await b.attach("here", "2")
        leader = await b.lead()
        seen = await b.state()
        await b.registrations.leave(TOPIC, "s", "gone", attachment)
        await b.assign(leader, {"gone": given(0), "here": given(1)}, seen=seen)
        assert set((await b.subscription()).consumers) == {"here"}
        fields: Any = topology.client_for(members()).hgetall(members())
        assert b"a:gone" not in fields


async def test_who_comes_back_while_it_is_evicted_never_shares_a_segment(topology: Topology) -> None:
    """The leader gives its segments to others in the same write. Either all of that happens, or nothing."""
    async with bench(topology.url) as b:
        late = await b.attach("late", "1")
        await b.attach("other", "2")
        leader = await b.lead()
        await b.assign(leader, {"late": given(0, 1), "other": given(2, 3)})
        await b.registrations.detach(TOPIC, "s", "late", late)
        seen = await b.state()
        back = await b.registrations.attach(TOPIC, "s", STREAM, "late", by("3"))
        assert back is not None
        assert back.assignment == given(0, 1), "this is what it is told"
        with pytest.raises(VersionConflict):
            await b.assign(
                leader, {"other": given(0, 1, 2, 3)}, evicted=[seen.subscriptions["s"].consumers["late"]], seen=seen
            )
        subscription = await b.subscription()
        assert subscription.consumers["late"].attachment == by("3")
        assert twice_owned(subscription) == []


async def test_who_is_evicted_is_gone_with_its_assignment(topology: Topology) -> None:
    async with bench(topology.url) as b:
        await b.attach("late", "1")
        await b.attach("other", "2")
        leader = await b.lead()
        await b.assign(leader, {"late": given(0), "other": given(1)})
        seen = await b.consumer("late")
        await b.assign(leader, {"other": given(0, 1)}, evicted=[seen])
        subscription = await b.subscription()
        assert set(subscription.consumers) == {"other"}
        fields: Any = topology.client_for(members()).hgetall(members())
        assert b"a:late" not in fields
        # Deciding the same again hurts nobody who has come since.
        await b.attach("late", "3")
        with pytest.raises(VersionConflict):
            await b.assign(leader, {}, evicted=[seen])
        assert (await b.consumer("late")).attachment == by("3")


async def test_drained_segments_are_kept_replaced_and_taken_back(topology: Topology) -> None:
    async with bench(topology.url) as b:
        await b.attach("c")
        leader = await b.lead()
        await b.assign(leader, {}, drained=[3, 1])
        assert (await b.subscription()).drained == {1, 3}
        await b.assign(leader, {"c": given(0)})
        assert (await b.subscription()).drained == {1, 3}
        await b.assign(leader, {}, drained=[])
        assert (await b.subscription()).drained == frozenset()


async def test_generations_are_exact_after_nine_quadrillion_of_them(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        await b.attach("c")
        leader = await b.lead()
        valkey.client().hset(members(), "generation", str(2**53 - 2))
        assert await b.assign(leader, {"c": given(0)}) == 2**53 - 1


# Lost replies: scripts that are sent again must not undo what happened in between.


async def test_an_assignment_whose_reply_is_lost_is_written_once(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b, FaultProxy.open(*valkey.address) as proxy:
        await b.attach("c")
        leader = await b.lead()
        async with open_store(proxy.url) as far:
            proxy.cut_before_reply(lambda request: b'"segments"' in request)
            generation = await Registrations(far).assign(
                await b.topic(), leader, await b.subscription(), {"c": given(0)}
            )
            assert proxy.cuts == 1
            assert generation == 1
        assert (await b.subscription()).generation == 1


async def test_a_registration_whose_reply_is_lost_does_not_take_the_consumer_from_who_came_after(
    valkey: ValkeyProcess,
) -> None:
    """W21: sent again by itself, it is still the older connection."""
    async with bench(valkey.url) as b, FaultProxy.open(*valkey.address) as proxy, open_store(proxy.url) as far:
        earlier, later = by("1"), by("2")
        await b.attach("other", "3")  # the subscription is there
        proxy.cut_before_reply(lambda request: earlier.nonce.encode() in request)

        async def attach_earlier() -> None:
            await Registrations(far).attach(TOPIC, "s", STREAM, "c", earlier)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attach_earlier)
            await eventually(lambda: proxy.cuts)
            # Before the lane has connected again.
            proxy.stall()
            await b.attach("c", "2")
            proxy.resume()
        assert (await b.consumer("c")).attachment == later


async def test_signing_off_twice_because_of_a_lost_reply_is_signing_off_once(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b, FaultProxy.open(*valkey.address) as proxy, open_store(proxy.url) as far:
        for sign_off, left in ((Registrations(far).detach, {"c"}), (Registrations(far).leave, set())):
            attachment = await b.attach("c")
            cuts = proxy.cuts
            proxy.cut_before_reply(lambda request: b"EVALSHA" in request and b"0000000000000001" in request)
            await sign_off(TOPIC, "s", "c", attachment)
            assert proxy.cuts == cuts + 1
            assert set((await b.subscription()).consumers) == left


def twice_owned(subscription: Subscription) -> list[int]:
    """The segments that more than one consumer has, or has still to release."""
    counted = Counter(
        segment_id
        for consumer in subscription.consumers.values()
        if consumer.assignment is not None
        for segment_id in (*consumer.assignment.segment_ids, *consumer.assignment.releasing)
    )
    return [segment_id for segment_id, count in counted.items() if count > 1]


def replace_leader(leader: Leader, **changes: Any) -> Leader:
    values = {name: getattr(leader, name) for name in leader.__struct_fields__}
    return Leader(**(values | changes))


def of_incarnation(state: TopicState, incarnation: str) -> TopicState:
    version = replace(state.topic.version, incarnation=incarnation)
    return replace(state, topic=replace(state.topic, version=version))
