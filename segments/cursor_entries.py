"""A stored cursor with the id of the registration that it belongs to: for any other registration it does not count.

So nothing has to be removed for a subscription to be deleted. What the owner of a log writes that has not heard of it,
or was paused meanwhile, is of the registration that it knew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from segments.cursors import Cursor

# What begins an entry with an id. Cursors without one begin with their own version, which is another number.
_WITH_ID: Final = 2


def pack(identity: str, cursor: Cursor) -> bytes:
    """As it is stored; a cursor of a classic topic, or of a registration from before there were ids, stands alone."""
    if not identity:
        return cursor.encode()
    name = identity.encode()
    return bytes((_WITH_ID, len(name))) + name + cursor.encode()


def identity_of(entry: bytes) -> str:
    return _split(entry)[0]


def unpack(entry: bytes) -> tuple[str, Cursor]:
    """The id and the cursor; RecordDamaged if it is none."""
    identity, cursor = _split(entry)
    return identity, Cursor.decode(cursor)


def cursor_of(entry: bytes | None, identity: str) -> Cursor | None:
    """The cursor if it belongs to this registration."""
    if entry is None or identity_of(entry) != identity:
        return None
    return unpack(entry)[1]


def belongs(cursor: str, registered: Mapping[str, str | None], name: str) -> bool:
    """Whether a cursor with this id is that of the registration of this name; of one that cannot be read any is."""
    return name in registered and registered[name] in (cursor, None)


def _split(entry: bytes) -> tuple[str, bytes]:
    if len(entry) < 2 or entry[0] != _WITH_ID:
        return "", entry
    end = 2 + entry[1]
    return entry[2:end].decode(errors="replace"), entry[end:]
