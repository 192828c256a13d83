"""A clock that goes back is refused with the place where it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.traces.errors import TraceError
from metadata.traces.events import Kind, TraceEvent
from spark.clocks import check_clock
from tests.spark.recorded import recorded


def at(*times: tuple[int, int]) -> list[TraceEvent]:
    return [TraceEvent(seq, run, Kind.GAP, taken) for seq, (run, taken) in enumerate(times, start=1)]


def test_time_may_stand_still_and_begin_anew_with_a_run(tmp_path: Path) -> None:
    check_clock(recorded(tmp_path, at((1, 5_000_000), (1, 5_000_000), (1, 6_000_000), (2, 1_000_000), (2, 2_000_000))))


def test_a_clock_that_goes_back_within_a_run_is_refused_with_file_and_row(tmp_path: Path) -> None:
    trace = recorded(tmp_path, at((1, 5_000_000), (1, 9_000_000), (1, 6_500_000), (1, 7_000_000)))
    with pytest.raises(TraceError, match=r"goes back by 2\.5 s at row 3 of .*part-000001\.parquet"):
        check_clock(trace)
