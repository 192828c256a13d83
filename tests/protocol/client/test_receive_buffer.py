"""Permits: a server never has more of them than there is room, and all of them come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.client import MessageId, ReceivedMessage, ServerMisbehaved
from protocol.client.entries import ReceivedEntry
from protocol.client.receive_buffer import ReceiveBudget, ReceiveBuffer


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


def test_a_share_is_never_nothing_and_never_more_than_one_may_have() -> None:
    budget = ReceiveBudget(total=10, most=4)
    shares = []
    for _ in range(12):
        budget.join()
        shares.append(budget.share)
    assert shares == [4, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]
    for _ in range(11):
        budget.leave()
    assert budget.share == 4


def test_a_buffer_shrinks_as_it_is_taken_from_and_grows_again() -> None:
    budget = ReceiveBudget(total=8, most=8)
    first, second = ReceiveBuffer(budget), ReceiveBuffer(budget)
    assert first.open() == 8
    assert second.open() == 4
    first.put(entry(8))
    given = []
    for _ in range(8):
        first.take()
        given.append(first.give_back())
    assert sum(given) == 4  # and four are the other's now
    second.close()
    second.close()
    first.put(entry(1))
    first.take()
    assert first.give_back() == 5  # what was taken, and what the other had


@given(st.lists(st.sampled_from(["open", "close", "use"]), max_size=60), st.integers(1, 40), st.integers(1, 20))
def test_buffers_that_come_and_go_end_up_within_the_budget(actions: list[str], total: int, most: int) -> None:
    budget = ReceiveBudget(total, most)
    opened: list[ReceiveBuffer] = []
    permits: dict[int, int] = {}  # what the server of each may still send

    def use(buffer: ReceiveBuffer) -> None:
        while permits[id(buffer)]:
            permits[id(buffer)] -= 1
            buffer.put(entry(1))
        while buffer:
            buffer.take()
            permits[id(buffer)] += buffer.give_back()

    for action in actions:
        match action:
            case "open":
                buffer = ReceiveBuffer(budget)
                permits[id(buffer)] = buffer.open()
                opened.append(buffer)
            case "close" if opened:
                opened.pop(0).close()
            case "use" if opened:
                use(opened[0])
                assert permits[id(opened[0])] > 0, "it could never receive anything again"
    for _ in range(2):
        for buffer in opened:
            use(buffer)
    room = max(total, len(opened))
    assert sum(permits[id(buffer)] for buffer in opened) <= room
