"""Who may send to a log, and what counts as sent before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from metadata.log_states import ProducerMark
from segments.errors import ProducerBusy, ProducerFenced
from segments.producers import Mode, Producer, Producers, Sequences


@dataclass(eq=False)
class QuietPeer:
    closed: bool = False
    queued_bytes: int = 0
    frames: list[bytes] = field(default_factory=list)

    def reply(self, frame: bytes) -> None:
        self.frames.append(frame)

    def send(self, parts: tuple[bytes, ...]) -> None:
        self.frames.append(b"".join(parts))

    def when_sent(self, call: Callable[[], None]) -> None:
        call()


def producer(name: str, mode: Mode = Mode.SHARED, *, epoch: int = 0, peer: QuietPeer | None = None) -> Producer:
    return Producer(peer or QuietPeer(), 1, name, mode, epoch, is_named=True, begin=lambda begun: None)


@pytest.fixture
def closed() -> list[str]:
    return []


@pytest.fixture
def producers(closed: list[str]) -> Producers:
    return Producers(None, lambda producer: closed.append(producer.name))


def test_shared_producers_join_under_different_names(producers: Producers) -> None:
    assert producers.join(producer("a"), None)
    assert producers.join(producer("b"), None)
    with pytest.raises(ProducerBusy):
        producers.join(producer("a"), None)


def test_producer_that_comes_back_takes_the_place_of_its_dead_connection(producers: Producers) -> None:
    peer = QuietPeer()
    producers.join(producer("a", peer=peer), None)
    peer.closed = True
    assert producers.join(producer("a"), None)
    assert len(producers) == 1


def test_later_epoch_of_the_same_name_takes_its_place(producers: Producers) -> None:
    producers.join(producer("a"), None)
    assert producers.join(producer("a", epoch=1), None)
    assert len(producers) == 1


def test_exclusive_producer_is_alone(producers: Producers) -> None:
    assert producers.join(producer("a", Mode.EXCLUSIVE), None)
    with pytest.raises(ProducerBusy):
        producers.join(producer("b"), None)
    with pytest.raises(ProducerFenced):
        producers.join(producer("c", Mode.EXCLUSIVE), None)


def test_exclusive_producer_is_refused_where_others_are(producers: Producers) -> None:
    producers.join(producer("a"), None)
    with pytest.raises(ProducerFenced):
        producers.join(producer("b", Mode.EXCLUSIVE), None)


def test_waiting_producers_come_in_their_order(producers: Producers) -> None:
    first, second, third = (producer(name, Mode.WAIT) for name in "abc")
    assert producers.join(first, None)
    assert not producers.join(second, None)
    assert not producers.join(third, None)
    assert producers.leave(second) is None
    assert producers.leave(first) is third
    assert third.topic_epoch == 1


def test_fencing_producer_closes_all_others_and_raises_the_epoch(producers: Producers, closed: list[str]) -> None:
    first = producer("a", Mode.EXCLUSIVE)
    producers.join(first, None)
    producers.join(producer("b", Mode.WAIT), None)
    newest = producer("c", Mode.FENCING)
    assert producers.join(newest, None)
    assert closed == ["a", "b"]
    assert newest.topic_epoch == 1
    with pytest.raises(ProducerFenced):
        producers.join(producer("a", Mode.EXCLUSIVE), first.topic_epoch)


def test_waiting_producer_that_comes_back_keeps_its_turn(producers: Producers) -> None:
    holder = producer("a", Mode.EXCLUSIVE)
    producers.join(holder, None)
    for name in "bc":
        assert not producers.join(producer(name, Mode.WAIT), None)
    again = producer("b", Mode.WAIT, epoch=1)
    assert not producers.join(again, None)
    assert len(producers.all) == 3
    assert producers.leave(holder) is again


def test_refused_producer_leaves_the_one_before_it_where_it_was(producers: Producers) -> None:
    before = producer("a")
    producers.join(before, None)
    waiting = producer("b", Mode.WAIT)
    assert not producers.join(waiting, None)
    with pytest.raises(ProducerBusy):
        producers.join(producer("a", epoch=1), None)
    assert producers.all == [before, waiting]
    assert producers.leave(before) is waiting


def test_exclusive_producer_that_comes_back_keeps_its_epoch(producers: Producers) -> None:
    first = producer("a", Mode.EXCLUSIVE)
    producers.join(first, None)
    producers.leave(first)
    again = producer("a", Mode.EXCLUSIVE, epoch=1)
    assert producers.join(again, first.topic_epoch)
    assert again.topic_epoch == first.topic_epoch


def test_message_is_new_once() -> None:
    sequences = Sequences({"a": ProducerMark(7, 3)})
    assert not sequences.accept("a", 7)
    assert sequences.accept("a", 8)
    assert not sequences.accept("a", 8)
    assert sequences.last("a") == 8
    assert sequences.last("b") == -1


def test_refused_messages_are_new_again() -> None:
    sequences = Sequences({"a": ProducerMark(7, 3)})
    sequences.accept("a", 8)
    sequences.refuse("a")
    assert sequences.last("a") == 7
    assert sequences.accept("a", 8)


def test_place_of_what_was_stored_is_remembered() -> None:
    sequences = Sequences({"a": ProducerMark(7, 3)})
    assert sequences.place("a", 7) == 3
    assert sequences.place("a", 6) is None
    for number in range(2_000):
        sequences.stored("a", 8 + number, 4 + number)
    assert sequences.place("a", 2_000) == 1_996
    assert sequences.place("a", 8) is None


def test_chunks_of_one_message_are_new_each_once() -> None:
    sequences = Sequences({})
    assert sequences.accept("a", 0, 0)
    assert sequences.accept("a", 0, 1)
    assert not sequences.accept("a", 0, 0)
    sequences.stored("a", 0, 5, 0, is_last=False)
    assert sequences.marks == {}
    sequences.stored("a", 0, 6, 1)
    assert sequences.marks["a"] == ProducerMark(0, 6)
    assert (sequences.place("a", 0, 0), sequences.place("a", 0, 1)) == (5, 6)
    assert not sequences.accept("a", 0)
    assert sequences.accept("a", 1)
