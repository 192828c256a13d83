"""The store's clock, measured from a task whose own clock may say anything."""

from __future__ import annotations

import pytest

from metadata.store import open_store
from spark.replay.clock import Offset, Ping, StoreClock, measure_offset, wall_clock
from tests.support.processes import ValkeyProcess

HOUR_US = 3_600_000_000


def test_offset_comes_from_the_quickest_ping() -> None:
    slow = Ping(sent_us=0, store_us=90_000, received_us=80_000)
    quick = Ping(sent_us=100_000, store_us=150_050, received_us=100_100)
    assert Offset.of([slow, quick, slow]) == Offset(us=50_000, error_us=50)


@pytest.mark.parametrize("answered_after_us", [0, 30, 100])
def test_true_offset_lies_within_the_error(answered_after_us: int) -> None:
    true_offset = 5_000
    ping = Ping(sent_us=1_000, store_us=1_000 + answered_after_us + true_offset, received_us=1_100)
    measured = Offset.of([ping])
    assert abs(measured.us - true_offset) <= measured.error_us


def test_error_covers_what_the_clocks_drifted() -> None:
    assert Offset(1_000, 50).until(Offset(1_400, 30)) == Offset(1_000, 430)
    assert Offset(1_000, 50).until(Offset(1_001, 30)) == Offset(1_000, 50)


def test_wall_clock_never_goes_back() -> None:
    now_us = wall_clock()
    times = [now_us() for _ in range(1_000)]
    assert times == sorted(times)


async def test_shifted_clock_is_corrected(valkey: ValkeyProcess) -> None:
    right = wall_clock()

    def wrong() -> int:
        return right() - HOUR_US

    async with open_store(valkey.url) as store:
        offset = await measure_offset(store, wrong)
        reference = await measure_offset(store, right)
    assert abs(offset.us - HOUR_US - reference.us) <= offset.error_us + reference.error_us
    clock = StoreClock(offset, wrong)
    assert abs(clock.now_us() - right()) < HOUR_US / 2
