"""Turns of the event loop that take too long are counted and named, in few lines."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable

import pytest
import trio
import trio.testing

from protocol.turns import SlowTurns


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(clock: Clock) -> SlowTurns:
    return SlowTurns(0.1, clock, cpu_clock=clock)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_warning_names_the_command_its_client_and_how_long_it_took(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    worked = Clock()
    turns = SlowTurns(0.1, clock, worked)
    worked.now = 5.0
    turns.beat()
    worked.now = 5.25
    turns.note("SUBSCRIBE", "from 127.0.0.1:5", 1.5)
    assert lines(caplog) == [
        "one turn of the event loop took 1500 ms, at most 250 of them on the CPU, for SUBSCRIBE from 127.0.0.1:5"
    ]


def test_many_of_a_kind_are_one_line_and_the_next_line_tells_how_many_there_were(
    turns: SlowTurns, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        turns.note("ACK", "from a", 0.2)
    turns.note("SEEK", "from b", 0.3)
    assert [line.split(" for ")[1] for line in lines(caplog)] == ["ACK from a", "SEEK from b"]
    clock.now = 11.0
    turns.note("ACK", "from c", 0.2)
    assert lines(caplog)[-1].endswith("for ACK from c; 4 more since the last line about ACK")
    assert turns.counts == {"ACK": 6, "SEEK": 1}


def test_line_is_short_whatever_a_client_sent(turns: SlowTurns, caplog: pytest.LogCaptureFixture) -> None:
    turns.note("HTTP GET", "/" + "x" * 1_000_000, 0.2)
    assert len(lines(caplog)[0]) < 300


async def test_each_turn_of_work_is_timed_by_itself(turns: SlowTurns, clock: Clock) -> None:
    async def work(seconds: float) -> str:
        for _ in range(5):
            clock.now += seconds
            await trio.lowlevel.checkpoint()
        return "done"

    assert await turns.timed("quick", "", work(0.09)) == "done"
    assert await turns.timed("slow", "", work(0.11)) == "done"
    assert turns.counts == {"slow": 5}


async def test_waiting_is_no_turn(turns: SlowTurns, clock: Clock) -> None:
    gate = trio.Event()

    async def open_later() -> None:
        await trio.testing.wait_all_tasks_blocked()
        clock.now += 60
        gate.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_later)
        await turns.timed("waiter", "", gate.wait())
    assert not turns.counts


async def test_last_turn_counts_although_it_fails(turns: SlowTurns, clock: Clock) -> None:
    async def work() -> None:
        await trio.lowlevel.checkpoint()
        clock.now += 1
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        await turns.timed("fails", "", work())
    assert turns.counts == {"fails": 1}


async def test_work_that_is_timed_can_be_cancelled(turns: SlowTurns) -> None:
    ended = []

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(True)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.timed, "waits", "", work())
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert ended == [True]


@pytest.mark.parametrize("step", ["send", "throw"])
def test_error_of_timed_work_leaves_no_cycle(turns: SlowTurns, step: str) -> None:
    """Driven by hand: trio sends whatever happens, others throw."""

    class Pause:
        def __await__(self) -> object:
            yield

    async def work() -> None:
        await Pause()  # type: ignore[misc]  # a plain generator will do
        raise ValueError("failed")

    def fail() -> None:
        steps = turns.timed("fails", "", work())
        steps.send(None)
        advance: Callable[[], object] = (
            (lambda: steps.send(None)) if step == "send" else (lambda: steps.throw(KeyError("thrown")))
        )
        with pytest.raises((ValueError, KeyError)):
            advance()

    gc.collect()
    gc.disable()
    try:
        fail()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [it for it in gc.garbage if isinstance(it, ValueError | KeyError)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
