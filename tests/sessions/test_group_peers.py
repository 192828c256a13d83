"""Peers of a group that leave, that do not read, and that are many, are told what they need and no more.

The clock stands still unless a test moves it, so that windows are exact.
"""

from __future__ import annotations

import trio
from trio.testing import MockClock

from metadata import keys
from metadata.errors import StoreUnavailable
from sessions import topic_sets
from sessions.counters import CloseReason
from tests.sessions.group_updates import diff_of, names, pass_window
from tests.sessions.staged_groups import PREFIX, Peer, Stage, full, quiet, settle, staged

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
            await pass_window(mock_clock)
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
        await pass_window(mock_clock)
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
            await pass_window(mock_clock)
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
            await pass_window(mock_clock)
        before = len(slow.updates)
        await read_past_filler(slow)
        assert len(slow.updates) == before
        stage.put("c")
        await pass_window(mock_clock)
        assert diff_of(slow) == (["c"], [])


async def test_who_joins_on_a_blocked_connection_gets_the_newest_snapshot(mock_clock: MockClock) -> None:
    async with staged("a") as stage:
        peer = stage.peer(send_buffer=4_096)
        fill(peer)
        await stage.joined()
        stage.join(peer)
        for name in "bcd":
            stage.put(name)
            await pass_window(mock_clock)
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
