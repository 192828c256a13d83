"""Taking a directory for recording, one recorder at a time: a trace is begun there, or one that is there goes on."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gateway.recorder.losses import Losses
from metadata.traces.completing import remove_leftovers
from metadata.traces.directories import Trace, locked, open_trace
from metadata.traces.errors import TraceError
from metadata.traces.log_files import Salvage
from metadata.traces.manifest import MANIFEST, Manifest, read_manifest, write_manifest
from metadata.traces.pseudonyms import Pseudonyms, random_key, read_key

_NUMBER: Final = re.compile(r"part-([0-9]+)\.")


@dataclass(frozen=True, slots=True)
class Naming:
    """Whether names are written as they are or as pseudonyms, and with which key file."""

    anonymise: bool = False
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class OpenTrace:
    """A directory that is ours, and where its trace goes on."""

    directory: Path
    run: int
    next_seq: int
    next_part: int
    unsealed: tuple[Path, ...]  # logs that an earlier recorder left
    losses: Losses  # of earlier recorders
    values: bool
    pseudonyms: Pseudonyms | None
    lock: ExitStack

    def close(self) -> None:
        self.lock.close()


def open_for_recording(directory: Path, *, values: bool, naming: Naming) -> OpenTrace:
    """Take a directory and begin another run in it, or say in a TraceError why that cannot be."""
    pseudonyms = None
    if naming.anonymise:
        pseudonyms = Pseudonyms(random_key() if naming.key_file is None else read_key(naming.key_file))
    elif naming.key_file is not None:
        raise TraceError("A key file is of use only for pseudonyms: ask for them as well, or leave it out.")
    try:
        with ExitStack() as stack:
            directory.mkdir(parents=True, exist_ok=True)
            _refuse_foreign(directory)
            stack.enter_context(locked(directory))
            return _take(directory, values, naming, pseudonyms, stack)
    except OSError as error:
        raise TraceError(f"Nothing can be recorded in {directory}: {error.strerror or error}.") from None


def _refuse_foreign(directory: Path) -> None:
    if (directory / MANIFEST).exists():
        return
    # Names with a dot are our lock, and what a crash left of the first manifest.
    if any(not path.name.startswith(".") for path in directory.iterdir()):
        raise TraceError(
            f"{directory} is not empty and holds no trace: give a new directory, or the trace to go on with."
        )


def _take(directory: Path, values: bool, naming: Naming, pseudonyms: Pseudonyms | None, stack: ExitStack) -> OpenTrace:
    if (directory / MANIFEST).exists():
        before = read_manifest(directory)
        _refuse_mixture(directory, before, naming, pseudonyms)
    else:
        check = None if pseudonyms is None or naming.key_file is None else pseudonyms.check
        before = Manifest("recorded", values=values, anonymised=naming.anonymise, key_check=check)
        write_manifest(directory, before)
    open_trace(directory)  # before anything is removed from what may lack a part
    remove_leftovers(directory)
    trace = open_trace(directory)
    damaged = (damage.log for damage in before.damaged)
    parts = [*(part.file for part in before.parts), *(log.name for log in trace.logs), *damaged]
    manifest = msgspec.structs.replace(before, runs=before.runs + 1, values=before.values and values)
    write_manifest(directory, manifest)
    return OpenTrace(
        directory=directory,
        run=manifest.runs,
        next_seq=_next_seq(trace),
        next_part=max((int(found[1]) for name in parts if (found := _NUMBER.match(name))), default=0) + 1,
        unsealed=trace.logs,
        losses=Losses(manifest.dropped, manifest.values_missing),
        values=values,
        pseudonyms=pseudonyms,
        lock=stack.pop_all(),
    )


def _next_seq(trace: Trace) -> int:
    """Behind the last number that was given, and those for the gaps that damaged logs will get."""
    parts = trace.manifest.parts
    count = trace.manifest.events
    last = max((part.last_seq for part in parts if part.last_seq is not None), default=-1)
    for log in trace.logs:
        salvage = Salvage(log)
        for event in salvage:
            last = max(last, event.seq)
        gap = 0 if salvage.damage is None else 1
        count += salvage.events + gap
        last += gap
    return max(count, last + 1)


def _refuse_mixture(directory: Path, before: Manifest, naming: Naming, pseudonyms: Pseudonyms | None) -> None:
    if before.kind != "recorded":
        raise TraceError(f"{directory} is a synthetic trace, and no recording goes on with it: give another directory.")
    if before.anonymised != naming.anonymise:
        what = "pseudonyms" if before.anonymised else "plain names"
        raise TraceError(f"{directory} has {what}: record in the same way, or give another directory.")
    if pseudonyms is None:
        return
    if before.key_check is None:
        raise TraceError(
            f"{directory} has pseudonyms whose key was never kept: give another directory, and a key file to be able "
            "to go on with that one."
        )
    if naming.key_file is None:
        raise TraceError(f"{directory} has pseudonyms: give the key file with which it was begun to go on with it.")
    if pseudonyms.check != before.key_check:
        raise TraceError(f"{directory} has pseudonyms of another key than that of {naming.key_file}: give its own.")
