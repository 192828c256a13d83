"""Merge depth: exact while the ancestors are there, and not forgotten when they are pruned."""

from msgspec.structs import replace

from layout.layouts import Layout
from layout.merge_depths import fill_merge_depths


def counted(layout: Layout, segment_id: int) -> int:
    """The definition: segments with two or more parents among the ancestors and the segment itself."""
    seen: set[int] = set()
    waiting = [segment_id]
    while waiting:
        key = waiting.pop()
        if key not in seen:
            seen.add(key)
            waiting.extend(layout.segments[key].parent_ids)
    return sum(1 for key in seen if len(layout.segments[key].parent_ids) >= 2)


def depths(layout: Layout) -> dict[int, int]:
    return {key: segment.merge_depth for key, segment in layout.segments.items()}


def test_splits_add_nothing_and_merges_add_one() -> None:
    layout = Layout.create(1, 0).split(0, 0).split(1, 0)
    assert set(depths(layout).values()) == {0}
    layout = layout.merge(3, 4, 0).split(5, 0).merge(6, 7, 0)
    assert [layout.segments[key].merge_depth for key in (5, 6, 7, 8)] == [1, 1, 1, 2]


def test_merges_on_both_sides_are_all_counted_and_shared_ones_once() -> None:
    both = Layout.create(4, 0).merge(0, 1, 0).merge(2, 3, 0).merge(4, 5, 0)
    assert both.segments[6].merge_depth == 3
    shared = both.split(6, 0).merge(8, 7, 0)
    assert shared.segments[9].merge_depth == 4
    assert all(counted(shared, key) == depth for key, depth in depths(shared).items())


def test_pruning_ancestors_does_not_forget_their_merges() -> None:
    layout = Layout.create(2, 0).merge(0, 1, 0).split(2, 0)
    pruned = layout.prune(0).prune(1).prune(2)
    assert [segment.merge_depth for segment in pruned.active] == [1, 1]
    assert pruned.merge(3, 4, 0).segments[5].merge_depth == 2


def test_depth_that_a_writer_left_out_is_counted_along_the_links() -> None:
    layout = Layout.create(4, 0).merge(0, 1, 0).merge(2, 3, 0).merge(4, 5, 0).split(6, 0).merge(7, 8, 0)
    bare = {key: replace(segment, merge_depth=0) for key, segment in layout.segments.items()}
    assert fill_merge_depths(bare, set(bare)) == layout.segments


def test_depth_left_out_on_a_new_segment_builds_on_the_stored_one_of_its_parent() -> None:
    layout = Layout.create(2, 0).merge(0, 1, 0).prune(0).prune(1).split(2, 0).merge(3, 4, 0)
    new = {key: replace(s, merge_depth=0) if key > 2 else s for key, s in layout.segments.items()}
    filled = fill_merge_depths(new, {3, 4, 5})
    assert [filled[key].merge_depth for key in (2, 3, 4, 5)] == [1, 1, 1, 2]
