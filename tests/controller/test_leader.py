"""A leader of a topic that is deposed, in trouble, or asked by many at once, and the deadlines that it keeps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from controller.leader import Deadlines
from metadata import keys
from metadata.errors import StoreUnavailable, SubscriptionMissing
from metadata.leadership import Leaderships
from metadata.node_sessions import NodeRecord
from metadata.registrations import Registrations
from metadata.subscriptions import Attachment
from tests.controller.staged_leaders import PATH, SETTINGS, STREAM, TOPIC, ScriptedSegments, Stage, stage
from tests.support.consumers import LIMIT
from tests.support.nodes import running_node, transitions_of
from tests.support.processes import ValkeyProcess
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("ask_segments_often")


# Fencing.


@pytest.mark.parametrize("write", ["assign", "evict", "prune"])
async def test_a_leader_that_is_deposed_between_its_read_and_its_write_writes_nothing(
    valkey: ValkeyProcess, write: str
) -> None:
    """W2: it learns of it by the refusal, and steps down."""
    async with stage(valkey, segments=1, prune_interval=0.2, consumer_grace=0.2, retention=0.0) as s:
        await s.join("a")
        await s.until_owned(0)
        successor = NodeRecord("d" * 16, "pulsar://d:1", "http://d:2")
        value = msgspec.json.encode(successor)
        valkey.client().set(keys.node_key(successor.session), value, px=60_000)
        valkey.client().hset(keys.NODES, successor.session, "")
        before: list[Any] = []

        async def depose() -> None:
            if before:
                return
            layout = await s.layout()
            due = {
                "assign": len((await s.subscription()).consumers) == 2,
                "evict": not (await s.subscription()).consumers["a"].attachment.node,
                "prune": len(layout.segments) == 3,
            }
            if not due[write]:
                return
            # Long enough that whatever the leader waits for is due when it goes on.
            await trio.sleep(0.5)
            stored = await s.node.store.get(TOPIC)
            assert stored is not None
            assert await Leaderships(s.node.store).take(stored, successor) is not None
            before.append((await s.layout(), await s.subscription()))

        s.recording.after_reading = depose
        if write == "assign":
            await s.join("b")
        elif write == "evict":
            await s.detach("a")
        else:
            s.segments.drain(0)
            await transitions_of(s.node).split(TOPIC, 0)
        await eventually(lambda: before, within=LIMIT)
        await eventually(lambda: not s.node.leaders.leads(TOPIC), within=LIMIT)
        assert s.counters.fenced == 1
        assert (await s.layout(), await s.subscription()) == before[0]
        s.recording.after_reading = None
        assert (s.counters.evictions, s.counters.pruned) == (0, 0)


# Trouble.


async def test_a_leader_waits_for_a_store_that_is_away_and_goes_on(valkey: ValkeyProcess) -> None:
    async with (
        FaultProxy.open(*valkey.address) as proxy,
        running_node(proxy.url, **SETTINGS) as node,
        running_node(valkey.url, **SETTINGS) as other,
    ):
        await transitions_of(node).create(TOPIC, 4)
        s = Stage(node, valkey, ScriptedSegments())
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)
        proxy.refuse()
        proxy.cut()
        attachment = Attachment(other.session.record.session, "1" * 16, 1)
        await Registrations(other.store).attach(TOPIC, "s", STREAM, "b", attachment)
        await trio.sleep(1.5)
        proxy.accept()

        async def shared() -> bool:
            state = await Registrations(other.store).state(other.store.commands, TOPIC)
            assert state is not None
            found = state.subscriptions["s"].consumers["b"].assignment
            return found is not None and len(found.segments) == 2

        await eventually(shared, within=LIMIT)
        s.check_owners()


async def test_segments_that_cannot_be_asked_delay_the_leader_and_nothing_else(valkey: ValkeyProcess) -> None:
    async with stage(valkey, segments=1) as s:
        await s.join("a")
        await s.until_owned(0)
        s.segments.failures = [StoreUnavailable("not now"), RuntimeError("never expected"), StoreUnavailable("not now")]
        await s.split(0)
        s.segments.drain(0)
        await s.until_owned(1, 2)
        assert not s.segments.failures


async def test_a_damaged_entry_of_one_subscription_is_nothing_to_the_others(valkey: ValkeyProcess) -> None:
    async with stage(valkey) as s:
        await s.join("a", "odd")
        valkey.client().hset(keys.members_key(PATH, "odd"), "drained", "no JSON")
        await s.join("a")
        await s.until_owned(0, 1, 2, 3)


async def test_seeking_in_what_does_not_exist_is_refused_and_changes_nothing(valkey: ValkeyProcess) -> None:
    async with stage(valkey) as s:
        with pytest.raises(SubscriptionMissing):
            await s.seek(0, "missing")
        assert await s.registrations.names(TOPIC) == []


# Many at once.


async def test_what_comes_within_a_window_is_decided_together(valkey: ValkeyProcess) -> None:
    async with stage(valkey, segments=64) as s:
        await s.join("first")
        await s.until_owned(*range(64))
        begun = s.counters.rebalances
        async with trio.open_nursery() as nursery:
            for number in range(63):
                nursery.start_soon(s.join, f"c{number}")
        await s.until_owned(*range(64))
        await eventually(lambda: all(len(a.segments) == 1 for a in s.written[-1][1].values()), within=LIMIT)
        assert s.counters.rebalances - begun <= 10


# Deadlines, on a clock of their own.


async def test_a_deadline_is_counted_from_when_it_was_first_asked_about(mock_clock: trio.testing.MockClock) -> None:
    deadlines = Deadlines(10.0, lambda: 0.0)
    assert deadlines.next() == float("inf")
    assert not deadlines.passed("a")
    due = trio.current_time() + 10
    assert deadlines.next() == due
    mock_clock.jump(4)
    assert not deadlines.passed("b")
    assert deadlines.next() == due
    mock_clock.jump(5.9)
    assert not deadlines.passed("a")
    mock_clock.jump(0.2)
    assert deadlines.passed("a")
    assert not deadlines.passed("b")


async def test_a_deadline_that_is_not_asked_about_any_more_begins_anew(mock_clock: trio.testing.MockClock) -> None:
    deadlines = Deadlines(10.0, lambda: 0.0)
    deadlines.passed("a")
    mock_clock.jump(9)
    deadlines.keep_only({"b"})
    assert not deadlines.passed("a")
    mock_clock.jump(9)
    assert not deadlines.passed("a")


async def test_a_deadline_does_not_pass_while_the_store_is_away_and_begins_anew_after(
    mock_clock: trio.testing.MockClock,
) -> None:
    in_touch_since = 0.0
    deadlines = Deadlines(10.0, lambda: in_touch_since)
    deadlines.passed("a")
    mock_clock.jump(9)
    in_touch_since = float("inf")
    mock_clock.jump(100)
    assert not deadlines.passed("a")
    assert trio.current_time() < deadlines.next() < trio.current_time() + 5, "asked again soon"
    in_touch_since = trio.current_time()
    assert not deadlines.passed("a")
    mock_clock.jump(9)
    assert not deadlines.passed("a")
    mock_clock.jump(1.1)
    assert deadlines.passed("a")


async def test_a_deadline_of_no_time_has_passed_at_once(mock_clock: trio.testing.MockClock) -> None:
    deadlines = Deadlines(0.0, lambda: trio.current_time())
    assert deadlines.passed("a")
