"""A group of namespace watchers: who joins it is told the whole set, and who is in it each change in its window.

The clock stands still unless a test moves it, so that windows are exact.
"""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from metadata import keys
from sessions.set_groups import MAX_HASH_LENGTH
from tests.sessions.group_updates import diff_of, names, pass_window, read_in_window
from tests.sessions.staged_groups import PREFIX, WINDOW, full, hash_of, quiet, settle, staged

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
        await read_in_window(mock_clock)
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
        await read_in_window(mock_clock)  # and not told yet
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
        await read_in_window(mock_clock)
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
        await pass_window(mock_clock)
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


async def test_a_hash_that_none_can_be_is_not_kept_and_matches_nothing(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peer = stage.peer()
        watch = stage.join(peer, "x" * 100_000)
        assert len(watch.current_hash or "") <= MAX_HASH_LENGTH
        await settle()
        peer.take()
        assert (peer.held, stage.hash_matches) == (full(["a"]), 0)
