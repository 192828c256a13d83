"""A task that fails ends nothing but itself, and no part of a server can start one that would."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from gateway.supervision import supervised
from metadata.tasks import GuardedTasks
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PACKAGES = ("metadata", "sessions", "segments", "controller", "gateway")
# Whoever opens a nursery for itself and keeps it, and the guard.
OWNERS = {"metadata/lanes.py", "metadata/tasks.py"}


async def fail(reason: str) -> None:
    await trio.lowlevel.checkpoint()
    raise ValueError(reason)


async def test_a_failed_task_is_logged_by_its_name_and_counted_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = trio.Event()

    async def go_on() -> None:
        await eventually(lambda: tasks.failures["fail"] == 2)
        done.set()

    async with trio.open_nursery() as nursery:
        tasks = GuardedTasks(nursery)
        tasks.start_soon(go_on)
        tasks.start_soon(fail, "first")
        tasks.start_soon(fail, "second")
        await done.wait()
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["task fail failed"] * 2
    assert tasks.failures == {"fail": 2}


async def test_a_cancelled_task_counts_as_no_failure() -> None:
    async with trio.open_nursery() as nursery:
        tasks = GuardedTasks(nursery)
        tasks.start_soon(trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not tasks.failures


async def test_a_supervised_task_that_fails_is_counted_and_begun_again() -> None:
    begun = 0

    async def task() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ValueError("again")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        tasks = GuardedTasks(nursery)
        nursery.start_soon(supervised, "the task", task, tasks.failures)
        await eventually(lambda: begun == 3)
        nursery.cancel_scope.cancel()
    assert tasks.failures == {"the task": 2}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "cli" not in path.parts:
                yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def test_no_part_of_a_server_is_given_a_nursery() -> None:
    holders = {
        name
        for name, module in modules()
        for node in ast.walk(module)
        if isinstance(node, ast.Attribute) and node.attr == "Nursery" and name not in OWNERS
    }
    assert not holders, "they should be given metadata.tasks.Tasks, whose tasks are guarded"


def test_what_a_node_starts_in_its_own_nursery_is_supervised() -> None:
    module = ast.parse((ROOT / "gateway/node.py").read_text())
    started = [
        ast.unparse(node.args[0])
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "background.start_soon"
    ]
    assert started
    assert set(started) == {"supervised"}
