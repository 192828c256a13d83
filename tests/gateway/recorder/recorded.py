"""What the tests of the recorder share: records, reading traces, and logs on disks that fail."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

from gateway.recorder.part_log import PartLog
from layout import records
from layout.layouts import Layout
from layout.records import TopicRecord
from metadata.traces.directories import open_trace
from metadata.traces.events import TraceEvent
from metadata.traces.tables import EVENT_SCHEMA


def events_of(directory: Path) -> list[TraceEvent]:
    """All events, from complete parts and from logs."""
    rows = (row for batch in open_trace(directory).batches() for row in batch.to_pylist())
    return [TraceEvent(*(row[name] for name in EVENT_SCHEMA.names)) for row in rows]


def value_of(epoch: int = 0, **properties: str) -> bytes:
    """A record whose layout was split so often."""
    layout = Layout.create(2, 0)
    for _ in range(epoch):
        layout = layout.split(layout.active[0].segment_id, 0)
    return records.encode(TopicRecord(layout, properties))


class Disk:
    """Where logs are opened; it can hang, be full, or fail to keep what it was given."""

    def __init__(self) -> None:
        self.flowing = threading.Event()
        self.flowing.set()
        self.is_hanging = False
        self.is_full = False
        self.forgets = False
        self.refusals = 0

    def open(self, path: Path) -> PartLog:
        return _Log(path, self)


class _Log(PartLog):
    def __init__(self, path: Path, disk: Disk) -> None:
        self._disk = disk
        super().__init__(path)

    def sync(self) -> None:
        if self._disk.forgets:
            self._disk.refusals += 1
            raise OSError(errno.EIO, "Input/output error")
        super().sync()

    def _write(self, piece: memoryview) -> int:
        self._disk.is_hanging = not self._disk.flowing.is_set()
        self._disk.flowing.wait()
        if self._disk.is_full:
            self._disk.refusals += 1
            # As a full disk does it: a part of it still fits.
            super()._write(piece[: len(piece) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return super()._write(piece)
