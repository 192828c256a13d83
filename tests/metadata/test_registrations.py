"""Subscriptions and consumers in the store: who may write what, and whose word counts when two write."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import trio

from metadata import keys
from metadata.errors import (
    Fenced,
    RegistrationsFull,
    StoreFull,
    StoreLost,
    SubscriptionMismatch,
    SubscriptionMissing,
    TopicMissing,
    VersionConflict,
)
from metadata.leadership import Leaderships
from metadata.registrations import RegistrationLimits, Registrations
from metadata.store import open_store
from metadata.subscriptions import SubscriptionType
from tests.metadata.registration_bench import CHECKPOINT, EXOTIC, NODE, QUEUE, STREAM, TOPIC, bench, by, given, members
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology

# Attaching.


async def test_a_first_consumer_makes_the_subscription_and_asks_for_a_leader(topology: Topology) -> None:
    """W8: a subscription that a client made is recorded with its type."""
    async with bench(topology.url) as b:
        attached = await b.registrations.attach(TOPIC, "s", STREAM, "c", by("1"))
        stored = await b.topic()
        assert attached is not None
        assert (attached.incarnation, attached.leader, attached.assignment) == (stored.version.incarnation, None, None)
        subscription = await b.subscription()
        assert (subscription.type, subscription.generation, subscription.drained) == (STREAM, 0, frozenset())
        assert subscription.consumers["c"].attachment == by("1")
        assert await b.leaderships.listed() == {keys.path_of(TOPIC): ""}


async def test_attaching_tells_who_leads_and_what_the_consumer_has(topology: Topology) -> None:
    async with bench(topology.url) as b:
        await b.attach("c")
        leader = await b.lead()
        await b.assign(leader, {"c": given(0, 1)})
        attached = await b.registrations.attach(TOPIC, "s", STREAM, "c", by("2"))
        assert attached is not None
        assert (attached.leader, attached.assignment) == (leader, given(0, 1))


async def test_a_missing_topic_is_not_made_by_a_registration(topology: Topology) -> None:
    async with open_store(topology.url) as store:
        registrations = Registrations(store)
        for incarnation in ("", "0" * 16):
            with pytest.raises(TopicMissing):
                await registrations.attach(TOPIC, "s", STREAM, "c", by("1"), incarnation=incarnation)
        with pytest.raises(TopicMissing):
            await registrations.create_subscription(TOPIC, "s", QUEUE, 0)
        with pytest.raises(TopicMissing):
            await registrations.delete_subscription(TOPIC, "s")
        assert await registrations.state(store.commands, TOPIC) is None
        assert await Leaderships(store).listed() == {}
        assert await store.list_topics(TOPIC.namespace_name) == []


async def test_a_consumer_that_comes_again_is_not_taken_to_a_topic_that_was_made_anew(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        before = (await b.topic()).version.incarnation
        await b.attach("c")
        await b.transitions.delete(TOPIC)
        await b.transitions.create(TOPIC, 1)
        with pytest.raises(TopicMissing):
            await b.attach("c", incarnation=before, again=True)
        assert (await b.state()).subscriptions == {}


async def test_every_pair_of_types_but_the_same_is_a_mismatch(topology: Topology) -> None:
    async with bench(topology.url) as b:
        for kind in SubscriptionType:
            await b.registrations.create_subscription(TOPIC, kind, kind, 0)
            for other in SubscriptionType:
                if other is kind:
                    await b.registrations.create_subscription(TOPIC, kind, other, 1)
                    await b.registrations.attach(TOPIC, kind, other, "c", by("1"))
                    continue
                with pytest.raises(SubscriptionMismatch, match=kind):
                    await b.registrations.create_subscription(TOPIC, kind, other, 1)
                with pytest.raises(SubscriptionMismatch, match=kind):
                    await b.registrations.attach(TOPIC, kind, other, "x", by("1"))
        subscriptions = (await b.state()).subscriptions
        assert {name: found.type for name, found in subscriptions.items()} == {kind: kind for kind in SubscriptionType}
        assert all(list(found.consumers) == ["c"] for found in subscriptions.values())


async def test_of_two_connections_with_the_same_name_the_later_has_the_consumer(topology: Topology) -> None:
    """W21: the earlier one can neither close it, nor end it, nor take it back."""
    async with bench(topology.url) as b:
        earlier = await b.attach("c", "1")
        later = await b.attach("c", "2")
        assert not await b.registrations.detach(TOPIC, "s", "c", earlier)
        assert not await b.registrations.leave(TOPIC, "s", "c", earlier)
        assert await b.registrations.attach(TOPIC, "s", STREAM, "c", earlier, again=True) is None
        assert (await b.consumer("c")).attachment == later
        assert await b.registrations.detach(TOPIC, "s", "c", later)
        assert (await b.consumer("c")).attachment == later.detached()
        assert not await b.registrations.detach(TOPIC, "s", "c", later), "it is detached already"


async def test_a_connection_takes_its_consumer_up_again_under_another_node_session(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        attachment = await b.attach("c", "1")
        moved = by("1", node="b" * 16)
        assert await b.registrations.attach(TOPIC, "s", STREAM, "c", moved, again=True) is not None
        assert (await b.consumer("c")).attachment == moved
        # Which session it was attached under does not matter: the connection is the same.
        assert await b.registrations.detach(TOPIC, "s", "c", attachment)
        assert await b.registrations.leave(TOPIC, "s", "c", attachment)
        assert (await b.subscription()).consumers == {}
        assert await b.registrations.attach(TOPIC, "s", STREAM, "c", moved, again=True) is not None


async def test_who_leaves_takes_its_assignment_along(topology: Topology) -> None:
    """W23: nothing is left that a consumer of the same name would find."""
    async with bench(topology.url) as b:
        attachment = await b.attach("c")
        leader = await b.lead()
        await b.assign(leader, {"c": given(0)})
        assert await b.registrations.leave(TOPIC, "s", "c", attachment)
        assert not await b.registrations.leave(TOPIC, "s", "c", attachment)
        attached = await b.registrations.attach(TOPIC, "s", STREAM, "c", by("2"))
        assert attached is not None
        assert attached.assignment is None


async def test_exotic_names_do_not_meet_each_other(topology: Topology) -> None:
    async with bench(topology.url) as b:
        leader = await b.lead()
        for number, name in enumerate(EXOTIC):
            for index, consumer in enumerate(EXOTIC):
                await b.registrations.attach(TOPIC, name, STREAM, consumer, by(f"{number:03d}{index:03d}"))
        state = await b.state()
        assert set(state.subscriptions) == set(EXOTIC)
        for number, name in enumerate(EXOTIC):
            subscription = state.subscriptions[name]
            assert set(subscription.consumers) == set(EXOTIC)
            assert (subscription.generation, subscription.drained) == (0, frozenset())
            assignments = {consumer: given(index % 4) for index, consumer in enumerate(EXOTIC)}
            await b.registrations.assign(state.topic, leader, subscription, assignments, drained=[number])
        found = (await b.state()).subscriptions
        for number, name in enumerate(EXOTIC):
            assert found[name].drained == {number}
            for index, consumer in enumerate(EXOTIC):
                assert found[name].consumers[consumer].assignment == given(index % 4)
                assert found[name].consumers[consumer].attachment == by(f"{number:03d}{index:03d}")
            _, _, read = await b.registrations.consumers(b.store.commands, TOPIC, name, EXOTIC)
            assert read == [found[name].consumers[consumer] for consumer in EXOTIC]
        await b.registrations.leave(TOPIC, "a:", "c:", by(f"{EXOTIC.index('a:'):03d}{EXOTIC.index('c:'):03d}"))
        assert set((await b.subscription("a:")).consumers) == set(EXOTIC) - {"c:"}
        assert set((await b.subscription("a")).consumers) == set(EXOTIC)
        await b.registrations.delete_subscription(TOPIC, "a/b")
        assert set((await b.state()).subscriptions) == set(EXOTIC) - {"a/b"}


async def test_many_consumers_that_attach_at_once_are_all_there(topology: Topology) -> None:
    async with bench(topology.url) as b:
        names = [f"c-{number}" for number in range(500)]
        async with trio.open_nursery() as nursery:
            for number, name in enumerate(names):
                nursery.start_soon(b.attach, name, str(number))
        assert set((await b.subscription()).consumers) == set(names)
        assert (await b.topic()).activity == len(names)


# Subscriptions.


async def test_a_subscription_is_deleted_whoever_is_connected(topology: Topology) -> None:
    async with bench(topology.url) as b:
        await b.attach("c")
        assert set((await b.subscription()).consumers) == {"c"}
        await b.registrations.delete_subscription(TOPIC, "s")
        assert (await b.state()).subscriptions == {}
        assert not topology.client_for(members()).exists(members())
        with pytest.raises(SubscriptionMissing):
            await b.registrations.delete_subscription(TOPIC, "s")


@pytest.mark.parametrize("way", ["detached", "its node is gone"])
async def test_a_consumer_without_a_connection_does_not_hold_up_the_deletion(valkey: ValkeyProcess, way: str) -> None:
    async with bench(valkey.url) as b:
        attachment = await b.attach("c")
        if way == "detached":
            await b.registrations.detach(TOPIC, "s", "c", attachment)
        await b.registrations.delete_subscription(TOPIC, "s", gone=[attachment.node])
        assert (await b.state()).subscriptions == {}


async def test_a_group_with_readers_is_not_deleted_since_they_would_bring_it_back(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        await b.registrations.attach(TOPIC, "g", CHECKPOINT, "r", by("1"))
        with pytest.raises(SubscriptionMismatch, match="close its readers"):
            await b.registrations.delete_subscription(TOPIC, "g")
        await b.registrations.detach(TOPIC, "g", "r", by("1"))
        await b.registrations.delete_subscription(TOPIC, "g")
        assert (await b.state()).subscriptions == {}


async def test_only_the_leader_ends_a_group_and_only_one_without_readers(topology: Topology) -> None:
    """W2: who was deposed meanwhile deletes nothing."""
    async with bench(topology.url) as b:
        await b.registrations.attach(TOPIC, "g", CHECKPOINT, "r", by("1"))
        leader, topic = await b.lead(), await b.topic()
        with pytest.raises(VersionConflict):
            await b.registrations.end_group(topic, leader, "g")
        await b.registrations.leave(TOPIC, "g", "r", by("1"))
        await b.registrations.end_group(topic, leader, "g")
        assert (await b.state()).subscriptions == {}
        await b.registrations.end_group(topic, leader, "g")
        await b.registrations.create_subscription(TOPIC, "g", STREAM, 0)
        with pytest.raises(VersionConflict):
            await b.registrations.end_group(topic, leader, "g")
        await b.lead()
        with pytest.raises(Fenced):
            await b.registrations.end_group(topic, leader, "g")
        assert set((await b.state()).subscriptions) == {"g"}


async def test_subscriptions_and_consumers_are_bounded(topology: Topology) -> None:
    async with bench(topology.url) as b:
        small = Registrations(b.store, RegistrationLimits(subscriptions=2, consumers=3))
        await small.create_subscription(TOPIC, "a", QUEUE, 0)
        for name in ("x", "y", "z"):
            await small.attach(TOPIC, "b", STREAM, name, by(name))
        with pytest.raises(RegistrationsFull, match="max_subscriptions"):
            await small.create_subscription(TOPIC, "c", QUEUE, 0)
        with pytest.raises(RegistrationsFull, match="max_subscriptions"):
            await small.attach(TOPIC, "c", STREAM, "x", by("1"))
        await small.create_subscription(TOPIC, "a", QUEUE, 0)
        await b.assign(await b.lead(), {name: given(0) for name in ("x", "y", "z")}, subscription="b")
        with pytest.raises(RegistrationsFull, match="max_consumers"):
            await small.attach(TOPIC, "b", STREAM, "w", by("1"))
        assert await small.attach(TOPIC, "b", STREAM, "x", by("again")), "whoever is known comes back"
        await small.leave(TOPIC, "b", "y", by("y"))
        await small.attach(TOPIC, "b", STREAM, "w", by("1"))


async def test_a_subscription_whose_consumers_all_left_is_kept_until_it_is_deleted(topology: Topology) -> None:
    async with bench(topology.url) as b:
        attachment = await b.attach("c")
        await b.assign(await b.lead(), {"c": given(0)}, drained=[9])
        await b.registrations.leave(TOPIC, "s", "c", attachment)
        subscription = await b.subscription()
        assert not subscription.consumers
        assert subscription.drained == {9}
        await b.registrations.delete_subscription(TOPIC, "s")
        await b.attach("c")
        assert (await b.subscription()).drained == frozenset(), "of the subscription that is gone"


async def test_a_deleted_topic_takes_everything_along_and_nobody_brings_it_back(topology: Topology) -> None:
    """W5: neither the leader nor a node with consumers leaves anything under the name."""
    async with bench(topology.url) as b:
        attachments = {name: await b.attach(name, nonce) for nonce, name in enumerate_names(EXOTIC)}
        leader = await b.lead()
        seen = await b.state()
        await b.transitions.delete(TOPIC)
        for name, attachment in attachments.items():
            assert not await b.registrations.detach(TOPIC, "s", name, attachment)
            assert not await b.registrations.leave(TOPIC, "s", name, attachment)
            with pytest.raises(TopicMissing):
                await b.registrations.attach(TOPIC, "s", STREAM, name, attachment, again=True)
        with pytest.raises(Fenced):
            await b.assign(leader, {"a": given(0)}, seen=seen)
        with pytest.raises(TopicMissing):
            await b.registrations.create_subscription(TOPIC, "s", STREAM, 0)
        assert await b.leaderships.take(seen.topic, NODE) is None
        assert await b.leaderships.drop(seen.topic, leader, idle=False)
        assert await b.leaderships.drop(seen.topic, leader, idle=True)
        assert await b.registrations.names(TOPIC) == []
        path = keys.path_of(TOPIC)
        for key in (keys.record_key(path), keys.subscriptions_key(path), members()):
            assert not topology.client_for(key).exists(key)
        assert await b.leaderships.listed() == {}
        assert await b.registrations.consumers(b.store.commands, TOPIC, "s", ["a"]) == (None, None, [None])


async def test_a_topic_is_deleted_with_a_subscription_that_appears_while_it_is(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        stored = await b.topic()
        await b.attach("c")
        with pytest.raises(VersionConflict):
            await b.store.delete(TOPIC, stored.version, [], subscriptions=[])
        await b.transitions.delete(TOPIC)
        assert not valkey.client().exists(members())


# A store in trouble.


async def test_a_full_store_takes_no_new_consumers_but_lets_them_go_and_be_assigned(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        attachment = await b.attach("c", "1")
        late = await b.attach("late", "2")
        leader = await b.lead()
        valkey.client().config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreFull):
                await b.attach("more", "3")
            await b.assign(leader, {"c": given(0)})
            await b.registrations.detach(TOPIC, "s", "c", attachment)
            await b.registrations.leave(TOPIC, "s", "late", late)
            await b.registrations.delete_subscription(TOPIC, "s")
        finally:
            valkey.client().config_set("maxmemory", 0)


async def test_absence_on_a_store_that_was_emptied_says_nothing(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        await b.attach("c")
        valkey.client().flushall()
        with pytest.raises(StoreLost):
            await b.registrations.consumers(b.store.commands, TOPIC, "s", ["c"])
        with pytest.raises(StoreLost):
            await b.registrations.state(b.store.commands, TOPIC)


async def test_what_nobody_of_ours_wrote_costs_only_itself(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        await b.attach("odd", "1")
        await b.attach("fine", "2")
        await b.attach("c", "3", subscription="other")
        await b.assign(await b.lead(), {"odd": given(0), "fine": given(1)})
        client = valkey.client()
        client.hset(members(), "c:odd", "no JSON")
        client.hset(members(), "a:fine", "no JSON")
        subscription = await b.subscription()
        assert subscription.consumers["odd"].attachment.node == "", "nobody's, so that its grace ends"
        assert subscription.consumers["odd"].assignment == given(0)
        assert subscription.consumers["fine"].assignment is None
        client.hset(keys.subscriptions_key(keys.path_of(TOPIC)), "s", "nothing known")
        assert set((await b.state()).subscriptions["other"].consumers) == {"c"}


def enumerate_names(names: Iterable[str]) -> list[tuple[str, str]]:
    return [(str(number), name) for number, name in enumerate(names)]
