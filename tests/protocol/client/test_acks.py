"""Acknowledgements in groups: what they say, and that each has one outcome."""

from __future__ import annotations

import pytest

from protocol.client import AlreadyClosed, MessageId
from protocol.client.acks import MAX_GROUP, MAX_PARTIAL, AckGroup, AckQueue
from protocol.client.entries import bits_of

TOPIC = "persistent://t/n/x"


def at(index: int, batch_index: int = -1, batch_size: int = 0) -> MessageId:
    return MessageId(TOPIC, 7, index, batch_index, batch_size)


def left(group: AckGroup, index: int = 0) -> int:
    return bits_of(group.individual[7, index].ack_set)


def test_acknowledgements_that_come_together_are_told_together() -> None:
    acks = AckQueue()
    groups = {acks.add(at(index)) for index in range(3)}
    assert len(groups) == len(acks) == 1
    assert list(groups.pop().individual) == [(7, 0), (7, 1), (7, 2)]


def test_nothing_is_added_to_a_group_that_is_on_its_way() -> None:
    acks = AckQueue()
    first = acks.add(at(0))
    first.is_sent = True
    assert acks.add(at(1)) is not first
    assert acks.head is first


def test_a_group_is_not_larger_than_servers_expect() -> None:
    acks = AckQueue()
    for index in range(MAX_GROUP + 1):
        acks.add(at(index))
    assert [len(group.individual) for group in acks] == [MAX_GROUP, 1]


def test_a_batch_is_told_by_what_is_left_of_it() -> None:
    acks = AckQueue()
    group = acks.add(at(0, 1, 3))
    assert left(group) == 0b101
    acks.add(at(0, 0, 3))
    assert left(group) == 0b100
    acks.add(at(0, 2, 3))
    assert left(group) == 0
    assert list(group.individual) == [(7, 0)]


def test_what_others_acknowledged_of_a_batch_is_not_claimed_back() -> None:
    acks = AckQueue()
    acks.note_batch(at(0, 1, 3), 0b110)
    assert left(acks.add(at(0, 1, 3))) == 0b100


def test_an_acknowledgement_up_to_a_message_within_a_batch_leaves_the_rest_of_it() -> None:
    acks = AckQueue()
    group = acks.add_cumulative(at(3, 1, 4))
    assert group is not None
    assert group.cumulative is not None
    assert bits_of(group.cumulative.ack_set) == 0b1100
    last = acks.add_cumulative(at(3, 3, 4))
    assert last is group
    assert not group.cumulative.ack_set


def test_acknowledging_up_to_an_earlier_message_says_nothing() -> None:
    acks = AckQueue()
    assert acks.add_cumulative(at(3)) is not None
    assert acks.add_cumulative(at(3)) is None
    assert acks.add_cumulative(at(2)) is None
    acks.forget()
    assert acks.add_cumulative(at(2)) is not None


def test_parts_of_batches_that_are_never_finished_are_forgotten_one_day() -> None:
    acks = AckQueue()
    for index in range(MAX_PARTIAL + 10):
        acks.add(at(index, 0, 2))
    assert len(acks._partial) == MAX_PARTIAL


async def test_a_group_ends_once_and_says_how() -> None:
    acks = AckQueue()
    group = acks.add(at(0))
    acks.settle(group)
    acks.settle(group, AlreadyClosed("too late"))
    await group.wait()
    assert len(acks) == 0


async def test_after_the_end_everything_fails() -> None:
    acks = AckQueue()
    group = acks.add(at(0))
    acks.fail(AlreadyClosed("over"))
    with pytest.raises(AlreadyClosed, match="over"):
        await group.wait()
    with pytest.raises(AlreadyClosed, match="over"):
        acks.add(at(1))
