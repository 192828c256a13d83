"""The timeline of a trace in plain Python: the rules of `spark.timeline`, one event after the other, in one process.

It is what the Spark job is measured against and compared with. Everything is held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from metadata.traces.directories import Trace
from metadata.traces.events import Kind
from spark.clocks import BETWEEN_RUNS_US

_COLUMNS: Final = (
    "seq",
    "run",
    "kind",
    "taken_us",
    "arrival_us",
    "bucket",
    "namespace",
    "topic",
    "incarnation",
    "version",
    "epoch",
)

Move = tuple[int, int, str, str, str, int | None, bool]
"""When, its order, topic, op, incarnation, epoch, whether it was found after a gap."""


@dataclass(slots=True)
class _Topic:
    """What is known of a topic: the last statement that counted, and what the base of its period found."""

    namespace: str
    name: str
    bucket: int | None
    there: bool = False
    incarnation: str = ""  # the last one that was there
    version: int = 0
    seq: int = -1
    at: int = 0
    entry_period: int = -1
    base_period: int = -1
    base_incarnation: str = ""
    base_version: int = 0
    base_gone: bool = False


def plain_moves(trace: Trace) -> dict[str, list[Move]]:
    """The moves of every namespace, each in the order of time."""
    telling = _Telling()
    for row in _rows(trace):
        telling.take(*row)
    for moves in telling.moves.values():
        moves.sort()
    return telling.moves


def _rows(
    trace: Trace,
) -> Iterator[tuple[int, str, int, int | None, str | None, str | None, str | None, int, int | None]]:
    """Of each event: seq, kind, its time on the one clock, bucket, namespace, topic, incarnation, version, epoch."""
    spans: dict[int, tuple[int, int]] = {}
    for batch in trace.batches(("run", "taken_us", "arrival_us")):
        for run, taken, arrival in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            at = taken if arrival is None else arrival
            low, high = spans.get(run, (at, at))
            spans[run] = (min(low, at), max(high, at))
    zero, began = {}, 0
    for run in sorted(spans):
        low, high = spans[run]
        zero[run] = low - began
        began += high - low + BETWEEN_RUNS_US
    for batch in trace.batches(_COLUMNS):
        columns = (column.to_pylist() for column in batch.columns)
        for seq, run, kind, taken, arrival, bucket, namespace, topic, inc, version, epoch in zip(*columns, strict=True):
            at = (taken if arrival is None else arrival) - zero[run]
            yield seq, kind, at, bucket, namespace, topic, inc, version or 0, epoch


class _Telling:
    """Takes events in order; `moves` is what they come to."""

    def __init__(self) -> None:
        self.moves: dict[str, list[Move]] = {}
        self._topics: dict[tuple[str, str], _Topic] = {}
        self._gaps = 0  # of all buckets
        self._own_gaps: dict[int, int] = {}  # of one
        # The last gap of each bucket while its base has no end; of all buckets under None.
        self._open: dict[int | None, int] = {}
        self._ended: set[int] = set()  # buckets whose base has ended since the last gap of all buckets

    def take(
        self,
        seq: int,
        kind: str,
        at: int,
        bucket: int | None,
        namespace: str | None,
        name: str | None,
        incarnation: str | None,
        version: int,
        epoch: int | None,
    ) -> None:
        if kind == Kind.GAP:
            self._gap(seq, bucket)
        elif kind == Kind.BASE_END:
            self._base_end(seq, at, bucket)
        elif kind in (Kind.BASE, Kind.CREATED, Kind.CHANGED, Kind.DELETED):
            assert namespace is not None, "events of topics name them"
            assert name is not None, "events of topics name them"
            topic = self._topics.get((namespace, name))
            if topic is None:
                topic = self._topics[namespace, name] = _Topic(namespace, name, bucket)
                self.moves.setdefault(namespace, [])
            self._told(topic, seq, kind, at, incarnation or "", version, epoch)

    def _gap(self, seq: int, bucket: int | None) -> None:
        if bucket is None:
            self._gaps += 1
            self._open, self._ended = {None: seq}, set()
        else:
            self._own_gaps[bucket] = self._own_gaps.get(bucket, 0) + 1
            self._open[bucket] = seq
            self._ended.discard(bucket)

    def _base_end(self, seq: int, at: int, bucket: int | None) -> None:
        common = self._open.get(None)
        if bucket is None:
            begun = {topic_bucket: gap for topic_bucket, gap in self._open.items() if topic_bucket is not None}
            self._open, self._ended = {}, set()
        else:
            own = self._open.pop(bucket, None if bucket in self._ended else common)
            begun, common = ({} if own is None else {bucket: own}), None
            self._ended.add(bucket)
        for topic in self._topics.values():
            since = begun.get(topic.bucket, common) if topic.bucket is not None else common
            if since is not None and topic.there and topic.seq < since:
                topic.at = max(topic.at, at)
                self._move(topic, seq * 2, "delete", topic.incarnation, None, inferred=True)
                topic.there = False

    def _told(
        self, topic: _Topic, seq: int, kind: str, at: int, incarnation: str, version: int, epoch: int | None
    ) -> None:
        period = self._gaps + (self._own_gaps.get(topic.bucket, 0) if topic.bucket is not None else 0)
        if kind == Kind.BASE:
            if topic.entry_period == period:
                return
            topic.base_period, topic.base_incarnation, topic.base_version = period, incarnation, version
            topic.base_gone = False
        else:
            topic.entry_period = period
            if topic.base_period == period and self._is_older(topic, kind, incarnation, version):
                return
        if kind == Kind.DELETED:
            if topic.seq < 0 or topic.incarnation != incarnation:
                return
            topic.base_gone = topic.base_gone or topic.base_incarnation == incarnation
        seeds = topic.seq < 0 and period <= 1 and kind in (Kind.BASE, Kind.CHANGED)
        topic.at = max(topic.at, 0 if seeds else at)
        if kind == Kind.DELETED:
            if topic.there:
                self._move(topic, seq * 2 + 1, "delete", incarnation, None, inferred=False)
            topic.there = False
        else:
            self._found(topic, seq, kind, incarnation, version, epoch, seeds=seeds)
            topic.there, topic.incarnation, topic.version = True, incarnation, version
        topic.seq = seq

    def _is_older(self, topic: _Topic, kind: str, incarnation: str, version: int) -> bool:
        if incarnation != topic.base_incarnation:
            return not topic.base_gone
        return kind != Kind.DELETED and version <= topic.base_version

    def _found(
        self, topic: _Topic, seq: int, kind: str, incarnation: str, version: int, epoch: int | None, *, seeds: bool
    ) -> None:
        same = topic.there and topic.incarnation == incarnation
        if same and topic.version == version:
            return
        if topic.there and not same:
            self._move(topic, seq * 2, "delete", topic.incarnation, None, inferred=True)
        op = "seed" if seeds else "change" if same else "create"
        seen = seeds or kind == Kind.CREATED or (kind == Kind.CHANGED and same)
        self._move(topic, seq * 2 + 1, op, incarnation, epoch, inferred=not seen)

    def _move(self, topic: _Topic, order: int, op: str, incarnation: str, epoch: int | None, *, inferred: bool) -> None:
        self.moves[topic.namespace].append((topic.at, order, topic.name, op, incarnation, epoch, inferred))
