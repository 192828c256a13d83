"""What a leader decides, without a store: over any history, every segment has one owner, and comes to rest with one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller import deciding
from controller.segment_port import Claim
from layout.assignment import assignable
from layout.layouts import Layout
from layout.legacy import migrated_layout
from metadata.subscriptions import AssignedSegment, Assignment, Attachment, Consumer
from protocol.names import TopicName
from sessions.consumer_sessions import assigned

NOW = 1_000


def member(name: str, assignment: Assignment | None = None) -> Consumer:
    attachment = Attachment("n", name)
    return Consumer(name, attachment, attachment.entry, assignment)


def members(**held: Assignment | None) -> dict[str, Consumer]:
    return {name: member(name, assignment) for name, assignment in held.items()}


def given(layout: Layout, *segment_ids: int, releasing: tuple[int, ...] = (), epoch: int | None = None) -> Assignment:
    segments = tuple(
        AssignedSegment(i, layout.segments[i].range.start, layout.segments[i].range.end) for i in segment_ids
    )
    return Assignment(layout.epoch if epoch is None else epoch, segments, releasing)


def decide(
    layout: Layout,
    consumers: Mapping[str, Consumer],
    still_open: Collection[Claim] = (),
    drained: Collection[int] = (),
    *,
    ordered: bool = True,
) -> dict[str, Assignment]:
    """One round of a leader, with what the segments say."""
    segments = assignable(layout, drained, ordered=ordered)
    wanted = deciding.targets(segments, consumers)
    claims = deciding.claims_to_release(wanted, consumers, layout.segments.keys())
    return deciding.assignments(layout.epoch, segments, wanted, consumers, claims & set(still_open))


def applied(consumers: Mapping[str, Consumer], changed: Mapping[str, Assignment]) -> dict[str, Consumer]:
    return {name: member(name, changed.get(name, consumer.assignment)) for name, consumer in consumers.items()}


def ids(consumers: Mapping[str, Consumer]) -> dict[str, tuple[int, ...]]:
    return {name: c.assignment.segment_ids if c.assignment else () for name, c in consumers.items()}


def test_the_first_consumer_gets_everything_and_surplus_ones_an_empty_assignment() -> None:
    layout = Layout.create(2, NOW)
    consumers = applied(members(a=None), decide(layout, members(a=None)))
    assert ids(consumers) == {"a": (0, 1)}
    changed = decide(Layout.create(1, NOW), members(a=None, b=None))
    assert changed == {"a": given(Layout.create(1, NOW), 0), "b": Assignment(0)}


def test_nothing_is_written_where_nothing_changes() -> None:
    layout = Layout.create(4, NOW)
    consumers = members(a=given(layout, 0, 1), b=given(layout, 2, 3))
    assert decide(layout, consumers) == {}


def test_another_epoch_alone_is_no_change() -> None:
    """W17: a split whose parent is not drained yet changes what nobody has."""
    layout = Layout.create(2, NOW)
    consumers = members(a=given(layout, 0), b=given(layout, 1))
    assert decide(layout.split(1, NOW), consumers) == {}


def test_a_segment_that_moves_is_released_before_it_is_given() -> None:
    layout = Layout.create(4, NOW)
    consumers = members(a=given(layout, 0, 1, 2, 3), b=None)
    moving = {("a", segment_id) for segment_id in (0, 1, 2, 3)}
    first = decide(layout, consumers, still_open=moving)
    assert set(first["a"].segment_ids) | set(first["a"].releasing) == {0, 1, 2, 3}
    assert len(first["a"].releasing) == 2
    assert first["b"].segment_ids == ()
    # Waiting changes nothing.
    consumers = applied(consumers, first)
    assert decide(layout, consumers, still_open=moving) == {}
    # One is closed: it moves, and the other one waits on.
    closed, open_still = first["a"].releasing
    second = decide(layout, consumers, still_open={("a", open_still)})
    assert second["b"].segment_ids == (closed,)
    assert second["a"].releasing == (open_still,)
    third = decide(layout, applied(consumers, second))
    assert set(third["b"].segment_ids) == {closed, open_still}
    assert third["a"].releasing == ()


def test_what_is_being_released_goes_back_to_its_owner_when_the_other_leaves() -> None:
    layout = Layout.create(4, NOW)
    consumers = members(a=given(layout, 0, 1, 2, 3), b=None)
    open_everywhere = {("a", segment_id) for segment_id in range(4)}
    consumers = applied(consumers, decide(layout, consumers, still_open=open_everywhere))
    del consumers["b"]
    changed = decide(layout, consumers, still_open=open_everywhere)
    assert changed == {"a": given(layout, 0, 1, 2, 3)}


def test_what_is_being_released_is_not_given_to_a_third_either() -> None:
    layout = Layout.create(3, NOW)
    consumers = members(a=given(layout, 0, 1, 2), b=None)
    open_everywhere = {("a", segment_id) for segment_id in range(3)}
    consumers = applied(consumers, decide(layout, consumers, still_open=open_everywhere))
    consumers["c"] = member("c")
    changed = applied(consumers, decide(layout, consumers, still_open=open_everywhere))
    assert (ids(changed)["b"], ids(changed)["c"]) == ((), ())


def test_who_is_not_a_member_any_more_holds_nothing_up() -> None:
    """It left, or its grace ended: nobody waits for it to close anything."""
    layout = Layout.create(4, NOW)
    consumers = members(a=given(layout, 0, 1), b=given(layout, 2, 3))
    del consumers["a"]
    assert decide(layout, consumers, still_open={("a", 0), ("a", 1)}) == {"b": given(layout, 0, 1, 2, 3)}


def test_two_owners_of_one_segment_are_brought_down_to_one() -> None:
    """As after a fail-over of the store between two of the leader's writes."""
    layout = Layout.create(2, NOW)
    consumers = members(a=given(layout, 0, 1), b=given(layout, 0, 1))
    changed = applied(consumers, decide(layout, consumers))
    assert sorted(ids(changed)["a"] + ids(changed)["b"]) == [0, 1]
    # Nobody gets what another still has open, whoever is in the right.
    opened = {(name, segment_id) for name in "ab" for segment_id in (0, 1)}
    waiting = applied(consumers, decide(layout, consumers, still_open=opened))
    owned = Counter(ids(waiting)["a"] + ids(waiting)["b"])
    assert max(owned.values(), default=0) <= 1


def test_segments_that_are_gone_are_taken_away_without_waiting() -> None:
    layout = Layout.create(2, NOW)
    consumers = members(a=given(layout, 0, 1), b=None)
    layout = layout.split(0, NOW).prune(0)
    changed = applied(consumers, decide(layout, consumers, still_open={("a", 0), ("a", 1)}))
    assert 0 not in ids(changed)["a"]
    assert changed["a"].assignment is not None
    assert 0 not in changed["a"].assignment.releasing


def test_children_wait_for_all_their_ancestors_and_then_go_to_whoever_has_least() -> None:
    """W14: not only for their parents."""
    layout = Layout.create(1, NOW).split(0, NOW).split(1, NOW)  # 0 -> 1, 2; 1 -> 3, 4
    consumers = members(a=None, b=None)
    assert sorted(sum(ids(applied(consumers, decide(layout, consumers))).values(), ())) == [0]
    assert sorted(sum(ids(applied(consumers, decide(layout, consumers, drained=[1]))).values(), ())) == [0]
    assert sorted(sum(ids(applied(consumers, decide(layout, consumers, drained=[0]))).values(), ())) == [1, 2]
    everything = ids(applied(consumers, decide(layout, consumers, drained=[0, 1])))
    assert sorted(sum(everything.values(), ())) == [2, 3, 4]
    # Without an order, as in a group of readers, nothing waits.
    unordered = ids(applied(consumers, decide(layout, consumers, ordered=False)))
    assert sorted(sum(unordered.values(), ())) == [0, 1, 2, 3, 4]


def test_a_drained_parent_takes_no_slot_from_its_children() -> None:
    """W16"""
    layout = Layout.create(1, NOW)
    consumers = members(a=given(layout, 0), b=given(layout))
    layout = layout.split(0, NOW)
    changed = ids(applied(consumers, decide(layout, consumers, drained=[0])))
    assert sorted(map(len, changed.values())) == [1, 1]


def test_a_seek_back_takes_the_children_away_again() -> None:
    """W15"""
    layout = Layout.create(1, NOW)
    consumers = members(a=None, b=None)
    layout = layout.split(0, NOW)
    consumers = applied(consumers, decide(layout, consumers, drained=[0]))
    assert sorted(sum(ids(consumers).values(), ())) == [1, 2]
    consumers = applied(consumers, decide(layout, consumers, drained=[]))
    assert sorted(sum(ids(consumers).values(), ())) == [0]


def test_what_was_withdrawn_for_a_while_is_not_given_to_another_while_it_is_open() -> None:
    """W15: a seek back and the parent drained again, before the owner of a child has closed it."""
    layout = Layout.create(1, NOW).split(0, NOW)
    consumers = applied(members(a=None), decide(layout, members(a=None), drained=[0]))
    assert ids(consumers) == {"a": (1, 2)}
    opened = {("a", 1), ("a", 2)}
    consumers = applied(consumers, decide(layout, consumers, still_open=opened, drained=[]))
    consumers["b"] = member("b")
    consumers = applied(consumers, decide(layout, consumers, still_open=opened, drained=[]))
    consumers = applied(consumers, decide(layout, consumers, still_open=opened, drained=[0]))
    assert not set(ids(consumers)["b"]) & {1, 2}


def test_what_was_drained_and_is_not_any_more_is_not_given_to_another_while_it_is_open() -> None:
    """W15: a seek back reopens a sealed segment whose last owner has not closed it."""
    layout = Layout.create(1, NOW)
    consumers = members(a=given(layout, 0), b=given(layout))
    layout = layout.split(0, NOW)
    opened = {("a", 0)}
    consumers = applied(consumers, decide(layout, consumers, still_open=opened, drained=[0]))
    consumers["0"] = member("0")  # which the next deal begins with
    consumers = applied(consumers, decide(layout, consumers, still_open=opened, drained=[]))
    assert all(0 not in held for name, held in ids(consumers).items() if name != "a")


# Any history.


class Clients:
    """What consumers have open: they open what they are given, and close what they are not given any more, later."""

    def __init__(self) -> None:
        self.open: set[Claim] = set()

    def follow(self, consumers: Mapping[str, Consumer]) -> None:
        self.open |= {(name, segment_id) for name, held in ids(consumers).items() for segment_id in held}

    def closable(self, consumers: Mapping[str, Consumer]) -> set[Claim]:
        held = ids(consumers)
        return {(name, segment_id) for name, segment_id in self.open if segment_id not in held.get(name, ())}


class Histories(RuleBasedStateMachine):
    """A topic with one STREAM subscription, its consumers, and a leader that may change between any two rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.layout = Layout.create(2, NOW)
        self.drained: set[int] = set()
        self.consumers: dict[str, Consumer] = {}
        self.clients = Clients()

    @rule(name=st.sampled_from("abcde"))
    def join(self, name: str) -> None:
        self.consumers.setdefault(name, member(name))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Or be evicted: its segments are closed with it."""
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        del self.consumers[name]
        self.clients.open = {claim for claim in self.clients.open if claim[0] != name}

    @precondition(lambda self: len(self.layout.segments) < 24)
    @rule(data=st.data())
    def split(self, data: st.DataObject) -> None:
        segment = data.draw(st.sampled_from(self.layout.active))
        self.layout = self.layout.split(segment.segment_id, NOW)

    @precondition(lambda self: len(self.layout.active) > 1)
    @rule(data=st.data())
    def merge(self, data: st.DataObject) -> None:
        left = data.draw(st.integers(0, len(self.layout.active) - 2))
        first, second = self.layout.active[left : left + 2]
        self.layout = self.layout.merge(first.segment_id, second.segment_id, NOW)

    @precondition(lambda self: any(not s.is_active for s in self.layout.segments.values()))
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        sealed = [s.segment_id for s in self.layout.segments.values() if not s.is_active]
        self.drained.add(data.draw(st.sampled_from(sealed)))

    @precondition(lambda self: self.drained)
    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        oldest = [i for i in sorted(self.drained & self.layout.segments.keys()) if not self.layout.parents(i)]
        if oldest:
            self.layout = self.layout.prune(oldest[0])

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        closable = sorted(self.clients.closable(self.consumers))
        if closable:
            self.clients.open.discard(data.draw(st.sampled_from(closable)))

    @rule()
    def round(self) -> None:
        self._round()

    def _round(self) -> bool:
        changed = decide(self.layout, self.consumers, self.clients.open, self.drained & self.layout.segments.keys())
        self.consumers = applied(self.consumers, changed)
        self.clients.follow(self.consumers)
        return bool(changed)

    @invariant()
    def no_segment_has_two_owners(self) -> None:
        held = Counter(segment_id for owned in ids(self.consumers).values() for segment_id in owned)
        assert not [segment_id for segment_id, count in held.items() if count > 1]

    @invariant()
    def nobody_opens_what_another_has_open(self) -> None:
        opened = Counter(segment_id for _, segment_id in self.clients.open)
        assert not [segment_id for segment_id, count in opened.items() if count > 1]

    @invariant()
    def what_is_released_is_nobody_elses(self) -> None:
        for name, consumer in self.consumers.items():
            if consumer.assignment is not None:
                assert not set(consumer.assignment.releasing) & set(consumer.assignment.segment_ids)
                for other, held in ids(self.consumers).items():
                    assert other == name or not set(held) & set(consumer.assignment.releasing)

    def teardown(self) -> None:
        """When all close what they should, everything comes to rest: evenly, completely, and nothing waits."""
        for _ in range(8):
            self.clients.open -= self.clients.closable(self.consumers)
            if not self._round():
                break
        else:
            pytest.fail("it does not come to rest")
        if not self.consumers:
            return
        segments = assignable(self.layout, self.drained & self.layout.segments.keys(), ordered=True)
        owned = Counter(segment_id for held in ids(self.consumers).values() for segment_id in held)
        assert owned == Counter(segment.segment_id for segment in segments)
        assert all(c.assignment is not None and not c.assignment.releasing for c in self.consumers.values())
        active = {segment.segment_id for segment in segments if segment.is_active}
        shares = [len(active & set(held)) for held in ids(self.consumers).values()]
        assert max(shares) - min(shares) <= 1


class HistoriesWithSeeks(Histories):
    """Also back to before what is drained already: children are withdrawn, and given out once more."""

    def __init__(self) -> None:
        super().__init__()
        # In the middle of it, so that most histories seek: two consumers, one parent drained, its children given out.
        self.join("a")
        self.join("b")
        self._round()
        self.layout = self.layout.split(0, NOW)
        self.drained.add(0)
        self._round()

    @precondition(lambda self: self.drained)
    @rule(data=st.data())
    def seek_back(self, data: st.DataObject) -> None:
        present = sorted(self.drained & self.layout.segments.keys())
        if present:
            self.drained -= set(data.draw(st.lists(st.sampled_from(present), min_size=1)))


# Always the same histories: what fails once fails again, and what passes has been seen to.
_SETTINGS = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestHistories = pytest.mark.slow(Histories.TestCase)
TestHistories.settings = _SETTINGS
TestHistoriesWithSeeks = pytest.mark.slow(HistoriesWithSeeks.TestCase)
# Making a failing history smaller takes minutes.
TestHistoriesWithSeeks.settings = settings(_SETTINGS, phases=(Phase.explicit, Phase.generate))


def test_a_legacy_segment_is_assigned_with_the_name_of_its_log() -> None:
    layout = migrated_layout(["persistent://t/n/a"], 0)
    found = deciding.assignments(0, layout.segments.values(), {"c": (0, 1)}, members(c=None), ())
    assert [segment.legacy for segment in found["c"].segments] == ["persistent://t/n/a", ""]
    wire = assigned(TopicName.scalable("t", "n", "a"), 0, found["c"].segments)
    assert [segment.segment_topic for segment in wire.segments] == [
        "persistent://t/n/a",
        "segment://t/n/a/0000-ffff-1",
    ]
