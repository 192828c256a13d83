"""What a group costs is what it holds, however many groups there are."""

from __future__ import annotations

import tracemalloc

from trio.testing import MockClock

from sessions.groups import Group
from tests.sessions.staged_groups import NAMESPACE, settle, staged


async def test_a_group_of_nothing_takes_a_few_kilobytes_before_and_after_its_listing(mock_clock: MockClock) -> None:
    async with staged() as stage:
        around = stage.group._around
        tracemalloc.start()
        try:
            groups = [Group(NAMESPACE, frozenset({("k", str(number))}), around) for number in range(100)]
            made, _ = tracemalloc.get_traced_memory()
            await settle()
            listed, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert all(group.complete for group in groups)
        assert made < 100 * 10_000
        assert listed < 100 * 6_000
