"""Random histories of every kind of subscription against a plain model.

Checked at every delivery: it is not acknowledged, nobody else has it, its receiver had permits and room, and it is
in order. At the end everybody takes and acknowledges what comes: then nothing is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from unittest import TestCase

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metadata.log_entries import StoredEntry
from segments.cursors import Cursor
from segments.dispatch import Delivery, Dispatcher, KeySharing, Kind
from tests.segments.dispatch.staged import NOW, StagedLog, StagedReceiver

MAX_UNACKED = 12
KEYS = [f"key-{number}" for number in range(4)]
sizes = st.sampled_from([1, 1, 2, 4])
entries = st.lists(st.tuples(st.sampled_from(KEYS), sizes), min_size=1, max_size=6)
QUARTERS = tuple((start, start + 0x3FFF) for start in range(0, 0x10000, 0x4000))


@dataclass(eq=False)
class Seen:
    """What a receiver must have, by the deliveries and acknowledgements so far."""

    receiver: StagedReceiver
    permits: int = 0
    has: set[int] = field(default_factory=set)


class DispatchMachine(RuleBasedStateMachine):
    kind = Kind.SHARED
    key_sharing = KeySharing.AUTO_SPLIT

    def __init__(self) -> None:
        super().__init__()
        self.log = StagedLog()
        self.keys: list[str] = []
        self.dispatcher: Dispatcher[StagedReceiver] = Dispatcher(
            self.kind, Cursor(), 0, max_unacked=MAX_UNACKED, key_sharing=self.key_sharing
        )
        self.present: list[Seen] = []
        self.active: Seen | None = None
        # Which messages of each entry are not acknowledged; nothing for an entry that is done.
        self.open: dict[int, set[int]] = {}
        self.counts: dict[int, int] = {}
        self.fetched: list[list[StoredEntry]] = []
        self.names = 0

    @property
    def in_order(self) -> bool:
        return self.kind in (Kind.EXCLUSIVE, Kind.FAILOVER)

    # What happens

    @rule(count=st.integers(1, 6), messages=sizes, key=st.sampled_from(KEYS))
    def append(self, count: int, messages: int, key: str) -> None:
        for _ in range(count):
            self.open[self.log.end] = set(range(messages))
            self.log.append(messages=messages, key=key)
            self.keys.append(key)

    @rule(priority=st.integers(0, 2), permits=st.integers(0, 9), wish=st.sets(st.sampled_from(QUARTERS), min_size=1))
    def join(self, priority: int, permits: int, wish: set[tuple[int, int]]) -> None:
        if len(self.present) >= (1 if self.kind is Kind.EXCLUSIVE else 4):
            return
        ranges: Sequence[tuple[int, int]] = ()
        if self.key_sharing is KeySharing.STICKY:
            ranges = sorted(wish - {each for seen in self.present for each in seen.receiver.key_ranges})
            if not ranges:
                return
        elif self.key_sharing is KeySharing.ENTRY_BUCKETS:
            ranges = QUARTERS
        self.names += 1
        # Not in the order of joining, so that names and joining can be told apart.
        receiver = StagedReceiver(f"c{self.names * 7 % 10}", priority=priority, key_ranges=ranges)
        seen = Seen(receiver)
        self.present.append(seen)
        changed = self.dispatcher.add(receiver)
        assert changed == self.follow_active()
        self.flow(seen, permits)

    def flow(self, seen: Seen, permits: int) -> None:
        self.dispatcher.flow(seen.receiver, permits)
        seen.permits += permits

    @precondition(lambda self: self.present)
    @rule(data=st.data(), permits=st.integers(1, 12))
    def ask_for_more(self, data: st.DataObject, permits: int) -> None:
        self.flow(self.somebody(data), permits)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        seen = self.somebody(data)
        self.present.remove(seen)
        changed = self.dispatcher.remove(seen.receiver)
        assert changed == self.follow_active()
        assert not self.dispatcher.remove(seen.receiver)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def stop_or_go(self, data: st.DataObject) -> None:
        receiver = self.somebody(data).receiver
        receiver.is_ready = not receiver.is_ready

    @rule()
    def fetch(self) -> None:
        wanted = self.dispatcher.wanted(self.log.end, NOW)
        indexes = list(wanted or ())
        assert indexes == sorted(set(indexes))
        assert all(index < self.log.end and self.open[index] for index in indexes)
        if self.kind is not Kind.KEY_SHARED:
            due = any(left and not self.holder(index) for index, left in self.open.items())
            assert (wanted is None) == (not self.somebody_has_room())
            assert bool(indexes) == (due and self.somebody_has_room())
        self.fetched = [*self.fetched[-2:], [self.log.entries[index] for index in indexes]]

    @precondition(lambda self: self.fetched)
    @rule(data=st.data())
    def offer(self, data: st.DataObject) -> None:
        """Possibly long after it was wanted, and possibly twice."""
        self.receive(self.dispatcher.offer(data.draw(st.sampled_from(self.fetched)), NOW))

    @rule()
    def deliver(self) -> None:
        self.receive(self.dispatcher.offer(self.log.fetch(self.dispatcher), NOW))

    @rule(sent=entries)
    def flow_on(self, sent: list[tuple[str, int]]) -> None:
        """The common case, so that histories get somewhere: entries are delivered as they come."""
        for key, messages in sent:
            self.append(1, messages, key)
        self.deliver()

    @precondition(lambda self: self.present and self.log.end)
    @rule(data=st.data(), partly=st.booleans())
    def acknowledge(self, data: st.DataObject, partly: bool) -> None:
        """By anybody, of anything: what it has, what others have, what nobody has, what is done."""
        seen = self.somebody(data)
        index = data.draw(st.sampled_from(sorted(seen.has) or range(self.log.end)) | st.integers(0, self.log.end - 1))
        messages = self.log.entries[index].messages
        left = data.draw(st.sets(st.integers(0, messages - 1))) if partly else set()
        self.dispatcher.wanted(self.log.end, NOW)  # as far as it knows the log, acknowledgements count
        changed = self.dispatcher.ack(seen.receiver, index, self.words(left))
        if not changed:
            assert self.open[index] <= left
        self.settle(index, left)

    @precondition(lambda self: self.present and self.log.end and self.in_order)
    @rule(data=st.data(), partly=st.booleans())
    def acknowledge_up_to(self, data: st.DataObject, partly: bool) -> None:
        index = data.draw(st.integers(0, self.log.end - 1))
        left = data.draw(st.sets(st.integers(0, self.log.entries[index].messages - 1))) if partly else set()
        self.dispatcher.wanted(self.log.end, NOW)  # as far as it knows the log, acknowledgements count
        self.dispatcher.ack_cumulative(self.somebody(data).receiver, index, self.words(left))
        for lower in range(index):
            self.settle(lower, set())
        self.settle(index, left)

    @precondition(lambda self: self.present)
    @rule(data=st.data(), everything=st.booleans())
    def redeliver(self, data: st.DataObject, everything: bool) -> None:
        seen = self.somebody(data)
        if everything:
            self.dispatcher.redeliver(seen.receiver, None)
            taken = set(seen.has)
        else:
            asked = data.draw(st.lists(st.integers(-1, self.log.end + 1), max_size=5))
            asked += sorted(seen.has)[:2]
            self.dispatcher.redeliver(seen.receiver, asked)
            taken = seen.has & set(asked)
        if self.in_order:
            if everything or asked:
                seen.has.clear()
            return
        seen.has -= taken
        self.count_again(taken)

    @precondition(lambda self: self.present)
    @rule(data=st.data(), sent=entries, lost=st.booleans())
    def interrupt(self, data: st.DataObject, sent: list[tuple[str, int]], lost: bool) -> None:
        """Something comes back, or somebody leaves, between what was wanted and its arrival."""
        for key, messages in sent:
            self.append(1, messages, key)
        self.fetch()
        if lost:
            self.leave(data)
        else:
            self.redeliver(data, everything=False)
        self.receive(self.dispatcher.offer(self.fetched[-1], NOW))

    @precondition(lambda self: self.log.end > 20)
    @rule(data=st.data(), trim=st.booleans())
    def jump(self, data: st.DataObject, trim: bool) -> None:
        index = data.draw(st.integers(0, self.log.end))
        if trim:
            self.trim(index)
        else:
            self.seek(index)

    def trim(self, first: int) -> None:
        self.dispatcher.trim(first)
        for index in range(first):
            self.settle(index, set())

    def seek(self, index: int) -> None:
        self.dispatcher.seek(index)
        self.open = {
            each: set(range(entry.messages)) if each >= index else set() for each, entry in enumerate(self.log.entries)
        }
        self.counts.clear()
        for seen in self.present:
            seen.has.clear()

    # What must hold

    def receive(self, deliveries: Sequence[Delivery[StagedReceiver]]) -> None:
        for delivery in deliveries:
            self.check(delivery)

    def check(self, delivery: Delivery[StagedReceiver]) -> None:
        index = delivery.entry.index
        seen = next(each for each in self.present if each.receiver is delivery.receiver)
        left = self.open[index]
        assert left, "acknowledged"
        assert self.holder(index) is None, "somebody has it"
        assert self.has_room(seen)
        assert delivery.entry is self.log.entries[index]
        assert set(self.bits(delivery.ack_set)) == (left if delivery.ack_set else set())
        assert delivery.ack_set or len(left) == delivery.entry.messages
        assert delivery.redeliveries == (0 if self.in_order else self.counts.get(index, 0))
        lower = [each for each in range(index) if self.open[each]]
        if self.in_order:
            assert seen is self.active
            assert all(each in seen.has for each in lower)
        if self.kind is Kind.KEY_SHARED:
            alike = [each for each, key in enumerate(self.keys) if key == self.keys[index]]
            assert all(each in seen.has for each in alike if each in lower), "an earlier one of its key is missing"
            assert all(self.holder(each) in (None, seen) for each in alike), "its key is with somebody else"
        seen.permits -= len(left)
        seen.has.add(index)

    @invariant()
    def agrees(self) -> None:
        cursor = self.dispatcher.cursor
        assert self.dispatcher.active is (self.active.receiver if self.active else None)
        assert self.dispatcher.backlog(self.log.end) == sum(1 for left in self.open.values() if left)
        for index, left in self.open.items():
            assert cursor.is_acked(index) == (not left)
        for seen in self.present:
            assert self.dispatcher.permits(seen.receiver) == seen.permits
            assert self.dispatcher.unacked(seen.receiver) == self.weight(seen)
        assert Cursor.decode(cursor.encode()).encode() == cursor.encode()

    def teardown(self) -> None:
        if self.key_sharing is KeySharing.STICKY:
            while {each for seen in self.present for each in seen.receiver.key_ranges} != set(QUARTERS):
                if len(self.present) == 4:
                    self.dispatcher.remove(self.present.pop(0).receiver)
                self.join(0, 0, set(QUARTERS))
        elif not self.present:
            self.join(0, 0, set(QUARTERS))
        for seen in self.present:
            seen.receiver.is_ready = True
            self.flow(seen, 1_000)
        # Twice for each at most: Key_Shared passes one over first.
        for _ in range(2 * self.log.end):
            self.receive(self.dispatcher.offer(self.log.fetch(self.dispatcher), NOW))
            held = [(seen, index) for seen in self.present for index in sorted(seen.has)]
            for seen, index in held:
                assert self.dispatcher.ack(seen.receiver, index)
                self.settle(index, set())
        assert not any(self.open.values()), "lost"
        self.agrees()

    # The model

    def somebody(self, data: st.DataObject) -> Seen:
        return data.draw(st.sampled_from(self.present))

    def holder(self, index: int) -> Seen | None:
        return next((seen for seen in self.present if index in seen.has), None)

    def weight(self, seen: Seen) -> int:
        return len(seen.has) if self.in_order else sum(len(self.open[index]) for index in seen.has)

    def has_room(self, seen: Seen) -> bool:
        limited = not self.in_order and self.weight(seen) >= MAX_UNACKED
        return seen.permits > 0 and seen.receiver.is_ready and not limited

    def somebody_has_room(self) -> bool:
        if self.in_order:
            return self.active is not None and self.has_room(self.active)
        return any(map(self.has_room, self.present))

    def count_again(self, indexes: set[int]) -> None:
        for index in indexes:
            self.counts[index] = self.counts.get(index, 0) + 1

    def settle(self, index: int, left: set[int]) -> None:
        self.open[index] &= left
        if not self.open[index]:
            self.counts.pop(index, None)
            for seen in self.present:
                seen.has.discard(index)

    def follow_active(self) -> bool:
        """Whether another one is active now; what the one before had is everybody's again."""
        before, self.active = self.active, None
        if self.in_order and self.present:
            self.active = min(self.present, key=lambda seen: seen.receiver.priority)
        if before is not None and before is not self.active:
            before.has.clear()
        return before is not self.active

    @staticmethod
    def words(left: set[int]) -> tuple[int, ...]:
        return (sum(1 << bit for bit in left),) if left else ()

    @staticmethod
    def bits(words: Sequence[int]) -> list[int]:
        return [64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1]


class ExclusiveMachine(DispatchMachine):
    kind = Kind.EXCLUSIVE


class FailoverMachine(DispatchMachine):
    kind = Kind.FAILOVER


class AutoSplitMachine(DispatchMachine):
    kind = Kind.KEY_SHARED


class StickyMachine(DispatchMachine):
    kind = Kind.KEY_SHARED
    key_sharing = KeySharing.STICKY


class EntryBucketsMachine(DispatchMachine):
    kind = Kind.KEY_SHARED
    key_sharing = KeySharing.ENTRY_BUCKETS


def case_of(machine: type[DispatchMachine]) -> type[TestCase]:
    case = machine.TestCase
    case.settings = settings(
        max_examples=50, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    return case


TestShared = case_of(DispatchMachine)
TestExclusive = case_of(ExclusiveMachine)
TestFailover = case_of(FailoverMachine)
TestAutoSplit = case_of(AutoSplitMachine)
TestSticky = case_of(StickyMachine)
TestEntryBuckets = case_of(EntryBucketsMachine)
