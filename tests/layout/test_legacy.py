"""Layouts over the logs of classic topics."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layout.legacy import migrated_layout, synthetic_layout
from layout.merge_depths import fill_merge_depths
from layout.records import TopicRecord, decode, encode

NOW = 1_700_000_000_000


def names(count: int) -> list[str]:
    return [f"persistent://t/n/a-partition-{index}" for index in range(count)]


@given(st.integers(1, 40))
def test_a_synthetic_layout_has_an_active_legacy_segment_per_log(count: int) -> None:
    layout = synthetic_layout(names(count), NOW)
    layout.validate()
    assert (layout.epoch, layout.next_segment_id) == (0, count)
    assert [segment.legacy_topic_name for segment in layout.segments.values()] == names(count)
    assert all(segment.is_active and segment.is_legacy for segment in layout.segments.values())
    assert {segment.created_at_ms for segment in layout.segments.values()} == {NOW}


@given(st.integers(1, 40))
def test_a_migrated_layout_has_sealed_parents_with_the_whole_ring_and_children_of_all_of_them(count: int) -> None:
    layout = migrated_layout(names(count), NOW)
    layout.validate()
    assert (layout.epoch, layout.next_segment_id, len(layout.segments)) == (0, 2 * count, 2 * count)
    for index, name in enumerate(names(count)):
        parent = layout.segments[index]
        assert (parent.legacy_topic_name, parent.is_active, parent.sealed_at_epoch) == (name, False, 0)
        assert (parent.range.start, parent.range.end) == (0, 0xFFFF)
        assert parent.child_ids == tuple(range(count, 2 * count))
    for child in layout.active:
        assert child.parent_ids == tuple(range(count))
        assert not child.is_legacy
    assert sum(child.range.size for child in layout.active) == 0x10000


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_migrated_layout_survives_its_record_and_counts_its_merges(count: int) -> None:
    layout = migrated_layout(names(count), NOW)
    assert decode(encode(TopicRecord(layout))).layout == layout
    assert fill_merge_depths(layout.segments, set(layout.segments)) == dict(layout.segments)


def test_the_parents_of_a_migrated_layout_are_pruned_like_others() -> None:
    layout = migrated_layout(names(2), NOW).prune(0).prune(1)
    layout.validate()
    assert [segment.segment_id for segment in layout.active] == [2, 3]
