"""The manifest of a trace: what it is, how it was made, and what its complete parts hold."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from metadata.traces.errors import TraceError
from metadata.traces.events import FORMAT_VERSION

MANIFEST: Final = "manifest.json"
FORMAT: Final = "vela-trace"


class Part(msgspec.Struct, frozen=True):
    """One complete part, as it was when it was finished."""

    file: str
    bytes: int
    events: int
    gaps: int
    bases: int
    first_us: int
    last_us: int
    last_seq: int | None = None  # None: numbers were given without a break up to here


class Damage(msgspec.Struct, frozen=True):
    """A log that was found damaged. What was whole in it is a part like any other, with a gap at its end."""

    log: str  # what it was called
    file: str  # what it is called since
    bytes: int
    at: int  # the first byte of which nothing is known
    kept: int  # events before that

    def sentence(self, directory: Path) -> str:
        kept = "1 event is" if self.kept == 1 else f"{self.kept:,} events are"
        return (
            f"{directory / self.log} is damaged at byte {self.at:,}: {kept} kept of it, changes are missing after "
            f"that, and the file is set aside as {self.file}."
        )


class Manifest(msgspec.Struct, frozen=True):
    """`recorded` traces list their parts; the events of `synthetic` ones lie in `data`, by namespace and hour."""

    kind: Literal["recorded", "synthetic"]
    format: str = FORMAT
    version: int = FORMAT_VERSION
    values: bool = True
    anonymised: bool = False
    key_check: str | None = None  # whether a key is that of the pseudonyms; None also if nobody has kept it
    runs: int = 0  # how often a recorder was started
    parts: tuple[Part, ...] = ()
    events: int = 0
    damaged: tuple[Damage, ...] = ()
    dropped: int = 0  # changes that a recorder saw and could not keep; each time a gap tells where
    values_missing: int = 0  # records that a recorder read and could not keep; their changes are there
    seed: int | None = None  # of a synthetic trace
    duration_us: int | None = None
    namespaces: int | None = None
    first_us: int | None = None


class _Heading(msgspec.Struct):
    format: str = ""
    version: int = 0


def read_manifest(directory: Path) -> Manifest:
    """The manifest of a directory, or what is wrong with that."""
    text = _manifest_text(directory)
    try:
        heading = msgspec.json.decode(text, type=_Heading)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise TraceError(f"{directory / MANIFEST} is damaged: restore it, or record anew.") from None
    if heading.format != FORMAT:
        raise TraceError(f"{directory} was not written by Vela: {MANIFEST} names no {FORMAT}.")
    if heading.version != FORMAT_VERSION:
        raise TraceError(
            f"{directory} is a trace of format {heading.version}, and this Vela reads format {FORMAT_VERSION}: "
            "use the version that wrote it."
        )
    try:
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{directory / MANIFEST} is damaged ({error}): restore it, or record anew.") from None


def _manifest_text(directory: Path) -> bytes:
    try:
        return (directory / MANIFEST).read_bytes()
    except FileNotFoundError:
        if not directory.exists():
            raise TraceError(f"There is no {directory}: give the directory of a trace.") from None
        held = "is empty" if not any(directory.iterdir()) else f"holds no {MANIFEST}"
        raise TraceError(f"{directory} {held}: it is not the directory of a trace.") from None
    except NotADirectoryError:
        raise TraceError(f"{directory} is no directory: give the directory of a trace.") from None
    except OSError as error:
        raise TraceError(f"{directory / MANIFEST} cannot be read ({error.strerror}): look at who may.") from None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest, whole or not at all, also where the machine stops in the middle."""
    replace_file(directory / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")


def replace_file(path: Path, content: bytes) -> None:
    scratch = path.with_name(f".{path.name}.new")
    with scratch.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
