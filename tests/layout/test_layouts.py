"""Operations on layouts: what they produce, what they refuse and with which words."""

from collections.abc import Callable

import pytest

from layout.errors import (
    InvalidLayout,
    InvalidRange,
    InvalidSegmentCount,
    LayoutError,
    ParentsNotPruned,
    RangeTooNarrow,
    SegmentNotActive,
    SegmentNotFound,
    SegmentsNotAdjacent,
    SegmentStillActive,
)
from layout.layouts import Layout
from layout.ranges import RING_SIZE, HashRange
from layout.segments import NOT_SEALED, Segment, SegmentState


def diamonds(levels: int) -> Layout:
    """One segment split and merged again `levels` times: 2**levels paths from the first to the last."""
    layout = Layout.create(1, 0)
    for _ in range(levels):
        layout = layout.split(layout.active[0].segment_id, 0)
        low, high = layout.active
        layout = layout.merge(low.segment_id, high.segment_id, 0)
    return layout


def test_created_layout_has_equal_active_segments_at_epoch_zero() -> None:
    layout = Layout.create(3, 1234)
    assert (layout.epoch, layout.next_segment_id, list(layout.segments)) == (0, 3, [0, 1, 2])
    assert [segment.range.size for segment in layout.active] == [21845, 21845, 21846]
    first = layout.segments[0]
    assert first == Segment(0, HashRange(0, 21844), SegmentState.ACTIVE, created_at_ms=1234)
    assert (first.sealed_at_epoch, first.sealed_at_ms) == (NOT_SEALED, NOT_SEALED)
    assert first.descriptor == "0000-5554-0"


def test_split_seals_the_parent_and_halves_its_range() -> None:
    before = Layout.create(2, 10)
    after = before.split(1, 20)
    assert (after.epoch, after.next_segment_id) == (1, 4)
    parent, low, high = (after.segments[key] for key in (1, 2, 3))
    assert (parent.state, parent.child_ids) == (SegmentState.SEALED, (2, 3))
    assert (parent.sealed_at_epoch, parent.sealed_at_ms, parent.created_at_ms) == (1, 20, 10)
    assert (low.range, high.range) == (HashRange(0x8000, 0xBFFF), HashRange(0xC000, 0xFFFF))
    for child in (low, high):
        assert child.is_active
        assert (child.parent_ids, child.created_at_epoch, child.created_at_ms) == ((1,), 1, 20)
    assert [segment.segment_id for segment in after.active] == [0, 2, 3]
    after.validate()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_merge_keeps_the_order_of_its_arguments_in_the_parents(order: tuple[int, int]) -> None:
    after = Layout.create(4, 10).merge(*order, 20)
    child = after.segments[4]
    assert child.parent_ids == order
    assert (child.range, child.created_at_epoch, child.created_at_ms) == (HashRange(0, 0x7FFF), 1, 20)
    for key in order:
        parent = after.segments[key]
        assert (parent.child_ids, parent.sealed_at_epoch, parent.sealed_at_ms) == ((4,), 1, 20)
    assert (after.epoch, after.next_segment_id) == (1, 5)
    after.validate()


def test_an_operation_leaves_the_layout_it_was_called_on_alone() -> None:
    before = Layout.create(2, 0)
    twin = Layout.create(2, 0)
    before.split(0, 5).merge(2, 3, 6).prune(0)
    assert before == twin
    with pytest.raises(TypeError):
        before.segments[9] = before.segments[0]  # type: ignore[index]  # the point: it is read-only


def test_layout_does_not_follow_changes_of_the_mapping_it_was_made_from() -> None:
    segments = dict(Layout.create(1, 0).segments)
    layout = Layout(0, 1, segments)
    segments.clear()
    layout.validate()


def test_segments_stay_in_the_order_of_creation() -> None:
    layout = Layout.create(3, 0).split(0, 1).merge(4, 1, 2)
    assert list(layout.segments) == [0, 1, 2, 3, 4, 5]


def test_pruned_segment_is_gone_and_unlinked_and_its_id_is_not_reused() -> None:
    layout = Layout.create(1, 0).split(0, 1).prune(0)
    assert (layout.epoch, layout.next_segment_id, list(layout.segments)) == (2, 3, [1, 2])
    assert layout.segments[1].parent_ids == layout.segments[2].parent_ids == ()
    layout.validate()
    assert list(layout.split(2, 2).segments) == [1, 2, 3, 4]


def test_pruning_one_of_two_merged_parents_keeps_the_other() -> None:
    layout = Layout.create(2, 0).merge(0, 1, 1).prune(0)
    assert layout.segments[2].parent_ids == (1,)
    layout.validate()
    layout.prune(1).validate()


def test_find_active_routes_every_hash_to_the_segment_that_owns_it() -> None:
    layout = Layout.create(3, 0).split(1, 1)
    for segment in layout.active:
        assert layout.find_active(segment.range.start) is segment
        assert layout.find_active(segment.range.end) is segment
    for off_the_ring in (-1, RING_SIZE):
        with pytest.raises(InvalidRange):
            layout.find_active(off_the_ring)


def test_find_active_says_that_the_layout_is_broken_where_nobody_owns_the_hash() -> None:
    whole = Layout.create(4, 0)
    holed = Layout(0, 4, {key: segment for key, segment in whole.segments.items() if key in (1, 2)})
    for uncovered in (0, 0xFFFF):
        with pytest.raises(InvalidLayout, match=f"{uncovered:04x}"):
            holed.find_active(uncovered)


def test_parents_and_children_skip_what_was_pruned() -> None:
    layout = Layout.create(2, 0).merge(1, 0, 1).split(2, 2)
    assert [s.segment_id for s in layout.parents(2)] == [1, 0]
    assert [s.segment_id for s in layout.children(2)] == [3, 4]
    assert layout.parents(0) == layout.children(4) == ()
    assert [s.segment_id for s in layout.prune(0).parents(2)] == [1]


def test_lineage_lists_ancestors_before_and_descendants_after_each_once() -> None:
    layout = Layout.create(2, 0).split(0, 1).merge(2, 3, 2).split(1, 3)
    assert [s.segment_id for s in layout.lineage(2)] == [0, 2, 4]
    assert [s.segment_id for s in layout.lineage(4)] == [0, 2, 3, 4]
    assert [s.segment_id for s in layout.lineage(1)] == [1, 5, 6]


def test_lineage_of_a_thousand_stacked_diamonds_is_linear() -> None:
    """W13"""
    layout = diamonds(1000)
    for start in (0, 1500, 3000):
        lineage = [segment.segment_id for segment in layout.lineage(start)]
        assert lineage == sorted(set(lineage))
        assert len(lineage) >= 3000
    layout.validate()
    assert layout.active[0].merge_depth == 1000


def test_layout_errors_carry_the_status_of_the_admin_api() -> None:
    expected = {SegmentNotFound: 404, InvalidLayout: 500}
    for error in LayoutError.__subclasses__():
        assert error.http_status in (404, 412, 500)
        assert error.http_status == expected.get(error, error.http_status)


NARROW = Layout.create(RING_SIZE // 2, 0).split(0, 1)
QUARTERS = Layout.create(4, 0)
REFUSALS: dict[str, tuple[Callable[[], object], type[LayoutError], str]] = {
    "create none": (lambda: Layout.create(0, 0), InvalidSegmentCount, "not 0"),
    "split unknown": (lambda: QUARTERS.split(9, 0), SegmentNotFound, "Segment 9 is not in the layout"),
    "merge unknown": (lambda: QUARTERS.merge(0, 7, 0), SegmentNotFound, "Segment 7"),
    "prune unknown": (lambda: QUARTERS.prune(-1), SegmentNotFound, "Segment -1"),
    "lineage unknown": (lambda: QUARTERS.lineage(8), SegmentNotFound, "Segment 8"),
    "split sealed": (
        lambda: QUARTERS.split(0, 0).split(0, 0),
        SegmentNotActive,
        "Segment 0 is sealed and cannot be split: split 4 or 5 instead",
    ),
    "merge sealed": (
        lambda: QUARTERS.merge(0, 1, 0).merge(1, 2, 0),
        SegmentNotActive,
        "Segment 1 is sealed and cannot be merged: merge 4 instead",
    ),
    "many successors": (
        lambda: QUARTERS.split(0, 0).split(4, 0).split(5, 0).split(6, 0).split(0, 0),
        SegmentNotActive,
        "split 10, 11, 7, 8 or 1 other instead",
    ),
    "merge apart": (
        lambda: QUARTERS.merge(3, 1, 0),
        SegmentsNotAdjacent,
        r"Segments 3 \(c000-ffff\) and 1 \(4000-7fff\) are not adjacent: merge 3 with 2\.",
    ),
    "merge round the ring": (lambda: QUARTERS.merge(0, 3, 0), SegmentsNotAdjacent, "merge 0 with 1"),
    "merge with itself": (
        lambda: QUARTERS.merge(2, 2, 0),
        SegmentsNotAdjacent,
        "Segment 2 cannot be merged with itself: merge 2 with 1 or 3",
    ),
    "merge the only one": (lambda: Layout.create(1, 0).merge(0, 0, 0), SegmentsNotAdjacent, "no neighbour"),
    "split one hash": (
        lambda: NARROW.split(RING_SIZE // 2, 0),
        RangeTooNarrow,
        f"Segment {RING_SIZE // 2} owns the single hash 0000",
    ),
    "prune active": (lambda: QUARTERS.prune(2), SegmentStillActive, "Segment 2 is active"),
    "prune before parents": (
        lambda: QUARTERS.merge(0, 1, 0).split(4, 0).prune(4),
        ParentsNotPruned,
        "Segment 4 cannot be pruned before its parents: prune 0 and 1 first",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal_has_its_type_and_says_what_to_do(case: str) -> None:
    act, error, words = REFUSALS[case]
    with pytest.raises(error, match=words) as caught:
        act()
    assert type(caught.value) is error
    assert str(caught.value).endswith(".")
