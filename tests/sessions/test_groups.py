"""A group of namespace watchers: when it tells what, and that nobody sees a gap, a repeat or a step back.

The clock stands still unless a test moves it, so that windows are exact.
"""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from metadata import keys
from metadata.errors import StoreUnavailable
from sessions import topic_sets
from sessions.counters import CloseReason
from tests.sessions.staged_groups import PREFIX, WINDOW, Peer, Stage, bucket_of, full, hash_of, quiet, settle, staged


def names(count: int, start: int = 0) -> list[str]:
    return [f"topic-{number}" for number in range(start, start + count)]


def diff_of(peer: Peer) -> tuple[list[str], list[str]]:
    """The only frame that came since the last look: what was added, what was removed."""
    [update] = peer.take()
    assert update.WhichOneof("event") == "diff"
    return (
        sorted(name.removeprefix(PREFIX) for name in update.diff.added),
        sorted(name.removeprefix(PREFIX) for name in update.diff.removed),
    )


# Joining.


async def test_who_joins_an_empty_group_gets_an_empty_snapshot(mock_clock: MockClock) -> None:
    async with staged() as stage:
        peer = await stage.joined()
        assert (peer.kinds, peer.held) == (["snapshot"], set())


async def test_all_who_wait_for_the_listing_get_the_whole_set_at_once_and_one_listing_serves_them(
    mock_clock: MockClock,
) -> None:
    async with staged(*names(300)) as stage:
        peers = [stage.peer() for _ in range(50)]
        for peer in peers:
            stage.join(peer)
        await settle()
        for peer in peers:
            peer.take()
            assert (peer.kinds, peer.held) == (["snapshot"], full(names(300)))
        late = await stage.joined()
        assert late.held == full(names(300))
        assert sorted(stage.listings) == list(range(keys.BUCKETS))


async def test_nobody_is_told_anything_before_everything_is_listed(mock_clock: MockClock) -> None:
    async with staged(*names(300)) as stage:
        stage.listing_gate = trio.Event()
        early = stage.peer()
        stage.join(early)
        await settle()
        middle = stage.peer()
        stage.join(middle, hash_of([]))
        await settle()
        assert not early.take()
        assert not middle.take()
        stage.listing_gate.set()
        await settle()
        for peer in (early, middle):
            peer.take()
            assert (peer.kinds, peer.held) == (["snapshot"], full(names(300)))


async def test_an_equal_hash_is_answered_with_silence_and_later_with_diffs(mock_clock: MockClock) -> None:
    async with staged("a", "b") as stage:
        peer = stage.peer()
        stage.join(peer, peer.believe(["b", "a"]))
        await settle()
        assert not peer.take()
        assert stage.hash_matches == 1
        await quiet()
        stage.put("c")
        await settle()
        assert diff_of(peer) == (["c"], [])
        assert peer.held == full("abc")


@pytest.mark.parametrize("current_hash", ["", "00000000", hash_of("a"), hash_of("ab").upper() + " "])
async def test_any_other_hash_is_answered_with_a_snapshot(mock_clock: MockClock, current_hash: str) -> None:
    async with staged("a", "b") as stage:
        peer = await stage.joined(current_hash)
        assert (peer.kinds, peer.held, stage.hash_matches) == (["snapshot"], full("ab"), 0)


async def test_the_hash_of_nothing_is_equal_in_an_empty_namespace(mock_clock: MockClock) -> None:
    async with staged() as stage:
        peer = stage.peer()
        stage.join(peer, peer.believe([]))
        await settle()
        assert not peer.take()


async def test_joining_flushes_what_is_pending_for_everybody(mock_clock: MockClock) -> None:
    async with staged("a", "b") as stage:
        first = await stage.joined()
        stage.put("c")
        await settle()
        assert diff_of(first) == (["c"], [])
        stage.put("d")
        stage.remove("a")
        await settle()
        assert not first.take()  # the window is open
        second = stage.peer()
        stage.join(second)
        await settle()
        assert diff_of(first) == (["d"], ["a"])
        second.take()
        assert (second.kinds, second.held) == (["snapshot"], full("bcd"))
        await quiet()
        assert not first.take()
        assert not second.take()
        stage.put("e")
        await settle()
        assert diff_of(first) == diff_of(second) == (["e"], [])


async def test_a_joining_hash_is_compared_with_what_is_true_and_not_with_what_was_told(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        await stage.joined()
        stage.put("b")
        await settle()
        stage.put("c")
        await settle()  # pending
        behind, current = stage.peer(), stage.peer()
        stage.join(behind, behind.believe("ab"))
        stage.join(current, current.believe("abc"))
        await settle()
        assert [update.WhichOneof("event") for update in behind.take()] == ["snapshot"]
        assert not current.take()
        assert behind.held == current.held == full("abc")


async def test_a_watch_that_left_while_it_waited_is_told_nothing(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        stage.listing_gate = trio.Event()
        gone, stays = stage.peer(), stage.peer()
        watch = stage.join(gone)
        stage.join(stays)
        await settle()
        stage.group.leave(watch)
        stage.listing_gate.set()
        await settle()
        assert not gone.take()
        assert stays.take()


# Windows.


async def test_the_first_change_after_quiet_goes_out_at_once_and_later_ones_together(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peer = await stage.joined()
        stage.put("b")
        await settle()
        assert diff_of(peer) == (["b"], [])
        for name in ("c", "d", "e"):
            stage.put(name)
            await settle()
            mock_clock.jump(WINDOW / 4)
            await settle()
        stage.remove("b", "c")
        await settle()
        assert not peer.take()
        mock_clock.jump(WINDOW / 3)
        await settle()
        assert diff_of(peer) == (["d", "e"], ["b"])
        # Nothing came for a window: at once again.
        mock_clock.jump(WINDOW)
        await settle()
        stage.put("f")
        await settle()
        assert diff_of(peer) == (["f"], [])


async def test_a_flush_for_a_newcomer_begins_the_window_anew(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peer = await stage.joined()
        stage.put("b")
        await settle()
        stage.put("c")
        await settle()
        mock_clock.jump(0.9 * WINDOW)
        stage.join(stage.peer())
        await settle()
        assert [list(update.diff.added) for update in peer.take()] == [[PREFIX + "b"], [PREFIX + "c"]]
        stage.put("d")
        await settle()
        mock_clock.jump(0.5 * WINDOW)
        await settle()
        assert not peer.take()
        mock_clock.jump(0.6 * WINDOW)
        await settle()
        assert diff_of(peer) == (["d"], [])


async def test_what_cancels_out_within_a_window_is_never_told(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peer = await stage.joined()
        stage.put("b")
        await settle()
        peer.take()
        stage.put("c")
        await settle()
        stage.remove("c")
        await settle()
        mock_clock.jump(2 * WINDOW)
        await settle()
        assert not peer.take()


async def test_a_topic_made_anew_within_a_window_stands_in_both_lists(mock_clock: MockClock) -> None:
    async with staged("a", "b") as stage:
        peer = await stage.joined()
        stage.put("c")
        await settle()
        peer.take()
        stage.remove("a")
        await settle()
        stage.put("a")
        await settle()
        mock_clock.jump(WINDOW)
        await settle()
        assert diff_of(peer) == (["a"], ["a"])


async def test_a_change_that_changes_nothing_here_tells_nothing(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peer = await stage.joined()
        stage.hear("a", "never-there")
        await settle()
        mock_clock.jump(1.0)
        await settle()
        assert stage.reads == 2
        assert not peer.take()


async def test_without_a_window_every_change_goes_out_at_once(mock_clock: MockClock) -> None:
    async with staged("a", window=0.0) as stage:
        peer = await stage.joined()
        for name in "bcd":
            stage.put(name)
            await settle()
            assert diff_of(peer) == ([name], [])


async def test_a_burst_is_few_frames_and_the_set_is_whole(mock_clock: MockClock) -> None:
    async with staged() as stage:
        peer = await stage.joined()
        for start in range(0, 10_000, 1_000):
            stage.put(*names(1_000, start))
            await settle()
            mock_clock.jump(WINDOW / 4)
            await settle()
            peer.take()
        while peer.held != full(names(10_000)):
            await quiet()
            assert peer.take(), "nothing came, and something is missing"
        # Four of ten bursts open a window, and each frame holds a thousand names and more.
        assert len(peer.updates) <= 1 + 2 * 4 + 10_000 // 1_000


# Listings and gaps.


async def test_a_change_during_the_listing_is_in_the_snapshot_or_in_a_diff_right_after_it(
    mock_clock: MockClock,
) -> None:
    async with staged("a", "b", "c") as stage:
        stage.listing_gate = trio.Event()
        peer = stage.peer()
        stage.join(peer)
        await settle()
        # The listings have looked already.
        stage.remove("a")
        stage.put("b", "d")
        await settle()
        stage.listing_gate.set()
        await settle()
        mock_clock.jump(WINDOW)
        await settle()
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
        await settle()
        mock_clock.jump(WINDOW)
        await settle()
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
        stage.listing_gate = trio.Event()
        peer = stage.peer()
        stage.join(peer)
        await settle()
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
        await settle()
        mock_clock.jump(WINDOW)
        await settle()
        peer.take()
        assert peer.held == full([*names(3), *names(496, 4), "new"])
        assert sum(len(update.diff.added) for update in peer.updates) == 2
        assert sum(len(update.diff.removed) for update in peer.updates) == 2
        stage.miss()
        await settle()
        mock_clock.jump(WINDOW)
        await settle()
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
        stage.listing_gate = trio.Event()
        peer = stage.peer()
        stage.join(peer)
        await settle()
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
        stage.listing_gate = trio.Event()
        peer = stage.peer()
        stage.join(peer)
        await settle()
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


# Ends.


async def test_a_group_ends_with_its_last_session_and_its_listings_with_it(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        first, second = stage.peer(), stage.peer()
        watches = [stage.join(first), stage.join(second)]
        stage.group.leave(watches[0])
        assert not stage.group.closed
        stage.group.leave(watches[1])
        assert stage.group.closed
        await settle()
        assert not stage.listings
        assert not first.take()
        assert not second.take()


async def test_a_group_that_ends_during_its_listing_tells_nobody_and_stops(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        stage.listing_gate = trio.Event()
        peer = stage.peer()
        watch = stage.join(peer)
        await settle()
        under_way = list(stage.listings)
        stage.failures = [StoreUnavailable("away")] * keys.BUCKETS
        stage.group.leave(watch)
        stage.listing_gate.set()
        await settle()
        assert not peer.take()
        assert stage.listings == under_way


async def test_a_watch_that_left_is_told_nothing_more_and_the_others_are(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        gone, stays = stage.peer(), stage.peer()
        watch = stage.join(gone)
        stage.join(stays)
        await settle()
        gone.take()
        stays.take()
        await quiet()
        stage.put("b")
        stage.group.leave(watch)
        await settle()
        assert not gone.take()
        assert diff_of(stays) == (["b"], [])


# Slow peers.


def fill(peer: Peer) -> None:
    """Let nothing more into the socket; what is in it is no frame of ours."""
    peer.outbox.reply(_filler(400_000))


def _filler(size: int) -> bytes:
    """A frame that a reader knows to be none of the watch's."""
    body = bytes(size)
    return (len(body) + 4).to_bytes(4) + len(body).to_bytes(4) + body


async def blocked_peer(stage: Stage) -> Peer:
    """A session that was told the first snapshot and whose socket then takes nothing more."""
    peer = stage.peer(send_buffer=4_096)
    stage.join(peer)
    await settle()
    peer.take()
    fill(peer)
    await quiet()
    assert peer.outbox.queued_bytes > 0
    return peer


async def read_past_filler(peer: Peer) -> None:
    """Read everything that comes; the filler is not decoded."""
    left = 400_008
    while left:
        await settle()
        try:
            left -= len(peer.sock.recv(min(left, 65_536)))
        except BlockingIOError:
            continue
    await settle()
    peer.take()
    await settle()
    peer.take()


async def test_a_blocked_peer_gets_one_merged_diff_when_it_reads_again(mock_clock: MockClock) -> None:
    async with staged("a", "b") as stage:
        slow = await blocked_peer(stage)
        healthy = await stage.joined()
        queued = slow.outbox.queued_bytes
        for number in range(50):
            stage.put(f"new-{number}")
            if number % 2:
                stage.remove(f"new-{number - 1}")
            await settle()
            mock_clock.jump(WINDOW)
            await settle()
        stage.put("a")
        await settle()
        assert slow.outbox.queued_bytes <= queued + 128
        assert len(healthy.take()) >= 25
        before = len(slow.updates)
        await read_past_filler(slow)
        assert slow.kinds[before:] == ["diff"]
        assert list(slow.updates[-1].diff.removed) == [PREFIX + "a"]
        assert slow.held == healthy.held == full(stage.topics)
        assert stage.counters.outbox_bytes == 0
        stage.put("last")
        await settle()
        mock_clock.jump(WINDOW)
        await settle()
        assert diff_of(slow) == diff_of(healthy) == (["last"], [])


async def test_a_peer_that_is_too_far_behind_gets_a_snapshot_when_it_reads_again(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        slow = await blocked_peer(stage)
        healthy = await stage.joined()
        queued = slow.outbox.queued_bytes
        for number in range(topic_sets._REMEMBERED_STEPS + 10):
            stage.put(f"new-{number}")
            if number:
                stage.remove(f"new-{number - 1}")
            await settle()
            mock_clock.jump(WINDOW)
            await settle()
        assert slow.outbox.queued_bytes <= queued + 128
        before = len(slow.updates)
        await read_past_filler(slow)
        assert slow.kinds[before:] == ["snapshot"]
        healthy.take()
        assert "snapshot" not in healthy.kinds[1:]
        assert slow.held == healthy.held == full(stage.topics)


async def test_a_blocked_peer_whose_set_is_as_it_was_gets_nothing(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        slow = await blocked_peer(stage)
        for change in (stage.put, stage.remove):
            change("b")
            await settle()
            mock_clock.jump(WINDOW)
            await settle()
        before = len(slow.updates)
        await read_past_filler(slow)
        assert len(slow.updates) == before
        stage.put("c")
        await settle()
        mock_clock.jump(WINDOW)
        await settle()
        assert diff_of(slow) == (["c"], [])


async def test_who_joins_on_a_blocked_connection_gets_the_newest_snapshot(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peer = stage.peer(send_buffer=4_096)
        fill(peer)
        await stage.joined()
        stage.join(peer)
        for name in "bcd":
            stage.put(name)
            await settle()
            mock_clock.jump(WINDOW)
            await settle()
        await read_past_filler(peer)
        assert (peer.kinds, peer.held) == (["snapshot"], full("abcd"))


async def test_a_silent_join_on_a_blocked_connection_stays_silent(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peer = stage.peer(send_buffer=4_096)
        fill(peer)
        await stage.joined()
        stage.join(peer, peer.believe("a"))
        stage.put("b")
        await settle()
        await read_past_filler(peer)
        assert (peer.kinds, peer.held) == (["diff"], full("ab"))


async def test_a_watch_closed_while_its_peer_is_blocked_is_told_nothing_more(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peer = stage.peer(send_buffer=4_096)
        watch = stage.join(peer)
        await settle()
        peer.take()
        fill(peer)
        await quiet()
        stage.put("b")
        await settle()
        stage.group.leave(watch)
        peer.outbox.drop(watch.key)
        before = len(peer.updates)
        await read_past_filler(peer)
        assert len(peer.updates) == before
        assert stage.counters.outbox_bytes == 0


async def test_a_peer_that_goes_in_the_middle_of_a_fan_out_harms_nobody(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peers = [stage.peer() for _ in range(300)]
        for peer in peers:
            stage.join(peer)
        await settle()
        await quiet()
        for number in range(0, 300, 3):
            peers[number].sock.close()
        for number in range(1, 300, 3):
            peers[number].outbox.close(CloseReason.PEER)
        stage.put("b")
        await settle()
        for number in range(2, 300, 3):
            peers[number].take()
            assert peers[number].held == full("ab")


# Many.


async def test_a_thousand_sessions_see_every_step_in_order_while_new_ones_are_made(mock_clock: MockClock) -> None:
    async with staged("a", window=0.0) as stage:
        peers = [stage.peer() for _ in range(1_000)]
        for peer in peers:
            stage.join(peer)
        await settle()
        for number in range(30):
            stage.put(f"new-{number}")
            if number % 3 == 2:
                stage.remove(f"new-{number - 1}")
            if number % 5 == 0:
                peers.append(stage.peer())
                stage.join(peers[-1])
            for _ in range(number % 7):
                await trio.lowlevel.checkpoint()
        await settle()
        for peer in peers:
            peer.take()
            assert peer.kinds[0] == "snapshot"
            assert peer.kinds.count("snapshot") == 1
            assert peer.held == full(stage.topics)
        assert stage.reads <= 40


async def test_a_set_that_does_not_fit_a_frame_is_told_in_several_and_then_by_diffs(mock_clock: MockClock) -> None:
    async with staged(*names(1_000), frame_limit=1_024) as stage:
        peer = await stage.joined()
        assert len(peer.kinds) > 10
        assert set(peer.kinds[1:]) == {"diff"}
        assert peer.held == full(names(1_000))
        assert max(update.ByteSize() for update in peer.updates) <= 1_024
        stage.put("new")
        await settle()
        assert diff_of(peer) == (["new"], [])


async def test_one_encoding_serves_sessions_with_ids_of_every_length(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peers = [stage.peer() for _ in range(300)]
        for peer in peers:
            stage.join(peer)
        await settle()
        ids = []
        for peer in peers:
            [update] = peer.take()
            ids.append(update.watch_id)
        assert ids == list(range(1, 301))
