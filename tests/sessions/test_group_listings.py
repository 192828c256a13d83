"""A group lists what it missed, and nobody sees a gap, a repeat or a step back meanwhile.

The clock stands still unless a test moves it, so that windows are exact.
"""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from metadata import keys
from metadata.errors import StoreUnavailable
from tests.sessions.group_updates import diff_of, names, pass_window
from tests.sessions.staged_groups import WINDOW, Peer, Stage, bucket_of, full, path_of, quiet, settle, staged


async def waiting_peer(stage: Stage) -> Peer:
    """A peer that joined and waits for listings, which have looked already and are held up."""
    stage.listing_gate = trio.Event()
    peer = stage.peer()
    stage.join(peer)
    await settle()
    return peer


async def test_a_change_during_the_listing_is_in_the_snapshot_or_in_a_diff_right_after_it(
    mock_clock: MockClock,
) -> None:
    async with staged("a", "b", "c") as stage:
        peer = await waiting_peer(stage)
        # The listings have looked already.
        stage.remove("a")
        stage.put("b", "d")
        await settle()
        stage.listing_gate.set()
        await pass_window(mock_clock)
        peer.take()
        assert peer.held == full("bcd")
        assert peer.kinds[0] == "snapshot"
        assert peer.kinds.count("snapshot") == 1


async def test_a_read_that_began_before_a_listing_does_not_take_back_what_the_listing_found(
    mock_clock: MockClock,
) -> None:
    async with staged("a", "b") as stage:
        peer = await stage.joined()
        stage.read_gate = trio.Event()
        stage.hear("a")  # the read sees "a", and is held up
        await settle()
        stage.remove("a", heard=False)
        stage.miss([bucket_of("a")])
        await pass_window(mock_clock)
        assert diff_of(peer) == ([], ["a"])
        # The next read takes a while.
        held_up, stage.read_gate = stage.read_gate, trio.Event()
        held_up.set()
        await quiet()
        stage.read_gate.set()
        await quiet()
        assert not peer.take(), "a topic that is gone came back for a moment"


async def test_a_gap_during_a_listing_is_followed_by_another_listing(mock_clock: MockClock) -> None:
    async with staged(*names(500)) as stage:
        peer = await waiting_peer(stage)
        under_way = list(stage.listings)
        stage.remove(next(name for name in names(500) if bucket_of(name) in under_way), heard=False)
        stage.put(next(name for name in names(1_000)[500:] if bucket_of(name) in under_way), heard=False)
        stage.miss()
        await settle()
        assert stage.listings == under_way
        stage.listing_gate.set()
        await settle()
        peer.take()
        assert (peer.kinds, peer.held) == (["snapshot"], full(stage.topics))
        # Those that had not begun need not be repeated.
        assert len(stage.listings) == keys.BUCKETS + len(under_way)


async def test_after_a_gap_only_what_differs_is_told(mock_clock: MockClock) -> None:
    async with staged(*names(500)) as stage:
        peer = await stage.joined()
        stage.remove("topic-3", heard=False)
        stage.put("topic-4", "new", heard=False)
        stage.miss()
        await pass_window(mock_clock)
        peer.take()
        assert peer.held == full([*names(3), *names(496, 4), "new"])
        assert sum(len(update.diff.added) for update in peer.updates) == 2
        assert sum(len(update.diff.removed) for update in peer.updates) == 2
        stage.miss()
        await pass_window(mock_clock)
        assert not peer.take()


async def test_who_joins_during_a_gap_waits_until_it_is_closed(mock_clock: MockClock) -> None:
    async with staged("a", "b") as stage:
        old = await stage.joined()
        stage.trusted = False
        stage.remove("a", heard=False)
        late, equal = stage.peer(), stage.peer()
        stage.join(late)
        stage.join(equal, equal.believe("b"))
        await settle()
        stage.listing_gate = trio.Event()
        stage.trusted = True
        stage.miss()
        await settle()
        for peer in (old, late, equal):
            assert not peer.take()
        stage.listing_gate.set()
        await settle()
        late.take()
        assert (late.kinds, late.held) == (["snapshot"], full("b"))
        assert not equal.take()
        assert diff_of(old) == ([], ["a"])


async def test_a_group_made_while_the_store_is_away_lists_when_it_is_back(mock_clock: MockClock) -> None:
    async with staged("a", trusted=False) as stage:
        peer = stage.peer()
        stage.join(peer)
        await settle()
        assert not stage.listings
        stage.trusted = True
        stage.miss(range(64))
        await settle()
        assert not peer.take()
        stage.miss(range(64, keys.BUCKETS))
        await settle()
        peer.take()
        assert peer.held == full("a")
        assert sorted(stage.listings) == list(range(keys.BUCKETS))


async def test_one_bucket_that_is_away_holds_newcomers_and_nobody_else(mock_clock: MockClock) -> None:
    away = bucket_of("a")
    other = next(name for name in names(1_000) if bucket_of(name) != away)
    async with staged("a") as stage:
        old = await stage.joined()
        stage.untrusted = {away}
        late = stage.peer()
        stage.join(late)
        stage.put(other)
        await settle()
        assert diff_of(old) == ([other], [])
        assert not late.take()
        stage.untrusted = set()
        stage.miss([away])
        await settle()
        late.take()
        assert late.held == full(["a", other])


@pytest.mark.parametrize("kind", [StoreUnavailable, RuntimeError])
async def test_a_failed_listing_is_tried_again_and_tells_no_error(mock_clock: MockClock, kind: type[Exception]) -> None:
    async with staged("a") as stage:
        stage.failures = [kind("no") for _ in range(15)]
        peer = stage.peer()
        stage.join(peer)
        for _ in range(20):
            await settle()
            mock_clock.jump(2.0)
        await settle()
        peer.take()
        assert (peer.kinds, peer.held) == (["snapshot"], full("a"))
        assert sorted(set(stage.listings)) == list(range(keys.BUCKETS))
        assert not stage.failures


async def test_a_listing_that_ends_in_distrust_begins_again_with_the_next_gap(mock_clock: MockClock) -> None:
    async with staged("a", "b") as stage:
        peer = await waiting_peer(stage)
        stage.trusted = False
        stage.remove("a", heard=False)
        stage.listing_gate.set()
        await settle()
        assert not peer.take()
        stage.trusted = True
        stage.miss()
        await settle()
        peer.take()
        assert (peer.kinds, peer.held) == (["snapshot"], full("b"))


async def test_trust_that_was_lost_and_regained_during_a_listing_counts_as_a_gap(mock_clock: MockClock) -> None:
    async with staged("a", "b") as stage:
        peer = await waiting_peer(stage)
        stage.trusted = False
        stage.remove("a", heard=False)
        stage.trusted = True
        stage.miss()
        stage.listing_gate.set()
        await settle()
        peer.take()
        assert (peer.kinds, peer.held) == (["snapshot"], full("b"))


async def test_whatever_happens_in_whatever_order_everybody_ends_with_what_is_true(mock_clock: MockClock) -> None:
    chance = random.Random(11)
    async with staged(*names(40)) as stage:
        for _ in range(400):
            match chance.randrange(9):
                case 0 | 1 | 2:
                    stage.put(f"topic-{chance.randrange(60)}", heard=chance.random() < 0.9 and stage.trusted)
                case 3 | 4 if stage.topics:
                    stage.remove(chance.choice(list(stage.topics)), heard=chance.random() < 0.9 and stage.trusted)
                case 5 if len(stage.peers) < 30:
                    peer = stage.peer()
                    believed = [name for name in stage.topics if chance.random() < 0.99]
                    stage.join(peer, chance.choice([None, "", peer.believe(believed)]))
                case 6:
                    gates = (stage.read_gate, stage.listing_gate)
                    if chance.random() < 0.5:
                        for gate in gates:
                            gate.set()
                    elif all(gate.is_set() for gate in gates):
                        stage.read_gate, stage.listing_gate = trio.Event(), trio.Event()
                case 7:
                    stage.trusted = not stage.trusted
                    if stage.trusted:
                        stage.miss()
                case 8:
                    mock_clock.jump(chance.random() * 2 * WINDOW)
            if chance.random() < 0.7:
                await settle()
        stage.read_gate.set()
        stage.listing_gate.set()
        stage.trusted = True
        stage.miss()
        for _ in range(5):
            await settle()
            mock_clock.jump(10.0)
        await settle()
        for peer in stage.peers:
            peer.take()
            assert peer.held == full(stage.topics)


async def test_a_session_waits_for_what_this_node_wrote_while_a_listing_looked_away(mock_clock: MockClock) -> None:
    async with staged("old") as stage:
        await stage.joined()
        # A listing has looked already when the node writes, and its read of that is used up before the listing ends.
        stage.listing_gate = trio.Event()
        stage.miss([bucket_of("new")])
        await settle()
        stage.put("new", heard=False)
        stage.readback.written(bucket_of("new"), path_of("new"))
        late = stage.peer()
        stage.join(late)
        await settle()
        assert late.take() == []
        stage.read_gate = trio.Event()
        stage.listing_gate.set()
        await settle()
        assert late.take() == []
        stage.read_gate.set()
        await settle()
        late.take()
        assert (late.kinds, late.held) == (["snapshot"], full(["old", "new"]))
