"""Who loses what it holds when all together hold too much."""

from sessions.budgets import Budget, Holdings, burden


class Hoarder:
    def __init__(self, budget: "Budget[Hoarder]", weight: float = 0.0) -> None:
        self.budget = budget
        self.weight = weight
        self.ended = False

    def burden(self, now: float) -> float:
        return self.weight or self.budget.held(self) * now

    def give_up(self) -> None:
        self.ended = True
        self.budget.release(self)


def test_within_the_limit_nobody_ends() -> None:
    budget: Budget[Hoarder] = Budget(100)
    one, other = Hoarder(budget), Hoarder(budget)
    budget.hold(one, 60, 1.0)
    budget.hold(other, 40, 1.0)
    assert (budget.total, len(budget)) == (100, 2)
    assert (one.ended, other.ended) == (False, False)


def test_the_greediest_end_until_the_rest_fits_and_no_further() -> None:
    budget: Budget[Hoarder] = Budget(100)
    holders = [Hoarder(budget) for _ in range(4)]
    for holder, size in zip(holders, (10, 50, 30, 10), strict=True):
        budget.hold(holder, size, 1.0)
    late = Hoarder(budget)
    budget.hold(late, 60, 1.0)
    assert [holder.ended for holder in (*holders, late)] == [False, False, False, False, True]
    budget.hold(late, 15, 1.0)
    assert [holder.ended for holder in holders] == [False, True, False, False]
    assert budget.total == 10 + 30 + 10 + 15


def test_who_brings_it_over_the_limit_is_not_the_one_that_ends_for_that() -> None:
    budget: Budget[Hoarder] = Budget(100)
    greedy, modest = Hoarder(budget, weight=5.0), Hoarder(budget, weight=1.0)
    budget.hold(greedy, 99, 1.0)
    budget.hold(modest, 2, 1.0)
    assert (greedy.ended, modest.ended, budget.total) == (True, False, 2)


def test_what_is_released_or_shrinks_is_counted_no_more() -> None:
    budget: Budget[Hoarder] = Budget(100)
    holder = Hoarder(budget)
    budget.hold(holder, 90, 1.0)
    budget.hold(holder, 20, 1.0)
    assert budget.total == 20
    budget.release(holder)
    budget.release(holder)
    assert (budget.total, len(budget), budget.held(holder)) == (0, 0, 0)


def test_a_moment_ago_the_larger_counts_and_later_the_one_that_stopped() -> None:
    assert burden(2_000, moved_at=10.0, now=10.0) > burden(1_000, moved_at=9.99, now=10.0)
    assert burden(1_000, moved_at=5.0, now=10.0) > burden(5_000, moved_at=9.95, now=10.0)


def test_of_watches_the_connection_with_most_ends_and_comes_back_into_no_count() -> None:
    budget: Budget[Holdings] = Budget(100)
    ended: list[str] = []
    modest, greedy = (Holdings(budget, lambda name=name: ended.append(name)) for name in ("modest", "greedy"))  # type: ignore[misc]  # a default is how a lambda keeps a name
    modest.change(30)
    greedy.change(60)
    greedy.change(-10)
    modest.change(30)
    assert (ended, budget.total) == (["modest"], 50)
    # Its watches go a moment later.
    modest.change(-60)
    assert (budget.total, len(budget)) == (50, 1)
    greedy.change(-50)
    assert (budget.total, len(budget)) == (0, 0)
    greedy.change(10)
    greedy.release()
    greedy.release()
    assert (budget.total, ended) == (0, ["modest"])
