"""A trace as a directory: opened and checked, read from its first event to its last, and its logs made complete."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from metadata.traces.errors import TraceError
from metadata.traces.log_files import read_log
from metadata.traces.manifest import MANIFEST, Manifest, Part, read_manifest, sync_directory, write_manifest

if TYPE_CHECKING:
    import pyarrow as pa

LOCK: Final = ".lock"
DATA: Final = "data"  # where a synthetic trace keeps its events, by namespace and hour
_PART: Final = re.compile(r"part-([0-9]{6,})\.(log|parquet)")


def log_name(number: int) -> str:
    return f"part-{number:06d}.log"


@dataclass(frozen=True, slots=True)
class Trace:
    """A directory whose manifest and files fit together. `logs` are the parts that are not complete."""

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

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """All events; those of a recorded trace in the order of their `seq`, with what the unfinished logs hold."""
        from metadata.traces import parquet_files, tables

        if self.manifest.kind == "synthetic":
            yield from parquet_files.read_hours(self.directory / DATA, columns)
            return
        for file in self.files:
            yield from parquet_files.read_part(file, columns)
        for log in self.logs:
            for batch in tables.batches_of(read_log(log)):
                yield batch if columns is None else batch.select(list(columns))


def open_trace(directory: Path) -> Trace:
    """The trace in a directory, or a TraceError that says what is wrong with it."""
    manifest = read_manifest(directory)
    if manifest.kind == "synthetic":
        if not (directory / DATA).is_dir():
            raise TraceError(f"{directory} has lost its {DATA}: make the trace again.")
        return Trace(directory, manifest, ())
    listed = {part.file: part for part in manifest.parts}
    logs = []
    for path in sorted(directory.iterdir()):
        match = _PART.fullmatch(path.name)
        if match is None or path.name in listed:
            continue
        if match[2] == "log":
            # A crash between listing a part and removing its log leaves both; the listed one is whole.
            if f"part-{match[1]}.parquet" not in listed:
                logs.append(path)
        elif not (directory / log_name(int(match[1]))).exists():
            raise TraceError(f"{path} is not listed in {MANIFEST}: the directory mixes traces; take it out.")
    for part in manifest.parts:
        path = directory / part.file
        if _PART.fullmatch(part.file) is None:
            raise TraceError(f"{MANIFEST} of {directory} lists {part.file!r}, which is no part: restore the manifest.")
        if not path.is_file():
            raise TraceError(f"{path} is missing: restore it.")
        if path.stat().st_size != part.bytes:
            raise TraceError(f"{path} has {path.stat().st_size} bytes instead of {part.bytes}: restore it.")
    return Trace(directory, manifest, tuple(logs))


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep a directory for one writer."""
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise TraceError(
                f"Another recorder is writing to {directory}: give another directory, or stop it."
            ) from None
        yield
    finally:
        os.close(handle)


def seal_logs(directory: Path) -> list[Part]:
    """Make every log complete, under the lock of whoever calls; the parts that were added."""
    sealed = [seal_log(log) for log in open_trace(directory).logs]
    for log in directory.glob("part-*.log"):
        log.unlink()  # one that a crash left behind beside its complete part
    return [part for part in sealed if part is not None]


def seal_log(log: Path) -> Part | None:
    """Turn one log into Parquet, list it, and remove it; None if it held nothing.

    In this order: a crash leaves the log and at most an unlisted file, which the next attempt replaces.
    """
    from metadata.traces import parquet_files

    directory = log.parent
    part = parquet_files.write_part(log.with_suffix(".parquet"), read_log(log))
    if part is not None:
        manifest = read_manifest(directory)
        parts = tuple(sorted((*manifest.parts, part), key=lambda each: each.file))
        write_manifest(directory, msgspec.structs.replace(manifest, parts=parts, events=manifest.events + part.events))
    log.unlink()
    sync_directory(directory)
    return part
