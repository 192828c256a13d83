"""Who has to go when what is kept for slow clients gets too much."""

import trio
import trio.testing

from gateway.http.shares import Share, Shares


def nothing() -> None:
    pass


async def test_whoever_holds_most_for_longest_loses_it_first(autojump_clock: trio.testing.MockClock) -> None:
    lost: list[str] = []
    shares = Shares(100)
    with (
        shares.open(lambda: lost.append("old")) as old,
        shares.open(lambda: lost.append("large")) as large,
        shares.open(lambda: lost.append("new")) as new,
    ):
        shares.grow(old, 20)
        await trio.sleep(10)
        large.moved_at = trio.current_time()
        shares.grow(large, 70)
        await trio.sleep(1)
        new.moved_at = trio.current_time()
        shares.grow(new, 30)
        assert lost == ["old"]
        shares.grow(new, 5)
        assert (lost, shares.used) == (["old", "large"], 35)


async def test_one_alone_may_hold_more_than_the_bound() -> None:
    shares = Shares(100)
    with shares.open(nothing) as idle, shares.open(nothing) as only:
        shares.grow(only, 1_000)
        assert (only.size, idle.size, shares.used) == (1_000, 0, 1_000)


async def test_what_is_being_worked_on_is_not_taken_away() -> None:
    lost: list[str] = []
    shares = Shares(100)
    with shares.open(lambda: lost.append("worked on")) as worked_on, shares.open(lambda: lost.append("new")) as new:
        shares.grow(worked_on, 90)
        worked_on.pinned = True
        shares.grow(new, 20)
        assert lost == ["new"]


async def test_nothing_counts_any_more_after_its_end_or_loss() -> None:
    shares = Shares(100)
    lost: list[Share] = []
    with shares.open(lambda: lost.append(first)) as first, shares.open(nothing) as second:
        shares.grow(first, 90)
        shares.grow(second, 60)
        assert lost == [first]
        shares.grow(first, 30)
        shares.shrink(first, 30)
        assert (first.size, shares.used) == (0, 60)
        shares.shrink(second, 10)
        assert shares.used == 50
    assert shares.used == 0
