"""Traces made by hand, as recorders and jobs leave them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from metadata.traces.completing import seal_log
from metadata.traces.directories import DATA, log_name, open_trace
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.log_files import MAGIC, encode
from metadata.traces.manifest import Manifest, read_manifest, write_manifest
from metadata.traces.tables import batches_of

# 2026-01-31 12:00:00 UTC
NOON_US = 1_769_860_800_000_000


def change(seq: int, topic: str = "orders", **others: Any) -> TraceEvent:
    """A change of a topic, one millisecond after the one before it; any field can be given."""
    at_us = NOON_US + seq * 1_000
    known: dict[str, Any] = {
        "seq": seq,
        "run": 1,
        "kind": Kind.CHANGED,
        "taken_us": at_us,
        "arrival_us": at_us - 100,
        "store_ms": at_us // 1_000,
        "store_seq": 0,
        "bucket": 7,
        "namespace": "shop/eu",
        "topic": topic,
        "incarnation": "i1",
        "version": seq + 1,
        "epoch": seq,
        "size": 17,
        "value": b'{"epoch": %d}' % seq,
    }
    return TraceEvent(**known | others)


def start(seq: int = 0, topics: Sequence[str] = (), run: int = 1, cause: str = "start") -> list[TraceEvent]:
    """A gap, the base after it, and the end of that."""
    bases = [
        change(seq + 1 + place, topic, kind=Kind.BASE, arrival_us=None, store_ms=None, store_seq=None, run=run)
        for place, topic in enumerate(topics)
    ]
    last = seq + 1 + len(bases)
    gap = TraceEvent(seq=seq, run=run, kind=Kind.GAP, taken_us=NOON_US + seq * 1_000, detail=cause)
    end = TraceEvent(seq=last, run=run, kind=Kind.BASE_END, taken_us=NOON_US + last * 1_000)
    return [gap, *bases, end]


def changes(first: int, count: int) -> list[TraceEvent]:
    return [change(seq) for seq in range(first, first + count)]


def write_log(directory: Path, number: int, events: Iterable[TraceEvent]) -> Path:
    log = directory / log_name(number)
    log.write_bytes(MAGIC + b"".join(map(encode, events)))
    return log


def record(directory: Path, *parts: Sequence[TraceEvent], sealed: int | None = None, **manifest: Any) -> Path:
    """A recorded trace with these parts, of which the first `sealed` are complete; all where that is None."""
    directory.mkdir(exist_ok=True)
    write_manifest(directory, Manifest(kind="recorded", **{"runs": 1} | manifest))
    for number, events in enumerate(parts, start=1):
        log = write_log(directory, number, events)
        if sealed is None or number <= sealed:
            seal_log(log)
    return directory


def synthesise(directory: Path, events: Iterable[TraceEvent]) -> Path:
    """A synthetic trace, laid out as Spark does it: a folder for each namespace, and in it for each hour."""
    files: dict[tuple[str, int], list[TraceEvent]] = {}
    count = 0
    for event in events:
        assert event.namespace is not None
        files.setdefault((event.namespace, event.taken_us // 3_600_000_000), []).append(event)
        count += 1
    for (namespace, hour), held in files.items():
        # Spark escapes what a file system could not bear, and leaves letters of all languages.
        safe = "".join(quote(c, safe="") if c in '/:"%=*?\\' else c for c in namespace)
        folder = directory / DATA / f"namespace={safe}" / f"hour={hour}"
        folder.mkdir(parents=True)
        table = pa.Table.from_batches(batches_of(held)).drop_columns(["namespace"])
        pq.write_table(table, folder / "part-00000-5d3c.snappy.parquet")
    (directory / DATA / "_SUCCESS").touch()
    write_manifest(directory, Manifest(kind="synthetic", events=count, seed=1, values=False))
    return directory


def seqs(directory: Path) -> list[int]:
    """The numbers of all events, in the order in which they are read."""
    return [seq for batch in open_trace(directory).batches(["seq"]) for seq in batch["seq"].to_pylist()]


def patch_manifest(directory: Path, **fields: Any) -> None:
    write_manifest(directory, msgspec.structs.replace(read_manifest(directory), **fields))


def overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_SET)
        file.write(content)
