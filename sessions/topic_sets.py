"""The set of topics that a group of namespace watchers follows: what is true, what was told, and how to get from one to
the other. Pure: no time, no sockets.

Every flush is a numbered step. What a session needs is a function of the step it has seen last, so that one encoding
serves all sessions at the same step, and one that fell behind costs nothing until it can take something again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from protocol.hashing import topic_set_hash
from sessions.splice import tagged_length

_SNAPSHOT_FIELD: Final = 2
_DIFF_FIELD: Final = 3
_ADDED_FIELD: Final = 1
_REMOVED_FIELD: Final = 2
# What one frame needs beside its names: sizes, tags, the id.
_FRAME_OVERHEAD: Final = 64
# Names in remembered steps: a session that is further behind gets the whole set, which is then hardly larger.
_REMEMBERED_NAMES: Final = 4_096
_REMEMBERED_STEPS: Final = 256

# Of an entry in a list of names, which come in few lengths.
_prefix = lru_cache(maxsize=4_096)(tagged_length)

Incarnation = str
_NOBODY: Final[Mapping[str, Incarnation]] = {}
_Told = tuple[int, Incarnation | None]  # the topic's bucket, and under which incarnation it was told, if at all


class TopicSet:
    def __init__(self, prefix: str, frame_limit: int) -> None:
        self.step = 0
        self._prefix = prefix  # "topic://tenant/namespace/"
        self._frame_limit = frame_limit - _FRAME_OVERHEAD
        # By bucket, because that is how the store is read again after a gap. Only those that hold something: most sets
        # that are filtered are small, and there may be thousands of them.
        self._true: dict[int, dict[str, Incarnation]] = {}
        self._told: dict[str, _Told] = {}  # where it differs from the truth: what was told instead
        self._steps: deque[Mapping[str, _Told]] = deque()  # per step: what was told before it
        self._remembered = 0
        self._frames: dict[int | None, tuple[bytes, ...]] = {}  # by the step they lead from; None: from nothing
        self._hash: str | None = None

    def __len__(self) -> int:
        return sum(map(len, self._true.values()))

    @property
    def changed(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._told)

    def update(self, bucket: int, name: str, incarnation: Incarnation | None) -> None:
        """A topic is in the set under this incarnation, or not in it (None)."""
        members = self._true.get(bucket, _NOBODY)
        before = members.get(name)
        if before == incarnation:
            return
        if incarnation is not None:
            self._true.setdefault(bucket, {})[name] = incarnation
        elif len(members) == 1:
            del self._true[bucket]
        else:
            del self._true[bucket][name]
        _, told = self._told.setdefault(name, (bucket, before))
        if told == incarnation:
            # Back at what everybody believes: nothing to tell.
            del self._told[name]

    def replace(self, bucket: int, members: Mapping[str, Incarnation]) -> None:
        """All members of a bucket were read again."""
        known = self._true.get(bucket, _NOBODY)
        if not known and self._told.keys().isdisjoint(members):
            # The first listing, which may be a long one: all of it is new.
            if members:
                self._true[bucket] = dict(members)
                self._told.update(dict.fromkeys(members, (bucket, None)))
            return
        for name in [name for name in known if name not in members]:
            self.update(bucket, name, None)
        for name, incarnation in members.items():
            self.update(bucket, name, incarnation)

    def flush(self, *, remember: bool = True) -> None:
        """Make a step: the truth is now what is told. It need not be remembered while nobody was told anything."""
        if not self._told:
            return
        self.step += 1
        if not remember:
            self._told = {}
        self._steps.append(self._told)
        self._remembered += len(self._told)
        while self._remembered > max(_REMEMBERED_NAMES, len(self._steps[-1])) or len(self._steps) > _REMEMBERED_STEPS:
            self._remembered -= len(self._steps.popleft())
        self._told = {}
        self._frames.clear()
        self._hash = None

    def hash(self) -> str:
        """Of what is told at the current step, as clients compute it."""
        if self._hash is None:
            self._hash = topic_set_hash(self._told_names())
        return self._hash

    def snapshot(self) -> tuple[bytes, ...]:
        """The tails of the frames that tell the whole set, as of the current step."""
        return self._cached(None)

    def since(self, step: int) -> tuple[bytes, ...]:
        """The tails of the frames that lead from `step` to the current one; none where both say the same."""
        return () if step == self.step else self._cached(step)

    def _cached(self, step: int | None) -> tuple[bytes, ...]:
        frames = self._frames.get(step)
        if frames is None:
            frames = self._frames[step] = tuple(self._encode(step))
        return frames

    def _encode(self, step: int | None) -> Iterator[bytes]:
        behind = None if step is None else self.step - step
        if behind is None or behind > len(self._steps):
            yield from self._encode_snapshot()
            return
        before: dict[str, _Told] = {}
        for past in list(self._steps)[len(self._steps) - behind :]:
            for name, told in past.items():
                before.setdefault(name, told)
        removed, added = [], []
        for name, (bucket, then) in before.items():
            _, now = self._told.get(name) or (bucket, self._true.get(bucket, _NOBODY).get(name))
            if then == now:
                continue
            if then is not None:
                removed.append(name)
            if now is not None:
                added.append(name)
        yield from self._encode_diff(removed, added)

    def _encode_snapshot(self) -> Iterator[bytes]:
        parts = self._parts(_ADDED_FIELD, self._told_names())
        first = next(parts, b"")
        yield tagged_length(_SNAPSHOT_FIELD, len(first)) + first
        for part in parts:
            yield tagged_length(_DIFF_FIELD, len(part)) + part

    def _encode_diff(self, removed: Iterable[str], added: Iterable[str]) -> Iterator[bytes]:
        # Clients take out before they put in, and a topic that was made anew stands in both lists.
        gone = list(self._parts(_REMOVED_FIELD, (self._prefix + name for name in removed)))
        come = list(self._parts(_ADDED_FIELD, (self._prefix + name for name in added)))
        if len(gone) <= 1 and len(come) <= 1:
            whole = b"".join(come) + b"".join(gone)
            if len(whole) <= self._frame_limit:
                gone, come = [], [whole] if whole else []
        for part in (*gone, *come):
            yield tagged_length(_DIFF_FIELD, len(part)) + part

    def _parts(self, field: int, names: Iterable[str]) -> Iterator[bytes]:
        """The names as a repeated field, in pieces that each fit a frame."""
        piece: list[bytes] = []
        size = 0
        for name in names:
            text = name.encode()
            entry = _prefix(field, len(text)) + text
            if piece and size + len(entry) > self._frame_limit:
                yield b"".join(piece)
                piece, size = [], 0
            piece.append(entry)
            size += len(entry)
        if piece:
            yield b"".join(piece)

    def _told_names(self) -> Iterator[str]:
        for members in self._true.values():
            for name in members:
                if name not in self._told:
                    yield self._prefix + name
        for name, (_, incarnation) in self._told.items():
            if incarnation is not None:
                yield self._prefix + name
