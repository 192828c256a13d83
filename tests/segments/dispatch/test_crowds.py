"""Thousands of receivers: whoever comes, goes or acknowledges makes nobody else look at all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.hashing import bucket_hash
from segments.cursors import Cursor
from segments.dispatch import ConsumerAssignError, Dispatcher, KeySharing, Kind, key_owners
from segments.dispatch.by_key import ByKey
from segments.dispatch.key_owners import TakenPlaces
from tests.segments.dispatch.staged import NOW, StagedLog, StagedReceiver, dispatcher_of, log_of


class Unseen(dict[Any, Any]):
    """Seats that nobody may go through."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("all seats are gone through")

    keys = values = items = __iter__  # type: ignore[assignment]  # none of them is to be called


def keyed_log(count: int) -> StagedLog:
    log = StagedLog()
    for number in range(count):
        log.append(key=f"k{number}")
    return log


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.KEY_SHARED])
def test_acknowledgement_finds_who_holds_an_entry_without_asking_everybody(kind: Kind) -> None:
    receivers = [StagedReceiver(f"c{number}") for number in range(20)]
    dispatcher = dispatcher_of(kind, *receivers, permits=3)
    log = keyed_log(200)
    held = {delivery.entry.index: delivery.receiver for delivery in log.pump(dispatcher)}
    parts: Any = dispatcher._distribution
    parts._held.seats = Unseen(parts._held.seats)
    before = {receiver: dispatcher.unacked(receiver) for receiver in receivers}
    for index in range(log.end):
        other = next(receiver for receiver in receivers if receiver is not held.get(index))
        assert dispatcher.ack(other, index)
    assert sum(before.values()) == len(held) > 20
    assert not any(dispatcher.unacked(receiver) for receiver in receivers), "each by the word of somebody else"


@pytest.mark.parametrize("partition", [None, 3])
@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.KEY_SHARED, Kind.FAILOVER])
@pytest.mark.parametrize("seed", range(10))
def test_those_who_leave_together_leave_the_same_behind_as_one_by_one(
    kind: Kind, partition: int | None, seed: int
) -> None:
    chance = random.Random(seed)
    names = [f"c{chance.randrange(8)}" for _ in range(12)]
    priorities = [chance.randrange(2) for _ in names]
    gone = chance.sample(range(12), chance.randrange(1, 13))

    def told(together: bool) -> list[tuple[int, int]]:
        dispatcher: Dispatcher[StagedReceiver] = Dispatcher(kind, Cursor(), 0, partition=partition)
        receivers = [StagedReceiver(name, priority) for name, priority in zip(names, priorities, strict=True)]
        for receiver in receivers:
            dispatcher.add(receiver)
            dispatcher.flow(receiver, 5)
        log = keyed_log(100)
        log.pump(dispatcher)
        if together:
            dispatcher.remove(*[receivers[number] for number in gone])
        else:
            for number in gone:
                dispatcher.remove(receivers[number])
        newcomer = StagedReceiver("new")
        dispatcher.add(newcomer)
        for receiver in (*receivers, newcomer):
            dispatcher.flow(receiver, 100)
        return sorted(
            (receivers.index(it.receiver) if it.receiver in receivers else -1, it.entry.index)
            for it in log.pump(dispatcher)
        )

    assert told(together=True) == told(together=False)


def test_what_waits_is_put_in_order_once_for_all_who_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    line_up, lined_up = ByKey._line_up, list[int]()

    def counted(self: Any, waiting: Any) -> None:
        lined_up.append(len(waiting))
        line_up(self, waiting)

    receivers = [StagedReceiver(f"c{number}") for number in range(50)]
    dispatcher = dispatcher_of(Kind.KEY_SHARED, *receivers, permits=1)
    log = keyed_log(500)
    log.pump(dispatcher)
    monkeypatch.setattr(ByKey, "_line_up", counted)
    newcomers = [StagedReceiver(f"n{number}") for number in range(50)]
    for newcomer in newcomers:
        dispatcher.add(newcomer)
    for receiver in receivers[:25]:
        dispatcher.remove(receiver)
    assert not lined_up
    dispatcher.wanted(log.end, NOW)
    assert len(lined_up) == 1
    assert lined_up[0] > 100


def test_receiver_that_comes_costs_its_own_places_and_one_that_goes_costs_no_hash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashed: list[bytes] = []

    def counted(key: bytes) -> int:
        hashed.append(key)
        return bucket_hash(key)

    dispatcher = dispatcher_of(Kind.KEY_SHARED, *(StagedReceiver(f"c{number}") for number in range(300)))
    monkeypatch.setattr(key_owners, "bucket_hash", counted)
    newcomer = StagedReceiver("new")
    dispatcher.add(newcomer)
    assert len(hashed) == 100
    dispatcher.remove(newcomer)
    assert len(hashed) == 100


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 0xFFFF))), st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=9)
)
def test_next_place_on_the_ring_is_the_lowest_from_there_or_the_first_of_all(
    changes: list[tuple[bool, int]], slots: list[int]
) -> None:
    places, model = TakenPlaces(), set[int]()
    for is_added, place in changes:
        (places.add if is_added else places.discard)(place)
        (model.add if is_added else model.discard)(place)
    for slot in [*slots, *model, 0, 0xFFFF]:
        assert places.at_or_after(slot) == min([it for it in model if it >= slot] or model, default=None)


@given(st.lists(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=80), max_size=6))
def test_ranges_are_taken_if_no_hash_of_them_belongs_to_anybody(asked: list[list[tuple[int, int]]]) -> None:
    """As if each hash were looked at. Some receivers have so many that they are found in another way."""
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(Kind.KEY_SHARED, Cursor(), 0, key_sharing=KeySharing.STICKY)
    owners: Any = dispatcher._distribution
    owned: dict[int, StagedReceiver] = {}
    for number, pairs in enumerate(asked):
        ranges = [(start * 10, start * 10 + length) for start, length in pairs]
        receiver = StagedReceiver(str(number), key_ranges=ranges)
        hashes = [each for start, end in ranges for each in range(start, end + 1)]
        if len(set(hashes)) < len(hashes) or set(hashes) & set(owned):
            with pytest.raises(ConsumerAssignError):
                dispatcher.add(receiver)
        else:
            dispatcher.add(receiver)
            owned |= dict.fromkeys(hashes, receiver)
    if owned:
        leaving = next(iter(owned.values()))
        dispatcher.remove(leaving)
        owned = {each: receiver for each, receiver in owned.items() if receiver is not leaving}
    for each in range(420):
        seat = owners._owners.owner(each)
        assert (None if seat is None else seat.receiver) is owned.get(each)


def test_receiver_of_many_ranges_leaves_none_of_them_behind() -> None:
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(Kind.KEY_SHARED, Cursor(), 0, key_sharing=KeySharing.STICKY)
    even, odd = (StagedReceiver(key_ranges=[(each, each) for each in range(first, 400, 2)]) for first in (0, 1))
    dispatcher.add(even)
    dispatcher.add(odd)
    dispatcher.remove(even)
    dispatcher.add(even)
    with pytest.raises(ConsumerAssignError):
        dispatcher.add(StagedReceiver(key_ranges=[(7, 7)]))


def test_all_who_hold_something_may_go_at_once() -> None:
    receivers = [StagedReceiver(f"c{number}") for number in range(30)]
    dispatcher = dispatcher_of(Kind.SHARED, *receivers, permits=2)
    log = log_of(100)
    assert len(log.pump(dispatcher)) == 60
    dispatcher.remove(*receivers)
    last = StagedReceiver("last")
    dispatcher.add(last)
    dispatcher.flow(last, 100)
    assert [it.entry.index for it in log.pump(dispatcher)] == list(range(100))
