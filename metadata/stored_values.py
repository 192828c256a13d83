"""Values as they stand in the store, where anybody may have written anything: what does not fit is a ValueError.

Numbers that are too large are no smaller damage than letters: frames and other programs hold them in 64 bits.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

# What fits a Java long, which is what clients store the numbers in.
MAX_LONG: Final = 2**63 - 1
# What decoding raises where the bytes are not what they should be; msgspec's own errors are ValueErrors.
UNREADABLE: Final = (ValueError, RecursionError)

Long = Annotated[int, Meta(ge=0, le=MAX_LONG)]


def number(value: bytes | str | int) -> int:
    """A count, an index or a time; ValueError for anything else."""
    found = int(value)
    if not 0 <= found <= MAX_LONG:
        raise ValueError(f"{str(found)[:32]} is no number that is stored here")
    return found
