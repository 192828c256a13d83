"""The children of a split or a merge wait until their ancestors are drained, and again after a seek back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from layout.segments import Segment
from metadata.subscriptions import SubscriptionType
from protocol.names import TopicName
from tests.controller.staged_leaders import SETTINGS, TOPIC, ScriptedSegments, Stage, all_open, stage, until_steady
from tests.support.consumers import LIMIT, registering, stays, until_shared
from tests.support.nodes import running_node
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("ask_segments_often")


async def test_children_are_held_back_until_all_their_ancestors_are_drained(valkey: ValkeyProcess) -> None:
    """W14: sealed ones in the middle, too."""
    async with stage(valkey, segments=1) as s:
        await s.join("a")
        await s.join("b")
        await s.until_owned(0)
        await s.split(0)  # 1, 2
        await s.split(1)  # 3, 4
        s.segments.drain(1)
        await s.stays_owned(0)
        s.segments.drain(0)
        await s.until_owned(2, 3, 4)


async def test_the_child_of_a_merge_waits_for_both_its_parents(valkey: ValkeyProcess) -> None:
    async with stage(valkey, segments=2) as s:
        await s.join("a")
        await s.merge(0, 1)
        await s.until_owned(0, 1)
        s.segments.drain(1)
        await s.until_owned(0)
        s.segments.drain(0)
        await s.until_owned(2)


async def test_subscriptions_drain_at_their_own_pace_and_groups_of_readers_wait_for_nothing(
    valkey: ValkeyProcess,
) -> None:
    async with stage(valkey, segments=1) as s:
        for subscription in ("fast", "slow"):
            await s.join("a", subscription)
        await s.join("a", "readers", SubscriptionType.CHECKPOINT)
        await s.split(0)
        s.segments.drain(0, subscription="fast")
        await s.until_owned(1, 2, subscription="fast")
        await s.until_owned(0, subscription="slow")
        await s.until_owned(0, 1, 2, subscription="readers")
        assert not any(subscription == "readers" for subscription, _ in s.segments.asked)


async def test_what_was_drained_stays_drained_for_the_next_leader(valkey: ValkeyProcess) -> None:
    """W18: whose segments do not know it, or are not loaded, and consumers are not disturbed."""
    async with (
        stage(valkey, segments=1) as s,
        running_node(valkey.url, **SETTINGS) as other,
        registering(s.node.pulsar_url) as client,
    ):
        consumer = await client.subscribed(TOPIC, "s", "c")
        await s.split(0)
        s.segments.drain(0)
        await until_shared([consumer], [1, 2])
        heir = Stage(other, valkey, ScriptedSegments())
        before = consumer.history
        await s.node.leaders.resign()
        await other.leaders.lead(TOPIC)
        await eventually(lambda: heir.counters.rounds, within=LIMIT)
        await stays(lambda: consumer.history == before, 0.3)
        assert heir.segments.asked == [], "there is nothing to ask about"
        # And it is still drained when something else is decided.
        second = await client.subscribed(TOPIC, "s", "d")
        await until_shared([consumer, second], [1, 2])


async def test_a_seek_back_withdraws_the_children_until_the_parent_is_drained_again(valkey: ValkeyProcess) -> None:
    """W15"""
    async with stage(valkey, segments=1) as s, registering(s.node.pulsar_url) as client:
        consumer = await client.subscribed(TOPIC, "s", "c")
        await s.split(0)
        s.segments.drain(0)
        await until_shared([consumer], [1, 2])
        await s.seek(0)
        await until_shared([consumer], [0])
        assert (await s.subscription()).drained == set()
        await s.stays_owned(0, seconds=0.3)
        s.segments.drain(0)
        await until_shared([consumer], [1, 2])
        assert consumer.history == [{0}, {1, 2}, {0}, {1, 2}]


async def test_a_seek_back_takes_effect_in_spite_of_a_round_that_is_under_way(valkey: ValkeyProcess) -> None:
    """The leader has asked the segments before they were moved, and writes after."""
    async with stage(valkey, segments=1) as s:
        await s.join("a")
        await s.split(0)
        await s.until_owned(0)
        sought = False

        async def seek() -> None:
            nonlocal sought
            if not sought and 0 in s.segments.done.get("s", ()):
                sought = True
                await s.seek(0)

        # Drained, says the segment; then the subscription is moved back, before that is written down.
        s.recording.after_reading = None
        original = s.segments.drained

        async def drained(topic: TopicName, subscription: str, segments: Sequence[Segment]) -> frozenset[int]:
            found = await original(topic, subscription, segments)
            await seek()
            return found

        s.segments.drained = drained  # type: ignore[method-assign]
        s.segments.drain(0)
        await eventually(lambda: sought, within=LIMIT)
        await s.stays_owned(0)
        assert (await s.subscription()).drained == set()


async def test_a_segment_that_is_withdrawn_and_given_out_again_is_handed_over_like_any_other(
    valkey: ValkeyProcess,
) -> None:
    async with stage(valkey, segments=1) as s:
        await s.join("a")
        await s.split(0)
        s.segments.drain(0)
        await s.until_owned(1, 2)
        s.segments.open = all_open("a", [1, 2])
        await s.seek(0)
        await s.until_owned(0)
        await s.join("b")
        s.segments.drain(0)
        await eventually(lambda: {1, 2} & set(s.written[-1][1]["a"].segment_ids), within=LIMIT)
        assert not (await s.owners())["b"] & {1, 2}, "they are open at a"
        s.segments.open.clear()
        await s.until_owned(1, 2)
        assert {len(ids) for ids in (await s.owners()).values()} == {1}


@pytest.mark.slow
async def test_segments_are_asked_when_something_happens_and_by_no_timer(valkey: ValkeyProcess) -> None:
    """W19: consumers that wait for a parent to be drained cost nothing until its owner says that it is."""
    async with stage(valkey, segments=1) as s:
        await s.join("a")
        await s.split(0)
        await eventually(lambda: s.segments.asked, within=LIMIT)
        await until_steady(lambda: len(s.segments.asked))
        rounds = s.counters.rounds
        await stays(lambda: s.counters.rounds == rounds, 1.5)
        s.segments.drain(0)
        await s.until_owned(1, 2)


async def test_a_pruned_ancestor_counts_as_drained_and_is_forgotten(valkey: ValkeyProcess) -> None:
    """W15, W19: nothing waits for what is gone, and no id of it is kept."""
    async with stage(valkey, segments=1, prune_interval=0.2) as s:
        await s.join("a")
        await s.split(0)
        s.segments.drain(0)
        await s.until_owned(1, 2)
        await s.until_segments(1, 2)

        async def forgotten() -> bool:
            return (await s.subscription()).drained == set()

        await eventually(forgotten, within=LIMIT)
        await s.split(1)
        await s.until_owned(1, 2)
        s.segments.drain(1)
        await s.until_owned(2, 3, 4)
