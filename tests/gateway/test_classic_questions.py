"""What clients of classic topics ask a node: how many partitions a topic has, and which topics a namespace has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from controller.classic import ClassicTransitions
from controller.transitions import TopicLimits
from gateway.node import Node
from metadata.classic_records import PartitionedState, PartitionedTopic
from metadata.classic_topics import ClassicTopics
from metadata.store import TopicStore
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from sessions.classic import MAX_QUESTION_SIZE, ClassicService
from tests.support.asking import Asker, asking
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.topology import Topology
from tests.support.waiting import eventually

ORDERS = TopicName.classic("public", "default", "orders")
PREFIX = "persistent://public/default/"
Partitions = api.CommandPartitionedTopicMetadataResponse


def classic_of(node: Node) -> ClassicTransitions:
    return ClassicTransitions(node.store, TopicLimits())


@asynccontextmanager
async def asked(url: str, *, auto_create: bool = True) -> AsyncIterator[tuple[Asker, ClassicTransitions, Node]]:
    async with running_node(url, auto_create=auto_create) as node, asking(node) as asker:
        yield asker, classic_of(node), node


def said(answer: Partitions) -> int | None:
    """The number of partitions, None for TopicNotFound."""
    if answer.response == Partitions.Success:
        assert answer.HasField("partitions")
        return answer.partitions
    assert (answer.error, answer.HasField("partitions")) == (api.TopicNotFound, False)
    assert answer.message
    return None


async def test_partitions_are_told_as_they_are(topology: Topology) -> None:
    async with asked(topology.url) as (asker, classic, node):
        await classic.create_partitioned(ORDERS, 3)
        assert said(await asker.partitions(str(ORDERS))) == 3
        await classic.grow(ORDERS, 5)
        assert said(await asker.partitions(str(ORDERS))) == 5
        assert said(await asker.partitions(str(ORDERS.partition_at(4)))) == 0
        assert said(await asker.partitions("orders")) == 5
        single = TopicName.classic("public", "default", "single")
        await classic.create(single)
        assert said(await asker.partitions(str(single))) == 0
        await transitions_of(node).create(TopicName.scalable("public", "default", "scalable"), 2)
        assert said(await asker.partitions(f"{PREFIX}scalable")) == 0


@pytest.mark.parametrize("name", ["topic://t/n/a", "segment://t/n/a/0000-ffff-0", "non-persistent://t/n/a"])
async def test_topics_of_other_domains_have_no_partitions(valkey: ValkeyProcess, name: str) -> None:
    async with asked(valkey.url, auto_create=False) as (asker, _, _):
        assert said(await asker.partitions(name, may_create=False)) == 0


async def test_asking_creates_nothing_and_says_whether_use_would(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url) as (asker, classic, node):
        assert said(await asker.partitions(f"{PREFIX}new")) == 0
        assert said(await asker.partitions(f"{PREFIX}new", may_create=False)) is None
        assert said(await asker.partitions(f"{PREFIX}new-partition-0")) is None
        assert await classic.topics.list_logs(ORDERS.namespace_name) == []
        assert await node.store.list_topics(ORDERS.namespace_name) == []
        refused = await asker.partitions(f"{PREFIX} blank ")
        assert (refused.response, refused.error) == (Partitions.Failed, api.InvalidTopicName)


async def test_without_auto_creation_a_missing_topic_is_not_found(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url, auto_create=False) as (asker, classic, _):
        assert said(await asker.partitions(str(ORDERS))) is None
        await classic.create(ORDERS)
        assert said(await asker.partitions(str(ORDERS), may_create=False)) == 0


async def test_a_topic_that_is_being_deleted_is_not_found(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url) as (asker, classic, _):
        await classic.create_partitioned(ORDERS, 2)
        found = await classic.topics.get(ORDERS)
        assert isinstance(found, PartitionedTopic)
        await classic.topics.delete_log(ORDERS.partition_at(1))
        await classic.topics.replace_partitioned(found, state=PartitionedState.DELETING)
        assert said(await asker.partitions(str(ORDERS))) is None
        assert said(await asker.partitions(str(ORDERS.partition_at(1)))) is None


async def test_a_bad_name_is_an_error_and_the_connection_stays(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url) as (asker, _, _):
        for name in ("", "topic://t/n", "kafka://t/n/a", "persistent://t/n/a/b"):
            answer = await asker.partitions(name)
            assert (answer.response, answer.error) == (Partitions.Failed, api.InvalidTopicName)
        for refused in (await asker.topics("nowhere"), await asker.watch(".*", namespace="a/b/c")):
            assert (refused.type, refused.error.error) == (BaseCommand.ERROR, api.InvalidTopicName)
        assert await asker.is_alive()


async def test_the_topics_of_a_namespace_are_its_logs(topology: Topology) -> None:
    async with asked(topology.url) as (asker, classic, node):
        await classic.create_partitioned(ORDERS, 2)
        await classic.create(TopicName.classic("public", "default", "日本"))
        await classic.create(TopicName.classic("public", "other", "elsewhere"))
        await transitions_of(node).create(TopicName.scalable("public", "default", "scalable"), 2)
        expected = [f"{PREFIX}orders-partition-0", f"{PREFIX}orders-partition-1", f"{PREFIX}日本"]
        answer = (await asker.topics()).getTopicsOfNamespaceResponse
        assert sorted(answer.topics) == expected
        assert (answer.filtered, answer.changed, answer.topics_hash) == (False, True, topic_set_hash(expected))

        mode = api.CommandGetTopicsOfNamespace
        both = (await asker.topics(mode=mode.ALL)).getTopicsOfNamespaceResponse
        assert sorted(both.topics) == expected
        none = (await asker.topics(mode=mode.NON_PERSISTENT)).getTopicsOfNamespaceResponse
        assert (list(none.topics), none.topics_hash) == ([], "00000000")
        empty = (await asker.topics("acme/nothing")).getTopicsOfNamespaceResponse
        assert (list(empty.topics), empty.changed) == ([], True)


async def test_a_pattern_chooses_topics_and_a_known_hash_spares_them(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url) as (asker, classic, _):
        await classic.create_partitioned(ORDERS, 2)
        await classic.create(TopicName.classic("public", "default", "bills"))
        expected = [f"{PREFIX}orders-partition-0", f"{PREFIX}orders-partition-1"]
        answer = (await asker.topics(pattern=f"{PREFIX}ord.*")).getTopicsOfNamespaceResponse
        assert sorted(answer.topics) == expected
        assert (answer.filtered, answer.changed, answer.topics_hash) == (True, True, topic_set_hash(expected))
        same = (await asker.topics(pattern=f"{PREFIX}ord.*", known=answer.topics_hash)).getTopicsOfNamespaceResponse
        assert (list(same.topics), same.changed, same.topics_hash) == ([], False, answer.topics_hash)
        other = (await asker.topics(pattern=f"{PREFIX}ord.*", known="12345678")).getTopicsOfNamespaceResponse
        assert sorted(other.topics) == expected


@pytest.mark.parametrize("pattern", ["public/default/" + "x" * 60, "public/default/(?=a)b"])
async def test_a_pattern_that_cannot_be_used_gives_all_topics_and_says_so(valkey: ValkeyProcess, pattern: str) -> None:
    async with asked(valkey.url) as (asker, classic, _):
        await classic.create(ORDERS)
        answer = (await asker.topics(pattern=pattern)).getTopicsOfNamespaceResponse
        assert (list(answer.topics), answer.filtered) == ([str(ORDERS)], False)


async def test_more_topics_than_a_frame_holds_are_refused(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url, max_message_size=16 * 1024) as node, asking(node) as asker:
        classic = classic_of(node)
        topics = [TopicName.classic("public", "default", f"{number}-{'x' * 500}") for number in range(40)]
        async with trio.open_nursery() as nursery:
            for topic in topics:
                nursery.start_soon(classic.create, topic)
        for refused in (await asker.topics(), await asker.watch(".*")):
            assert (refused.type, refused.error.error) == (BaseCommand.ERROR, api.NotAllowedError)
        few = (await asker.topics(pattern="public/default/1.*")).getTopicsOfNamespaceResponse
        assert len(few.topics) == 11


class HeldTopics(ClassicTopics):
    """Listings that end when they are let go."""

    def __init__(self, store: TopicStore) -> None:
        super().__init__(store)
        self.begun = 0
        self.let_go = trio.Event()

    async def list_logs(self, namespace: NamespaceName) -> list[str]:
        self.begun += 1
        await self.let_go.wait()
        return await super().list_logs(namespace)


async def test_those_who_ask_before_a_listing_begins_share_it(valkey: ValkeyProcess) -> None:
    async with running_node(valkey.url) as node, trio.open_nursery() as nursery:
        await classic_of(node).create(ORDERS)
        topics = HeldTopics(node.store)
        service = ClassicService(
            nursery=nursery,
            store=node.store,
            topics=topics,
            lists=node.classic.lists,
            auto_create=True,
            frame_limit=5_000_000,
        )
        found: list[list[str]] = []

        async def ask() -> None:
            found.append(await service.names(ORDERS.namespace_name))

        for _ in range(10):
            nursery.start_soon(ask)
        await eventually(lambda: topics.begun == 1)
        # One that came later could be told what was true before it asked.
        nursery.start_soon(ask)
        await eventually(lambda: topics.begun == 2)
        topics.let_go.set()
        await eventually(lambda: found == [["orders"]] * 11)
        assert (topics.begun, service.counters.listings) == (2, 2)


async def test_a_question_that_carries_more_than_a_question_is_refused(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url) as (asker, _, _):
        refused = await asker.topics(known="x" * MAX_QUESTION_SIZE)
        assert (refused.type, refused.error.error) == (BaseCommand.ERROR, api.NotAllowedError)
        assert (await asker.topics(known="x" * 1_000)).type == BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE
