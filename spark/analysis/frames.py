"""How many bytes the frames of a namespace watch have, without making them: arithmetic on what the wire prescribes.

A frame is two sizes of four bytes, the type of the command, the command's tag and length, the session's id, and the
snapshot or diff: a tag, a length, and one entry per name. A test compares it with the frames that the server makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from protocol.framing import DEFAULT_MAX_MESSAGE_SIZE
from protocol.wire import pulsar_api_pb2 as api

_TYPE: Final = int(api.BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE)
# The server leaves this much of a frame to all that is not a name.
_KEPT_FREE: Final = 64
# Tag and value of the id: clients count from one on each connection, and up to 127 take one byte.
ID_BYTES: Final = 2


def varint_length(value: int) -> int:
    """Bytes of a number on the wire: seven bits in each."""
    return max(1, (value.bit_length() + 6) // 7)


FIXED_BYTES: Final = 8 + 1 + varint_length(_TYPE) + varint_length(_TYPE << 3 | 2)
MOST_IN_A_FRAME: Final = DEFAULT_MAX_MESSAGE_SIZE - _KEPT_FREE


def entry_bytes(name_bytes: int) -> int:
    """Of one name in a list; `name_bytes` is the length of `topic://tenant/namespace/name` in UTF-8."""
    return 1 + varint_length(name_bytes) + name_bytes


def frame_bytes(entries: int) -> int:
    """Of a whole frame whose names take so many bytes, tags and lengths included."""
    body = ID_BYTES + 1 + varint_length(entries) + entries
    return FIXED_BYTES + varint_length(body) + body


def diff_bytes(removed: Sequence[int], added: Sequence[int], most: int = MOST_IN_A_FRAME) -> int:
    """Of all frames of a diff; each name is given by what `entry_bytes` says of it."""
    whole = sum(removed) + sum(added)
    if whole <= most:
        return frame_bytes(whole) if removed or added else 0
    return sum(map(frame_bytes, (*_pieces(removed, most), *_pieces(added, most))))


def snapshot_bytes(entries: int, most: int = MOST_IN_A_FRAME) -> int:
    """Of a snapshot whose names take so many bytes. Above one frame it is exact but for where the cuts fall."""
    whole, rest = divmod(entries, most)
    return whole * frame_bytes(most) + (frame_bytes(rest) if rest or not whole else 0)


def _pieces(entries: Iterable[int], most: int) -> Iterator[int]:
    size = 0
    for entry in entries:
        if size and size + entry > most:
            yield size
            size = 0
        size += entry
    if size:
        yield size
