"""Frames that differ only in the id of their session: a head, the id, and a tail that all sessions share.

The head holds sizes and tags, and depends on nothing but the command and two lengths.
"""

from __future__ import annotations

import struct
from typing import Final

_SIZES: Final = struct.Struct(">II")
_LENGTH_DELIMITED: Final = 2


def id_field(session_id: int) -> bytes:
    """Field 1, the id, as it stands in every frame of a session."""
    return b"\x08" + varint(session_id)


def frame_head(command_type: int, id_length: int, tail: bytes) -> bytes:
    """What goes before an id field of this length and this tail."""
    body_length = id_length + len(tail)
    # Type and sub-message share their number, in all of BaseCommand.
    command = b"\x08" + varint(command_type) + tagged_length(command_type, body_length)
    return _SIZES.pack(len(command) + body_length + 4, len(command) + body_length) + command


def tagged_length(field_number: int, length: int) -> bytes:
    """Tag and length of a string or message field."""
    return varint(field_number << 3 | _LENGTH_DELIMITED) + varint(length)


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
