"""When the notification of each change came: bells of a log in their order, given to its entries in theirs.

A bell does not say which entry it is of. But it comes on the connection on which the log is read, ahead of the answer
to any read that shows its entry; so the first bells belong to the first entries, and what is left over to later ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence


class Arrivals:
    """The bells of some logs whose entries were not read yet."""

    def __init__(self) -> None:
        self._rung: dict[int, deque[float]] = {}

    def ring(self, bucket: int, at: float) -> None:
        rung = self._rung.get(bucket)
        if rung is None:
            rung = self._rung[bucket] = deque()
        rung.append(at)

    def waiting(self, bucket: int) -> int:
        """How many bells have no entry yet. Those that were there when a read was sent must be of what it shows."""
        return len(self._rung.get(bucket, ()))

    def forget(self, buckets: Collection[int]) -> None:
        """Nobody follows these logs from where the bells were."""
        for bucket in buckets:
            self._rung.pop(bucket, None)

    def take(self, bucket: int, entries: int, *, waited: int, to_the_end: bool) -> Sequence[float | None]:
        """The arrivals of as many entries, the next ones in the log; None for those whose bell was lost.

        `waited` bells were there when the read was sent. If it went to the end of the log and showed fewer entries, the
        oldest bells are of something that was taken in otherwise, and would make all later ones early by one.
        """
        rung = self._rung.get(bucket)
        if rung is None:
            return [None] * entries
        if to_the_end:
            for _ in range(waited - entries):
                rung.popleft()
        # Which bells were lost cannot be told; what made us read was probably the last one.
        lost = max(0, entries - len(rung))
        return [*[None] * lost, *(rung.popleft() for _ in range(entries - lost))]
