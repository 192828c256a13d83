"""Logs made complete: each turned into Parquet, listed and removed; a damaged one is set aside and costs no other.

What comes first of a damaged log is kept, with a gap at its end: changes are missing there. The gap gets the number
that the first lost event had, and later events keep theirs, so that whoever looks sees how many are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from metadata.traces.directories import open_trace, part_number
from metadata.traces.errors import TraceError
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.log_files import Salvage
from metadata.traces.manifest import Damage, Manifest, Part, read_manifest, sync_directory, write_manifest

# The cause of the gap that stands for what was lost.
DAMAGED: Final = "damaged"


class SealedLog(NamedTuple):
    """What became of a log; no part if it held nothing."""

    part: Part | None
    damage: Damage | None


@dataclass(slots=True)
class Sealing:
    """What became of all logs of a directory; `failures` says why some of them are still logs."""

    parts: list[Part] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def seal_logs(directory: Path) -> Sealing:
    """Make every log complete, under the lock of whoever calls. One that cannot be does not keep the others from it."""
    open_trace(directory)  # before anything is removed from what may be no trace, or lack a part
    remove_leftovers(directory)
    found = Sealing()
    for log in open_trace(directory).logs:
        try:
            sealed = seal_log(log)
        except TraceError as error:
            found.failures.append(str(error))
        except OSError as error:
            found.failures.append(f"{log} cannot be sealed now: {error.strerror or error}.")
        else:
            found.parts += [sealed.part] if sealed.part is not None else []
            found.damages += [sealed.damage] if sealed.damage is not None else []
    return found


def seal_log(log: Path) -> SealedLog:
    """Turn one log into Parquet, list it, and remove it or, if it is damaged, set it aside.

    In this order: a crash leaves the log and at most an unlisted file, which the next attempt replaces; or both the
    listed part and the log, of which the next attempt puts the latter away.
    """
    directory = log.parent
    manifest = read_manifest(directory)
    part = _listed(manifest, log)
    damage = _damage_of(manifest, log)
    if part is None and log.exists() and (damage is None or _aside(log, damage).exists()):
        part, damage = _seal(log)
    _put_away(log, damage)
    sync_directory(directory)
    return SealedLog(part, damage)


def remove_leftovers(directory: Path) -> None:
    """Put away what crashes have left, under the lock of whoever calls: nothing is lost that holds an event."""
    manifest = read_manifest(directory)
    # A crash between listing a part and removing its log leaves both; the listed one is whole.
    for name in {Path(part.file).with_suffix(".log").name for part in manifest.parts}:
        _put_away(directory / name, _damage_of(manifest, directory / name))
    for damage in manifest.damaged:
        _put_away(directory / Path(damage.log).name, damage)
    for scratch in directory.glob(".part-*.parquet.new"):
        scratch.unlink()


def _listed(manifest: Manifest, log: Path) -> Part | None:
    return next((part for part in manifest.parts if part.file == log.with_suffix(".parquet").name), None)


def _damage_of(manifest: Manifest, log: Path) -> Damage | None:
    return next((damage for damage in manifest.damaged if damage.log == log.name), None)


def _put_away(log: Path, damage: Damage | None) -> None:
    if damage is None:
        log.unlink(missing_ok=True)
        return
    # Where both are there, somebody has put a log in the place of the damaged one: that is not ours to remove.
    if log.exists() and not _aside(log, damage).exists():
        log.rename(_aside(log, damage))


def _aside(log: Path, damage: Damage) -> Path:
    return log.with_name(Path(damage.file).name)


def _seal(log: Path) -> SealedLog:
    from metadata.traces import parquet_files

    salvage = Salvage(log)
    part = parquet_files.write_part(log.with_suffix(".parquet"), _with_gap(salvage))
    damage = None
    if salvage.damage is not None:
        damage = Damage(log.name, _free_name(log), log.stat().st_size, salvage.damage.at, salvage.events)
    if part is not None or damage is not None:
        _list(log.parent, part, damage)
    return SealedLog(part, damage)


def _list(directory: Path, part: Part | None, damage: Damage | None) -> None:
    manifest = read_manifest(directory)
    parts = sorted((*manifest.parts, *([] if part is None else [part])), key=lambda each: part_number(each.file))
    changed = msgspec.structs.replace(
        manifest,
        parts=tuple(parts),
        events=sum(each.events for each in parts),
        damaged=(*manifest.damaged, *([] if damage is None else [damage])),
    )
    write_manifest(directory, changed)


def _free_name(log: Path) -> str:
    name, number = f"{log.name}.{DAMAGED}", 1
    while log.with_name(name).exists():
        number += 1
        name = f"{log.name}.{DAMAGED}-{number}"
    return name


class _Place(NamedTuple):
    """Where an event stands, in the order of all events and in time."""

    seq: int
    run: int
    taken_us: int

    @classmethod
    def of(cls, event: TraceEvent) -> _Place:
        return cls(event.seq, event.run, event.taken_us)


def _with_gap(salvage: Salvage) -> Iterator[TraceEvent]:
    yield from salvage
    if salvage.damage is not None:
        before = _before(salvage.path) if salvage.last is None else _Place.of(salvage.last)
        place = _place_of_gap(before, _after(salvage.path))
        if place is not None:
            yield TraceEvent(place.seq, place.run, Kind.GAP, place.taken_us, detail=DAMAGED)


def _place_of_gap(before: _Place | None, after: _Place | None) -> _Place | None:
    """Where the first lost event stood; None where the numbers say that there was none, or nobody knows any."""
    if before is None:
        return after._replace(seq=after.seq - 1) if after is not None and after.seq > 0 else None
    if after is not None and after.seq <= before.seq + 1:
        return None
    return before._replace(seq=before.seq + 1)


def _before(log: Path) -> _Place | None:
    """The last event of what was recorded before this log."""
    for path in reversed(_others(log, later=False)):
        if path.suffix == ".parquet":
            return _ends(path)[1]
        salvage = Salvage(path)
        for _ in salvage:
            pass
        if salvage.last is not None:
            place = _Place.of(salvage.last)
            # A number is kept for the gap that it will get.
            return place if salvage.damage is None else place._replace(seq=place.seq + 1)
    return None


def _after(log: Path) -> _Place | None:
    """The first event of what was recorded after this log."""
    for path in _others(log, later=True):
        if path.suffix == ".parquet":
            return _ends(path)[0]
        for event in Salvage(path):
            return _Place.of(event)
    return None


def _others(log: Path, *, later: bool) -> list[Path]:
    trace = open_trace(log.parent)
    number = part_number(log.name)
    found = [path for path in (*trace.files, *trace.logs) if path != log]
    chosen = (path for path in found if (part_number(path.name) > number) == later)
    return sorted(chosen, key=lambda each: part_number(each.name))


def _ends(part: Path) -> tuple[_Place, _Place]:
    from metadata.traces import parquet_files

    first, last = parquet_files.ends_of_part(part, _Place._fields)
    return _Place(**first), _Place(**last)
