"""Watches of classic topics by a pattern: whoever watches ends with what the store has, and its hash."""

from __future__ import annotations

import trio

from controller.classic import ClassicTransitions
from controller.transitions import TopicLimits
from metadata import keys
from metadata.store import open_store
from protocol.hashing import topic_set_hash
from protocol.names import TopicName
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.gateway.test_classic_questions import PREFIX, asked
from tests.support.asking import Asker, Followed, asking
from tests.support.nodes import created_classic, running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.topology import Topology
from tests.support.waiting import eventually

ORDERS = TopicName.classic("public", "default", "orders")
BILLS = TopicName.classic("public", "default", "bills")


async def until(asker: Asker, followed: Followed, expected: set[str]) -> None:
    """Take updates in until they add up to this set; the last one has its hash."""
    while followed.topics != expected:
        followed.take(await asker.update())
    assert followed.hash == topic_set_hash(expected)


async def test_a_watch_is_answered_with_the_matching_topics_and_then_told_what_changes(topology: Topology) -> None:
    async with asked(topology.url) as (asker, classic, node):
        await classic.create(BILLS)
        await classic.create_partitioned(ORDERS, 2)
        answer = await asker.watch(f"{PREFIX}orders.*")
        success = answer.watchTopicListSuccess
        assert (answer.type, success.watcher_id) == (BaseCommand.WATCH_TOPIC_LIST_SUCCESS, 1)
        followed = Followed(success)
        assert followed.topics == {str(ORDERS.partition_at(index)) for index in range(2)}
        assert followed.hash == topic_set_hash(followed.topics)

        await classic.grow(ORDERS, 4)
        # Neither of these concerns the watch.
        await transitions_of(node).create(TopicName.scalable("public", "default", "orders-scalable"), 1)
        await classic.create(TopicName.classic("public", "default", "other"))
        await until(asker, followed, {str(ORDERS.partition_at(index)) for index in range(4)})
        late = TopicName.classic("public", "default", "orders-late")
        await classic.create(late)
        await classic.delete_partitioned(ORDERS)
        await until(asker, followed, {str(late)})


async def test_a_known_hash_is_answered_without_topics(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url) as (asker, classic, node):
        await classic.create(ORDERS)
        first = (await asker.watch(".*")).watchTopicListSuccess
        async with asking(node) as other:
            again = (await other.watch(".*", known=first.topics_hash)).watchTopicListSuccess
            assert (list(again.topic), again.topics_hash) == ([], first.topics_hash)
            await classic.create(BILLS)
            update = await other.update()
            assert list(update.new_topics) == [str(BILLS)]
        assert node.classic.lists.counters.hash_matches == 1


async def test_a_watch_that_is_opened_again_is_refreshed_and_goes_on(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url) as (asker, classic, node):
        await classic.create(ORDERS)
        first = (await asker.watch(".*")).watchTopicListSuccess
        same = (await asker.watch(".*", known=first.topics_hash)).watchTopicListSuccess
        assert list(same.topic) == []
        full = (await asker.watch(".*", known="12345678")).watchTopicListSuccess
        assert list(full.topic) == [str(ORDERS)]
        # Under another pattern a hash says nothing.
        other = (await asker.watch("public/.*", known=first.topics_hash)).watchTopicListSuccess
        assert list(other.topic) == [str(ORDERS)]
        await classic.create(BILLS)
        update = await asker.update()
        assert list(update.new_topics) == [str(BILLS)]
        counters = node.classic.lists.counters
        assert (counters.watches, counters.patterns) == (1, 1)


async def test_a_closed_watch_is_told_nothing_and_leaves_nothing(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url) as (asker, classic, node):
        await asker.watch(".*", watcher_id=1)
        await asker.watch("public/.*", watcher_id=2)
        assert (await asker.close_watch(1)).type == BaseCommand.SUCCESS
        assert (await asker.close_watch(17)).type == BaseCommand.SUCCESS
        await classic.create(ORDERS)
        assert (await asker.update()).watcher_id == 2
        counters = node.classic.lists.counters
        assert (counters.watches, counters.patterns) == (1, 1)
        async with asking(node) as other:
            await other.watch("another/.*")
            assert counters.watches == 2
        await eventually(lambda: (counters.watches, counters.patterns) == (1, 1))


async def test_a_pattern_that_cannot_be_used_is_refused(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url) as (asker, _, _):
        for pattern, code in (("x" * 51, api.NotAllowedError), ("(", api.InvalidTopicName)):
            refused = await asker.watch(pattern)
            assert (refused.type, refused.error.error) == (BaseCommand.ERROR, code)
        assert await asker.is_alive()


async def test_a_topic_made_anew_is_told_as_gone_and_new(valkey: ValkeyProcess) -> None:
    async with asked(valkey.url) as (asker, classic, _):
        await classic.create(ORDERS)
        await asker.watch(".*")
        await classic.delete(ORDERS)
        await classic.create(ORDERS)
        # Together or one after the other, as it happens to be read.
        events: list[str] = []
        while len(events) < 2:
            update = await asker.update()
            events += [*(f"-{name}" for name in update.deleted_topics), *(f"+{name}" for name in update.new_topics)]
        assert events == [f"-{ORDERS}", f"+{ORDERS}"]


async def test_watchers_end_with_what_the_store_has_after_it_was_away(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url) as node,
        asking(node) as asker,
        open_store(valkey.url) as direct,
    ):
        classic = ClassicTransitions(direct, TopicLimits())
        await classic.create(BILLS)
        followed = Followed((await asker.watch(".*")).watchTopicListSuccess)
        proxy.refuse()
        proxy.cut()
        await classic.create_partitioned(ORDERS, 30)
        await classic.delete(BILLS)
        proxy.accept()
        await until(asker, followed, {str(ORDERS.partition_at(index)) for index in range(30)})


async def test_many_watchers_of_changing_topics_all_end_with_the_same_set(topology: Topology) -> None:
    async with running_node(topology.url) as node, open_store(topology.url) as direct:
        classic = ClassicTransitions(direct, TopicLimits())
        topics = [TopicName.classic("public", "default", f"t-{number}") for number in range(40)]
        expected = {str(topic) for topic in topics[20:]}
        ready = 0

        async def follow(pattern: str) -> None:
            nonlocal ready
            async with asking(node) as asker:
                followed = Followed((await asker.watch(pattern)).watchTopicListSuccess)
                ready += 1
                await until(asker, followed, expected)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for number in range(30):
                    nursery.start_soon(follow, f"public/default/t-.{{1,{number % 3 + 2}}}")
                for topic in topics[:20]:
                    await classic.create(topic)
                await eventually(lambda: ready == 30, within=30)
                for gone, come in zip(topics[:20], topics[20:], strict=True):
                    await classic.delete(gone)
                    await classic.create(come)


async def test_a_name_that_is_none_in_the_index_hides_only_itself_also_after_a_restart(valkey: ValkeyProcess) -> None:
    for number in range(2):
        async with running_node(valkey.url) as node, asking(node) as asker:
            if not number:
                await created_classic(node, ORDERS)
                path = keys.path_of(ORDERS)
                index = keys.classic_index_key(keys.bucket_of(path), ORDERS.namespace_name)
                for name in (b"a/b", b"\xff", b" -partition-0"):
                    valkey.client().hset(index, name, b"0")
            followed = Followed((await asker.watch(".*")).watchTopicListSuccess)
            assert followed.topics == {str(ORDERS)}
            assert await asker.is_alive()
            assert not node.failures
