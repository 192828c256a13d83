"""The immutable DAG of a topic's segments, and the operations that turn one layout into the next."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Self

from msgspec.structs import replace

from layout.errors import (
    InvalidLayout,
    ParentsNotPruned,
    RangeTooNarrow,
    SegmentNotActive,
    SegmentNotFound,
    SegmentsNotAdjacent,
    SegmentStillActive,
)
from layout.invariants import check_layout
from layout.merge_depths import merge_depth_of_child
from layout.ranges import check_hash, equal_ranges
from layout.segments import Segment, SegmentState

# A refusal names the segments to use instead; more than this many would bury the sentence.
NAMED_IN_A_REFUSAL = 4


@dataclass(frozen=True)
class Layout:
    """Active and sealed segments in the order of their creation. An operation returns a new layout.

    Not slotted, so that what is derived from the segments is computed once and kept with them.
    """

    epoch: int
    next_segment_id: int
    segments: Mapping[int, Segment]

    def __post_init__(self) -> None:
        if not isinstance(self.segments, MappingProxyType):
            object.__setattr__(self, "segments", MappingProxyType(dict(self.segments)))

    @classmethod
    def create(cls, count: int, now_ms: int) -> Self:
        """The layout of a new topic: `count` active segments of equal width."""
        segments = {
            segment_id: Segment(segment_id, hash_range, SegmentState.ACTIVE, created_at_ms=now_ms)
            for segment_id, hash_range in enumerate(equal_ranges(count))
        }
        return cls(0, count, MappingProxyType(segments))

    def split(self, segment_id: int, now_ms: int) -> Self:
        """Seal a segment and let two new ones own its halves."""
        parent = self._active_segment(segment_id, "split")
        if parent.range.size == 1:
            raise RangeTooNarrow(
                f"Segment {segment_id} owns the single hash {parent.range.start:04x} and cannot be split: "
                "split a wider segment, or merge this one with a neighbour first."
            )
        children = [
            Segment(
                child_id,
                hash_range,
                SegmentState.ACTIVE,
                parent_ids=(segment_id,),
                created_at_epoch=self.epoch + 1,
                created_at_ms=now_ms,
                merge_depth=parent.merge_depth,
            )
            for child_id, hash_range in enumerate(parent.range.split(), start=self.next_segment_id)
        ]
        return self._replaced([parent], children, now_ms)

    def merge(self, first_id: int, second_id: int, now_ms: int) -> Self:
        """Seal two neighbours, in either order, and let a new segment own both ranges."""
        first = self._active_segment(first_id, "merge")
        second = self._active_segment(second_id, "merge")
        if first_id == second_id:
            raise SegmentsNotAdjacent(
                f"Segment {first_id} cannot be merged with itself: {self._neighbour_advice(first)}."
            )
        if not first.range.is_adjacent(second.range):
            raise SegmentsNotAdjacent(
                f"Segments {first_id} ({first.range}) and {second_id} ({second.range}) are not adjacent: "
                f"{self._neighbour_advice(first)}."
            )
        child = Segment(
            self.next_segment_id,
            first.range.merge(second.range),
            SegmentState.ACTIVE,
            parent_ids=(first_id, second_id),
            created_at_epoch=self.epoch + 1,
            created_at_ms=now_ms,
            merge_depth=merge_depth_of_child(
                (first, second), self._reachable((first_id, second_id), lambda segment: segment.parent_ids)
            ),
        )
        return self._replaced([first, second], [child], now_ms)

    def prune(self, segment_id: int) -> Self:
        """Forget a sealed segment, oldest first: its parents must have been pruned before it.

        Taking one out of the middle would cut its ancestors off from its descendants, and whoever reads a
        descendant could no longer tell that the ancestor's messages come first. Oldest first also means that
        a sealed segment always still has its children.
        """
        segment = self._segment(segment_id)
        if segment.is_active:
            raise SegmentStillActive(
                f"Segment {segment_id} is active and cannot be pruned: a split or a merge seals it first."
            )
        if parents := self.parents(segment_id):
            raise ParentsNotPruned(
                f"Segment {segment_id} cannot be pruned before its parents: prune {_named(parents, 'and')} first."
            )
        segments = dict(self.segments)
        del segments[segment_id]
        for child in self.children(segment_id):
            left = tuple(parent_id for parent_id in child.parent_ids if parent_id != segment_id)
            segments[child.segment_id] = replace(child, parent_ids=left)
        return self._next(segments)

    @cached_property
    def active(self) -> tuple[Segment, ...]:
        """The active segments in the order of their ranges."""
        return tuple(sorted((s for s in self.segments.values() if s.is_active), key=lambda s: s.range))

    def find_active(self, hash_value: int) -> Segment:
        """The active segment that owns a hash."""
        check_hash(hash_value)
        index = bisect_right(self.active, hash_value, key=lambda segment: segment.range.start) - 1
        if index < 0 or not self.active[index].range.contains(hash_value):
            raise InvalidLayout(f"No active segment covers the hash {hash_value:04x}.")
        return self.active[index]

    def parents(self, segment_id: int) -> tuple[Segment, ...]:
        """The segments that this one replaced, without pruned ones."""
        return self._present(self._segment(segment_id).parent_ids)

    def children(self, segment_id: int) -> tuple[Segment, ...]:
        """The segments that replaced this one."""
        return self._present(self._segment(segment_id).child_ids)

    def lineage(self, segment_id: int) -> tuple[Segment, ...]:
        """Ancestors, the segment itself and descendants, each once and every parent before its children."""
        self._segment(segment_id)
        ancestors = self._reachable((segment_id,), lambda segment: segment.parent_ids)
        descendants = self._reachable((segment_id,), lambda segment: segment.child_ids)
        together = {segment.segment_id: segment for segment in (*ancestors, *descendants)}
        return tuple(together[key] for key in sorted(together))

    def validate(self) -> None:
        """Raise `InvalidLayout`, saying what is wrong, unless every rule of `layout.invariants` holds."""
        check_layout(self.epoch, self.next_segment_id, self.segments)

    def _replaced(self, parents: list[Segment], children: list[Segment], now_ms: int) -> Self:
        segments = dict(self.segments)
        child_ids = tuple(child.segment_id for child in children)
        for parent in parents:
            segments[parent.segment_id] = parent.sealed(self.epoch + 1, now_ms, child_ids)
        for child in children:
            segments[child.segment_id] = child
        return self._next(segments, len(children))

    def _next(self, segments: dict[int, Segment], new_ids: int = 0) -> Self:
        return type(self)(self.epoch + 1, self.next_segment_id + new_ids, MappingProxyType(segments))

    def _segment(self, segment_id: int) -> Segment:
        try:
            return self.segments[segment_id]
        except KeyError:
            raise SegmentNotFound(
                f"Segment {segment_id} is not in the layout: look at the topic for the ids it has now."
            ) from None

    def _active_segment(self, segment_id: int, verb: str) -> Segment:
        segment = self._segment(segment_id)
        if not segment.is_active:
            descendants = self._reachable((segment_id,), lambda segment: segment.child_ids)
            successors = sorted((s for s in descendants if s.is_active), key=lambda s: s.range)
            advice = f": {verb} {_named(successors, 'or')} instead" if successors else ""
            raise SegmentNotActive(f"Segment {segment_id} is sealed and cannot be {_done(verb)}{advice}.")
        return segment

    def _neighbour_advice(self, segment: Segment) -> str:
        neighbours = [other for other in self.active if segment.range.is_adjacent(other.range)]
        if not neighbours:
            return "it has no neighbour on the ring"
        return f"merge {segment.segment_id} with {_named(neighbours, 'or')}"

    def _present(self, ids: Iterable[int]) -> tuple[Segment, ...]:
        return tuple(self.segments[key] for key in ids if key in self.segments)

    def _reachable(self, start: Iterable[int], links: Callable[[Segment], tuple[int, ...]]) -> tuple[Segment, ...]:
        """Whatever the links lead to, the start included.

        A loop with a visited set, so that neither the number of paths nor the depth of the DAG matters.
        """
        found: dict[int, Segment] = {}
        waiting = list(start)
        while waiting:
            key = waiting.pop()
            if key not in found and (segment := self.segments.get(key)) is not None:
                found[key] = segment
                waiting.extend(links(segment))
        return tuple(found.values())


def _named(segments: Iterable[Segment], conjunction: str) -> str:
    ids = [str(segment.segment_id) for segment in segments]
    if len(ids) > NAMED_IN_A_REFUSAL:
        unnamed = len(ids) - NAMED_IN_A_REFUSAL
        return f"{', '.join(ids[:NAMED_IN_A_REFUSAL])} {conjunction} {unnamed} other{'' if unnamed == 1 else 's'}"
    return f" {conjunction} ".join(filter(None, [", ".join(ids[:-1]), ids[-1]]))


def _done(verb: str) -> str:
    return {"split": "split", "merge": "merged"}[verb]
