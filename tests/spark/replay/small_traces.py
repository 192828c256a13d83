"""Traces of some dozens of events, written as a recorder writes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

from metadata import keys
from metadata.traces import log_files
from metadata.traces.completing import seal_logs
from metadata.traces.directories import log_name
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.manifest import Manifest, write_manifest
from protocol.names import TopicName

NAMESPACES: Final = ("shop/orders", "shop/returns", "lab/probes")
SEEDED: Final = 3  # topics that each namespace begins with


def write_trace(directory: Path, *, events: int = 90, over_ms: int = 3_000) -> Path:
    """So many changes over so long, in three namespaces: creations, changes, and deletions of what was created."""
    directory.mkdir(parents=True)
    write_manifest(directory, Manifest("recorded", values=False, runs=1))
    frames = b"".join(map(log_files.encode, _events(events, over_ms * 1_000)))
    (directory / log_name(1)).write_bytes(log_files.MAGIC + frames)
    seal_logs(directory)
    return directory


def _events(changes: int, over_us: int) -> Iterator[TraceEvent]:
    seq = count(1)
    yield TraceEvent(next(seq), 1, Kind.GAP, 0, detail="start")
    for namespace in NAMESPACES:
        for number in range(SEEDED):
            yield _event(next(seq), Kind.BASE, 0, namespace, f"seeded-{number}", epoch=0)
    yield TraceEvent(next(seq), 1, Kind.BASE_END, 0)
    for number in range(changes):
        at_us = number * over_us // changes
        namespace = NAMESPACES[number % len(NAMESPACES)]
        turn = number // len(NAMESPACES)
        match turn % 3:
            case 0:
                yield _event(next(seq), Kind.CREATED, at_us, namespace, f"new-{turn}", epoch=0)
            case 1:
                epoch = turn // 3 + 1
                yield _event(next(seq), Kind.CHANGED, at_us, namespace, "seeded-0", epoch=epoch, version=epoch)
            case _:
                yield _event(next(seq), Kind.DELETED, at_us, namespace, f"new-{turn - 2}", epoch=0)


def _event(seq: int, kind: Kind, at_us: int, namespace: str, topic: str, *, epoch: int, version: int = 0) -> TraceEvent:
    tenant, _, name = namespace.partition("/")
    return TraceEvent(
        seq,
        1,
        kind,
        taken_us=at_us,
        arrival_us=None if kind is Kind.BASE else at_us,
        bucket=keys.bucket_of(keys.path_of(TopicName.scalable(tenant, name, topic))),
        namespace=namespace,
        topic=topic,
        incarnation=f"{topic}-1",
        version=version,
        epoch=epoch,
        size=200,
    )
