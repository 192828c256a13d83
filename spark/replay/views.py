"""What watchers show, and what is wrong with what they were told: updates go in, counts and differences come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from sys import intern
from typing import ClassVar, Final

from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName
from protocol.wire import pulsar_api_pb2 as api

# What a frame has before an update: two sizes, the command's type, the field of the update.
_FRAME_HEAD: Final = 4 + 4 + 2 + 2
# Of each segment by its id: where it lies and when it was made.
Segments = Mapping[int, tuple[int, int, int]]


def frame_size(update: api.CommandScalableTopicUpdate | api.CommandWatchScalableTopicsUpdate) -> int:
    """The bytes of the frame that an update came in."""
    size = update.ByteSize()
    return _FRAME_HEAD + (size.bit_length() + 6) // 7 + size


class View:
    """What both kinds of watchers count. Pushes and bytes are those after the first state, which is no push."""

    __slots__ = (
        "_left_us",
        "absences",
        "bytes",
        "cut",
        "duplicate",
        "is_known",
        "namespace",
        "number",
        "out_of_order",
        "pushes",
        "reconnects",
        "reopened",
        "snapshots",
        "topic",
    )

    watches: ClassVar[str]

    def __init__(self, number: int, namespace: str, in_store: NamespaceName, topic: str | None = None) -> None:
        self.number = number
        self.namespace = namespace
        self.topic = topic
        self.cut = len(f"topic://{in_store}/")
        self.is_known = False
        self.reopened = False  # and not told anything since
        self.duplicate = 0
        self.out_of_order = 0
        self.pushes = 0
        self.bytes = 0
        self.snapshots = 0
        self.reconnects = 0
        self.absences: list[tuple[int, int]] = []  # from when until when it had no watch, in the store's time
        self._left_us: int | None = None

    def note_left(self, now_us: int) -> None:
        """Its connection was lost or dropped: nobody can tell it anything until the watch is opened again."""
        if self._left_us is None:
            self._left_us = now_us

    def note_reconnected(self, now_us: int) -> None:
        """Its connection was lost, and another one opens the watch again."""
        self.reconnects += 1
        self.end_absence(now_us)
        self.note_reopened()

    def end_absence(self, now_us: int) -> None:
        if self._left_us is not None:
            self.absences.append((self._left_us, now_us))
            self._left_us = None

    def note_reopened(self) -> None:
        """The watch is opened again: what it tells first may be older than the watch."""
        self.reopened = True

    def row(self, missing: int) -> dict[str, object]:
        return {
            "namespace": self.namespace,
            "topic": self.topic,
            "watcher": self.number,
            "watches": self.watches,
            "converged": not missing,
            "missing": missing,
            "duplicate": self.duplicate,
            "out_of_order": self.out_of_order,
            "pushes": self.pushes,
            "bytes": self.bytes,
            "snapshots": self.snapshots,
            "reconnects": self.reconnects,
        }


class NamespaceView(View):
    """The topics of a namespace, by their full names as the server tells them."""

    __slots__ = ("_hash", "in_store", "names")

    watches = "namespace"

    def __init__(self, number: int, namespace: str, in_store: NamespaceName) -> None:
        super().__init__(number, namespace, in_store)
        self.in_store = in_store
        # Interned names: a thousand watchers of a namespace show the same ones.
        self.names: set[str] = set()
        self._hash: str | None = None

    @property
    def hash(self) -> str:
        if self._hash is None:
            self._hash = topic_set_hash(self.names)
        return self._hash

    def take(self, update: api.CommandWatchScalableTopicsUpdate) -> tuple[Sequence[str], Sequence[str], bool] | None:
        """The names added and removed against what was shown before, and whether that tells of a time without watch.

        None for the first state.
        """
        self._hash = None
        if update.HasField("snapshot"):
            return self._take_snapshot(update.snapshot.topics)
        self.reopened = False
        removed = self._remove(update.diff.removed) if update.diff.removed else ()
        added = self._add(update.diff.added) if update.diff.added else ()
        return added, removed, False

    def _take_snapshot(self, topics: Iterable[str]) -> tuple[Sequence[str], Sequence[str], bool] | None:
        told = [intern(name) for name in topics]
        before, self.names = self.names, set(told)
        self.duplicate += len(told) - len(self.names)
        if not self.is_known:
            self.is_known = True
            return None
        self.snapshots += 1
        after, self.reopened = self.reopened, False
        return tuple(self.names - before), tuple(before - self.names), after

    def _remove(self, told: Iterable[str]) -> Sequence[str]:
        names = self.names
        removed = [intern(name) for name in told]
        left = len(names)
        names.difference_update(removed)
        wrong = len(removed) - (left - len(names))
        # Which of them were shown does not matter for the counts, and in a sound run all were.
        self.duplicate += wrong
        return removed

    def _add(self, told: Iterable[str]) -> Sequence[str]:
        names = self.names
        added = [intern(name) for name in told]
        had = len(names)
        names.update(added)
        self.duplicate += len(added) - (len(names) - had)
        return added


class TopicView(View):
    """The layout of one topic. The same update twice on one watch is a duplicate.

    The wire does not tell incarnations. A lower epoch is out of order where the layout shares a segment with the one
    shown before, made at the same time; otherwise the topic was deleted meanwhile and is another one. A server that
    goes back beyond every segment of the last layout is not found out: better than an alarm about a topic made anew.
    """

    __slots__ = ("_told", "epoch", "gone", "name", "segments", "shown_us")

    watches = "topic"

    def __init__(self, number: int, namespace: str, in_store: NamespaceName, topic: str) -> None:
        super().__init__(number, namespace, in_store, topic)
        self.name = f"topic://{in_store}/{topic}"
        self.epoch = -1
        self.gone = False  # the server said so, which ends a watch
        self.shown_us = 0  # when it was first shown, in the store's time
        self.segments: Segments = {}
        self._told = 0  # a digest of the last update

    def take(self, update: api.CommandScalableTopicUpdate, now_us: int) -> tuple[int, bool] | None:
        """The epoch shown, and whether that tells of a time without watch; None for the first state."""
        dag = update.dag
        segments = {s.segment_id: (s.hash_start, s.hash_end, s.created_at_ms) for s in dag.segments}
        if dag.epoch < self.epoch and _related(segments, self.segments):
            self.out_of_order += 1
        told, before = hash(update.SerializeToString(deterministic=True)), self._told
        if told == before and not self.reopened:
            self.duplicate += 1
        self.epoch, self.segments, self.gone, self._told = dag.epoch, segments, False, told
        after, self.reopened = self.reopened, False
        if not self.is_known:
            self.is_known = True
            self.shown_us = now_us
            return None
        return dag.epoch, after

    def end(self) -> None:
        """The server said that the topic is gone."""
        self.gone = True
        self.reopened = False


def _related(segments: Segments, others: Segments) -> bool:
    return any(segment[2] and others.get(number) == segment for number, segment in segments.items())
