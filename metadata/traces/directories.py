"""A trace as a directory: opened and checked, and read from its first event to its last."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from metadata.traces.errors import TraceError
from metadata.traces.log_files import read_log
from metadata.traces.manifest import MANIFEST, Manifest, Part, read_manifest

if TYPE_CHECKING:
    import pyarrow as pa

LOCK: Final = ".lock"
DATA: Final = "data"  # where a synthetic trace keeps its events, by namespace and hour
_PART: Final = re.compile(r"part-([0-9]{6,})\.(log|parquet)")


def log_name(number: int) -> str:
    return f"part-{number:06d}.log"


def part_number(file: str) -> int:
    """The place of a part among the others."""
    match = _PART.fullmatch(file)
    assert match is not None, f"{file} was checked to be a part"
    return int(match[1])


@dataclass(frozen=True, slots=True)
class Trace:
    """A directory whose manifest and files fit together. `logs` are the parts that are not complete.

    A recorder may be writing to it: then this is how it was when it was opened, and what was added since to the logs.
    """

    directory: Path
    manifest: Manifest
    logs: tuple[Path, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """The complete parts of a recorded trace, in order."""
        return tuple(self.directory / part.file for part in self.manifest.parts)

    def require_complete(self) -> None:
        """Refuse a trace that is still being written, or whose recorder was killed."""
        if self.logs:
            raise TraceError(
                f"{self.directory} has an unfinished part, {self.logs[-1].name}: stop its recorder, "
                f"or if that was killed run: vela trace seal {self.directory}"
            )

    def check_counts(self) -> None:
        """Refuse a trace whose files hold fewer events than when they were made, or more.

        Whoever reads the files by itself calls this first. It looks at their footers alone, so it costs little.
        """
        from metadata.traces import parquet_files

        if self.manifest.kind == "synthetic":
            data = self.directory / DATA
            _check_count(data, parquet_files.count_hours(data), self.manifest.events)
            return
        for part, path in zip(self.manifest.parts, self.files, strict=True):
            _check_count(path, parquet_files.count_part(path), part.events)
        listed = sum(part.events for part in self.manifest.parts)
        if listed != self.manifest.events:
            raise TraceError(
                f"{MANIFEST} of {self.directory} lists parts with {listed} events, and says that there are "
                f"{self.manifest.events}: restore the manifest."
            )

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All events; those of a recorded trace in the order of their `seq`, with what the unfinished logs hold.

        Nothing is handed out of a trace that has lost events.
        """
        from metadata.traces import parquet_files

        self.check_counts()
        if self.manifest.kind == "synthetic":
            yield from parquet_files.read_hours(self.directory / DATA, columns)
            return
        for path in sorted((*self.files, *self.logs), key=lambda each: part_number(each.name)):
            if path in self.logs:
                yield from _unfinished(path, columns)
            else:
                yield from parquet_files.read_part(path, columns)


def open_trace(directory: Path) -> Trace:
    """The trace in a directory, or a TraceError that says what is wrong with it."""
    manifest = read_manifest(directory)
    while True:
        fault: TraceError | None = None
        try:
            trace = _opened(directory, manifest)
        except TraceError as error:
            fault = error
        # A recorder that finished a part meanwhile makes what was read before it wrong.
        again = read_manifest(directory)
        if again == manifest:
            if fault is not None:
                raise fault
            return trace
        manifest = again


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep a directory for one writer."""
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TraceError(
                f"Another recorder is writing to {directory}: give another directory, or stop it."
            ) from None
        yield
    finally:
        os.close(handle)


def _opened(directory: Path, manifest: Manifest) -> Trace:
    found = {path.name: path for path in directory.iterdir() if _PART.fullmatch(path.name)}
    if manifest.kind == "synthetic":
        if found:
            raise _mixed(directory / min(found))
        if not (directory / DATA).is_dir():
            raise TraceError(f"{directory} has lost its {DATA}: make the trace again.")
        return Trace(directory, manifest, ())
    if (directory / DATA).is_dir():
        raise _mixed(directory / DATA)
    listed = {part.file for part in manifest.parts}
    for part in manifest.parts:
        _check_part(directory, part)
    if len(listed) < len(manifest.parts):
        raise TraceError(f"{MANIFEST} of {directory} lists a part twice: restore the manifest.")
    logs = []
    for name, path in found.items():
        if path.suffix == ".log":
            if path.with_suffix(".parquet").name not in listed:
                logs.append(path)
        elif name not in listed and path.with_suffix(".log").name not in found:
            raise _mixed(path)
    return Trace(directory, manifest, tuple(sorted(logs, key=lambda each: part_number(each.name))))


def _check_part(directory: Path, part: Part) -> None:
    match = _PART.fullmatch(part.file)
    if match is None or match[2] != "parquet":
        raise TraceError(f"{MANIFEST} of {directory} lists {part.file!r}, which is no part: restore the manifest.")
    path = directory / part.file
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise TraceError(f"{path} is missing: restore it.") from None
    if size != part.bytes:
        raise TraceError(f"{path} has {size} bytes instead of {part.bytes}: restore it.")


def _mixed(path: Path) -> TraceError:
    return TraceError(f"{path} does not belong to what {MANIFEST} says: the directory mixes traces; take it out.")


def _check_count(source: Path, found: int, events: int) -> None:
    if found != events:
        raise TraceError(f"{source} holds {found} events instead of {events}: restore it, or make the trace again.")


def _unfinished(log: Path, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    from metadata.traces import parquet_files, tables

    try:
        for batch in tables.batches_of(read_log(log)):
            yield batch if columns is None else batch.select(list(columns))
    except FileNotFoundError:
        # Its recorder has finished it meanwhile; one without events left nothing.
        finished = log.with_suffix(".parquet")
        if finished.exists():
            yield from parquet_files.read_part(finished, columns)
