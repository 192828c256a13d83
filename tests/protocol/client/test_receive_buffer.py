"""Permits: a server never has more of them than there is room, and all of them come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.client import MessageId, ReceivedMessage, ServerMisbehaved
from protocol.client.entries import ReceivedEntry
from protocol.client.receive_buffer import ReceiveBuffer


def entry(messages: int, cost: int | None = None) -> ReceivedEntry:
    items = [ReceivedMessage(MessageId("t", 0, 0, index), b"") for index in range(messages)]
    return ReceivedEntry(items, messages if cost is None else cost)


def test_nothing_may_come_before_it_is_permitted() -> None:
    with pytest.raises(ServerMisbehaved):
        ReceiveBuffer(10).put(entry(1))


def test_permits_come_back_by_halves() -> None:
    buffer = ReceiveBuffer(4)
    assert buffer.open() == 4
    buffer.put(entry(4))
    given_back = []
    while buffer:
        buffer.take()
        given_back.append(buffer.give_back())
    assert given_back == [0, 2, 0, 2]


def test_a_buffer_for_one_message_gives_it_back_at_once() -> None:
    buffer = ReceiveBuffer(1)
    buffer.open()
    for _ in range(3):
        buffer.put(entry(1))
        buffer.take()
        assert buffer.give_back() == 1


def test_messages_that_were_left_out_give_their_permits_back_too() -> None:
    buffer = ReceiveBuffer(2)
    buffer.open()
    buffer.put(entry(1, cost=5))
    buffer.take()
    assert buffer.give_back() == 5
    buffer.put(entry(0, cost=3))
    assert (len(buffer), buffer.give_back()) == (0, 3)


def test_what_is_dropped_or_cleared_gives_its_permits_back() -> None:
    buffer = ReceiveBuffer(4)
    buffer.open()
    buffer.drop(entry(2))
    assert buffer.give_back() == 2
    buffer.put(entry(2))
    buffer.clear()
    assert (len(buffer), buffer.give_back()) == (0, 2)


def test_opening_anew_forgets_everything() -> None:
    buffer = ReceiveBuffer(4)
    buffer.open()
    buffer.put(entry(3))
    assert buffer.open() == 4
    assert (len(buffer), buffer.give_back()) == (0, 0)


@given(st.integers(1, 20), st.lists(st.integers(1, 8), max_size=60))
def test_a_server_that_keeps_to_its_permits_can_always_go_on(size: int, entries: list[int]) -> None:
    buffer = ReceiveBuffer(size)
    permits = buffer.open()
    for messages in entries:
        while permits <= 0:
            buffer.take()
            permits += buffer.give_back()
        permits -= messages
        buffer.put(entry(messages))
        # No more than was permitted, and the rest of one batch.
        assert len(buffer) <= size + 7
