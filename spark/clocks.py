"""The clock of a recorded trace: it may stand still, and never goes back within a run of the recorder."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from metadata.traces import parquet_files
from metadata.traces.directories import Trace
from metadata.traces.errors import TraceError

# Nothing is known about the time between two runs, so this much is put there.
BETWEEN_RUNS_US: Final = 1_000_000


def check_clock(trace: Trace) -> None:
    """Refuse a trace in which it does: what was a minute would count as an hour, or as nothing.

    Looks at two columns here, without Spark: the order of the rows is what counts, and a hundred million take seconds.
    """
    run, latest = 0, 0
    for file in trace.files:
        row = 0
        for batch in parquet_files.read_part(file, ["run", "taken_us"]):
            runs, taken = batch.column("run"), batch.column("taken_us")
            before = _one_later(taken, latest)
            # Another run has another clock.
            back = pc.and_(pc.less(taken, before), pc.equal(runs, _one_later(runs, run)))
            found = pc.index(back, True).as_py()
            if found >= 0:
                seconds = (before[found].as_py() - taken[found].as_py()) / 1e6
                raise TraceError(
                    f"The clock goes back by {seconds:g} s at row {row + found + 1} of {file}, within one run of the "
                    "recorder: the file was changed or is damaged; restore it."
                )
            run, latest = runs[-1].as_py(), taken[-1].as_py()
            row += batch.num_rows


def _one_later(column: pa.Array, first: int) -> pa.Array:
    return pa.concat_arrays([pa.array([first], column.type), column[:-1]])
