"""Random sequences of operations: every layout is valid, round-trips, and is one epoch after the one before."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from layout.layouts import Layout
from layout.ranges import RING_SIZE
from layout.records import TopicRecord, decode, encode
from layout.segments import Segment


class LayoutMachine(RuleBasedStateMachine):
    """Keeps the layout, all ids ever seen, and what the definition says about merges, pruning or not."""

    def __init__(self) -> None:
        super().__init__()
        self.layout = Layout.create(1, 0)
        self.now = 0
        self.seen: set[int] = set()
        self.merges_behind: dict[int, frozenset[int]] = {}

    @initialize(count=st.integers(1, 9))
    def create(self, count: int) -> None:
        self.layout = Layout.create(count, self.now)
        self.seen = set(range(count))
        self.merges_behind = dict.fromkeys(range(count), frozenset())

    def step(self, after: Layout) -> None:
        before = self.layout
        assert after.epoch == before.epoch + 1
        created = after.segments.keys() - before.segments.keys()
        assert not created & self.seen
        assert after.next_segment_id == before.next_segment_id + len(created)
        for segment_id in created:
            segment = after.segments[segment_id]
            assert segment.entry_bucket_splits == ()
            behind = frozenset[int]().union(*(self.merges_behind[key] for key in segment.parent_ids))
            if len(segment.parent_ids) == 2:
                behind |= {segment_id}
            self.merges_behind[segment_id] = behind
        self.seen |= created
        self.layout = after

    @rule(data=st.data(), elapsed=st.integers(0, 1000))
    @precondition(lambda self: any(s.range.size > 1 for s in self.layout.active))
    def split(self, data: st.DataObject, elapsed: int) -> None:
        self.now += elapsed
        wide = [s.segment_id for s in self.layout.active if s.range.size > 1]
        self.step(self.layout.split(data.draw(st.sampled_from(wide)), self.now))

    @rule(data=st.data(), swapped=st.booleans())
    @precondition(lambda self: len(self.layout.active) > 1)
    def merge(self, data: st.DataObject, swapped: bool) -> None:
        index = data.draw(st.integers(0, len(self.layout.active) - 2))
        pair = [segment.segment_id for segment in self.layout.active[index : index + 2]]
        first, second = reversed(pair) if swapped else pair
        self.step(self.layout.merge(first, second, self.now))

    @rule(data=st.data())
    @precondition(lambda self: self.prunable())
    def prune(self, data: st.DataObject) -> None:
        segment = data.draw(st.sampled_from(self.prunable()))
        self.step(self.layout.prune(segment.segment_id))
        assert segment.segment_id not in self.layout.segments

    def prunable(self) -> list[Segment]:
        return [s for s in self.layout.segments.values() if not s.is_active and not s.parent_ids]

    @invariant()
    def layout_is_valid(self) -> None:
        self.layout.validate()

    @invariant()
    def active_ranges_tile_the_ring(self) -> None:
        active = self.layout.active
        assert sum(segment.range.size for segment in active) == RING_SIZE
        position = 0
        for segment in active:
            assert segment.range.start == position
            position = segment.range.end + 1

    @invariant()
    def sealed_segments_still_have_their_children(self) -> None:
        for segment in self.layout.segments.values():
            assert bool(self.layout.children(segment.segment_id)) != segment.is_active

    @invariant()
    def merge_depth_never_exceeds_the_count_and_is_exact_until_something_is_pruned(self) -> None:
        for key, segment in self.layout.segments.items():
            counted = len(self.merges_behind[key])
            assert segment.merge_depth <= counted
            assert (segment.merge_depth > 0) == (counted > 0)
            if len(self.seen) == len(self.layout.segments):
                assert segment.merge_depth == counted

    @invariant()
    def record_round_trips(self) -> None:
        record = TopicRecord(self.layout, {"a": "b"})
        again = decode(encode(record))
        assert again == record
        assert list(again.layout.segments) == list(self.layout.segments)


TestLayoutMachine = LayoutMachine.TestCase
TestLayoutMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
