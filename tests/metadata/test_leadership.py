"""Who leads a topic: taken by one, lost to another, given back, and never kept by who was deposed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import trio

from controller.transitions import TopicLimits, Transitions
from layout import records
from metadata import keys
from metadata.errors import Fenced
from metadata.leadership import NOBODY, Leaderships
from metadata.node_sessions import NodeRecord
from metadata.records import Leader, StoredTopic
from metadata.registrations import Registrations
from metadata.store import TopicStore, open_store
from metadata.subscriptions import Attachment, SubscriptionType
from protocol.names import TopicName
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.topology import Topology

TOPIC = TopicName.scalable("public", "default", "orders")
PATH = keys.path_of(TOPIC)
A = NodeRecord("a" * 16, "pulsar://a:1", "http://a:2")
B = NodeRecord("b" * 16, "pulsar://b:1", "http://b:2")


@dataclass(frozen=True, slots=True)
class Bench:
    store: TopicStore
    leaderships: Leaderships
    transitions: Transitions

    async def topic(self) -> StoredTopic:
        stored = await self.store.get(TOPIC)
        assert stored is not None
        return stored

    async def lead(self, node: NodeRecord = A) -> Leader:
        leader = await self.leaderships.take(await self.topic(), node)
        assert leader is not None
        return leader

    async def attach(self, name: str = "c") -> None:
        attachment = Attachment(A.session, "1" * 16)
        await Registrations(self.store).attach(TOPIC, "s", SubscriptionType.STREAM, name, attachment)


@asynccontextmanager
async def bench(url: str) -> AsyncIterator[Bench]:
    async with open_store(url) as store:
        found = Bench(store, Leaderships(store), Transitions(store, TopicLimits()))
        await found.transitions.create(TOPIC, 2)
        yield found


async def test_of_many_nodes_that_saw_no_leader_exactly_one_leads(topology: Topology) -> None:
    """And everybody else can read who."""
    async with bench(topology.url) as b, open_store(topology.url) as other:
        seen = await b.topic()
        nodes = [NodeRecord(f"{number:016x}", f"pulsar://{number}:1", f"http://{number}:2") for number in range(40)]
        taken: list[Leader] = []

        async def take(node: NodeRecord, leaderships: Leaderships) -> None:
            leader = await leaderships.take(seen, node)
            if leader is not None:
                taken.append(leader)

        async with trio.open_nursery() as nursery:
            for number, node in enumerate(nodes):
                nursery.start_soon(take, node, b.leaderships if number % 2 else Leaderships(other))
        [leader] = taken
        assert (await b.topic()).leader == leader
        assert await b.leaderships.listed() == {PATH: leader.session}


async def test_a_leader_is_replaced_only_by_who_saw_it(topology: Topology) -> None:
    async with bench(topology.url) as b:
        before = await b.topic()
        first = await b.lead(A)
        seen = await b.topic()
        assert await b.leaderships.take(before, B) is None
        second = await b.leaderships.take(seen, B)
        assert second is not None
        assert second.term > first.term
        assert await b.leaderships.take(seen, A) is None
        assert (await b.topic()).leader == second
        assert await b.leaderships.listed() == {PATH: B.session}


async def test_terms_grow_also_where_a_clock_is_far_behind(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        ahead = Leader(A.session, time.time_ns(), "0" * 16, "", "")  # a million times later than now
        valkey.client().hset(keys.record_key(PATH), "leader", ahead.fence)
        second = await b.lead(B)
        assert second.term == ahead.term + 1


async def test_the_same_node_twice_is_two_leaders(topology: Topology) -> None:
    """W2: the nonce tells them apart, also after a fail-over that lost the last term."""
    async with bench(topology.url) as b:
        seen = await b.topic()
        first = await b.lead(A)
        topology.client_for(keys.record_key(PATH)).hdel(keys.record_key(PATH), "leader")  # as if never written
        second = await b.leaderships.take(seen, A)
        assert second is not None
        assert (second.nonce, second.fence) != (first.nonce, first.fence)
        with pytest.raises(Fenced):
            await b.transitions.split(TOPIC, 0, fence=first.fence)
        await b.transitions.split(TOPIC, 0, fence=second.fence)


async def test_an_entry_that_nobody_of_ours_wrote_leads_nobody_and_is_replaced(topology: Topology) -> None:
    async with bench(topology.url) as b:
        for entry in (b"no JSON", b"{}", b"\xff\xfe", b'"host:8080"'):
            topology.client_for(keys.record_key(PATH)).hset(keys.record_key(PATH), "leader", entry)
            stored = await b.topic()
            assert stored.leader is None
            leader = await b.leaderships.take(stored, A)
            assert leader is not None
            assert (await b.topic()).leader == leader


async def test_a_deposed_leader_can_neither_split_nor_merge_nor_prune(topology: Topology) -> None:
    """W2: its writes are refused as a whole, whatever the version."""
    async with bench(topology.url) as b:
        old = await b.lead(A)
        await b.transitions.split(TOPIC, 0, fence=old.fence)
        new = await b.lead(B)
        stored = await b.topic()
        with pytest.raises(Fenced):
            await b.transitions.split(TOPIC, 2, fence=old.fence)
        with pytest.raises(Fenced):
            await b.transitions.merge(TOPIC, 2, 3, fence=old.fence)
        with pytest.raises(Fenced):
            await b.transitions.prune(stored, [0], fence=old.fence)
        assert await b.topic() == stored
        await b.transitions.prune(stored, [0], fence=new.fence)
        assert set(records.decode((await b.topic()).value).layout.segments) == {1, 2, 3}


async def test_a_leader_of_a_topic_that_was_made_anew_is_fenced(topology: Topology) -> None:
    """Even if the entry came back byte for byte."""
    async with bench(topology.url) as b:
        leader = await b.lead(A)
        before = await b.topic()
        await b.transitions.delete(TOPIC)
        await b.transitions.create(TOPIC, 2)
        assert (await b.topic()).leader is None
        with pytest.raises(Fenced):
            await b.transitions.split(TOPIC, 0, fence=leader.fence)
        assert await b.leaderships.take(before, A) is None
        topology.client_for(keys.record_key(PATH)).hset(keys.record_key(PATH), "leader", leader.fence)
        with pytest.raises(Fenced):
            await b.store.replace(TOPIC, before.version, before.value, fence=leader.fence)


async def test_a_leader_that_resigns_leaves_the_topic_listed_for_others(topology: Topology) -> None:
    async with bench(topology.url) as b:
        leader = await b.lead(A)
        assert await b.leaderships.drop(await b.topic(), leader, idle=False)
        assert (await b.topic()).leader is None
        assert await b.leaderships.listed() == {PATH: NOBODY}
        assert await b.leaderships.drop(await b.topic(), leader, idle=False), "a second time is none"
        assert await b.leaderships.listed() == {PATH: NOBODY}


async def test_a_leader_that_resigns_late_does_not_depose_its_successor(topology: Topology) -> None:
    async with bench(topology.url) as b:
        seen = await b.topic()
        old = await b.lead(A)
        new = await b.lead(B)
        for idle in (True, False):
            assert await b.leaderships.drop(replace(seen, activity=0), old, idle=idle)
            assert (await b.topic()).leader == new
            assert await b.leaderships.listed() == {PATH: B.session}


async def test_an_idle_topic_is_struck_off_the_list(topology: Topology) -> None:
    async with bench(topology.url) as b:
        leader = await b.lead(A)
        assert await b.leaderships.drop(await b.topic(), leader, idle=True)
        assert (await b.topic()).leader is None
        assert await b.leaderships.listed() == {}


async def test_a_topic_that_got_a_consumer_since_is_not_idle(topology: Topology) -> None:
    async with bench(topology.url) as b:
        leader = await b.lead(A)
        seen = await b.topic()
        await b.attach()
        assert not await b.leaderships.drop(seen, leader, idle=True)
        assert (await b.topic()).leader == leader
        assert await b.leaderships.listed() == {PATH: A.session}


@pytest.mark.parametrize("operation", ["split", "merge"])
async def test_a_topic_that_got_a_sealed_segment_since_is_not_idle(topology: Topology, operation: str) -> None:
    """Nobody would look for the segment again: who needs a leader is found in the list only."""
    async with bench(topology.url) as b:
        leader = await b.lead(A)
        seen = await b.topic()
        if operation == "split":
            await b.transitions.split(TOPIC, 0)
        else:
            await b.transitions.merge(TOPIC, 0, 1)
        await b.leaderships.drop(seen, leader, idle=True)
        assert PATH in await b.leaderships.listed()


async def test_a_topic_with_a_sealed_segment_asks_for_a_leader(topology: Topology) -> None:
    async with bench(topology.url) as b:
        assert await b.leaderships.listed() == {}
        await b.transitions.split(TOPIC, 0)
        assert await b.leaderships.listed() == {PATH: NOBODY}
        leader = await b.lead(A)
        await b.transitions.split(TOPIC, 1, fence=leader.fence)
        assert await b.leaderships.listed() == {PATH: A.session}, "it has one"


async def test_a_change_of_properties_asks_for_no_leader(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        await b.transitions.update_properties(TOPIC, {"team": "blue"})
        assert await b.leaderships.listed() == {}


async def test_a_deleted_topic_is_not_listed(topology: Topology) -> None:
    """W5"""
    async with bench(topology.url) as b:
        await b.attach()
        await b.lead(A)
        await b.transitions.delete(TOPIC)
        assert await b.leaderships.listed() == {}
        assert not topology.client_for(keys.record_key(PATH)).exists(keys.record_key(PATH))


async def test_topics_of_all_buckets_and_names_are_listed(topology: Topology) -> None:
    topics = [TopicName("topic", "t=1", "n.s:2", name) for name in ("a/b", "ä%2Fö", "日本語", "{b000}", "x" * 1024)]
    topics += [TopicName("topic", "t", "n", f"topic-{number}") for number in range(300)]
    async with open_store(topology.url) as store:
        transitions, leaderships = Transitions(store, TopicLimits()), Leaderships(store)

        async def lead(topic: TopicName) -> None:
            assert await leaderships.take(await transitions.create(topic, 1), A) is not None

        await together(lead, topics)
        listed = await leaderships.listed()
        assert {keys.topic_at(path) for path in listed} == set(topics)
        assert set(listed.values()) == {A.session}


async def test_every_change_of_leader_is_in_the_change_log(topology: Topology) -> None:
    """W27: so that watchers hear who leads."""
    log = keys.changes_key(keys.bucket_of(PATH))
    async with bench(topology.url) as b:
        leader = await b.lead(A)
        await b.leaderships.drop(await b.topic(), leader, idle=False)
        leader = await b.lead(B)
        await b.leaderships.drop(await b.topic(), leader, idle=True)
    entries: Any = topology.client_for(log).xrange(log)
    kinds = [entry[b"kind"] for _, entry in entries]
    assert kinds == [b"created", b"controller", b"resigned", b"controller", b"controller"]
    assert {entry[b"topic"].decode() for _, entry in entries} == {PATH}


async def test_a_lead_whose_reply_is_lost_is_the_callers(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b, FaultProxy.open(*valkey.address) as proxy, open_store(proxy.url) as far:
        proxy.cut_before_reply(lambda request: b"EVALSHA" in request and A.session.encode() in request)
        leader = await Leaderships(far).take(await b.topic(), A)
        assert proxy.cuts == 1
        assert leader is not None
        assert (await b.topic()).leader == leader
        proxy.cut_before_reply(lambda request: b"EVALSHA" in request and A.session.encode() in request)
        assert await Leaderships(far).drop(await b.topic(), leader, idle=True)
        assert proxy.cuts == 2
        assert await b.leaderships.listed() == {}


async def test_a_full_store_can_still_change_its_leaders(valkey: ValkeyProcess) -> None:
    async with bench(valkey.url) as b:
        valkey.client().config_set("maxmemory", 1)
        try:
            leader = await b.lead(A)
            await b.transitions.split(TOPIC, 0, fence=leader.fence)
            assert await b.leaderships.drop(await b.topic(), leader, idle=False)
        finally:
            valkey.client().config_set("maxmemory", 0)


async def together(act: Any, values: Sequence[Any]) -> None:
    async with trio.open_nursery() as nursery:
        for value in values:
            nursery.start_soon(act, value)
