"""Taking messages in turn: of segments, and of topics that have several."""

from __future__ import annotations

from collections import deque

import pytest

from protocol.client import AlreadyClosed, MessageId, ReceivedMessage
from protocol.client.inbox import Inbox, InnerInbox


class Segment:
    def __init__(self, name: str, inbox: Inbox, count: int) -> None:
        self.waiting = deque(ReceivedMessage(MessageId(name, 0, index), b"") for index in range(count))
        inbox.announce(self)

    @property
    def has_messages(self) -> bool:
        return bool(self.waiting)

    def take(self, order: int) -> ReceivedMessage:
        message = self.waiting.popleft()
        message.taken = order
        return message


def drained(inbox: Inbox) -> str:
    """The one-letter names of the segments, in the order in which they had their turns."""
    taken = []
    while (message := inbox.take_nowait()) is not None:
        taken.append(message.topic)
    return "".join(taken)


def test_segments_take_turns() -> None:
    inbox = Inbox()
    Segment("a", inbox, 3)
    Segment("b", inbox, 1)
    Segment("c", inbox, 2)
    assert drained(inbox) == "abcaca"


def test_a_topic_has_one_turn_however_many_segments_it_has() -> None:
    outer = Inbox()
    busy, quiet = InnerInbox(outer), InnerInbox(outer)
    for name in "abc":
        Segment(name, busy, 2)
    Segment("q", quiet, 3)
    assert drained(outer) == "aqbqcqabc"


def test_the_order_counts_over_all_topics() -> None:
    outer = Inbox()
    for name in "ab":
        Segment(name, InnerInbox(outer), 2)
    orders = []
    while (message := outer.take_nowait()) is not None:
        orders.append((message.topic, message.taken))
    assert orders == [("a", 1), ("b", 2), ("a", 3), ("b", 4)]


def test_a_paused_topic_keeps_what_it_has_and_what_still_comes() -> None:
    outer = Inbox()
    paused = InnerInbox(outer)
    Segment("p", paused, 1)
    paused.pause()
    Segment("r", paused, 1)
    Segment("a", InnerInbox(outer), 2)
    assert drained(outer) == "aa"


def test_a_topic_that_ends_does_not_end_the_others() -> None:
    outer = Inbox()
    over = InnerInbox(outer)
    over.end(AlreadyClosed("over"))
    assert over.ended.is_set()
    Segment("a", InnerInbox(outer), 1)
    assert drained(outer) == "a"
    assert drained(outer) == ""  # and no complaint


async def test_the_end_comes_after_what_is_there() -> None:
    inbox = Inbox()
    Segment("a", inbox, 1)
    inbox.end(AlreadyClosed("over"))
    assert (await inbox.take()).topic == "a"
    with pytest.raises(AlreadyClosed):
        await inbox.take()
