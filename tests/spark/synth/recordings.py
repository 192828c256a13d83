"""Recorded traces of a known shape, made without anything that is tested with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from metadata.keys import bucket_of
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.manifest import Manifest, write_manifest
from metadata.traces.parquet_files import write_part

START_US = 1_800_000_000_000_000


def write_trace(directory: Path, events: Sequence[TraceEvent]) -> Path:
    directory.mkdir()
    part = write_part(directory / "part-000001.parquet", events)
    parts = () if part is None else (part,)
    write_manifest(directory, Manifest("recorded", runs=1, parts=parts, events=len(events)))
    return directory


def bursty_events(
    namespaces: Sequence[str] = ("shop/orders", "shop/a=b:c.d"), *, bursts: int = 150, size: int = 5, changes: int = 2
) -> list[TraceEvent]:
    """Each namespace has ten topics and then bursts, a minute apart or so and of `size` events on average.

    For each creation there is a deletion and `changes` changes.
    """
    rng = Random("recording")
    ops = [Kind.CREATED, Kind.DELETED, *[Kind.CHANGED] * changes]
    found: list[tuple[int, str, Kind, str, str, int, int]] = []
    for namespace in namespaces:
        live = {f"t-{number}": (f"{rng.getrandbits(64):016x}", 0) for number in range(10)}
        found.extend((0, namespace, Kind.BASE, name, *state, 0) for name, state in live.items())
        at, created = 0, 10
        for _ in range(bursts):
            at += round(rng.expovariate(1 / 60e6)) + 2_000_000
            for _ in range(rng.randint(1, 2 * size - 1)):
                at += rng.randint(1_000, 20_000)
                kind = rng.choice(ops)
                if kind == Kind.CREATED and len(live) > 14:
                    kind = Kind.DELETED
                if kind == Kind.DELETED and len(live) < 6:
                    kind = Kind.CREATED
                if kind == Kind.CREATED:
                    name, state = f"t-{created}", (f"{rng.getrandbits(64):016x}", 0)
                    created += 1
                else:
                    name = rng.choice(list(live))
                    state = live[name]
                if kind == Kind.CHANGED:
                    state = (state[0], state[1] + 1)
                if kind == Kind.DELETED:
                    del live[name]
                else:
                    live[name] = state
                found.append((at, namespace, kind, name, *state, 500 + 100 * state[1]))
    found.sort(key=lambda each: each[0])
    events = [TraceEvent(0, 1, Kind.GAP, START_US, detail="start")]
    base_ended = False
    for at, namespace, kind, name, incarnation, version, record_size in found:
        if kind != Kind.BASE and not base_ended:
            events.append(TraceEvent(len(events), 1, Kind.BASE_END, START_US))
            base_ended = True
        arrival = START_US + at
        happened = kind != Kind.BASE
        events.append(
            TraceEvent(
                len(events),
                1,
                kind,
                arrival + 150 if happened else START_US,
                arrival if happened else None,
                (arrival - 700) // 1_000 if happened else None,
                0 if happened else None,
                bucket_of(f"{namespace}/{name}"),
                namespace,
                name,
                incarnation,
                version,
                None if kind == Kind.DELETED else version,
                None if kind == Kind.DELETED else record_size or 280,
            )
        )
    return events
