"""Rows that wait for their values, in their order."""

from gateway.recorder.holding import Holding
from metadata.traces.events import Kind, TraceEvent

UNTIL = 10.0


def row(seq: int, version: int = 0, *, incarnation: str = "a") -> TraceEvent:
    return TraceEvent(seq, 1, Kind.CHANGED, 0, incarnation=incarnation, version=version)


def released(holding: Holding, now: float = 0.0) -> list[tuple[int, bytes | None]]:
    return [(event.seq, event.value) for event in holding.released(now)]


def test_a_row_is_released_with_the_value_of_its_version() -> None:
    holding = Holding()
    holding.add_waiting(row(0), "orders", UNTIL)
    assert released(holding) == []
    holding.supply("orders", "a", 0, b"value")
    assert released(holding) == [(0, b"value")]


def test_rows_behind_one_that_waits_wait_too() -> None:
    holding = Holding()
    holding.add_waiting(row(0), "orders", UNTIL)
    holding.add(row(1))
    assert released(holding) == []
    holding.supply("orders", "a", 0, b"value")
    assert released(holding) == [(0, b"value"), (1, None)]


def test_a_later_version_lets_earlier_rows_of_the_topic_go_without() -> None:
    holding = Holding()
    for seq in range(3):
        holding.add_waiting(row(seq, version=seq), "orders", UNTIL)
    holding.supply("orders", "a", 1, b"value")
    assert released(holding) == [(0, None), (1, b"value")]
    holding.supply("orders", "a", 7, b"much later")
    assert released(holding) == [(2, None)]


def test_an_older_read_leaves_the_row_waiting_for_the_next() -> None:
    holding = Holding()
    holding.add_waiting(row(0, version=5), "orders", UNTIL)
    holding.supply("orders", "a", 4, b"old")
    assert released(holding) == []
    holding.supply("orders", "a", 5, b"new")
    assert released(holding) == [(0, b"new")]


def test_a_value_of_another_incarnation_is_not_taken() -> None:
    holding = Holding()
    holding.add_waiting(row(0), "orders", UNTIL)
    holding.supply("orders", "b", 0, b"of its successor")
    assert released(holding) == []
    assert released(holding, UNTIL) == [(0, None)]


def test_a_deleted_topic_has_no_values_to_wait_for() -> None:
    holding = Holding()
    holding.add_waiting(row(0), "orders", UNTIL)
    holding.add_waiting(row(1), "payments", UNTIL)
    holding.give_up("orders")
    holding.give_up("unknown")
    assert released(holding) == [(0, None)]
    assert len(holding) == 1


def test_a_value_that_takes_too_long_is_not_waited_for() -> None:
    holding = Holding()
    holding.add_waiting(row(0), "orders", 1.0)
    holding.add_waiting(row(1, version=1), "orders", 2.0)
    assert released(holding, 1.5) == [(0, None)]
    holding.supply("orders", "a", 1, b"in time")
    assert released(holding, 1.5) == [(1, b"in time")]
