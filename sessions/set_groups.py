"""Sessions that follow one set of topics together: what each was told last, and who is told what when it changes.

One timer and one encoding serve all of them. Where the set comes from is up to the kinds of groups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

import trio

from metadata.tasks import Tasks
from sessions.outbox import Outbox
from sessions.splice import frame_head, id_field
from sessions.topic_sets import TopicSet

_SENDS_PER_TURN: Final = 128
# Frames that are kept until the next step, for further sessions with the same id.
_KEPT_FRAMES: Final = 256
_SHORT: Final = 4_096
# What a watch takes by itself.
_WATCH_COST: Final = 1_024
# Of the hash that a client comes back with, in characters; real ones have eight. A longer one is not kept.
MAX_HASH_LENGTH: Final = 64
# As good as any other that does not match.
_NO_HASH: Final = ""


class SetWatch:
    """One session of one connection. `step` is what it was told last; None while it was told nothing."""

    __slots__ = ("admitted", "closed", "current_hash", "field", "group", "key", "outbox", "queued", "step", "watch_id")

    # Where the queued work of a kind of watches stands, apart from that of others with the same ids.
    KEY_OFFSET: ClassVar[int]

    def __init__(self, outbox: Outbox, watch_id: int, current_hash: str | None, group: SetGroup) -> None:
        self.outbox = outbox
        self.watch_id = watch_id
        self.current_hash = current_hash if len(current_hash or "") <= MAX_HASH_LENGTH else _NO_HASH
        self.field = id_field(watch_id)
        self.key = self.KEY_OFFSET + watch_id
        self.group = group
        self.step: int | None = None
        self.admitted = False
        self.queued = False
        self.closed = False

    def catch_up(self) -> tuple[bytes, ...]:
        """What this session lacks, asked for when the socket can take it."""
        self.queued = False
        return self.group.frames_for(self)


class SetGroup(ABC):
    # What carries the steps of the set.
    COMMAND: ClassVar[int]
    # What a group takes beside its watches and what it is asked for by.
    COST: ClassVar[int]

    def __init__(self, topics: TopicSet, *, nursery: Tasks, window: float) -> None:
        self.topics = topics
        self.watches: dict[SetWatch, None] = {}
        self._payer: SetWatch | None = None  # whose connection the group counts for: the one that has been here longest
        self.closed = False
        self._nursery = nursery
        self._window = window
        self._waiting: dict[SetWatch, int] = {}  # watches that are not admitted yet, by the moment when they came
        self._flushed_at = float("-inf")
        self._timer = False
        self._fanning_out = False
        self._told_somebody = False
        self._frames: dict[tuple[int | None, bytes], tuple[bytes, ...]] = {}  # by the step they lead from and the id
        self._ready: dict[tuple[int | None, bytes], bytes] = {}  # those of them that are one piece

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the set is known, so that somebody can be told it."""

    @abstractmethod
    def _moment(self) -> int:
        """A number between those of what was written and read before and after this call."""

    @abstractmethod
    def _settled_until(self) -> float:
        """Who came before this moment finds in the set whatever this node had written by then."""

    @abstractmethod
    def _greet(self, watch: SetWatch) -> None:
        """Tell a session the set as of the current step, for the first time."""

    # Sessions.

    @property
    def cost(self) -> int:
        """Bytes, about. Fixed for the life of a group."""
        return self.COST

    def join(self, watch: SetWatch) -> None:
        self.watches[watch] = None
        watch.outbox.hold(_WATCH_COST)
        if self._payer is None:
            self._pay(watch)
        self._waiting[watch] = self._moment()
        self._admit_waiting()

    def leave(self, watch: SetWatch) -> None:
        del self.watches[watch]
        watch.closed = True
        self._waiting.pop(watch, None)
        watch.outbox.hold(-_WATCH_COST)
        if self._payer is watch:
            watch.outbox.hold(-self.cost)
            self._payer = None
            if self.watches:
                self._pay(next(iter(self.watches)))
        if not self.watches:
            self.closed = True

    def _pay(self, watch: SetWatch) -> None:
        self._payer = watch
        watch.outbox.hold(self.cost)

    def _admit(self, watch: SetWatch) -> None:
        """Flush first: then the snapshot and the next diff fit together, for this session and for the others."""
        if self.topics.changed:
            self.flush()
        watch.admitted = self._told_somebody = True
        del self._waiting[watch]
        self._greet(watch)

    def _admit_waiting(self) -> bool:
        """Whether there was somebody to admit."""
        if not self._waiting or not self.complete:
            return False
        admitted = False
        settled_until = self._settled_until()
        for watch, asked in list(self._waiting.items()):
            if asked >= settled_until:
                break  # and so do all who came later
            self._admit(watch)
            admitted = True
        return admitted

    # Telling.

    def _schedule(self) -> None:
        if self.topics.changed and not self._timer:
            self._timer = True
            self._nursery.start_soon(self._flush_when_due)

    async def _flush_when_due(self) -> None:
        """The first change after quiet goes out at once, later ones when the window has passed."""
        try:
            await trio.lowlevel.checkpoint()
            # Somebody who joined may have had it flushed meanwhile: then the window begins anew.
            while trio.current_time() < (due := self._flushed_at + self._window):  # noqa: ASYNC110  # it moves
                await trio.sleep_until(due)
        finally:
            self._timer = False
        self.flush()

    def flush(self) -> None:
        if not self.topics.changed:
            return
        self.topics.flush(remember=self._told_somebody)
        self._flushed_at = trio.current_time()
        self._frames.clear()
        self._ready.clear()
        if not self._fanning_out:
            self._fanning_out = True
            self._nursery.start_soon(self._fan_out)

    async def _fan_out(self) -> None:
        """Bring every session to the current step; a step made meanwhile is told by the same task."""
        topics = self.topics
        try:
            step = -1
            while step != topics.step:
                step = topics.step
                for count, watch in enumerate(list(self.watches), start=1):
                    if watch.step != topics.step and watch.admitted and not watch.closed and not watch.queued:
                        # What most sessions need is ready made; the rest is put together when it can be sent.
                        frame = self._ready.get((watch.step, watch.field))
                        if frame is not None and watch.outbox.offer(frame):
                            watch.step = topics.step
                        else:
                            watch.queued = watch.outbox.send_from(watch.key, watch.catch_up)
                    if count % _SENDS_PER_TURN == 0:
                        await trio.lowlevel.checkpoint()
                await trio.lowlevel.checkpoint()
        finally:
            self._fanning_out = False

    def frames_for(self, watch: SetWatch) -> tuple[bytes, ...]:
        """The frames that bring a session up to date, which it then counts as being."""
        if watch.closed:
            return ()
        key = (watch.step, watch.field)
        frames = self._frames.get(key)
        if frames is None:
            frames = self._compose(*key)
            if len(self._frames) < _KEPT_FRAMES:
                self._frames[key] = frames
                if len(frames) == 1:
                    self._ready[key] = frames[0]
        watch.step = self.topics.step
        return frames

    def _compose(self, step: int | None, field: bytes) -> tuple[bytes, ...]:
        tails = self.topics.snapshot() if step is None else self.topics.since(step)
        parts: list[bytes] = []
        for tail in tails:
            parts += (frame_head(self.COMMAND, len(field), tail) + field, tail)
        # One buffer is cheaper to send than two, and many sessions have the same id; a long tail is not worth copying.
        return (b"".join(parts),) if sum(map(len, tails)) <= _SHORT else tuple(parts)
