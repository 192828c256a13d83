"""The append-only form of a part: frames of one event or of several, each with its length and checksums.

Whatever a crash leaves of the last frame is noticed and left out; a fault before the last one is damage, and is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec
from crc32c import crc32c

from metadata.traces.errors import LogDamaged
from metadata.traces.events import FORMAT_VERSION, TraceEvent

MAGIC: Final = b"vela-trace-log %d\n" % FORMAT_VERSION
_ANY_MAGIC: Final = b"vela-trace-log "
_LENGTHS: Final = Struct("<II")  # length of the event, its CRC-32C
# The head has a checksum of its own: a length that cannot be trusted would make damage look like a torn end, and
# everything behind it would be lost in silence.
_HEAD: Final = Struct("<III")
# Set in the length of a frame that holds a list of events.
_SEVERAL: Final = 1 << 31
_ZEROS_AT_A_TIME: Final = 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TraceEvent)
_decoder_of_several = msgspec.msgpack.Decoder(list[TraceEvent])


def encode(event: TraceEvent) -> bytes:
    """A frame of one event."""
    payload = _encoder.encode(event)
    return _head(len(payload), payload) + payload


def encode_together(events: Sequence[TraceEvent]) -> bytes:
    """A frame of several events, at a fraction of the cost of one each; a crash leaves all of them or none."""
    payload = _encoder.encode(events)
    return _head(len(payload) | _SEVERAL, payload) + payload


def read_log(path: Path) -> Iterator[TraceEvent]:
    """The whole events of a log, in order; a torn end is left out. The log may grow meanwhile. Raises LogDamaged."""
    with path.open("rb") as file:
        size = path.stat().st_size
        magic = file.read(len(MAGIC))
        if not magic.startswith(_ANY_MAGIC[: len(magic)]):
            raise _unreadable(path, "is not the log of a trace", 0)
        if len(magic) < len(MAGIC):
            return  # killed before the first event
        if magic != MAGIC:
            raise _unreadable(path, "was written by another version of Vela", 0)
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            start = file.tell() - _HEAD.size
            length, checksum, of_head = _HEAD.unpack(head)
            if crc32c(head[: _LENGTHS.size]) != of_head:
                if not any(head) and _rest_is_zeros(file):
                    return  # where a machine stops, a file may have grown before its content was written
                raise _unreadable(path, f"is damaged at byte {start}", start)
            payload = file.read(length & ~_SEVERAL)
            if len(payload) < length & ~_SEVERAL:
                return
            if crc32c(payload) != checksum:
                if file.tell() >= size:
                    return
                raise _unreadable(path, f"is damaged at byte {start}", start)
            try:
                events = _decoder_of_several.decode(payload) if length & _SEVERAL else [_decoder.decode(payload)]
            except msgspec.DecodeError:
                raise _unreadable(path, f"holds something that is no event at byte {start}", start) from None
            yield from events


class Salvage:
    """The events of a log up to where it is damaged. The other fields are known once all were taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = 0
        self.last: TraceEvent | None = None
        self.damage: LogDamaged | None = None

    def __iter__(self) -> Iterator[TraceEvent]:
        try:
            for event in read_log(self.path):
                self.events += 1
                self.last = event
                yield event
        except LogDamaged as damage:
            self.damage = damage


def _head(length: int, payload: bytes) -> bytes:
    lengths = _LENGTHS.pack(length, crc32c(payload))
    return lengths + crc32c(lengths).to_bytes(4, "little")


def _rest_is_zeros(file: BufferedReader) -> bool:
    while chunk := file.read(_ZEROS_AT_A_TIME):
        if chunk.count(0) < len(chunk):
            return False
    return True


def _unreadable(path: Path, what: str, at: int) -> LogDamaged:
    return LogDamaged(f"{path} {what}: restore it, or keep what is whole with: vela trace seal {path.parent}", at)
