"""`validate()`: each broken rule is found, and the message names the segments."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from layout.errors import InvalidLayout
from layout.layouts import Layout
from layout.ranges import HashRange
from layout.segments import Segment, SegmentState

# 0 was split into 2 and 3; 3 and 1 were merged into 4.
SOUND = Layout.create(2, 10).split(0, 20).merge(3, 1, 30)


def changed(changes: Mapping[int, Mapping[str, Any]], epoch: int = 2, next_segment_id: int = 5) -> Layout:
    segments = {key: replace(s, **changes.get(key, {})) for key, s in SOUND.segments.items()}
    return Layout(epoch, next_segment_id, segments)


def test_sound_layouts_pass() -> None:
    SOUND.validate()
    SOUND.prune(0).prune(1).validate()


def test_migrated_layout_with_legacy_parents_over_the_whole_ring_passes() -> None:
    parents = {
        key: Segment(
            key,
            HashRange.full(),
            SegmentState.SEALED,
            child_ids=(2, 3),
            sealed_at_epoch=0,
            sealed_at_ms=9,
            legacy_topic_name=f"persistent://t/n/x-partition-{key}",
        )
        for key in (0, 1)
    }
    children = {
        key + 2: replace(segment, segment_id=key + 2, parent_ids=(0, 1))
        for key, segment in Layout.create(2, 9).segments.items()
    }
    Layout(0, 4, parents | children).validate()


BROKEN: dict[str, tuple[Layout, str]] = {
    "negative epoch": (Layout(-1, 1, Layout.create(1, 0).segments), "epoch -1"),
    "id not yet given out": (changed({}, next_segment_id=4), "Segment 4 .* below the next free one"),
    "filed under another id": (changed({4: {"segment_id": 7}}), "Segment 7 is filed under the id 4"),
    "empty": (Layout(0, 0, {}), "0000 to ffff"),
    "gap at the start": (changed({2: {"range": HashRange(1, 0x3FFF)}}), "0000 to 0000"),
    "gap inside": (changed({2: {"range": HashRange(0, 0x3FFE)}}), "3fff to 3fff"),
    "gap at the end": (changed({4: {"range": HashRange(0x4000, 0xFFFE)}}), "ffff to ffff"),
    "overlap": (changed({4: {"range": HashRange(0x3FFF, 0xFFFF)}}), "segment 4 .* overlaps"),
    "unknown parent": (
        changed({0: {"parent_ids": (9,)}}, next_segment_id=20),
        "0 names segment 9 as its parent, which is not in",
    ),
    "unknown child": (
        changed({3: {"child_ids": (4, 9)}}, next_segment_id=20),
        "3 names segment 9 as its child, which is not in",
    ),
    "parent does not know": (changed({0: {"child_ids": (3,)}}), "2 names segment 0 .* does not name it as a child"),
    "child does not know": (changed({2: {"parent_ids": ()}}), "0 names segment 2 .* does not name it as a parent"),
    "parent twice": (changed({4: {"parent_ids": (3, 3, 1)}}), "4 names one of its parents twice: 3, 3, 1"),
    "cycle": (
        changed({0: {"parent_ids": (3,)}, 3: {"child_ids": (4, 0)}}),
        "Segment 0 names segment 3 as its parent.*cycle",
    ),
    "own parent": (changed({0: {"parent_ids": (0,), "child_ids": (0, 2, 3)}}), "cycle"),
    "active with a child": (changed({2: {"child_ids": (4,)}}), "2 is active but has the children 4"),
    "active with a sealing epoch": (changed({2: {"sealed_at_epoch": 0}}), "2 is active but carries"),
    "active with a sealing time": (changed({2: {"sealed_at_ms": 7}}), "2 is active but carries"),
    "sealed without an epoch": (changed({0: {"sealed_at_epoch": -1}}), "0 is sealed at epoch -1"),
    "sealed without a time": (changed({0: {"sealed_at_ms": -1}}), "0 is sealed but carries"),
    "sealed before it was created": (changed({3: {"sealed_at_epoch": 0}}), "3 is sealed at epoch 0"),
    "sealed in the future": (changed({3: {"sealed_at_epoch": 3}}), "3 is sealed at epoch 3"),
    "created in the future": (changed({4: {"created_at_epoch": 3}}), "4 was created at epoch 3"),
    "negative merge depth": (changed({4: {"merge_depth": -1}}), "4 has the merge depth -1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_rule_is_found_and_named(case: str) -> None:
    """W13"""
    layout, words = BROKEN[case]
    with pytest.raises(InvalidLayout, match=words) as caught:
        layout.validate()
    assert str(caught.value).endswith(".")
