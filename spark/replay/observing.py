"""What a task saw: gathered as plain tuples while it runs, kept as Arrow in a scratch file, and handed out at last.

A long replay sees many millions of pushes, so what was gathered is written out in small slices: none of them holds up
the loop for long, and memory stays as it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self

import pyarrow as pa
import trio

# As `spark.schemas.OBSERVATIONS`, which a test compares.
OBSERVATION_SCHEMA: Final = pa.schema(
    [
        pa.field("record", pa.string(), nullable=False),
        pa.field("task", pa.int32(), nullable=False),
        ("namespace", pa.string()),
        ("topic", pa.string()),
        ("op", pa.string()),
        ("due_us", pa.int64()),
        ("sent_us", pa.int64()),
        ("done_us", pa.int64()),
        ("incarnation", pa.string()),
        ("epoch", pa.int64()),
        ("error", pa.string()),
        ("watcher", pa.int32()),
        ("arrival_us", pa.int64()),
        ("bytes", pa.int64()),
        ("added", pa.list_(pa.string())),
        ("removed", pa.list_(pa.string())),
        ("after_reconnect", pa.bool_()),
        ("watches", pa.string()),
        ("converged", pa.bool_()),
        ("missing", pa.int64()),
        ("duplicate", pa.int64()),
        ("out_of_order", pa.int64()),
        ("pushes", pa.int64()),
        ("snapshots", pa.int64()),
        ("reconnects", pa.int64()),
        ("left_us", pa.int64()),
        ("back_us", pa.int64()),
        ("host", pa.string()),
        ("offset_us", pa.int64()),
        ("offset_error_us", pa.int64()),
        ("started_us", pa.int64()),
        ("settled_us", pa.int64()),
        ("cpu_us", pa.int64()),
    ]
)

# The columns that count for each kind of row, in the order of its tuples.
_WRITE: Final = ("namespace", "topic", "op", "due_us", "sent_us", "done_us", "incarnation", "epoch", "error")
_PUSH: Final = (
    "namespace",
    "topic",
    "epoch",
    "watcher",
    "arrival_us",
    "bytes",
    "added",
    "removed",
    "after_reconnect",
)
# A slice takes some milliseconds to write; a write that is due waits for no longer than that.
_SLICE: Final = 500


class Viewer(Protocol):
    """What a push says about who was told."""

    @property
    def number(self) -> int: ...
    @property
    def namespace(self) -> str: ...
    @property
    def topic(self) -> str | None: ...
    @property
    def cut(self) -> int:
        """How much of a full name comes before the local one."""


# namespace, topic, op, due, sent, done, incarnation, epoch, error
WriteSeen = tuple[str, str, str, int, int, int, str | None, int | None, str | None]
# who was told, epoch, arrival, bytes, full names added, full names removed, after a reconnect
PushSeen = tuple[Viewer, int | None, int, int, Sequence[str], Sequence[str], bool]


class Observations:
    """The rows of one task. A context manager, because its scratch file goes when it ends."""

    def __init__(self, task: int) -> None:
        self.writes: list[WriteSeen] = []
        self.pushes: list[PushSeen] = []
        self._task = task
        # Without a name, so that nothing is left of a task that is killed.
        self._scratch = tempfile.TemporaryFile(prefix="vela-replay-")  # noqa: SIM115  # closed at the end of the block
        self._file: Any = pa.ipc.new_file(self._scratch, OBSERVATION_SCHEMA)
        # The first conversion of a process imports pandas, for a quarter of a second in which no write would be sent.
        pa.array([0], pa.int64())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._scratch.close()

    async def write_out(self, *, all_of_it: bool = False) -> None:
        """Write what makes whole slices, or all, and let others run after each."""
        while len(self.writes) >= (1 if all_of_it else _SLICE):
            some, self.writes[:_SLICE] = self.writes[:_SLICE], []
            self._add("write", dict(zip(_WRITE, zip(*some, strict=True), strict=True)))
            await trio.lowlevel.checkpoint()
        while len(self.pushes) >= (1 if all_of_it else _SLICE):
            told, self.pushes[:_SLICE] = self.pushes[:_SLICE], []
            self._add("push", dict(zip(_PUSH, zip(*map(_push_row, told), strict=True), strict=True)))
            await trio.lowlevel.checkpoint()

    def add_rows(self, record: str, rows: Sequence[dict[str, Any]]) -> None:
        """Rows of the kinds of which there are few: watchers, their absences and the task."""
        if rows:
            self._add(record, {name: [row[name] for row in rows] for name in rows[0]})

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, after the last was added; in memory one batch at a time."""
        self._file.close()
        found: Any = pa.ipc.open_file(self._scratch)
        for index in range(found.num_record_batches):
            yield found.get_batch(index)

    def _add(self, record: str, columns: dict[str, Sequence[Any]]) -> None:
        rows = len(next(iter(columns.values())))
        filled = {**columns, "record": [record] * rows, "task": [self._task] * rows}
        arrays = [
            pa.array(filled[field.name], field.type) if field.name in filled else pa.nulls(rows, field.type)
            for field in OBSERVATION_SCHEMA
        ]
        self._file.write_batch(pa.record_batch(arrays, schema=OBSERVATION_SCHEMA))


def _push_row(seen: PushSeen) -> tuple[Any, ...]:
    who, epoch, arrival, size, added, removed, after_reconnect = seen
    cut = who.cut
    return (
        who.namespace,
        who.topic,
        epoch,
        who.number,
        arrival,
        size,
        [name[cut:] for name in added],
        [name[cut:] for name in removed],
        after_reconnect,
    )
