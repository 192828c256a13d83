"""Assignment: who waits for whom, and that what is given out is total, even, stays put and depends on nothing else."""

import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from layout.assignment import assign, assignable, fewest_moves, moved
from layout.layouts import Layout
from layout.ranges import HashRange
from layout.segments import Segment, SegmentState

# How long an example takes says nothing here, and other work may run on the machine.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

STATES = {True: SegmentState.ACTIVE, False: SegmentState.SEALED}


def ids(segments: Sequence[Segment]) -> list[int]:
    return [segment.segment_id for segment in segments]


def segments_of(active: Sequence[bool]) -> list[Segment]:
    return [Segment(key, HashRange.full(), STATES[is_active]) for key, is_active in enumerate(active)]


def spread(counts: Collection[int]) -> int:
    return max(counts) - min(counts)


def spread_of(segments: Sequence[Segment], result: Mapping[str, Collection[int]]) -> tuple[int, int, int]:
    """By how much the counts of two consumers differ at most: of active, of sealed, of all segments."""
    active = {segment.segment_id for segment in segments if segment.is_active}
    return (
        spread([len(active.intersection(own)) for own in result.values()]),
        spread([len(set(own) - active) for own in result.values()]),
        spread([len(own) for own in result.values()]),
    )


# Strategies


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Whatever splits, merges and prunes lead to; a step that is not possible is left out."""
    layout = Layout.create(draw(st.integers(1, 4)), 0)
    kinds = st.sampled_from(("split", "merge", "split", "merge", "prune"))
    for kind, choice in draw(st.lists(st.tuples(kinds, st.integers(0, 50)), max_size=25)):
        active = layout.active
        prunable = [s.segment_id for s in layout.segments.values() if not s.is_active and not s.parent_ids]
        if kind == "split" and active[choice % len(active)].range.size > 1:
            layout = layout.split(active[choice % len(active)].segment_id, 0)
        elif kind == "merge" and len(active) > 1:
            first = choice % (len(active) - 1)
            layout = layout.merge(active[first].segment_id, active[first + 1].segment_id, 0)
        elif kind == "prune" and prunable:
            layout = layout.prune(prunable[choice % len(prunable)])
    return layout


@st.composite
def layouts_and_drained(draw: st.DrawFn) -> tuple[Layout, set[int]]:
    """Few segments are drained, or all but few; among them pruned and active ones and ids that never were."""
    layout = draw(layouts())
    everything = range(layout.next_segment_id + 2)
    few = draw(st.sets(st.sampled_from(everything), max_size=6))
    return layout, draw(st.sampled_from((few, set(everything) - few)))


names = st.text("ab-ä𝄞", max_size=3)


@st.composite
def groups(
    draw: st.DrawFn, most_segments: int = 20, most_consumers: int = 8
) -> tuple[list[Segment], dict[str, list[int]]]:
    """Segments in any order, and consumers that claim some, none, the same ones, one twice, or unknown ones."""
    segments = segments_of(draw(st.lists(st.booleans(), max_size=most_segments)))
    claims = st.lists(st.integers(0, most_segments + 2), max_size=most_segments)
    held = draw(st.dictionaries(names, claims, min_size=1, max_size=most_consumers))
    return draw(st.permutations(segments)), held


@st.composite
def settled_groups(draw: st.DrawFn) -> tuple[list[Segment], dict[str, tuple[int, ...]]]:
    """A group that has been assigned its segments."""
    segments, held = draw(groups())
    return segments, assign(segments, held)


# What can be given out


# 0 was split into 1 and 2, and 1 into 3 and 4.
THREE_GENERATIONS = Layout.create(1, 0).split(0, 1).split(1, 2)


@pytest.mark.parametrize(
    ("drained", "expected"),
    [
        ((), [0]),
        ((1,), [0]),
        ((0,), [1, 2]),
        ((0, 1), [3, 4, 2]),
        ((0, 1, 2, 3, 4), [3, 4, 2]),
    ],
    ids=[
        "sealed middle generation waits",
        "grandchildren wait for the grandparent",
        "children of the middle generation wait",
        "all",
        "active ones are never done",
    ],
)
def test_segment_waits_for_all_its_ancestors(drained: Collection[int], expected: list[int]) -> None:
    assert ids(assignable(THREE_GENERATIONS, drained, ordered=True)) == expected


def test_merged_segment_waits_for_every_branch_above_it() -> None:
    layout = Layout.create(2, 0).split(0, 1).merge(3, 1, 2)
    assert ids(assignable(layout, {0, 3}, ordered=True)) == [2, 1]
    assert ids(assignable(layout, {1, 3}, ordered=True)) == [0]
    assert ids(assignable(layout, {0, 1, 3}, ordered=True)) == [2, 4]


def test_segment_that_is_no_longer_drained_holds_its_descendants_back_again() -> None:
    drained = {0, 1}
    assert ids(assignable(THREE_GENERATIONS, drained, ordered=True)) == [3, 4, 2]
    drained.discard(0)
    assert ids(assignable(THREE_GENERATIONS, drained, ordered=True)) == [0]
    drained.add(0)
    assert ids(assignable(THREE_GENERATIONS, drained, ordered=True)) == [3, 4, 2]


def test_pruned_parents_count_as_drained_also_where_a_record_still_names_them() -> None:
    assert ids(assignable(THREE_GENERATIONS.prune(0), (), ordered=True)) == [1, 2]
    still_named = {key: segment for key, segment in THREE_GENERATIONS.segments.items() if key != 0}
    assert ids(assignable(Layout(2, 5, still_named), (), ordered=True)) == [1, 2]


def test_order_of_the_record_does_not_matter() -> None:
    turned = dict(sorted(THREE_GENERATIONS.segments.items(), reverse=True))
    assert ids(assignable(Layout(2, 5, turned), {1}, ordered=True)) == [0]
    assert ids(assignable(Layout(2, 5, turned), {0, 1}, ordered=True)) == [3, 4, 2]


def test_unordered_group_gets_everything_at_once() -> None:
    assert ids(assignable(THREE_GENERATIONS, (), ordered=False)) == [3, 1, 0, 4, 2]
    assert ids(assignable(THREE_GENERATIONS, {1}, ordered=False)) == [3, 0, 4, 2]


def test_every_segment_of_a_migrated_topic_waits_for_every_old_partition() -> None:
    olds, count = range(300), 300
    old = Segment(0, HashRange.full(), SegmentState.SEALED, child_ids=tuple(range(count, 2 * count)))
    segments = {key: replace(old, segment_id=key, legacy_topic_name=f"old-partition-{key}") for key in olds}
    for key, segment in Layout.create(count, 0).segments.items():
        segments[count + key] = replace(segment, segment_id=count + key, parent_ids=tuple(olds))
    layout = Layout(0, 2 * count, segments)
    assert ids(assignable(layout, range(count - 1), ordered=True)) == [count - 1]
    assert ids(assignable(layout, olds, ordered=True)) == list(range(count, 2 * count))


def ancestors(layout: Layout) -> dict[int, set[int]]:
    """The transitive closure by its definition: add the parents of what is known until nothing is new."""
    known = {key: set(segment.parent_ids) for key, segment in layout.segments.items()}
    while True:
        wider = {key: own.union(*(known[parent] for parent in own)) for key, own in known.items()}
        if wider == known:
            return known
        known = wider


@untimed
@given(layouts_and_drained())
def test_ordered_group_gets_what_has_no_undrained_ancestor(case: tuple[Layout, set[int]]) -> None:
    layout, drained = case
    expected = {
        key
        for key, above in ancestors(layout).items()
        if above <= drained and (layout.segments[key].is_active or key not in drained)
    }
    result = assignable(layout, drained, ordered=True)
    assert set(ids(result)) == expected
    assert len(result) == len(expected)


@untimed
@given(layouts_and_drained(), st.booleans())
def test_what_is_given_out_is_sorted_and_holds_no_drained_sealed_segment(
    case: tuple[Layout, set[int]], ordered: bool
) -> None:
    layout, drained = case
    result = assignable(layout, drained, ordered=ordered)
    assert result == sorted(result, key=lambda s: (s.range.start, s.range.end, s.segment_id))
    assert all(segment.is_active or segment.segment_id not in drained for segment in result)
    assert all(layout.segments[segment.segment_id] is segment for segment in result)
    if not ordered:
        assert len(result) == sum(s.is_active or s.segment_id not in drained for s in layout.segments.values())


@untimed
@given(layouts_and_drained())
def test_an_ordered_group_can_always_go_on_until_only_active_segments_are_left(
    case: tuple[Layout, set[int]],
) -> None:
    layout, drained = case
    drained.difference_update(ids(layout.active))
    while sealed := [s for s in assignable(layout, drained, ordered=True) if not s.is_active]:
        drained.update(ids(sealed))
    assert assignable(layout, drained, ordered=True) == list(layout.active)


# Who gets what


def test_children_of_a_split_go_to_two_consumers_once_the_parent_is_drained() -> None:
    layout = Layout.create(1, 0)
    before = assign(assignable(layout, (), ordered=True), {"c1": (), "c2": ()})
    assert before == {"c1": (0,), "c2": ()}
    layout = layout.split(0, 1)
    waiting = assign(assignable(layout, (), ordered=True), before)
    assert waiting == before
    after = assign(assignable(layout, {0}, ordered=True), waiting)
    assert after == {"c1": (1,), "c2": (2,)}
    # An unordered group still reads the parent, which costs neither consumer its active segment.
    assert assign(assignable(layout, (), ordered=False), waiting) == {"c1": (1, 0), "c2": (2,)}


def test_join_takes_only_what_the_joiner_needs() -> None:
    segments = Layout.create(9, 0).active
    before = assign(segments, {"a": (), "b": (), "d": ()})
    assert before == {"a": (0, 3, 6), "b": (1, 4, 7), "d": (2, 5, 8)}
    after = assign(segments, before | {"c": ()})
    assert after == {"a": (0, 3, 6), "b": (1, 4), "c": (7, 8), "d": (2, 5)}
    assert moved(before, after) == {7, 8}


def test_leave_gives_only_what_the_leaver_had_to_those_who_stay() -> None:
    segments = Layout.create(6, 0).active
    before = {"a": (0, 3), "b": (1, 4), "c": (2, 5)}
    after = assign(segments, {"a": before["a"], "c": before["c"]})
    assert after == {"a": (0, 1, 3), "c": (2, 4, 5)}
    assert moved(before, after) == {1, 4}


def test_active_and_sealed_segments_are_shared_out_separately() -> None:
    segments = segments_of([True, True, False, False])
    result = assign(segments, {"a": (0, 1), "b": (2, 3)})
    assert result == {"a": (0, 3), "b": (1, 2)}


def test_who_has_one_more_active_segment_does_not_get_one_more_sealed_one_if_that_is_free() -> None:
    assert assign(segments_of([True, False]), {"a": (), "b": ()}) == {"a": (0,), "b": (1,)}
    assert assign(segments_of([True, False]), {"a": (), "b": (0,)}) == {"a": (1,), "b": (0,)}
    assert assign(segments_of([True, False]), {"a": (1,), "b": ()}) == {"a": (1,), "b": (0,)}


def test_one_more_active_segment_goes_past_those_among_whom_one_must_have_one_more_sealed_one() -> None:
    segments = segments_of([True, True, False, False, False, False])
    result = assign(segments, {"a": (2, 3), "b": (4, 5), "c": ()})
    assert result == {"a": (0, 2), "b": (4, 5), "c": (1, 3)}


def test_segment_does_not_move_only_to_make_the_sums_more_even() -> None:
    assert assign(segments_of([True, False]), {"a": (0, 1), "b": ()}) == {"a": (0, 1), "b": ()}


def test_of_two_claimants_the_smaller_name_keeps_the_segment() -> None:
    segments = segments_of([True, True])
    for held in ({"b": [1, 0], "a": [0, 0]}, {"a": [0], "b": [0]}):
        assert assign(segments, held) == {"a": (0,), "b": (1,)}
        assert moved(held, assign(segments, held)) == frozenset()
        assert fewest_moves(segments, held) == 0
    assert moved({"b": [0], "a": [0]}, {"b": [0], "a": []}) == {0}


def test_surplus_consumers_get_nothing() -> None:
    assert assign(segments_of([True]), {"c": (), "b": (7,), "a": ()}) == {"a": (0,), "b": (), "c": ()}
    assert assign([], {"b": (7,), "a": ()}) == {"a": (), "b": ()}


def test_without_consumers_nothing_is_assigned() -> None:
    assert assign(segments_of([True, False]), {}) == {}
    assert fewest_moves(segments_of([True, False]), {}) == 0


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"a": (1,)}, set()),
        ({"a": (1,)}, {}, set()),
        ({"a": (1,)}, {"a": (), "b": ()}, set()),
        ({"a": (1, 2)}, {"a": (2,), "b": (1,)}, {1}),
        ({"a": (1,), "b": (2,)}, {"a": (2,), "b": (1,)}, {1, 2}),
        ({"a": (1,)}, {"b": (1,)}, {1}),
    ],
)
def test_moved_is_what_went_from_one_owner_to_another(
    before: Mapping[str, Collection[int]], after: Mapping[str, Collection[int]], expected: set[int]
) -> None:
    assert moved(before, after) == expected


@untimed
@given(groups())
def test_every_segment_has_one_owner_and_the_order_is_kept(case: tuple[list[Segment], dict[str, list[int]]]) -> None:
    segments, held = case
    result = assign(segments, held)
    assert list(result) == sorted(held)
    assert Counter(key for own in result.values() for key in own) == Counter(ids(segments))
    place = {key: index for index, key in enumerate(ids(segments))}
    assert all(list(own) == sorted(own, key=place.__getitem__) for own in result.values())


@untimed
@given(groups())
def test_counts_are_even_and_no_more_segments_move_than_must(case: tuple[list[Segment], dict[str, list[int]]]) -> None:
    segments, held = case
    result = assign(segments, held)
    of_active, of_sealed, of_all = spread_of(segments, result)
    assert of_active <= 1
    assert of_sealed <= 1
    assert of_all <= 2
    assert len(moved(held, result)) == fewest_moves(segments, held)


@untimed
@given(groups())
def test_where_nobody_has_anything_the_sums_are_even_too(case: tuple[list[Segment], dict[str, list[int]]]) -> None:
    segments, held = case
    assert max(spread_of(segments, assign(segments, dict.fromkeys(held, ())))) <= 1


@untimed
@given(groups(most_segments=5, most_consumers=4) | groups(most_segments=6, most_consumers=3))
def test_no_other_assignment_is_better(case: tuple[list[Segment], dict[str, list[int]]]) -> None:
    """All assignments there are: of the even ones, none moves fewer, and of those that move as few none is evener."""
    segments, held = case
    keys = ids(segments)
    owners = {
        key: min(name for name in held if key in held[name]) for key in keys if any(key in h for h in held.values())
    }
    ranks: list[tuple[int, int]] = []
    for choice in product(held, repeat=len(keys)):
        to = dict(zip(keys, choice, strict=True))
        other = {name: [key for key in keys if to[key] == name] for name in held}
        of_active, of_sealed, of_all = spread_of(segments, other)
        if of_active <= 1 and of_sealed <= 1:
            ranks.append((sum(to[key] != owner for key, owner in owners.items()), of_all))
    result = assign(segments, held)
    assert (len(moved(held, result)), spread_of(segments, result)[2]) == min(ranks)
    assert fewest_moves(segments, held) == min(ranks)[0]


@untimed
@given(groups(), st.randoms(use_true_random=False))
def test_result_does_not_depend_on_the_order_or_type_of_what_is_held(
    case: tuple[list[Segment], dict[str, list[int]]], shuffler: random.Random
) -> None:
    segments, held = case
    order = shuffler.sample(list(held), len(held))
    result = assign(segments, held)
    again = assign(tuple(segments), {name: frozenset(held[name]) for name in order})
    assert list(again.items()) == list(result.items())


@untimed
@given(settled_groups())
def test_assigning_again_changes_nothing(case: tuple[list[Segment], dict[str, tuple[int, ...]]]) -> None:
    segments, settled = case
    assert assign(segments, settled) == settled
    assert fewest_moves(segments, settled) == 0


@untimed
@given(settled_groups(), st.sets(names, min_size=1, max_size=3))
def test_join_moves_segments_only_to_who_joins(
    case: tuple[list[Segment], dict[str, tuple[int, ...]]], joining: set[str]
) -> None:
    segments, before = case
    joining -= before.keys()
    after = assign(segments, before | dict.fromkeys(joining, ()))
    assert all(set(after[name]) <= set(own) for name, own in before.items())
    assert moved(before, after) == {key for name in joining for key in after[name]}


@untimed
@given(settled_groups(), st.data())
def test_leave_moves_only_what_the_leavers_had(
    case: tuple[list[Segment], dict[str, tuple[int, ...]]], data: st.DataObject
) -> None:
    segments, before = case
    leaving = data.draw(st.sets(st.sampled_from(sorted(before))))
    staying = {name: own for name, own in before.items() if name not in leaving}
    after = assign(segments, staying)
    assert after.keys() == staying.keys()
    assert fewest_moves(segments, staying) == 0
    assert all(set(own) <= set(after[name]) for name, own in staying.items())
    if staying:
        assert moved(before, after) == {key for name in leaving for key in before[name]}


@untimed
@given(layouts_and_drained(), st.sets(st.integers(0, 40)), st.sets(names, min_size=1, max_size=5), st.booleans())
def test_group_of_a_changing_topic_moves_no_more_than_it_must(
    case: tuple[Layout, set[int]], drained_later: set[int], group: set[str], ordered: bool
) -> None:
    layout, drained = case
    before = assign(assignable(layout, drained, ordered=ordered), dict.fromkeys(group, ()))
    widest = max(layout.active, key=lambda segment: segment.range.size)
    segments = assignable(layout.split(widest.segment_id, 0), drained_later, ordered=ordered)
    after = assign(segments, before)
    assert len(moved(before, after)) == fewest_moves(segments, before)
    assert {key for own in after.values() for key in own} == set(ids(segments))


@pytest.mark.parametrize(("consumers", "needed"), [(1, 500), (400, 2), (998, 1), (999, 1), (1000, 0), (1600, 0)])
def test_who_joins_a_large_group_takes_what_a_portion_is_and_no_more(consumers: int, needed: int) -> None:
    segments = Layout.create(1000, 0).active
    settled = assign(segments, {f"c{number:04}": () for number in range(consumers)})
    after = assign(segments, settled | {"joiner": ()})
    assert len(after["joiner"]) == len(moved(settled, after)) == needed
    assert max(spread_of(segments, after)) <= 1
