"""Long work gives way: others get their turn after so many steps, and all of it is done."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.testing

from sessions.namespaces import _EVALUATED_PER_TURN, _wake_in_turns
from sessions.turns import ENDED_PER_TURN, Turns, end_in_turns


class Neighbour:
    """Another task, which notes how far the work has come whenever it has its turn."""

    def __init__(self, done: list[int]) -> None:
        self.done = done
        self.seen: list[int] = []

    async def run(self) -> None:
        while True:
            self.seen.append(len(self.done))
            await trio.lowlevel.checkpoint()

    @property
    def longest_turn(self) -> int:
        return max(later - earlier for earlier, later in zip(self.seen, self.seen[1:], strict=False))


async def test_others_run_after_so_many_steps() -> None:
    done: list[int] = []
    neighbour = Neighbour(done)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(neighbour.run)
        turns = Turns(10)
        for number in range(100):
            done.append(number)
            await turns.spend()
        await turns.spend(1_000)
        nursery.cancel_scope.cancel()
    assert neighbour.longest_turn <= 2 * 10  # the loop shuffles who runs first
    assert neighbour.seen[-1] == 100


async def test_few_are_ended_at_once_and_many_in_turns() -> None:
    done: list[int] = []
    neighbour = Neighbour(done)
    async with trio.open_nursery() as nursery:
        end_in_turns(nursery, range(ENDED_PER_TURN), done.append)
        assert len(done) == ENDED_PER_TURN
        assert not nursery.child_tasks
        nursery.start_soon(neighbour.run)
        await trio.lowlevel.checkpoint()
        end_in_turns(nursery, range(10 * ENDED_PER_TURN), done.append)
        while len(done) < 11 * ENDED_PER_TURN:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert neighbour.longest_turn <= 2 * ENDED_PER_TURN


async def test_one_that_cannot_be_ended_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[int] = []

    def end(number: int) -> None:
        if number == ENDED_PER_TURN + 3:
            raise RuntimeError("broken")
        ended.append(number)

    with caplog.at_level(logging.ERROR):
        async with trio.open_nursery() as nursery:
            end_in_turns(nursery, range(2 * ENDED_PER_TURN), end)
    assert len(ended) == 2 * ENDED_PER_TURN - 1
    assert "broken" in caplog.text


@pytest.mark.parametrize("topics", [0, 100, 1_000_000])
async def test_groups_that_waited_for_a_listing_are_woken_a_few_at_a_time(topics: int) -> None:
    done: list[int] = []
    neighbour = Neighbour(done)
    waiting = trio.lowlevel.ParkingLot()

    async def group(number: int) -> None:
        await waiting.park()
        done.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(group, number)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(neighbour.run)
        await _wake_in_turns(waiting, topics)
        while len(done) < 300:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert neighbour.longest_turn <= 2 * max(1, _EVALUATED_PER_TURN // (topics + 20))
