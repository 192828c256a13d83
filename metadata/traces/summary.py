"""What a trace holds, counted in one pass over its batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from metadata.traces import order
from metadata.traces.events import RECORDERS_OWN, Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from metadata.traces.directories import Trace

COLUMNS: Final = (*order.COLUMNS, "namespace", "topic", "detail")
# Gaps that are told one by one; a store that comes and goes for days is not.
GAPS_TOLD: Final = 1_000
_SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class NamespaceChurn:
    namespace: str
    changes: int
    topics: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Changes may be missing before this; `buckets` None: in all of them."""

    at_us: int
    run: int
    cause: str
    buckets: int | None


@dataclass(frozen=True, slots=True)
class Summary:
    """`changes` are the entries of the change log among the events; rates and churn count those alone."""

    events: int
    by_kind: Mapping[str, int]
    changes: int
    first_us: int | None
    last_us: int | None
    duration_us: int  # of all runs together, without the time between them
    peak_per_s: int  # changes in the second that has most
    peak_at_us: int | None
    topics: int
    churn: tuple[NamespaceChurn, ...]  # the busiest first
    gaps: tuple[Gap, ...]
    gaps_by_cause: Mapping[str, int]
    faults: order.OrderFaults

    @property
    def mean_per_s(self) -> float | None:
        """None where there is no time to divide by."""
        return self.changes / (self.duration_us / _SECOND_US) if self.duration_us else None


def summarise(trace: Trace) -> Summary:
    """Count everything. Memory grows with the number of topics, not of events."""
    counting = _Counting(order.OrderCheck(contiguous=trace.manifest.kind == "recorded"))
    for batch in trace.batches(COLUMNS):
        if batch.num_rows:
            counting.take(batch)
    return counting.summary()


@dataclass(slots=True)
class _Gaps:
    """The events of one gap follow each other, one for each bucket."""

    told: list[Gap] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)
    open: Gap | None = None
    next_seq: int = 0

    def take(self, seq: int, at_us: int, run: int, cause: str, bucket: int | None) -> None:
        last = self.open
        if last and last.buckets and bucket is not None and (self.next_seq, last.run, last.cause) == (seq, run, cause):
            self.open = replace(last, buckets=last.buckets + 1)
        else:
            self.end()
            self.causes[cause] += 1
            self.open = Gap(at_us, run, cause, None if bucket is None else 1)
        self.next_seq = seq + 1

    def end(self) -> None:
        if self.open is not None and len(self.told) < GAPS_TOLD:
            self.told.append(self.open)
        self.open = None


@dataclass(slots=True)
class _Counting:
    check: order.OrderCheck
    events: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)  # by run
    changes: Counter[str] = field(default_factory=Counter)  # by namespace
    topics: dict[str, set[str]] = field(default_factory=dict)
    gaps: _Gaps = field(default_factory=_Gaps)
    second: int | None = None  # the one that is being counted
    in_second: int = 0
    peak: int = 0
    peak_second: int | None = None

    def take(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.check.take(batch)
        self.events += batch.num_rows
        self.kinds.update(_counts(batch["kind"]))
        rows = pa.Table.from_batches([batch])
        spans = rows.group_by("run").aggregate([("taken_us", "min"), ("taken_us", "max")])
        for run, first, last in zip(*(spans[name].to_pylist() for name in spans.column_names), strict=True):
            low, high = self.spans.get(run, (first, last))
            self.spans[run] = min(low, first), max(high, last)
        for row in batch.filter(pc.equal(batch["kind"], Kind.GAP)).to_pylist():
            self.gaps.take(row["seq"], row["taken_us"], row["run"], row["detail"] or "unknown", row["bucket"])
        named = rows.filter(pc.is_valid(rows["topic"])).group_by(["namespace", "topic"]).aggregate([])
        for namespace, topic in zip(named["namespace"].to_pylist(), named["topic"].to_pylist(), strict=True):
            self.topics.setdefault(namespace, set()).add(topic)
        own = pa.array(sorted(RECORDERS_OWN), pa.string())
        changes = batch.filter(pc.invert(pc.is_in(batch["kind"], own)))
        self.changes.update(_counts(pc.drop_null(changes["namespace"])))
        self._take_seconds(_counts(pc.divide(changes["taken_us"], _SECOND_US)))

    def _take_seconds(self, counts: Mapping[int, int]) -> None:
        for second in sorted(counts):
            if second != self.second:
                self._end_second()
                self.second, self.in_second = second, 0
            self.in_second += counts[second]

    def _end_second(self) -> None:
        if self.in_second > self.peak:
            self.peak, self.peak_second = self.in_second, self.second

    def summary(self) -> Summary:
        self._end_second()
        self.gaps.end()
        churn = [
            NamespaceChurn(namespace, self.changes[namespace], len(self.topics.get(namespace, ())))
            for namespace in sorted(self.topics.keys() | self.changes.keys())
        ]
        return Summary(
            events=self.events,
            by_kind=dict(self.kinds),
            changes=sum(count for kind, count in self.kinds.items() if kind not in RECORDERS_OWN),
            first_us=min((first for first, _ in self.spans.values()), default=None),
            last_us=max((last for _, last in self.spans.values()), default=None),
            duration_us=sum(last - first for first, last in self.spans.values()),
            peak_per_s=self.peak,
            peak_at_us=None if self.peak_second is None else self.peak_second * _SECOND_US,
            topics=sum(map(len, self.topics.values())),
            churn=tuple(sorted(churn, key=lambda each: (-each.changes, each.namespace))),
            gaps=tuple(self.gaps.told),
            gaps_by_cause=dict(self.gaps.causes),
            faults=self.check.faults,
        )


def _counts(column: pa.Array) -> dict[Any, int]:
    import pyarrow.compute as pc

    found = pc.value_counts(column)
    return dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True))
