"""What is wrong with the order and the times of events: found while they pass, in memory that does not grow with them.

A directory that opens may hold any times: clocks are set, stores are restored, logs are patched by hand. Nobody
refuses a trace for that; whoever looks at one is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from metadata.traces.events import RECORDERS_OWN

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("seq", "run", "kind", "taken_us", "arrival_us", "store_ms", "bucket")

# Two clocks that drift, and a loop that is busy, differ by less than this from one change to the next.
JUMP_US: Final = 1_000_000


@dataclass(slots=True)
class OrderFaults:
    """How often, how much at most, and where first."""

    seq_breaks: int = 0  # events that do not follow the one before them
    first_break: int | None = None  # the seq of the first of those
    time_reversals: int = 0  # the recorder's time goes back within a run, which no recorder writes
    largest_time_reversal_us: int = 0
    store_reversals: int = 0  # the store's time goes back within a bucket: its log was replaced
    largest_store_reversal_ms: int = 0
    clock_jumps: int = 0  # between two changes, the store's clock and the recorder's moved apart
    largest_clock_jump_ms: int = 0

    @property
    def in_order(self) -> bool:
        """Whether the events are those of one recording, as it was written. Clocks of stores may do what they like."""
        return not self.seq_breaks and not self.time_reversals


class OrderCheck:
    """Is handed the batches one after the other; `contiguous` is False for events that are not numbered through."""

    def __init__(self, *, contiguous: bool = True) -> None:
        self.faults = OrderFaults()
        self._contiguous = contiguous
        self._last: pa.RecordBatch | None = None  # one row
        self._last_drift: pa.RecordBatch | None = None  # one row
        self._last_of_buckets: pa.Table | None = None  # one row each

    def take(self, batch: pa.RecordBatch) -> None:
        """Look at a batch with at least the COLUMNS of this module."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not batch.num_rows:
            return
        self._look_at_numbers_and_times(batch.select(["seq", "run", "taken_us"]))
        own = pa.array(sorted(RECORDERS_OWN), pa.string())
        changes = batch.filter(pc.and_(pc.invert(pc.is_in(batch["kind"], own)), pc.is_valid(batch["store_ms"])))
        if changes.num_rows:
            self._look_at_buckets(changes.select(["bucket", "run", "store_ms"]))
            self._look_at_clocks(changes.filter(pc.is_valid(changes["arrival_us"])))

    def _look_at_numbers_and_times(self, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        rows = _after(self._last, batch)
        self._last = batch.slice(batch.num_rows - 1)
        steps = pc.pairwise_diff(rows["seq"])
        if self._contiguous and (breaks := _count(broken := pc.not_equal(steps, 1))):
            if not self.faults.seq_breaks:
                self.faults.first_break = pc.filter(rows["seq"], broken)[0].as_py()
            self.faults.seq_breaks += breaks
        count, largest = _reversals(rows["taken_us"], _unchanged(rows["run"]))
        self.faults.time_reversals += count
        self.faults.largest_time_reversal_us = max(self.faults.largest_time_reversal_us, largest)

    def _look_at_buckets(self, changes: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        seen = pa.Table.from_batches([changes])
        rows = seen if self._last_of_buckets is None else pa.concat_tables([self._last_of_buckets, seen])
        rows = rows.append_column("place", pa.array(range(rows.num_rows)))
        rows = rows.sort_by([("bucket", "ascending"), ("place", "ascending")]).combine_chunks()
        last = rows.group_by("bucket", use_threads=False).aggregate([("run", "last"), ("store_ms", "last")])
        self._last_of_buckets = last.rename_columns(["bucket", "run", "store_ms"]).cast(seen.schema)
        same = pc.and_(_unchanged(_array(rows, "bucket")), _unchanged(_array(rows, "run")))
        count, largest = _reversals(_array(rows, "store_ms"), same)
        self.faults.store_reversals += count
        self.faults.largest_store_reversal_ms = max(self.faults.largest_store_reversal_ms, largest)

    def _look_at_clocks(self, changes: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not changes.num_rows:
            return
        drift = pc.subtract(changes["arrival_us"], pc.multiply(changes["store_ms"], 1_000))
        batch = pa.RecordBatch.from_arrays([changes["run"], drift], names=["run", "drift"])
        rows = _after(self._last_drift, batch)
        self._last_drift = batch.slice(batch.num_rows - 1)
        moved = pc.abs(pc.pairwise_diff(rows["drift"]))
        jumped = pc.and_(_unchanged(rows["run"]), pc.greater_equal(moved, JUMP_US))
        if count := _count(jumped):
            self.faults.clock_jumps += count
            largest = pc.max(pc.filter(moved, jumped)).as_py() // 1_000
            self.faults.largest_clock_jump_ms = max(self.faults.largest_clock_jump_ms, largest)


def check_order(batches: Iterable[pa.RecordBatch], *, contiguous: bool = True) -> OrderFaults:
    """What is wrong with the order of these events, which have at least the COLUMNS of this module."""
    check = OrderCheck(contiguous=contiguous)
    for batch in batches:
        check.take(batch)
    return check.faults


def _after(last: pa.RecordBatch | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    return batch if last is None else pa.concat_batches([last, batch])


def _array(table: pa.Table, name: str) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays(table[name].chunks)


def _unchanged(column: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.equal(pc.pairwise_diff(column), 0)


def _count(mask: pa.Array) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(mask).as_py() or 0)


def _reversals(times: pa.Array, comparable: pa.Array) -> tuple[int, int]:
    """How often a time is before the one that it can be compared with, and by how much at most."""
    import pyarrow.compute as pc

    steps = pc.pairwise_diff(times)
    back = pc.and_(comparable, pc.less(steps, 0))
    count = _count(back)
    return count, -pc.min(pc.filter(steps, back)).as_py() if count else 0
