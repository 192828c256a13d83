"""Hand-made logs with missing events, clocks that were set, and stores that went back."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from metadata.traces.events import TraceEvent
from metadata.traces.order import OrderFaults, check_order
from metadata.traces.tables import batches_of
from tests.metadata.traces.made_traces import NOON_US, change, changes, start


def faults(events: Sequence[TraceEvent], rows: int, *, contiguous: bool = True) -> OrderFaults:
    """What is found, in batches of so many rows."""
    table = pa.Table.from_batches(batches_of(events))
    return check_order(table.to_batches(max_chunksize=rows), contiguous=contiguous)


batch_sizes = pytest.mark.parametrize("rows", [1, 2, 3, 1_000])


@batch_sizes
def test_a_recording_as_it_was_written_has_no_faults(rows: int) -> None:
    again = [
        change(7, run=2, taken_us=5, arrival_us=5, store_ms=3),
        change(8, run=2, taken_us=5, arrival_us=5, store_ms=3),
    ]
    found = faults([*start(0, ["a"]), *changes(3, 4), *again], rows)
    assert found == OrderFaults()
    assert found.in_order


def test_no_events_have_no_faults() -> None:
    assert check_order([]) == OrderFaults()


@batch_sizes
def test_missing_and_repeated_numbers_are_told_apart_from_times(rows: int) -> None:
    found = faults([change(0), change(1), change(4), change(4)], rows)
    assert (found.seq_breaks, found.first_break, found.time_reversals) == (2, 4, 0)
    assert not found.in_order
    assert faults([change(0), change(4)], rows, contiguous=False) == OrderFaults()


@batch_sizes
def test_time_that_goes_back_within_a_run_is_found(rows: int) -> None:
    back = [change(0), change(1), change(2, taken_us=NOON_US - 500), change(3)]
    found = faults(back, rows)
    assert (found.time_reversals, found.largest_time_reversal_us) == (1, 1_500)


@batch_sizes
def test_store_time_that_goes_back_is_found_in_its_bucket_and_not_between_buckets(rows: int) -> None:
    noon_ms = NOON_US // 1_000
    events = [
        change(0, bucket=1, store_ms=noon_ms),
        change(1, bucket=2, store_ms=noon_ms - 300),
        change(2, bucket=1, store_ms=noon_ms - 40),
        change(3, bucket=2, store_ms=noon_ms - 300),
        change(4, bucket=1, store_ms=noon_ms + 1),
    ]
    found = faults(events, rows)
    assert (found.store_reversals, found.largest_store_reversal_ms) == (1, 40)
    assert found.clock_jumps == 0
    assert found.in_order


@batch_sizes
def test_a_clock_that_was_set_is_found(rows: int) -> None:
    noon_ms = NOON_US // 1_000
    events = [change(0), change(1), *(change(seq, store_ms=noon_ms + seq + 90_000) for seq in (2, 3, 4))]
    found = faults(events, rows)
    assert (found.clock_jumps, found.largest_clock_jump_ms) == (1, 90_000)


@batch_sizes
def test_a_change_whose_notification_was_lost_says_nothing_about_clocks(rows: int) -> None:
    late = change(1, taken_us=NOON_US + 30_000_000, arrival_us=None)
    assert faults([change(0), late], rows) == OrderFaults()
