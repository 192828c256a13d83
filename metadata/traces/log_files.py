"""The append-only form of a part: one frame per event, each with its length and checksum.

Whatever a crash leaves of the last frame is noticed and left out; a fault before the last one is damage, and is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec
from crc32c import crc32c

from metadata.traces.errors import TraceError
from metadata.traces.events import FORMAT_VERSION, TraceEvent

MAGIC: Final = b"vela-trace-log %d\n" % FORMAT_VERSION
_ANY_MAGIC: Final = b"vela-trace-log "
_HEAD: Final = Struct("<II")  # length of the event, its CRC-32C
# A record is bounded by the store's largest value that Vela writes; more is no length but damage.
LONGEST_EVENT: Final = 64 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(TraceEvent)


def encode(event: TraceEvent) -> bytes:
    """One frame."""
    payload = _encoder.encode(event)
    return _HEAD.pack(len(payload), crc32c(payload)) + payload


def read_log(path: Path) -> Iterator[TraceEvent]:
    """The whole events of a log, in order; a torn end is left out."""
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        if not magic.startswith(_ANY_MAGIC[: len(magic)]):
            raise TraceError(f"{path} is not the log of a trace.")
        if len(magic) < len(MAGIC):
            return  # killed before the first event
        if magic != MAGIC:
            raise TraceError(f"{path} was written by another version of Vela: read it with that one.")
        size = path.stat().st_size
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            payload = file.read(length) if length <= LONGEST_EVENT else b""
            if len(payload) < length and file.tell() >= size:
                return
            try:
                if crc32c(payload) != checksum:
                    raise ValueError
                event = _decoder.decode(payload)
            except (ValueError, msgspec.DecodeError):
                if file.tell() >= size:
                    return
                raise TraceError(
                    f"{path} is damaged at byte {file.tell() - len(payload)}: restore it, or remove it to use the rest."
                ) from None
            yield event
