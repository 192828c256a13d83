"""The last entries of a log stay in memory, within what one log and all logs together may hold."""

from __future__ import annotations

from metadata.log_entries import StoredEntry
from segments.tail import Budget, Tail


def entries(first: int, count: int, size: int = 100) -> list[StoredEntry]:
    return [StoredEntry(index, 0, 1, bytes(size)) for index in range(first, first + count)]


def test_entries_are_found_by_their_indexes() -> None:
    tail = Tail(10, Budget(1_000_000), 1_000_000)
    tail.add(entries(10, 20))
    assert [e.index for e in tail.get(range(12, 15)) or ()] == [12, 13, 14]
    assert [e.index for e in tail.get([10, 15, 29]) or ()] == [10, 15, 29]


def test_what_is_not_there_is_not_made_up() -> None:
    tail = Tail(10, Budget(1_000_000), 1_000_000)
    tail.add(entries(10, 5))
    assert tail.get(range(9, 12)) is None
    assert tail.get(range(14, 16)) is None
    assert tail.get([]) is None


def test_oldest_entries_go_when_the_log_has_too_many() -> None:
    tail = Tail(0, Budget(10_000_000), 30_000)
    for start in range(0, 5_000, 10):
        tail.add(entries(start, 10))
    assert tail.first == 4_900
    assert tail.get(range(4_899, 4_901)) is None
    assert [e.index for e in tail.get(range(4_900, 5_000)) or ()] == list(range(4_900, 5_000))


def test_logs_share_a_budget_and_give_it_back() -> None:
    budget = Budget(3_000)
    first, second = Tail(0, budget, 1_000_000), Tail(0, budget, 1_000_000)
    first.add(entries(0, 10))
    second.add(entries(0, 10))
    assert budget.used <= 3_000
    assert second.get([9]) is None
    first.clear()
    second.clear()
    assert budget.used == 0
    second.add(entries(10, 5))
    assert second.get([10]) is not None
