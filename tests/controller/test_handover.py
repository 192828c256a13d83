"""A segment goes from one consumer to the next so that at no time two of them have it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio

from controller.segment_port import Claim
from tests.controller.staged_leaders import SETTINGS, TOPIC, Owners, Stage, all_open, stage
from tests.support.consumers import LIMIT, registering, stays, until_shared
from tests.support.nodes import running_node
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("ask_segments_often")


async def begin_hand_over(s: Stage) -> float:
    """A consumer has all segments open when another comes, which is to get some of them; the time at which it came."""
    await s.join("a")
    await s.until_owned(0, 1, 2, 3)
    s.segments.open = all_open("a", range(4))
    came = trio.current_time()
    await s.join("b")
    await eventually(lambda: "b" in s.written[-1][1])
    return came


async def test_the_next_owner_gets_a_segment_when_the_old_one_has_closed_it(valkey: ValkeyProcess) -> None:
    async with stage(valkey) as s:
        await begin_hand_over(s)
        moving = (await s.releasing())["a"]
        assert len(moving) == 2
        await s.stays_owned(*({0, 1, 2, 3} - moving))
        # One after the other, in whatever order they are closed.
        for segment_id in sorted(moving, reverse=True):
            s.segments.open.discard(("a", segment_id))

            async def moved(segment_id: int = segment_id) -> bool:
                return segment_id in (await s.owners())["b"]

            await eventually(moved, within=LIMIT)
        assert await s.owners() == {"a": {0, 1, 2, 3} - moving, "b": moving}
        assert (await s.releasing())["a"] == set()


async def test_the_next_owner_gets_a_segment_when_the_old_one_has_left(valkey: ValkeyProcess) -> None:
    async with stage(valkey) as s:
        await begin_hand_over(s)
        await s.leave("a")
        await s.until_owned(0, 1, 2, 3)
        assert await s.owners() == {"b": {0, 1, 2, 3}}


async def test_the_next_owner_gets_a_segment_when_the_old_one_is_evicted(valkey: ValkeyProcess) -> None:
    async with stage(valkey, consumer_grace=0.3) as s:
        await begin_hand_over(s)
        await s.detach("a")
        await s.until_owned(0, 1, 2, 3)
        assert await s.owners() == {"b": {0, 1, 2, 3}}
        assert s.counters.evictions == 1


async def test_the_next_owner_gets_a_segment_when_the_time_to_hand_it_over_has_run_out(valkey: ValkeyProcess) -> None:
    async with stage(valkey, handover=0.5) as s:
        begun = await begin_hand_over(s)
        await s.until_owned(0, 1, 2, 3)
        assert trio.current_time() - begun >= 0.5
        at_first = next(owners["b"] for _, owners, _ in s.written if "b" in owners)
        assert not at_first.segment_ids
        assert {len(ids) for ids in (await s.owners()).values()} == {2}


async def test_a_segment_goes_back_to_who_had_not_closed_it_yet(valkey: ValkeyProcess) -> None:
    async with stage(valkey) as s:
        await begin_hand_over(s)
        await s.leave("b")
        await s.until_owned(0, 1, 2, 3)
        assert await s.releasing() == {"a": set()}


@pytest.mark.slow
async def test_a_new_leader_goes_on_with_a_hand_over_where_the_old_one_left_it(valkey: ValkeyProcess) -> None:
    """And lets nobody have the segment meanwhile; the time for it begins anew."""
    # For the old leader it never runs out, however long the test takes to get to its end.
    async with stage(valkey) as s, running_node(valkey.url, **(SETTINGS | {"handover": 2.0})) as other:
        heir = Stage(other, valkey, s.segments)
        await begin_hand_over(s)
        moving = (await s.releasing())["a"]
        # Of which nothing counts for the new one.
        await trio.sleep(1.0)
        begun = trio.current_time()
        await s.node.leaders.resign()
        await other.leaders.lead(TOPIC)
        await eventually(lambda: heir.counters.rounds)
        releasing = (await s.releasing())["a"]
        assert releasing == moving or trio.current_time() - begun >= 2.0
        await s.until_owned(0, 1, 2, 3)
        assert trio.current_time() - begun >= 2.0
        # What is stored may be seen before whoever wrote it has its answer.
        await eventually(lambda: heir.written)
        heir.check_owners()


async def test_consumers_are_told_of_a_hand_over_in_the_order_of_its_steps(valkey: ValkeyProcess) -> None:
    async with (
        stage(valkey, segments=2) as s,
        registering(s.node.pulsar_url) as client,
    ):
        first = await client.subscribed(TOPIC, "s", "a")
        s.segments.open = all_open("a", range(2))
        second = await client.subscribed(TOPIC, "s", "b")
        assert second.ids == set()
        await eventually(lambda: len(first.ids) == 1, within=LIMIT)
        [moving] = {0, 1} - first.ids
        await stays(lambda: second.history == [set()], 0.3)
        s.segments.open.discard(("a", moving))
        await until_shared([first, second], [0, 1])
        assert first.history == [{0, 1}, {0, 1} - {moving}], "that it is released is nothing to tell"
        assert second.history == [set(), {moving}]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_over_any_history_no_segment_ever_has_two_owners(valkey: ValkeyProcess, seed: int) -> None:
    """Joins, leaves, evictions, splits, merges, drained parents and pruning, with consumers that close late.

    Every state that is written is looked at, and so is what consumers have open: they open what they are given, and
    nobody finds it open at another.
    """
    chance = random.Random(seed)
    async with stage(valkey, segments=3, consumer_grace=0.2, prune_interval=0.5) as s:
        opened: set[Claim] = s.segments.open
        complaints: list[str] = []

        def follow(owners: Owners) -> None:
            opened.difference_update({claim for claim in opened if claim[0] not in owners})
            for name, assignment in owners.items():
                for segment_id in assignment.segment_ids:
                    others = {holder for holder, held in opened if held == segment_id and holder != name}
                    if others:
                        complaints.append(f"{name} is given {segment_id}, which {others} has open")
                    opened.add((name, segment_id))

        async def consumers_close() -> None:
            while True:
                await trio.sleep(chance.uniform(0, 0.05))
                held = await s.owners() if s.written else {}
                late = sorted(c for c in opened if c[1] not in held.get(c[0], ()))
                if late and chance.random() < 0.7:
                    opened.discard(chance.choice(late))

        original = s.note

        def note(subscription: str) -> None:
            original(subscription)
            follow(s.written[-1][1])

        s.note = note  # type: ignore[method-assign]
        names = [f"c{number}" for number in range(6)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumers_close)
            await s.join("c0")
            for _ in range(80):
                there = {name for _, name in s._attachments}
                layout = await s.layout()
                match chance.randrange(8):
                    case 0 | 1:
                        await s.join(chance.choice(names))
                    case 2 if len(there) > 1:
                        await s.leave(chance.choice(sorted(there)))
                    case 3 if len(there) > 1:
                        await s.detach(chance.choice(sorted(there)))
                    case 4 if len(layout.segments) < 30:
                        await s.split(chance.choice(layout.active).segment_id)
                    case 5 if len(layout.active) > 3:
                        left = chance.randrange(len(layout.active) - 1)
                        await s.merge(layout.active[left].segment_id, layout.active[left + 1].segment_id)
                    case 6:
                        s.segments.drain(*(i for i in layout.segments if chance.random() < 0.5))
                await trio.sleep(chance.uniform(0, 0.1))
                assert not complaints
            s.segments.drain(*(await s.layout()).segments)
            await s.join("c0")

            async def at_rest() -> bool:
                active = {segment.segment_id for segment in (await s.layout()).active}
                assert Counter(i for ids in (await s.owners()).values() for i in ids) == Counter(active)
                return True

            await eventually(at_rest, within=30)
            nursery.cancel_scope.cancel()
        assert not complaints


async def test_who_comes_back_while_its_eviction_is_decided_never_shares_a_segment(valkey: ValkeyProcess) -> None:
    async with stage(valkey, consumer_grace=0.3) as s:
        await s.join("a")
        await s.join("b")
        await s.until_owned(0, 1, 2, 3)
        before = await s.owners()
        evictions = 0

        async def come_back() -> None:
            """Between the read and the write of every round in which it would be evicted."""
            nonlocal evictions
            attachment = (await s.subscription()).consumers["a"].attachment
            if not attachment.node and trio.current_time() >= overdue_at:
                evictions += 1
                await s.join("a")

        # Counted from before it is detached: the leader, who counts from then, must not be earlier than this.
        overdue_at = trio.current_time() + 0.3
        await s.detach("a")
        s.recording.after_reading = come_back
        await eventually(lambda: evictions, within=LIMIT)
        s.recording.after_reading = None
        await stays(lambda: True, 0.5)
        assert await s.owners() == before
        assert s.counters.evictions == 0
