"""The set of classic logs that match a pattern, encoded as the watches of classic topics tell it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sessions.splice import tagged_length
from sessions.topic_sets import TopicSet

# Of the first answer.
_TOPIC_FIELD: Final = 3
# Of every later one.
_NEW_FIELD: Final = 2
_DELETED_FIELD: Final = 3
_HASH_FIELD: Final = 4


class LogSet(TopicSet):
    """A set as the updates of classic watches tell it: what is new, what is gone, and the hash of all there is."""

    def __init__(self, prefix: str, frame_limit: int) -> None:
        super().__init__(prefix, frame_limit)
        self._whole: tuple[int, bytes | None] = (-1, None)  # with the step that it is of

    def whole(self) -> bytes | None:
        """The tail of the frame that tells all of the set at first; None where that is too much for one frame."""
        step, tail = self._whole
        if step != self.step:
            parts = list(self._parts(_TOPIC_FIELD, self._told_names()))
            tail = None if len(parts) > 1 else b"".join(parts) + hash_field(self.hash())
            self._whole = (self.step, tail)
        return tail

    def _encode_snapshot(self) -> Iterator[bytes]:
        # For one that fell far behind. What is gone cannot be said any more, but the hash tells that something is.
        yield from self._hashed(list(self._parts(_NEW_FIELD, self._told_names())) or [b""])

    def _encode_diff(self, removed: Iterable[str], added: Iterable[str]) -> Iterator[bytes]:
        gone = list(self._parts(_DELETED_FIELD, (self._prefix + name for name in removed)))
        come = list(self._parts(_NEW_FIELD, (self._prefix + name for name in added)))
        if len(gone) == len(come) == 1 and len(gone[0]) + len(come[0]) <= self._frame_limit:
            gone, come = [], [come[0] + gone[0]]
        yield from self._hashed([*gone, *come])

    def _hashed(self, parts: Sequence[bytes]) -> Iterator[bytes]:
        """Only the last part completes the set; the hash of an incomplete one says nothing."""
        for number, part in enumerate(parts, start=1):
            yield part + hash_field(self.hash() if number == len(parts) else "")


def hash_field(text: str) -> bytes:
    return tagged_length(_HASH_FIELD, len(text)) + text.encode()
