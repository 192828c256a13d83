"""Exclusive and Failover subscriptions: one receiver, in order."""

import pytest

from protocol.wire import pulsar_api_pb2 as api
from segments.cursors import Cursor
from segments.dispatch import ConsumerBusy, Dispatcher, Kind
from tests.segments.dispatch.staged import NOW, StagedReceiver, dispatcher_of, indexes, log_of

BOTH = pytest.mark.parametrize("kind", [Kind.EXCLUSIVE, Kind.FAILOVER])


def test_second_exclusive_receiver_is_refused_until_the_first_has_left() -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher = dispatcher_of(Kind.EXCLUSIVE, one)
    with pytest.raises(ConsumerBusy, match="'a'") as refusal:
        dispatcher.add(other)
    assert refusal.value.server_error == api.ConsumerBusy
    assert dispatcher.receivers == [one]
    assert dispatcher.remove(one)
    assert dispatcher.add(other)
    assert dispatcher.active is other


@BOTH
def test_who_comes_next_gets_what_was_not_acknowledged_in_order_and_as_new(kind: Kind) -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(kind, one, permits=10), log_of(6)
    log.pump(dispatcher)
    for index in (0, 1, 3):
        dispatcher.ack(one, index)
    dispatcher.remove(one)
    dispatcher.add(other)
    dispatcher.flow(other, 10)
    again = log.pump(dispatcher)
    assert [(delivery.entry.index, delivery.redeliveries) for delivery in again] == [(2, 0), (4, 0), (5, 0)]


@BOTH
def test_nack_of_one_goes_back_to_the_first_unacknowledged(kind: Kind) -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(kind, receiver, permits=20), log_of(5)
    log.pump(dispatcher)
    dispatcher.ack(receiver, 0)
    dispatcher.redeliver(receiver, [3])
    assert indexes(log.pump(dispatcher)) == [1, 2, 3, 4]
    dispatcher.redeliver(receiver, [])
    assert log.pump(dispatcher) == []


@BOTH
def test_cumulative_ack_frees_everything_up_to_it_and_never_goes_back(kind: Kind) -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(kind, receiver, permits=20), log_of(5)
    log.pump(dispatcher)
    assert dispatcher.unacked(receiver) == 5
    assert dispatcher.ack_cumulative(receiver, 3)
    assert not dispatcher.ack_cumulative(receiver, 3)
    assert not dispatcher.ack_cumulative(receiver, 1)
    assert dispatcher.unacked(receiver) == 1
    assert dispatcher.backlog(log.end) == 1
    dispatcher.redeliver(receiver, None)
    assert indexes(log.pump(dispatcher)) == [4]


@BOTH
def test_cumulative_ack_beyond_the_log_settles_nothing(kind: Kind) -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(kind, receiver, permits=20), log_of(2)
    log.pump(dispatcher)
    assert not dispatcher.ack_cumulative(receiver, 2)
    assert not dispatcher.ack_cumulative(receiver, 2**63)
    log.append()
    assert indexes(log.pump(dispatcher)) == [2]


def test_cumulative_ack_ahead_of_the_deliveries_is_believed() -> None:
    receiver = StagedReceiver()
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(Kind.EXCLUSIVE, Cursor(), 0, end=5)
    log = log_of(5)
    dispatcher.add(receiver)
    assert dispatcher.ack_cumulative(receiver, 2)
    dispatcher.flow(receiver, 10)
    assert indexes(log.pump(dispatcher)) == [3, 4]


def test_cumulative_ack_inside_a_batch_brings_back_its_rest() -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(Kind.EXCLUSIVE, receiver, permits=20), log_of(3, messages=4)
    log.pump(dispatcher)
    assert dispatcher.ack_cumulative(receiver, 1, (0b1100,))
    dispatcher.redeliver(receiver, None)
    assert [(delivery.entry.index, delivery.ack_set) for delivery in log.pump(dispatcher)] == [(1, (0b1100,)), (2, ())]
    assert dispatcher.permits(receiver) == 20 - 12 - 6


def test_no_limit_on_what_a_cumulative_receiver_leaves_open() -> None:
    receiver = StagedReceiver()
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(Kind.EXCLUSIVE, Cursor(), 0, max_unacked=2)
    dispatcher.add(receiver)
    dispatcher.flow(receiver, 100)
    assert len(log_of(10).pump(dispatcher)) == 10


def test_what_lies_below_the_start_never_comes() -> None:
    receiver, log = StagedReceiver(), log_of(5)
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(Kind.EXCLUSIVE, Cursor(), 3)
    dispatcher.add(receiver)
    dispatcher.flow(receiver, 10)
    assert indexes(log.pump(dispatcher)) == [3, 4]
    dispatcher.redeliver(receiver, None)
    assert indexes(log.pump(dispatcher)) == [3, 4]


def test_failover_prefers_low_priority_numbers_then_who_came_first() -> None:
    first, second = StagedReceiver("z", priority=1), StagedReceiver("a", priority=1)
    preferred = StagedReceiver("m", priority=0)
    dispatcher = dispatcher_of(Kind.FAILOVER)
    assert dispatcher.add(first)
    assert not dispatcher.add(second)
    assert dispatcher.active is first
    assert dispatcher.add(preferred)
    assert dispatcher.active is preferred
    assert not dispatcher.remove(second)
    assert dispatcher.remove(preferred)
    assert dispatcher.active is first


@pytest.mark.parametrize("names", ["abc", "cab"])
def test_failover_spreads_partitions_over_equals_by_their_names(names: str) -> None:
    active = []
    for partition in range(4):
        dispatcher: Dispatcher[StagedReceiver] = Dispatcher(Kind.FAILOVER, Cursor(), 0, partition=partition)
        for receiver in [StagedReceiver("aa", priority=1), *map(StagedReceiver, names)]:
            dispatcher.add(receiver)
        assert dispatcher.active is not None
        active.append(dispatcher.active.name)
        dispatcher.remove(dispatcher.active)
        assert dispatcher.active is not None
        assert dispatcher.active.priority == 0
    assert active == ["a", "b", "c", "a"]


def test_partition_that_passes_to_another_receiver_begins_behind_what_is_acknowledged() -> None:
    old, new = StagedReceiver("a"), StagedReceiver("b")
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(Kind.FAILOVER, Cursor(), 0, partition=1)
    log = log_of(4)
    dispatcher.add(old)
    dispatcher.flow(old, 10)
    assert indexes(log.pump(dispatcher), old) == [0, 1, 2, 3]
    dispatcher.ack(old, 0)
    assert dispatcher.add(new)
    dispatcher.flow(new, 10)
    assert indexes(log.pump(dispatcher), new) == [1, 2, 3]


def test_new_active_receiver_starts_behind_what_is_acknowledged() -> None:
    old, new = StagedReceiver("a", priority=1), StagedReceiver("b", priority=0)
    dispatcher, log = dispatcher_of(Kind.FAILOVER, old, permits=10), log_of(4)
    fetched = log.fetch(dispatcher)
    assert indexes(dispatcher.offer(fetched, NOW), old) == [0, 1, 2, 3]
    dispatcher.ack(old, 0)
    dispatcher.add(new)
    dispatcher.flow(new, 10)
    assert dispatcher.unacked(old) == 0
    dispatcher.redeliver(old, None)
    assert dispatcher.ack(old, 2)
    assert indexes(log.pump(dispatcher), new) == [1, 3]


@BOTH
def test_what_was_fetched_before_a_seek_is_not_delivered_after_it(kind: Kind) -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(kind, receiver, permits=20), log_of(8)
    fetched = log.fetch(dispatcher)
    dispatcher.seek(4)
    assert indexes(dispatcher.offer(fetched, NOW)) == [4, 5, 6, 7]
    fetched = log.entries[4:]
    dispatcher.seek(1)
    assert dispatcher.offer(fetched, NOW) == []
    assert indexes(log.pump(dispatcher)) == [1, 2, 3, 4, 5, 6, 7]
