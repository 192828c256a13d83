"""The mailbox that keeps the newest value only, and the one that keeps all in order."""

import pytest
import trio
import trio.testing

from protocol.client.mailboxes import InOrder, Latest


async def test_who_comes_late_finds_only_the_newest_value() -> None:
    cell: Latest[int] = Latest()
    cell.put(1)
    cell.put(2)
    assert await cell.take() == 2
    with trio.move_on_after(0.01) as limit:
        await cell.take()
    assert limit.cancelled_caught


async def test_a_waiting_listener_is_woken(nursery: trio.Nursery) -> None:
    cell: Latest[int] = Latest()
    taken: list[int] = []

    async def listen() -> None:
        taken.append(await cell.take())

    nursery.start_soon(listen)
    await trio.testing.wait_all_tasks_blocked()
    cell.put(7)
    await trio.testing.wait_all_tasks_blocked()
    assert taken == [7]


async def test_the_last_value_is_taken_before_the_end() -> None:
    cell: Latest[int] = Latest()
    cell.put(1)
    cell.end()
    cell.put(2)
    assert await cell.take() == 1
    for _ in range(2):
        with pytest.raises(trio.EndOfChannel):
            await cell.take()


async def test_the_first_reason_for_the_end_counts() -> None:
    cell: Latest[int] = Latest()
    cell.end(ValueError("first"))
    cell.end(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        await cell.take()


async def test_a_second_listener_is_told_that_there_is_one(nursery: trio.Nursery) -> None:
    cell: Latest[int] = Latest()
    nursery.start_soon(cell.take)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(trio.BusyResourceError):
        await cell.take()
    cell.put(1)


async def test_a_cancelled_listener_loses_nothing() -> None:
    cell: Latest[int] = Latest()
    cell.put(1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await cell.take()
    assert scope.cancelled_caught
    assert await cell.take() == 1


async def test_values_in_order_are_all_kept_and_taken_one_by_one_or_together() -> None:
    box: InOrder[int] = InOrder()
    for value in range(5):
        box.put(value)
    assert len(box) == 5
    assert [await box.take(), await box.take()] == [0, 1]
    assert await box.take_all() == [2, 3, 4]
    box.put(5)
    box.end()
    assert await box.take_all() == [5]
    with pytest.raises(trio.EndOfChannel):
        await box.take_all()
