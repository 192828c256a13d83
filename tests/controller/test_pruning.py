"""Segments that everybody has drained are pruned, oldest first, when their retention is over, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from controller.retention import FOR_EVER, Kept, Retention
from controller.transitions import wall_clock_ms
from metadata import keys
from metadata.leadership import Leaderships
from metadata.records import StoredTopic
from protocol.names import TopicName
from tests.controller.staged_leaders import PATH, QUEUE, STREAM, TOPIC, Stage, stage
from tests.support.consumers import CHECKPOINT, LIMIT, registering, until_shared
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("ask_segments_often")

HOUR = 3600.0


async def test_a_segment_is_pruned_when_every_durable_subscription_has_drained_it(valkey: ValkeyProcess) -> None:
    """W8: also those without a consumer, and those that only the admin API made."""
    async with stage(valkey, segments=1, prune_interval=0.2) as s:
        await s.join("a", "stream")
        await s.registrations.create_subscription(TOPIC, "queue", QUEUE, 0)
        await s.registrations.create_subscription(TOPIC, "idle", STREAM, 0)
        await s.split(0)
        for subscription in ("stream", "queue", "idle"):
            await s.stays_segments(0, 1, 2, seconds=0.5)
            s.segments.drain(0, subscription=subscription)
        await s.until_segments(1, 2)
        # Counted when the leader hears that it is written, which others may see before it.
        await eventually(lambda: s.counters.pruned == 1)


async def test_groups_of_readers_hold_nothing_back_and_go_with_their_last_member(valkey: ValkeyProcess) -> None:
    """W9"""
    async with (
        stage(valkey, segments=1, prune_interval=0.2) as s,
        registering(s.node.pulsar_url) as client,
    ):
        reader = await client.subscribed(TOPIC, "readers", "r", kind=CHECKPOINT)
        await s.split(0)
        await s.until_segments(1, 2)
        await until_shared([reader], [1, 2])
        await client.leave(reader)

        async def gone() -> bool:
            return await s.registrations.names(TOPIC) == []

        await eventually(gone, within=LIMIT)


async def test_a_topic_without_subscriptions_is_pruned_as_soon_as_it_may(valkey: ValkeyProcess) -> None:
    """And nobody needs to have asked for its leader: a sealed segment does."""
    async with stage(valkey, segments=1, prune_interval=0.2) as s:
        await transitions_of(s.node).split(TOPIC, 0)
        await s.until_segments(1, 2)

        async def retired() -> bool:
            return await Leaderships(s.node.store).listed() == {} and not len(s.node.leaders)

        await eventually(retired, within=LIMIT)


async def test_segments_are_pruned_oldest_first(valkey: ValkeyProcess) -> None:
    """What is drained waits for its ancestors, so that the order of messages can be told to the end."""
    async with stage(valkey, segments=1, prune_interval=0.2) as s:
        await s.registrations.create_subscription(TOPIC, "s", STREAM, 0)
        await s.split(0)  # 1, 2
        await s.split(1)  # 3, 4
        await s.split(3)  # 5, 6
        s.segments.drain(1, 3)
        await s.stays_segments(0, 1, 2, 3, 4, 5, 6)
        s.segments.drain(0)
        await s.until_segments(2, 4, 5, 6)
        layout = await s.layout()
        layout.validate()
        assert all(segment.parent_ids == () for segment in layout.segments.values())


async def test_segments_are_kept_for_the_retention(valkey: ValkeyProcess) -> None:
    async with stage(valkey, segments=1, prune_interval=0.1, retention=1.5) as s:
        begun = trio.current_time()
        await s.split(0)
        await s.until_segments(1, 2)
        assert trio.current_time() - begun >= 1.4


@pytest.mark.parametrize(("retention", "message_age"), [(0.0, HOUR), (60.0, HOUR), (HOUR, 0.0), (HOUR, 60.0)])
async def test_segments_are_kept_for_the_longer_of_retention_and_message_age(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch, retention: float, message_age: float
) -> None:
    """Readers keep no place that the server knows of: a split must not take from them what a log would have kept."""
    passed_ms = 0
    monkeypatch.setattr("controller.leader.wall_clock_ms", lambda: wall_clock_ms() + passed_ms)
    async with stage(valkey, segments=1, retention=retention, message_age=message_age) as s:
        await s.split(0)
        passed_ms = round(HOUR * 1000) // 2
        await until_looked(s)
        assert set((await s.layout()).segments) == {0, 1, 2}
        passed_ms = round(HOUR * 1000)
        await until_looked(s)
        await s.until_segments(1, 2)


async def until_looked(s: Stage) -> None:
    """The leader has looked at its sealed segments twice, and so acted on what it saw the first time."""
    leader = s.node.leaders._leading[PATH]
    for _ in range(2):
        await eventually(lambda: leader._prune_at < float("inf"), within=LIMIT)
        leader.look_at_sealed()
        await eventually(lambda: leader._prune_at > trio.current_time(), within=LIMIT)


async def test_segments_of_a_topic_that_keeps_them_for_ever_are_not_pruned(valkey: ValkeyProcess) -> None:
    async with stage(valkey, segments=1, prune_interval=0.1) as s:
        await transitions_of(s.node).update_retention(TOPIC, -1)
        await s.split(0)
        await s.stays_segments(0, 1, 2)
        assert s.counters.pruned == 0


async def test_merge_depths_survive_pruning(valkey: ValkeyProcess) -> None:
    """W12"""
    async with stage(valkey, segments=2, prune_interval=0.1) as s:
        for depth in range(1, 5):
            first, second = (segment.segment_id for segment in (await s.layout()).active)
            await s.merge(first, second)
            [merged] = (await s.layout()).active
            assert merged.merge_depth == depth
            await s.until_segments(merged.segment_id)
            await s.split(merged.segment_id)
            active = (await s.layout()).active
            assert [segment.merge_depth for segment in active] == [depth, depth]
            await s.until_segments(*(segment.segment_id for segment in active))


async def test_what_a_pruned_segment_stored_is_collected(valkey: ValkeyProcess) -> None:
    """W11: from a list, so that a failure is not a leak."""
    async with stage(valkey, segments=1, prune_interval=0.1) as s:
        await s.split(0)
        await s.until_segments(1, 2)
        await s.node.garbage.collect()
        assert valkey.client().hlen(keys.garbage_key(keys.bucket_of(PATH))) == 0
        left: Any = valkey.client().keys("/segments/*")
        assert {key.rpartition(b"/")[2] for key in left} == {b"0000-7fff-1", b"8000-ffff-2"}


async def test_a_segment_that_a_seek_went_back_to_is_not_pruned(valkey: ValkeyProcess) -> None:
    """The leader has found it drained, and the seek is answered before the leader writes."""
    async with stage(valkey, segments=1, prune_interval=0.3) as s:
        go_on = await until_about_to_prune(s)
        await s.seek(0)
        go_on.set()
        await s.stays_segments(0, 1, 2)


async def test_a_segment_that_a_new_subscription_has_not_read_is_not_pruned(valkey: ValkeyProcess) -> None:
    """The subscription is confirmed before the leader writes what it decided without it."""
    async with stage(valkey, segments=1, prune_interval=0.3) as s:
        go_on = await until_about_to_prune(s)
        await s.registrations.create_subscription(TOPIC, "late", QUEUE, 0)
        go_on.set()
        await s.stays_segments(0, 1, 2)


async def test_a_subscription_that_cannot_be_read_holds_segments_back(valkey: ValkeyProcess) -> None:
    """Nobody can tell what it has drained, and what is kept can still be pruned later."""
    async with stage(valkey, segments=1, prune_interval=0.2) as s:
        await s.registrations.create_subscription(TOPIC, "odd", STREAM, 0)
        valkey.client().hset(keys.subscriptions_key(PATH), "odd", "STREAM of something")
        await s.split(0)
        await s.stays_segments(0, 1, 2)


async def until_about_to_prune(s: Stage) -> trio.Event:
    """A parent is drained, and the leader has begun to look for what can go; the event lets it go on."""
    await s.join("a")
    begun, go_on = trio.Event(), trio.Event()
    retention = s.node.leaders._around.retention
    original = retention.of

    async def of(topic: StoredTopic) -> Kept:
        kept = await original(topic)
        begun.set()
        await go_on.wait()
        return kept

    retention.of = of  # type: ignore[method-assign]
    await s.split(0)
    s.segments.drain(0)
    with trio.fail_after(LIMIT):
        await begun.wait()
    return go_on


# Retention.


async def test_the_word_of_the_topic_counts_before_that_of_its_namespace_and_the_servers(
    valkey: ValkeyProcess,
) -> None:
    async with running_node(valkey.url) as node:
        retention = Retention(node.store, default=7.5)
        changes = transitions_of(node)
        topic = TopicName.scalable("acme", "eu", "orders")
        namespace = topic.namespace_name

        async def kept() -> Kept:
            stored = await node.store.get(topic)
            assert stored is not None
            return await retention.of(stored)

        await node.store.create_namespace(namespace, b'{"other": 1}')
        await changes.create(topic, 1)
        assert await kept() == Kept(7_500)
        for policies, expected in (
            (
                b'{"retention_policies": {"retentionTimeInMinutes": 3, "retentionSizeInMB": 10}}',
                Kept(180_000, 10 * 1024 * 1024),
            ),
            (b'{"retention_policies": {"retentionTimeInMinutes": 0}}', Kept(0)),
            (b'{"retention_policies": {"retentionTimeInMinutes": -1}}', FOR_EVER),
            (b'{"retention_policies": {"retentionTimeInMinutes": "soon"}}', FOR_EVER),
            (b"no JSON", FOR_EVER),
        ):
            valkey.client().hset(keys.NAMESPACES, str(namespace), b"0" * 16 + b" " + policies)
            assert await kept() == expected
        await changes.update_retention(topic, 1)
        assert await kept() == Kept(60_000)
        await changes.update_retention(topic, -1, megabytes=3)
        assert await kept() == Kept(-1, 3 * 1024 * 1024)
        await changes.update_retention(topic, -1)
        assert await kept() == FOR_EVER
        await changes.update_retention(topic, None)
        assert await kept() == FOR_EVER, "as the namespace says"


def test_segments_stay_for_no_time_where_no_size_is_kept() -> None:
    assert Kept(60_000, 0).segments_ms(0) == Kept(-1, 0).segments_ms(0) == 0
    assert (Kept(60_000, 1).segments_ms(0), FOR_EVER.segments_ms(0)) == (60_000, -1)


def test_segments_stay_at_least_as_long_as_messages_do() -> None:
    assert Kept(0).segments_ms(5_000) == Kept(60_000, 0).segments_ms(5_000) == Kept(-1, 0).segments_ms(5_000) == 5_000
    assert (Kept(60_000).segments_ms(5_000), FOR_EVER.segments_ms(5_000)) == (60_000, -1)
