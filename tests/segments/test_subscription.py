"""A subscription at its log: what is wanted is fetched and handed out, whatever happens while it is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

import pytest
import trio
import trio.testing

from metadata.log_entries import StoredEntry
from protocol.hashing import bucket_hash
from segments.consumers import Consumer
from segments.cursor_keeper import Told
from segments.cursors import Cursor
from segments.dispatch.key_owners import KeySharing
from segments.dispatch.receivers import Kind
from segments.frames import MessageFrames
from segments.subscription import LogSubscription
from tests.segments.dispatch.staged import body_of
from tests.segments.peers import ListeningPeer

LEDGER: Final = 7
LOWER, UPPER = (0, 32_767), (32_768, 65_535)


class SlowLog:
    """A message for each of these keys, all of them in memory or none. A fetch takes until it is let through."""

    first = 0
    opened_at = 0.0
    sealed = False
    is_open = True

    def __init__(self, keys: Sequence[str] = ("key",) * 20, *, is_cached: bool = False) -> None:
        self.next = len(keys)
        self.lost = 0  # entries at the beginning that nobody knows to be gone
        self.holes: frozenset[int] = frozenset()  # the same, anywhere
        self.fetching: list[Sequence[int]] = []
        self._keys = keys
        self._is_cached = is_cached
        self._through = trio.Event()

    def let_through(self) -> None:
        self._through.set()
        self._through = trio.Event()

    def cached(self, indexes: Sequence[int]) -> list[StoredEntry] | None:
        return [self.entry(index) for index in indexes] if self._is_cached else None

    async def fetch(self, indexes: Sequence[int]) -> list[StoredEntry]:
        self.fetching.append(indexes)
        await self._through.wait()
        return [self.entry(index) for index in indexes if index >= self.lost and index not in self.holes]

    def entry(self, index: int) -> StoredEntry:
        return StoredEntry(index, 0, 1, body_of(index, self._keys[index]))

    def delivered(self, now: float, messages: int, size: int) -> None:
        pass

    def cursor_changed(self, subscription: LogSubscription, told: Told | None) -> None:
        if told is not None:
            told(True)


def consumer(number: int, key_range: tuple[int, int] | None = None) -> tuple[Consumer, ListeningPeer]:
    peer = ListeningPeer()
    frames = MessageFrames(number, LEDGER, -1)
    return Consumer(peer, number, f"c{number}", frames, key_ranges=[key_range] if key_range else ()), peer


def key_in(key_range: tuple[int, int]) -> str:
    """A key whose hash is in this range."""
    start, end = key_range
    keys = (f"key-{number}" for number in count())
    return next(key for key in keys if start <= bucket_hash(key.encode()) <= end)


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.FAILOVER])
async def test_reading_goes_on_where_all_that_was_fetched_has_been_acknowledged_meanwhile(
    kind: Kind, autojump_clock: trio.testing.MockClock
) -> None:
    """By a consumer that came back, and had got it before."""
    log = SlowLog()
    async with trio.open_nursery() as nursery:
        subscription = LogSubscription("s", kind, Cursor(), log, nursery=nursery, durable=True, max_unacked=1_000)
        (taker, peer), (returned, _) = consumer(1), consumer(2)
        for joining in (taker, returned):
            subscription.join(joining)
        subscription.flow(taker, 5)
        await trio.testing.wait_all_tasks_blocked()
        [asked] = log.fetching
        subscription.ack(returned, [(index, ()) for index in asked], None)
        log.let_through()
        await trio.testing.wait_all_tasks_blocked()
        log.let_through()
        await trio.testing.wait_all_tasks_blocked()
        assert peer.messages[:5] == list(range(len(asked), len(asked) + 5))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_cached", [False, True])
async def test_messages_for_who_has_no_room_are_not_in_the_way_of_others(
    is_cached: bool, autojump_clock: trio.testing.MockClock
) -> None:
    """More of them than are fetched at once."""
    log = SlowLog([*[key_in(UPPER)] * 200, *[key_in(LOWER)] * 5], is_cached=is_cached)
    async with trio.open_nursery() as nursery:
        subscription = LogSubscription(
            "s", Kind.KEY_SHARED, Cursor(), log, nursery=nursery, durable=True, max_unacked=1_000
        )
        subscription.change_kind(Kind.KEY_SHARED, KeySharing.STICKY)
        (able, peer), (full, _) = consumer(1, LOWER), consumer(2, UPPER)
        for joining in (able, full):
            subscription.join(joining)
        subscription.flow(able, 10)
        for _ in range(100):
            await trio.testing.wait_all_tasks_blocked()
            log.let_through()
        assert peer.messages == list(range(200, 205))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.FAILOVER])
@pytest.mark.parametrize("lost", [3, 5, 12])
async def test_what_the_log_has_lost_is_passed_over_and_nothing_else(
    kind: Kind, lost: int, autojump_clock: trio.testing.MockClock
) -> None:
    log = SlowLog()
    log.lost = lost
    cursor = Cursor()
    cursor.ack(14)
    async with trio.open_nursery() as nursery:
        subscription = LogSubscription("s", kind, cursor, log, nursery=nursery, durable=True, max_unacked=1_000)
        taker, peer = consumer(1)
        subscription.join(taker)
        for _ in range(20):
            subscription.flow(taker, 5)
            await trio.testing.wait_all_tasks_blocked()
            log.let_through()
        assert peer.messages == [index for index in range(lost, 20) if index != 14]
        assert cursor.mark == lost - 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.KEY_SHARED])
@pytest.mark.parametrize("lost", [[5], [5, 15]])
async def test_what_consumers_hold_is_not_settled_with_what_the_log_has_lost_around_it(
    kind: Kind, lost: list[int], autojump_clock: trio.testing.MockClock
) -> None:
    log = SlowLog()
    cursor = Cursor()
    async with trio.open_nursery() as nursery:
        subscription = LogSubscription("s", kind, cursor, log, nursery=nursery, durable=True, max_unacked=1_000)
        taker, peer = consumer(1)
        subscription.join(taker)
        subscription.flow(taker, 20)
        for _ in range(10):
            await trio.testing.wait_all_tasks_blocked()
            log.let_through()
        assert peer.messages == list(range(20))
        log.holes = frozenset(lost)
        subscription.redeliver(taker, [5, 15])
        subscription.flow(taker, 20)
        for _ in range(10):
            await trio.testing.wait_all_tasks_blocked()
            log.let_through()
        assert peer.messages[20:] == [index for index in (5, 15) if index not in lost]
        assert [index for index in range(20) if cursor.is_acked(index)] == lost
        assert subscription.dispatcher.unacked(taker) == 20 - len(lost)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.FAILOVER])
async def test_what_consumers_hold_is_not_settled_with_what_the_log_has_lost_behind_it(
    kind: Kind, autojump_clock: trio.testing.MockClock
) -> None:
    """As a store does that failed over to a replica which had not all."""
    log = SlowLog()
    cursor = Cursor()
    async with trio.open_nursery() as nursery:
        subscription = LogSubscription("s", kind, cursor, log, nursery=nursery, durable=True, max_unacked=1_000)
        taker, peer = consumer(1)
        subscription.join(taker)
        log.holes = frozenset(range(8, 20))
        subscription.flow(taker, 100)
        for _ in range(20):
            await trio.testing.wait_all_tasks_blocked()
            log.let_through()
        assert peer.messages == list(range(8))
        assert [index for index in range(20) if cursor.is_acked(index)] == list(range(8, 20))
        nursery.cancel_scope.cancel()


async def test_rates_count_what_went_out_what_came_again_and_what_was_acknowledged() -> None:
    async with trio.open_nursery() as nursery:
        log = SlowLog(is_cached=True)
        log.opened_at = trio.current_time()
        subscription = LogSubscription(
            "s", Kind.SHARED, Cursor(), log, nursery=nursery, durable=True, max_unacked=1_000
        )
        now = log.opened_at + 1
        assert subscription.rates(now) == (0, 0, 0, 0)
        receiver, _ = consumer(1)
        subscription.join(receiver)
        subscription.flow(receiver, 30)
        size = sum(len(log.entry(index).body) for index in range(20))
        assert subscription.rates(now) == (20, size, 0, 0)
        subscription.ack(receiver, [(index, ()) for index in (0, 1, 2, 2, 99)], None)
        subscription.redeliver(receiver, [5, 6])
        out, _, again, acked = subscription.rates(now)
        assert (out, again, acked) == (22, 2, 3)


async def test_cumulative_acknowledgement_counts_the_entries_that_it_settles() -> None:
    async with trio.open_nursery() as nursery:
        log = SlowLog(is_cached=True)
        log.opened_at = trio.current_time()
        subscription = LogSubscription(
            "s", Kind.EXCLUSIVE, Cursor(), log, nursery=nursery, durable=True, max_unacked=1_000
        )
        receiver, _ = consumer(1)
        subscription.join(receiver)
        subscription.flow(receiver, 30)
        for index in (9, 9, 4):
            subscription.ack_cumulative(receiver, index, (), None)
        subscription.ack_cumulative(receiver, 10, (1,), None)
        assert subscription.rates(log.opened_at + 1)[2:] == (0, 11)
