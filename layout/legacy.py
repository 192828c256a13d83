"""Layouts over the logs of classic topics: as if one were scalable, and as it is once it has been migrated.

A legacy segment has no log of its own: its messages are in the log of the classic topic that `legacy_topic_name` says,
and whoever opens the segment opens that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from msgspec.structs import replace

from layout.layouts import Layout
from layout.ranges import LAST_HASH, HashRange
from layout.segments import Segment, SegmentState


def synthetic_layout(names: Sequence[str], created_at_ms: int) -> Layout:
    """The layout of a classic topic with these logs, which is told and never stored.

    Every segment is active and legacy. Clients take that as the sign to choose by the remainder of a hash, as they
    would among partitions, so the ranges only have to be there.
    """
    layout = Layout.create(len(names), created_at_ms)
    segments = {
        segment_id: replace(segment, legacy_topic_name=names[segment_id])
        for segment_id, segment in layout.segments.items()
    }
    return Layout(layout.epoch, layout.next_segment_id, MappingProxyType(segments))


def migrated_layout(names: Sequence[str], now_ms: int) -> Layout:
    """The layout that a classic topic with these logs gets when it becomes scalable.

    A key may be anywhere in the old logs, so each of them is a sealed parent with the whole ring, and all new segments
    are children of all of them.
    """
    count = len(names)
    parents, children = tuple(range(count)), tuple(range(count, 2 * count))
    segments: dict[int, Segment] = {
        segment_id: Segment(
            segment_id,
            HashRange(0, LAST_HASH),
            SegmentState.SEALED,
            child_ids=children,
            sealed_at_epoch=0,
            created_at_ms=now_ms,
            sealed_at_ms=now_ms,
            legacy_topic_name=name,
        )
        for segment_id, name in enumerate(names)
    }
    for child in Layout.create(count, now_ms).segments.values():
        segments[count + child.segment_id] = replace(
            child,
            segment_id=count + child.segment_id,
            parent_ids=parents,
            # Several parents make a merge, whatever it was that had them.
            merge_depth=int(count > 1),
        )
    return Layout(0, 2 * count, MappingProxyType(segments))
