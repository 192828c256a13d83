"""Shared subscriptions: round robin, permits, redelivery."""

import pytest

from segments.cursors import LARGEST_BATCH, Cursor
from segments.dispatch import Dispatcher, Kind
from tests.segments.dispatch.staged import NOW, StagedReceiver, dispatcher_of, indexes, log_of


def test_entries_go_round_among_those_with_permits() -> None:
    one, other, idle = StagedReceiver("a"), StagedReceiver("b"), StagedReceiver("c")
    dispatcher, log = dispatcher_of(Kind.SHARED, one, other, permits=10), log_of(8)
    dispatcher.add(idle)
    deliveries = log.pump(dispatcher)
    assert indexes(deliveries, one) == [0, 2, 4, 6]
    assert indexes(deliveries, other) == [1, 3, 5, 7]


def test_turns_go_on_where_the_last_offer_ended() -> None:
    receivers = [StagedReceiver(name) for name in "abc"]
    dispatcher, log = dispatcher_of(Kind.SHARED, *receivers, permits=10), log_of(0)
    names = []
    for _ in range(6):
        log.append()
        names += [delivery.receiver.name for delivery in log.pump(dispatcher)]
    assert names == list("abcabc")


def test_priority_is_served_first() -> None:
    low, high = StagedReceiver("low", priority=1), StagedReceiver("high", priority=0)
    dispatcher, log = dispatcher_of(Kind.SHARED, low, high, permits=3), log_of(5)
    deliveries = log.pump(dispatcher)
    assert indexes(deliveries, high) == [0, 1, 2]
    assert indexes(deliveries, low) == [3, 4]


def test_connection_that_takes_no_more_is_passed_over() -> None:
    slow, fast = StagedReceiver("slow", is_ready=False), StagedReceiver("fast")
    dispatcher, log = dispatcher_of(Kind.SHARED, slow, fast, permits=5), log_of(5)
    assert indexes(log.pump(dispatcher), fast) == [0, 1, 2, 3, 4]
    assert dispatcher.permits(slow) == 5


def test_batch_costs_its_messages_and_only_the_last_overshoots() -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(Kind.SHARED, receiver, permits=25), log_of(10, messages=10)
    assert indexes(log.pump(dispatcher)) == [0, 1, 2]
    assert dispatcher.permits(receiver) == -5
    assert dispatcher.wanted(log.end, NOW) is None
    dispatcher.flow(receiver, 5)
    assert dispatcher.wanted(log.end, NOW) is None
    dispatcher.flow(receiver, 1)
    assert indexes(log.pump(dispatcher)) == [3]


def test_receiver_at_its_limit_gets_nothing_until_it_acks() -> None:
    receiver = StagedReceiver()
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(Kind.SHARED, Cursor(), 0, max_unacked=3)
    log = log_of(5)
    dispatcher.add(receiver)
    dispatcher.flow(receiver, 100)
    assert indexes(log.pump(dispatcher)) == [0, 1, 2]
    assert dispatcher.wanted(log.end, NOW) is None
    dispatcher.ack(receiver, 1)
    assert indexes(log.pump(dispatcher)) == [3]


def test_nack_brings_back_what_the_receiver_has_and_counts() -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(Kind.SHARED, one, other, permits=10), log_of(4)
    log.pump(dispatcher)
    dispatcher.redeliver(one, [2, 0, 1, 77, 2])
    assert list(dispatcher.wanted(log.end, NOW) or ()) == [0, 2]
    again = log.pump(dispatcher)
    assert [(delivery.entry.index, delivery.redeliveries) for delivery in again] == [(0, 1), (2, 1)]
    for delivery in again:
        dispatcher.redeliver(delivery.receiver, [delivery.entry.index])
    assert [delivery.redeliveries for delivery in log.pump(dispatcher)] == [2, 2]


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.KEY_SHARED])
def test_only_what_was_asked_for_again_counts_as_redelivered(kind: Kind) -> None:
    """Else consumers that come and go would bring a message to the dead letters that nobody has refused."""
    receiver = StagedReceiver("a")
    dispatcher, log = dispatcher_of(kind, receiver, permits=10), log_of(2)
    log.pump(dispatcher)
    dispatcher.redeliver(receiver, [1])
    log.pump(dispatcher)
    for number in range(3):
        dispatcher.remove(receiver)
        receiver = StagedReceiver(f"b{number}")
        dispatcher.add(receiver)
        dispatcher.flow(receiver, 10)
        assert [delivery.redeliveries for delivery in log.pump(dispatcher)] == [0, 1]


def test_what_a_lost_receiver_had_goes_to_the_others() -> None:
    lost, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(Kind.SHARED, lost, other, permits=10), log_of(6)
    log.pump(dispatcher)
    dispatcher.ack(lost, 2)
    dispatcher.remove(lost)
    deliveries = log.pump(dispatcher)
    assert [(delivery.receiver, delivery.entry.index, delivery.redeliveries) for delivery in deliveries] == [
        (other, 0, 0),
        (other, 4, 0),
    ]
    assert dispatcher.unacked(lost) == 0


def test_ack_by_another_than_the_holder_settles_it() -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher, log = dispatcher_of(Kind.SHARED, one, other, permits=10), log_of(2)
    log.pump(dispatcher)
    assert dispatcher.ack(other, 0)
    assert dispatcher.unacked(one) == 0
    dispatcher.redeliver(one, None)
    assert list(dispatcher.wanted(log.end, NOW) or ()) == []


def test_ack_of_what_waits_for_redelivery_settles_it() -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(Kind.SHARED, receiver, permits=10), log_of(2)
    log.pump(dispatcher)
    dispatcher.redeliver(receiver, None)
    fetched = log.fetch(dispatcher)
    assert dispatcher.ack(receiver, 0)
    assert indexes(dispatcher.offer(fetched, NOW)) == [1]


def test_acks_of_what_does_not_exist_or_is_done_are_harmless() -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(Kind.SHARED, receiver, permits=10), log_of(3)
    log.pump(dispatcher)
    assert dispatcher.ack(receiver, 1)
    assert not dispatcher.ack(receiver, 1)
    assert not dispatcher.ack(receiver, 1, (1,))
    assert not dispatcher.ack(receiver, 3)
    assert not dispatcher.ack(receiver, -1)
    assert not dispatcher.ack(receiver, 2**62)
    assert dispatcher.unacked(receiver) == 2
    assert dispatcher.backlog(log.end) == 2


def test_rest_of_a_batch_comes_back_with_its_ack_set_and_costs_that_much() -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(Kind.SHARED, receiver, permits=10), log_of(1, messages=4)
    log.pump(dispatcher)
    assert dispatcher.ack(receiver, 0, (0b1010,))
    assert dispatcher.unacked(receiver) == 2
    dispatcher.redeliver(receiver, None)
    (delivery,) = log.pump(dispatcher)
    assert (delivery.ack_set, delivery.redeliveries) == ((0b1010,), 1)
    assert dispatcher.permits(receiver) == 10 - 4 - 2
    assert dispatcher.ack(receiver, 0, (0b0101,))
    assert dispatcher.cursor.mark == 0
    assert dispatcher.unacked(receiver) == 0


def test_bits_that_no_message_has_do_not_keep_a_batch() -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(Kind.SHARED, receiver, permits=10), log_of(2, messages=3)
    log.pump(dispatcher)
    dispatcher.ack(receiver, 0, (0b1000,))
    dispatcher.redeliver(receiver, None)
    assert indexes(log.pump(dispatcher)) == [1]
    assert dispatcher.cursor.mark == 0


def test_seek_forgets_what_is_outstanding() -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(Kind.SHARED, receiver, permits=20), log_of(6)
    log.pump(dispatcher)
    dispatcher.ack(receiver, 5)
    dispatcher.redeliver(receiver, [1])
    stale = log.fetch(dispatcher)
    dispatcher.seek(4)
    assert dispatcher.offer(stale, NOW) == []
    assert dispatcher.unacked(receiver) == 0
    assert [(delivery.entry.index, delivery.redeliveries) for delivery in log.pump(dispatcher)] == [(4, 0), (5, 0)]


def test_trimmed_entries_are_wanted_no_more() -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(Kind.SHARED, receiver, permits=4), log_of(6)
    log.pump(dispatcher)
    dispatcher.redeliver(receiver, [0, 2])
    assert dispatcher.trim(2)
    assert dispatcher.unacked(receiver) == 1
    dispatcher.flow(receiver, 10)
    assert indexes(log.pump(dispatcher)) == [2, 4, 5]


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.EXCLUSIVE, Kind.FAILOVER])
def test_entries_offered_twice_are_delivered_once(kind: Kind) -> None:
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(kind, receiver, permits=10), log_of(3)
    fetched = log.fetch(dispatcher)
    assert indexes(dispatcher.offer([*fetched, *fetched], NOW)) == [0, 1, 2]
    assert dispatcher.offer(fetched, NOW) == []


@pytest.mark.parametrize("kind", [Kind.SHARED, Kind.EXCLUSIVE, Kind.FAILOVER])
def test_acknowledged_ones_are_skipped_when_reading_on(kind: Kind) -> None:
    cursor = Cursor()
    for index in (0, 2, 3):
        cursor.ack(index)
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(kind, cursor, 0)
    receiver, log = StagedReceiver(), log_of(6)
    dispatcher.add(receiver)
    dispatcher.flow(receiver, 10)
    assert dispatcher.wanted(log.end, NOW) == [1, 4, 5]
    assert indexes(dispatcher.offer(log.entries, NOW)) == [1, 4, 5]
    assert dispatcher.wanted(log.end, NOW) == range(6, 6)


@pytest.mark.parametrize("kind", list(Kind))
def test_nothing_is_wanted_while_nobody_can_take_it(kind: Kind) -> None:
    receiver = StagedReceiver()
    dispatcher = dispatcher_of(kind)
    assert dispatcher.wanted(5, NOW) is None
    dispatcher.add(receiver)
    assert dispatcher.wanted(5, NOW) is None
    dispatcher.flow(receiver, 3)
    assert dispatcher.wanted(5, NOW) == range(3)
    receiver.is_ready = False
    assert dispatcher.wanted(5, NOW) is None


@pytest.mark.parametrize("kind", list(Kind))
def test_batch_that_claims_more_messages_than_one_can_hold_costs_no_more_than_the_largest(kind: Kind) -> None:
    """What is stored may be older than the bound at the wire."""
    receiver = StagedReceiver()
    dispatcher, log = dispatcher_of(kind, receiver, permits=1), log_of(1, messages=2**31 - 1)
    assert indexes(log.pump(dispatcher)) == [0]
    assert dispatcher.permits(receiver) == 1 - LARGEST_BATCH
    dispatcher.ack(receiver, 0, (-2,))
    dispatcher.redeliver(receiver, None)
    dispatcher.flow(receiver, LARGEST_BATCH)
    [again] = log.pump(dispatcher)
    assert again.ack_set == (-2,)
    assert dispatcher.permits(receiver) == 1 - 63
