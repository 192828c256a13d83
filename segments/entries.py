"""What a log keeps of one SEND: its place, its header and its bytes."""

from typing import NamedTuple


class StoredEntry(NamedTuple):
    """`body` is what followed the SEND command, byte for byte; a batch holds several messages."""

    index: int  # type: ignore[assignment]  # hides the method of tuples, which nobody calls on an entry
    time_ms: int
    messages: int
    body: bytes
    txn: tuple[int, int] | None = None
    hash_range: tuple[int, int] | None = None
