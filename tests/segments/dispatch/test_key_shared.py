"""Key_Shared subscriptions: one receiver per key, in order, also while keys move."""

from base64 import b64encode
from collections import Counter

import pytest

from metadata.log_entries import StoredEntry
from protocol.hashing import bucket_hash
from protocol.wire import pulsar_api_pb2 as api
from segments.cursors import Cursor
from segments.dispatch import ConsumerAssignError, Dispatcher, KeySharing, Kind, by_key
from segments.dispatch.key_hashes import key_hash
from segments.dispatch.key_owners import SplitByServer
from segments.dispatch.receivers import Seat
from tests.segments.dispatch.staged import NOW, StagedLog, StagedReceiver, dispatcher_of, indexes

LOW, HIGH = ((0, 0x7FFF),), ((0x8000, 0xFFFF),)
HALVES = (*LOW, *HIGH)
# Their hashes lie in the lower and the upper half.
LOW_KEY, HIGH_KEY = "a", "order-42"


def sharing(
    key_sharing: KeySharing, *receivers: StagedReceiver, permits: int = 100, max_unacked: int = 1_000
) -> Dispatcher[StagedReceiver]:
    dispatcher: Dispatcher[StagedReceiver] = Dispatcher(
        Kind.KEY_SHARED, Cursor(), 0, key_sharing=key_sharing, max_unacked=max_unacked
    )
    for receiver in receivers:
        dispatcher.add(receiver)
        dispatcher.flow(receiver, permits)
    return dispatcher


def keyed_log(*keys: str) -> StagedLog:
    log = StagedLog()
    for key in keys:
        log.append(key=key)
    return log


def low_and_high() -> tuple[StagedReceiver, StagedReceiver]:
    return StagedReceiver("low", key_ranges=LOW), StagedReceiver("high", key_ranges=HIGH)


def with_metadata(metadata: api.MessageMetadata) -> StoredEntry:
    data = metadata.SerializeToString()
    return StoredEntry(0, 0, 1, len(data).to_bytes(4, "big") + data)


def test_hash_is_that_of_the_ordering_key_or_else_of_the_key() -> None:
    required = {"producer_name": "p", "sequence_id": 7, "publish_time": 0}
    both = api.MessageMetadata(ordering_key=b"o", partition_key="k", **required)  # type: ignore[arg-type]  # one dict of several types
    plain = api.MessageMetadata(partition_key="k", **required)  # type: ignore[arg-type]
    encoded = api.MessageMetadata(partition_key=b64encode(b"k").decode(), partition_key_b64_encoded=True, **required)  # type: ignore[arg-type]
    wrong = api.MessageMetadata(partition_key="k?", partition_key_b64_encoded=True, **required)  # type: ignore[arg-type]
    bare = api.MessageMetadata(**required)  # type: ignore[arg-type]
    hashes = [key_hash(with_metadata(metadata)) for metadata in (both, plain, encoded, wrong, bare)]
    assert hashes == [bucket_hash(key) for key in (b"o", b"k", b"k", b"k?", b"p-7")]
    assert key_hash(StoredEntry(0, 0, 1, b"\0\0\0\x09short")) == 0
    assert key_hash(StoredEntry(0, 0, 1, b"\0\0\0\x03\xff\xff\xff")) == 0


def test_every_key_has_one_receiver_and_the_server_spreads_them() -> None:
    receivers = [StagedReceiver(name) for name in "abcd"]
    dispatcher = sharing(KeySharing.AUTO_SPLIT, *receivers, permits=10_000)
    keys = [f"key-{number}" for number in range(400)]
    log = keyed_log(*keys, *keys)
    owners = [delivery.receiver for delivery in sorted(log.pump(dispatcher), key=lambda each: each.entry.index)]
    assert owners[:400] == owners[400:]
    shares = Counter(owner.name for owner in owners[:400])
    assert len(shares) == 4
    assert min(shares.values()) > 50


def test_newcomer_only_takes_and_gets_its_keys_again_when_it_comes_back() -> None:
    keys = [f"key-{number}" for number in range(300)]
    dispatcher = sharing(KeySharing.AUTO_SPLIT, StagedReceiver("a"), StagedReceiver("b"), permits=10_000)

    def owners() -> list[str]:
        dispatcher.seek(0)
        deliveries = sorted(keyed_log(*keys).pump(dispatcher), key=lambda each: each.entry.index)
        return [delivery.receiver.name for delivery in deliveries]

    before = owners()
    dispatcher.add(newcomer := StagedReceiver("c"))
    dispatcher.flow(newcomer, 10_000)
    between = owners()
    assert {old for old, new in zip(before, between, strict=True) if old != new} == {"a", "b"}
    assert {new for old, new in zip(before, between, strict=True) if old != new} == {"c"}
    dispatcher.remove(newcomer)
    assert owners() == before


def test_who_has_a_key_depends_on_who_is_there_and_not_on_who_was() -> None:
    def owners(*coming_and_going: int) -> list[str]:
        """Negative numbers go."""
        seats = {number: Seat(StagedReceiver(f"r{number % 7}-{number}")) for number in range(1, 50)}
        split: SplitByServer[StagedReceiver] = SplitByServer()
        for number in coming_and_going:
            (split.join if number > 0 else split.leave)(seats[abs(number)])
        found = [split.owner(slot) for slot in range(0, 0x10000, 7)]
        return ["" if seat is None else seat.receiver.name for seat in found]

    there = list(range(1, 30))
    expected = owners(*there)
    assert len(set(expected)) == len(there)
    assert owners(*reversed(there)) == expected
    assert owners(*range(1, 50), *(-number for number in range(49, 29, -1))) == expected
    assert set(owners(*there, *(-number for number in there))) == {""}


def test_receivers_of_one_name_share() -> None:
    one, other = StagedReceiver("same"), StagedReceiver("same")
    dispatcher = sharing(KeySharing.AUTO_SPLIT, one, other, permits=1_000)
    deliveries = keyed_log(*[f"key-{number}" for number in range(100)]).pump(dispatcher)
    assert indexes(deliveries, one)
    assert indexes(deliveries, other)


def test_sticky_receivers_get_what_they_asked_for_and_the_rest_waits() -> None:
    low, high = low_and_high()
    dispatcher = sharing(KeySharing.STICKY, low)
    log = keyed_log(LOW_KEY, HIGH_KEY, LOW_KEY)
    assert indexes(log.pump(dispatcher), low) == [0, 2]
    dispatcher.add(high)
    dispatcher.flow(high, 10)
    assert indexes(log.pump(dispatcher), high) == [1]


@pytest.mark.parametrize("asked", [(), ((5, 4),), ((-1, 4),), ((0, 0x10000),), ((0, 9), (9, 12)), ((0x7FFF, 0x8000),)])
def test_ranges_that_do_not_fit_are_refused_and_change_nothing(asked: tuple[tuple[int, int], ...]) -> None:
    low, _ = low_and_high()
    dispatcher = sharing(KeySharing.STICKY, low)
    with pytest.raises(ConsumerAssignError) as refusal:
        dispatcher.add(StagedReceiver("other", key_ranges=asked))
    assert refusal.value.server_error == api.ConsumerAssignError
    assert dispatcher.receivers == [low]
    assert indexes(keyed_log(LOW_KEY).pump(dispatcher), low) == [0]


def test_ranges_are_free_again_when_their_receiver_has_left() -> None:
    low, high = low_and_high()
    dispatcher = sharing(KeySharing.STICKY, low, high)
    dispatcher.remove(low)
    dispatcher.add(StagedReceiver("next", key_ranges=LOW))


def test_slow_receiver_does_not_hold_up_other_keys() -> None:
    low, high = low_and_high()
    dispatcher = sharing(KeySharing.STICKY, low, high)
    low.is_ready = False
    log = keyed_log(LOW_KEY, HIGH_KEY, LOW_KEY, HIGH_KEY)
    assert indexes(log.pump(dispatcher)) == [1, 3]
    low.is_ready = True
    assert indexes(log.pump(dispatcher), low) == [0, 2]


def test_reading_on_stops_when_too_many_were_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_key, "LOOK_AHEAD", 3)
    low, high = low_and_high()
    dispatcher = sharing(KeySharing.STICKY, low, high)
    low.is_ready = False
    log = keyed_log(*[LOW_KEY] * 10, HIGH_KEY)
    assert log.pump(dispatcher) == []
    assert dispatcher.read_position == 3
    assert dispatcher.wanted(log.end, NOW) is None
    low.is_ready = True
    assert sorted(indexes(log.pump(dispatcher))) == list(range(11))


def test_key_that_moved_waits_until_nothing_of_it_is_left_elsewhere() -> None:
    low, successor = StagedReceiver("b", key_ranges=HALVES), StagedReceiver("a", key_ranges=HALVES)
    dispatcher = sharing(KeySharing.ENTRY_BUCKETS, low)
    log = keyed_log(LOW_KEY, LOW_KEY, HIGH_KEY)
    assert indexes(log.pump(dispatcher), low) == [0, 1, 2]
    dispatcher.add(successor)  # takes the lower half
    dispatcher.flow(successor, 10)
    log.append(key=LOW_KEY)
    log.append(key=HIGH_KEY)
    assert indexes(log.pump(dispatcher)) == [4]
    dispatcher.ack(low, 1)
    assert log.pump(dispatcher) == []
    dispatcher.ack(low, 0)
    assert indexes(log.pump(dispatcher), successor) == [3]


def test_key_that_moved_away_and_back_waits_no_longer() -> None:
    low, visitor = StagedReceiver("b", key_ranges=HALVES), StagedReceiver("a", key_ranges=HALVES)
    dispatcher = sharing(KeySharing.ENTRY_BUCKETS, low)
    log = keyed_log(LOW_KEY)
    log.pump(dispatcher)
    dispatcher.add(visitor)
    dispatcher.flow(visitor, 10)
    log.append(key=LOW_KEY)
    assert log.pump(dispatcher) == []
    dispatcher.remove(visitor)
    assert indexes(log.pump(dispatcher), low) == [1]


def test_nacked_entry_of_a_moved_key_waits_for_the_others_of_its_key() -> None:
    old, new = StagedReceiver("b", key_ranges=HALVES), StagedReceiver("a", key_ranges=HALVES)
    dispatcher = sharing(KeySharing.ENTRY_BUCKETS, old)
    log = keyed_log(LOW_KEY, LOW_KEY)
    log.pump(dispatcher)
    dispatcher.add(new)
    dispatcher.flow(new, 10)
    dispatcher.redeliver(old, [0])
    assert log.pump(dispatcher) == []
    dispatcher.redeliver(old, [1])
    again = log.pump(dispatcher)
    assert [(each.receiver, each.entry.index, each.redeliveries) for each in again] == [(new, 0, 1), (new, 1, 1)]


def test_fresh_entries_stay_behind_a_nacked_one() -> None:
    low, _ = low_and_high()
    dispatcher = sharing(KeySharing.STICKY, low)
    log = keyed_log(LOW_KEY, LOW_KEY)
    log.pump(dispatcher)
    log.append(key=LOW_KEY)
    fresh = log.fetch(dispatcher)
    dispatcher.redeliver(low, [0])
    assert dispatcher.offer(fresh, NOW) == []
    assert indexes(log.pump(dispatcher)) == [0, 2]


def test_lost_receivers_keys_come_in_order_at_the_next() -> None:
    one, other = StagedReceiver("a"), StagedReceiver("b")
    dispatcher = sharing(KeySharing.AUTO_SPLIT, one, other)
    log = keyed_log(*["x", "y", "z"] * 5)
    log.pump(dispatcher)
    dispatcher.remove(one)
    dispatcher.remove(other)
    late = StagedReceiver("late")
    dispatcher.add(late)
    dispatcher.flow(late, 100)
    again = log.pump(dispatcher)
    assert indexes(again, late) == list(range(15))
    assert {delivery.redeliveries for delivery in again} == {0}


def test_receiver_at_its_limit_lets_its_keys_wait() -> None:
    low, high = low_and_high()
    dispatcher = sharing(KeySharing.STICKY, low, high, max_unacked=2)
    log = keyed_log(LOW_KEY, LOW_KEY, LOW_KEY, HIGH_KEY)
    assert indexes(log.pump(dispatcher)) == [0, 1, 3]
    dispatcher.ack(low, 1)
    assert indexes(log.pump(dispatcher)) == [2]


def test_ack_of_what_waits_settles_it_wherever_it_waits() -> None:
    old, new = StagedReceiver("b", key_ranges=HALVES), StagedReceiver("a", key_ranges=HALVES)
    dispatcher = sharing(KeySharing.ENTRY_BUCKETS, old)
    log = keyed_log(LOW_KEY)
    log.pump(dispatcher)
    dispatcher.add(new)
    dispatcher.flow(new, 10)
    log.append(2, key=LOW_KEY)
    log.pump(dispatcher)
    assert dispatcher.ack(new, 1)
    assert dispatcher.ack(old, 0)
    assert indexes(log.pump(dispatcher), new) == [2]


def test_stamped_entries_go_by_their_bucket_and_others_by_their_key() -> None:
    one, other = StagedReceiver("a", key_ranges=HALVES), StagedReceiver("b", key_ranges=HALVES)
    dispatcher = sharing(KeySharing.ENTRY_BUCKETS, other, one)
    log = keyed_log(LOW_KEY, HIGH_KEY, LOW_KEY)
    log.entries[2] = log.entries[2]._replace(hash_range=(0x8000, 0x9000))
    deliveries = log.pump(dispatcher)
    assert indexes(deliveries, one) == [0]
    assert indexes(deliveries, other) == [1, 2]


def test_plain_key_sharing_ignores_stamps() -> None:
    low, high = low_and_high()
    dispatcher = sharing(KeySharing.STICKY, low, high)
    log = keyed_log(LOW_KEY)
    log.entries[0] = log.entries[0]._replace(hash_range=(0x8000, 0x9000))
    assert indexes(log.pump(dispatcher), low) == [0]


@pytest.mark.parametrize(("receivers", "expected"), [(1, "aaaa"), (2, "aabb"), (3, "abcc"), (4, "abcd"), (6, "bcef")])
def test_buckets_are_shared_in_contiguous_parts_by_name(receivers: int, expected: str) -> None:
    quarters = tuple((start, start + 0x3FFF) for start in range(0, 0x10000, 0x4000))
    dispatcher = sharing(
        KeySharing.ENTRY_BUCKETS, *[StagedReceiver(name, key_ranges=quarters) for name in "abcdef"[:receivers][::-1]]
    )
    log = StagedLog()
    log.append(4)
    log.entries = [
        entry._replace(hash_range=(start, start)) for entry, (start, _) in zip(log.entries, quarters, strict=True)
    ]
    assert "".join(sorted(each.receiver.name for each in log.pump(dispatcher))) == expected


@pytest.mark.parametrize("asked", [(), LOW, HIGH, ((0, 0x7FFE), *HIGH), ((0, 0x8000), *HIGH), (*HIGH, *LOW)])
def test_buckets_must_tile_the_ring(asked: tuple[tuple[int, int], ...]) -> None:
    dispatcher = sharing(KeySharing.ENTRY_BUCKETS)
    with pytest.raises(ConsumerAssignError):
        dispatcher.add(StagedReceiver(key_ranges=asked))


def test_other_buckets_are_refused_until_everybody_has_left() -> None:
    one, whole = StagedReceiver("a", key_ranges=HALVES), StagedReceiver("b", key_ranges=((0, 0xFFFF),))
    dispatcher = sharing(KeySharing.ENTRY_BUCKETS, one)
    log = keyed_log(HIGH_KEY, LOW_KEY)
    log.pump(dispatcher)
    with pytest.raises(ConsumerAssignError, match="layout"):
        dispatcher.add(whole)
    dispatcher.remove(one)
    dispatcher.add(whole)
    dispatcher.flow(whole, 10)
    assert indexes(log.pump(dispatcher), whole) == [0, 1]


def test_trim_and_seek_leave_nothing_behind() -> None:
    low, high = low_and_high()
    dispatcher = sharing(KeySharing.STICKY, low, high)
    high.is_ready = False
    log = keyed_log(LOW_KEY, HIGH_KEY, LOW_KEY, HIGH_KEY)
    log.pump(dispatcher)
    assert dispatcher.trim(2)
    high.is_ready = True
    assert dispatcher.unacked(low) == 1
    assert indexes(log.pump(dispatcher)) == [3]
    dispatcher.seek(1)
    assert dispatcher.unacked(low) == 0
    assert indexes(log.pump(dispatcher)) == [1, 2, 3]


def test_server_splits_the_keys_unless_told_otherwise() -> None:
    receiver = StagedReceiver()
    dispatcher = dispatcher_of(Kind.KEY_SHARED, receiver, permits=10)
    assert indexes(keyed_log("a", "b").pump(dispatcher)) == [0, 1]
