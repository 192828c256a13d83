"""Delayed entries: handed out when they are due, never before, and nothing waits behind them."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segments.cursors import Cursor
from segments.dispatch import Dispatcher, Kind
from segments.dispatch.delayed import Delayed
from tests.segments.dispatch.staged import NOW, StagedLog, StagedReceiver, dispatcher_of, indexes, log_of

shared_kinds = pytest.mark.parametrize("kind", [Kind.SHARED, Kind.KEY_SHARED])


@shared_kinds
def test_delayed_entry_comes_when_it_is_due_and_not_before(kind: Kind) -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(kind, receiver, permits=10), log_of(1)
    log.append_delayed(NOW + 500)
    log.append_delayed(NOW + 100)
    log.append()
    assert indexes(log.pump(dispatcher)) == [0, 3]
    assert (dispatcher.delayed, dispatcher.next_due) == (2, NOW + 100)
    assert log.pump(dispatcher, NOW + 99) == []
    assert indexes(log.pump(dispatcher, NOW + 100)) == [2]
    assert indexes(log.pump(dispatcher, NOW + 1_000)) == [1]
    assert (dispatcher.delayed, dispatcher.next_due) == (0, None)
    for index in range(4):
        assert dispatcher.ack(receiver, index)
    assert dispatcher.cursor.mark == 3


@pytest.mark.parametrize("kind", [Kind.EXCLUSIVE, Kind.FAILOVER])
def test_ordered_kinds_take_no_notice(kind: Kind) -> None:
    dispatcher, log = dispatcher_of(kind, StagedReceiver(), permits=10), log_of(1)
    log.append_delayed(NOW + 500)
    log.append()
    assert indexes(log.pump(dispatcher)) == [0, 1, 2]
    assert (dispatcher.delayed, dispatcher.next_due) == (0, None)


@shared_kinds
def test_entry_that_was_due_when_it_was_read_is_an_ordinary_one(kind: Kind) -> None:
    dispatcher, log = dispatcher_of(kind, StagedReceiver(), permits=10), StagedLog()
    log.append_delayed(NOW)
    log.append_delayed(-5)
    assert indexes(log.pump(dispatcher)) == [0, 1]


@shared_kinds
def test_delayed_entry_that_was_refused_comes_again_at_once(kind: Kind) -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(kind, receiver, permits=10), StagedLog()
    log.append_delayed(NOW + 5)
    log.pump(dispatcher)
    assert indexes(log.pump(dispatcher, NOW + 5)) == [0]
    dispatcher.redeliver(receiver, [0])
    assert [delivery.redeliveries for delivery in log.pump(dispatcher, NOW + 5)] == [1]


@shared_kinds
def test_whoever_comes_after_all_have_left_gets_them_when_they_are_due(kind: Kind) -> None:
    first, second = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(kind, first, permits=10), log_of(2)
    log.append_delayed(NOW + 500, 3)
    assert indexes(log.pump(dispatcher)) == [0, 1]
    dispatcher.remove(first)
    dispatcher.add(second)
    dispatcher.flow(second, 10)
    assert indexes(log.pump(dispatcher)) == [0, 1]
    assert dispatcher.delayed == 3
    assert indexes(log.pump(dispatcher, NOW + 500)) == [2, 3, 4]


@shared_kinds
def test_next_owner_finds_them_again(kind: Kind) -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(kind, receiver, permits=10), log_of(2)
    log.append_delayed(NOW + 500, 2)
    log.append()
    for delivery in log.pump(dispatcher):
        dispatcher.ack(receiver, delivery.entry.index)
    cursor = Cursor.decode(dispatcher.cursor.encode())
    after: Dispatcher[StagedReceiver] = Dispatcher(kind, cursor, cursor.mark + 1)
    after.add(receiver)
    after.flow(receiver, 10)
    assert log.pump(after) == []
    assert (after.delayed, after.backlog(log.end)) == (2, 2)
    assert indexes(log.pump(after, NOW + 500)) == [2, 3]


@shared_kinds
@pytest.mark.parametrize("how", ["seek", "trim", "ack"])
def test_what_is_skipped_does_not_come_when_it_would_be_due(kind: Kind, how: str) -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(kind, receiver, permits=10), StagedLog()
    log.append_delayed(NOW + 500, 3)
    log.pump(dispatcher)
    if how == "seek":
        dispatcher.seek(3)
    elif how == "trim":
        dispatcher.trim(3)
    else:
        for index in range(3):
            assert dispatcher.ack(receiver, index)
    assert dispatcher.delayed == 0
    assert log.pump(dispatcher, NOW + 500) == []


@shared_kinds
def test_seek_back_delays_them_anew(kind: Kind) -> None:
    dispatcher, log = dispatcher_of(kind, StagedReceiver(), permits=10), StagedLog()
    log.append_delayed(NOW + 500, 3)
    log.pump(dispatcher)
    dispatcher.seek(0)
    assert log.pump(dispatcher) == []
    assert dispatcher.delayed == 3
    assert indexes(log.pump(dispatcher, NOW + 500)) == [0, 1, 2]


def test_chunks_of_a_delayed_message_come_together_and_in_order() -> None:
    dispatcher, log = dispatcher_of(Kind.SHARED, StagedReceiver("a"), StagedReceiver("b"), permits=10), StagedLog()
    chunks = log.append_chunks("m", 4, due_ms=NOW + 500)
    assert log.pump(dispatcher) == []
    deliveries = log.pump(dispatcher, NOW + 500)
    assert indexes(deliveries) == chunks
    assert len({delivery.receiver for delivery in deliveries}) == 1


def test_receiver_with_one_permit_passes_over_delayed_entries_by_whole_slices() -> None:
    dispatcher, log = dispatcher_of(Kind.SHARED, StagedReceiver(), permits=1), StagedLog()
    log.append_delayed(NOW + 500, 2_000)
    log.append()
    fetches = 0
    while fetched := log.fetch(dispatcher):
        fetches += 1
        dispatcher.offer(fetched, NOW)
    assert dispatcher.delayed == 2_000
    assert dispatcher.read_position == 2_001
    assert fetches < 60


@pytest.mark.slow
def test_million_delayed_entries_cost_bounded_memory_and_come_when_due() -> None:
    delayed = Delayed()
    for index in range(1_000_000):
        delayed.add(index, NOW + index * 7_919 % 1_000_000)
    assert len(delayed) == 1_000_000
    assert size_of(delayed) < 8_000_000
    assert delayed.next_due == NOW
    assert delayed.take_due(NOW, 256) == [0]


def size_of(delayed: Delayed) -> int:
    return sum(deep(value) for value in vars(delayed).values())


def deep(value: Any) -> int:
    size = sys.getsizeof(value)
    if isinstance(value, list):
        return size + sum(map(sys.getsizeof, value))
    if isinstance(value, dict):
        return size + sum(sys.getsizeof(key) + sys.getsizeof(held) for key, held in value.items())
    if hasattr(type(value), "__slots__"):
        return size + sum(deep(getattr(value, name)) for name in type(value).__slots__)
    return size


@given(
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 50)), unique_by=lambda it: it[0], max_size=60),
    st.integers(1, 8),
    st.lists(st.integers(0, 5_000), max_size=5),
    st.integers(0, 5_000),
)
def test_whatever_is_kept_everything_comes_once_and_nothing_early(
    sent: list[tuple[int, int]], kept: int, dropped: list[int], below: int
) -> None:
    """As a distribution uses it: what may be due is read again, and goes back if it is not."""
    delayed = Delayed(kept)
    times = dict(sent)
    for index, due in sent:
        delayed.add(index, due)
    for index in dropped:
        delayed.discard(index)
        times.pop(index, None)
    delayed.drop_below(below)
    times = {index: due for index, due in times.items() if index >= below}
    assert len(delayed) == len(times)
    came: dict[int, int] = {}
    for now in range(51):
        while (next_due := delayed.next_due) is not None and next_due <= now:
            for index in delayed.take_due(now, 3):
                if times[index] > now:
                    delayed.add(index, times[index])
                else:
                    assert index not in came
                    came[index] = now
    assert came == times
    assert (len(delayed), delayed.next_due) == (0, None)
