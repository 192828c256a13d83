"""Hash ranges: bounds, halves, neighbours, and tiling the ring."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layout.errors import InvalidRange, InvalidSegmentCount, RangeTooNarrow, SegmentsNotAdjacent
from layout.ranges import LAST_HASH, RING_SIZE, HashRange, equal_ranges


@st.composite
def ranges(draw: st.DrawFn) -> HashRange:
    start = draw(st.integers(0, LAST_HASH))
    return HashRange(start, draw(st.integers(start, LAST_HASH)))


@pytest.mark.parametrize(("start", "end"), [(-1, 5), (0, 65536), (70000, 70001), (6, 5)])
def test_range_off_the_ring_or_backwards_is_refused(start: int, end: int) -> None:
    with pytest.raises(InvalidRange):
        HashRange(start, end)


def test_text_is_the_hex_form_of_segment_names() -> None:
    assert str(HashRange(0, 0xFFFF)) == "0000-ffff"
    assert str(HashRange(0x0A, 0xBEEF)) == "000a-beef"


@given(ranges())
def test_halves_tile_the_range_and_merge_back(whole: HashRange) -> None:
    if whole.size == 1:
        with pytest.raises(RangeTooNarrow):
            whole.split()
        return
    low, high = whole.split()
    assert (low.start, high.end) == (whole.start, whole.end)
    assert low.end + 1 == high.start
    assert low.size - high.size in (0, 1)
    assert low.merge(high) == high.merge(low) == whole


@given(ranges(), ranges())
def test_two_ranges_are_adjacent_or_overlapping_or_apart(a: HashRange, b: HashRange) -> None:
    assert a.overlaps(b) == any(r.contains(s) for r, s in [(a, b.start), (b, a.start)])
    assert not (a.overlaps(b) and a.is_adjacent(b))
    assert a.is_adjacent(b) == b.is_adjacent(a)
    if not a.is_adjacent(b):
        with pytest.raises(SegmentsNotAdjacent):
            a.merge(b)


def test_the_two_ends_of_the_ring_are_not_adjacent() -> None:
    assert not HashRange(0, 5).is_adjacent(HashRange(65000, LAST_HASH))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 100, 1000, 40_000, RING_SIZE])
def test_equal_ranges_spread_the_remainder(count: int) -> None:
    """W13"""
    tiles = equal_ranges(count)
    assert len(tiles) == count
    assert (tiles[0].start, tiles[-1].end) == (0, LAST_HASH)
    assert all(low.end + 1 == high.start for low, high in pairwise(tiles))
    widths = {tile.size for tile in tiles}
    assert max(widths) - min(widths) <= 1


@pytest.mark.parametrize("count", [-1, 0, RING_SIZE + 1, 2**70])
def test_a_count_without_a_tiling_is_refused(count: int) -> None:
    with pytest.raises(InvalidSegmentCount, match=str(count)):
        equal_ranges(count)
