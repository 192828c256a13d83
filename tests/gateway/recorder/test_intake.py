"""The queue between the loop and the writer."""

import threading
from collections.abc import Callable

from gateway.recorder.intake import Base, Entries, Intake, Value


def value(text: bytes = b"v") -> Value:
    return Value("t/n/a", "incarnation", 1, text)


def test_items_come_out_in_their_order() -> None:
    intake = Intake()
    items = [value(b"%d" % number) for number in range(5)]
    for item in items:
        assert intake.offer(item, 1, 1)
    assert intake.events == 5
    assert intake.take(2) + intake.take(100) == items
    assert intake.take(1) == []
    assert intake.events == 0


def test_what_does_not_fit_is_not_taken() -> None:
    by_events, by_bytes = Intake(most_events=2), Intake(most_bytes=10)
    assert by_events.offer(value(), 2, 0)
    assert not by_events.offer(value(), 1, 0)
    assert by_bytes.offer(value(), 0, 10)
    assert not by_bytes.offer(value(), 0, 1)


def test_what_has_no_bytes_is_not_refused_for_those_of_others() -> None:
    intake = Intake(most_bytes=10)
    intake.put(Base([], 0.0), 1, 50)
    assert not intake.offer(value(), 0, 1)
    assert intake.offer(Entries(0, [], [], 0.0), 1, 0)


def test_there_is_room_only_when_half_is_free() -> None:
    intake = Intake(most_events=4)
    for _ in range(4):
        intake.offer(value(), 1, 0)
    assert not intake.has_room
    intake.take(1)
    assert not intake.has_room
    intake.take(1)
    assert intake.has_room


def test_what_must_not_be_missing_is_taken_beyond_the_bound() -> None:
    intake = Intake(most_events=1)
    intake.put(Base([], 0.0), 5)
    assert intake.events == 5


def test_a_sleeping_writer_is_woken_by_what_is_put_and_by_the_end() -> None:
    intake = Intake()
    wakers: list[Callable[[], None]] = [lambda: intake.put(value()), intake.close]
    for wake in wakers:
        sleeper = threading.Thread(target=intake.sleep, args=(None,))
        sleeper.start()
        wake()
        sleeper.join(10)
        assert not sleeper.is_alive()
        intake.take(10)
