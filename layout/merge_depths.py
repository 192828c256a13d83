"""How many merges lie behind a segment: the number that bounds how often ranges are merged and split again.

A segment's merge depth is the number of distinct segments with two or more parents among its ancestors,
itself included. Counting needs the ancestors, and pruning removes them, so every segment carries the number:

- a split child has the depth of its parent;
- a merge child has one more than the count over the ancestors that are still there, or than the deeper of its
  parents where that is larger.

With no ancestor pruned this is exactly the count. After pruning it never exceeds the count and never falls
below the longest chain of merges: two parents whose pruned ancestors differed are taken to have shared them,
because the numbers alone cannot tell, and too small a depth only means one merge more before the bound bites.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from layout.segments import Segment


def merge_depth_of_child(parents: Iterable[Segment], ancestors: Iterable[Segment]) -> int:
    """The depth of a segment that merges `parents`; `ancestors` are all still there, parents included."""
    counted = sum(1 for segment in ancestors if segment.is_merge)
    return 1 + max(counted, *(parent.merge_depth for parent in parents))


def fill_merge_depths(segments: Mapping[int, Segment], missing: set[int]) -> dict[int, Segment]:
    """Give the segments in `missing` their depth; for records of writers that do not store it.

    Sets of merges are bit masks, so that a thousand stacked merges cost a thousand unions of a few words.
    A parent has a lower id than its children, so going by id meets the parents first.
    """
    filled = dict(segments)
    masks: dict[int, int] = {}
    merges = 0
    for segment_id in sorted(segments):
        segment = segments[segment_id]
        mask = 0
        for parent_id in segment.parent_ids:
            mask |= masks.get(parent_id, 0)
        depth = max([mask.bit_count(), *(filled[p].merge_depth for p in segment.parent_ids if p in filled)])
        if segment.is_merge:
            mask |= 1 << merges
            merges += 1
            depth += 1
        masks[segment_id] = mask
        if segment_id in missing:
            filled[segment_id] = replace(segment, merge_depth=depth)
    return filled
