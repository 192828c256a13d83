"""The checker finds every kind of fault that was planted into a history without one, and nothing in the latter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.message_history import (
    ON_THE_WAY,
    AckConfirmed,
    AckSent,
    Anew,
    AnyEvent,
    Delivered,
    Failed,
    Fault,
    History,
    Message,
    Place,
    Receipt,
    Sent,
    Sought,
    Subscription,
    WentBack,
    violations,
)

STREAM: Final = Subscription("stream", ordered=True)
QUEUE: Final = Subscription("queue", ordered=False)
KEYS: Final = Subscription("keys", ordered=False, keyed=True)
TURNS: Final = Subscription("failover", ordered=True, takes_turns=True)
FIRST, SECOND, OTHER = Message("p0", "k0", 0), Message("p0", "k0", 1), Message("p0", "k1", 2)


class Stored(NamedTuple):
    message: Message
    place: Place


ONE, TWO, THREE = Stored(FIRST, Place(7, 0)), Stored(SECOND, Place(7, 1)), Stored(OTHER, Place(8, 0))


def history(*events: AnyEvent, subscriptions: Sequence[Subscription] = (STREAM,)) -> History:
    """These events, a hundredth of a second apart."""
    timed = (msgspec.structs.replace(event, at=number / 100) for number, event in enumerate(events))
    return History(tuple(subscriptions), tuple(timed))


def sent(*stored: Stored) -> list[AnyEvent]:
    return [event for it in stored for event in (Sent(0, it.message), Receipt(0, it.message, it.place))]


def given_to(
    stored: Stored, subscription: Subscription = STREAM, consumer: str = "c0", asked_at: float | None = None
) -> Delivered:
    return Delivered(0, subscription.name, consumer, stored.message, stored.place, asked_at)


def acked(stored: Stored, subscription: Subscription = STREAM, consumer: str = "c0") -> list[AnyEvent]:
    return [
        AckSent(0, subscription.name, consumer, stored.place),
        AckConfirmed(0, subscription.name, consumer, stored.place),
    ]


def only(found: Sequence[str]) -> str:
    assert len(found) == 1, found
    return found[0]


def test_messages_that_come_once_and_in_order_are_well() -> None:
    assert not violations(
        history(
            *sent(ONE, TWO, THREE),
            *(it for stored in (THREE, ONE, TWO) for it in (given_to(stored), *acked(stored))),
        )
    )


def test_message_that_never_came_is_lost() -> None:
    found = only(violations(history(*sent(ONE, TWO), given_to(ONE))))
    assert found == "p0/k0/1 was stored at 7:1 and never came to stream"


def test_message_that_came_to_one_subscription_is_lost_to_the_other() -> None:
    found = only(violations(history(*sent(ONE), given_to(ONE, QUEUE), subscriptions=(STREAM, QUEUE))))
    assert "never came to stream" in found


def test_message_that_was_not_acknowledged_may_be_missing() -> None:
    assert not violations(history(*sent(ONE), Sent(0, SECOND), Failed(0, SECOND, "timed out"), given_to(ONE)))


def test_receipt_must_name_the_place_that_the_message_comes_from() -> None:
    found = only(violations(history(*sent(ONE), given_to(Stored(FIRST, Place(9, 3))))))
    assert found == "p0/k0/0 was stored at 7:0, and came to stream from 9:3 only"


def test_receipt_without_a_place_wants_a_delivery_from_anywhere() -> None:
    events = (Sent(0, FIRST), Receipt(0, FIRST, None))
    assert not violations(history(*events, given_to(ONE)))
    assert "never came" in only(violations(history(*events)))


def test_first_deliveries_that_go_back_are_out_of_order() -> None:
    found = only(violations(history(*sent(ONE, TWO), given_to(TWO), given_to(ONE))))
    assert found.startswith("p0/k0/0 at 7:0 came to c0 of stream after p0/k0/1 at 7:1")


def test_order_spans_the_consumers_of_a_subscription() -> None:
    found = violations(history(*sent(ONE, TWO), given_to(TWO, consumer="c1"), given_to(ONE, consumer="c2")))
    assert "which c1 got" in only(found)


def test_order_spans_segments() -> None:
    late = Stored(SECOND, Place(8, 0))
    assert not violations(history(*sent(ONE, late), given_to(ONE), given_to(late)))
    assert len(violations(history(*sent(ONE, late), given_to(late), given_to(ONE)))) == 1


@pytest.mark.parametrize("other", [Message("p0", "k1", 1), Message("p1", "k0", 1)])
def test_other_keys_and_other_producers_may_overtake(other: Message) -> None:
    stored = Stored(other, Place(7, 1))
    assert not violations(history(*sent(ONE, stored), given_to(stored), given_to(ONE)))


def test_repetition_of_an_earlier_message_is_not_out_of_order() -> None:
    assert not violations(history(*sent(ONE, TWO), given_to(ONE), given_to(TWO), given_to(ONE), given_to(TWO)))


def test_inversion_is_found_also_where_it_is_repeated_in_order() -> None:
    assert violations(history(*sent(ONE, TWO), given_to(TWO), given_to(ONE), given_to(ONE), given_to(TWO)))


def test_unacknowledged_message_may_come_late() -> None:
    assert not violations(history(Sent(0, FIRST), *sent(TWO), given_to(TWO), given_to(ONE)))


def test_shared_subscription_has_no_order() -> None:
    events = (*sent(ONE, TWO), given_to(TWO, QUEUE), given_to(ONE, QUEUE))
    assert not violations(history(*events, subscriptions=(QUEUE,)))


def test_message_must_not_come_back_once_its_acknowledgement_was_confirmed() -> None:
    found = only(violations(history(*sent(ONE), given_to(ONE), *acked(ONE), given_to(ONE, consumer="c1"))))
    assert found.startswith("p0/k0/0 at 7:0 came back to c1 of stream, 0.010 s after its acknowledgement by c0")


def test_message_may_come_back_before_its_acknowledgement_is_confirmed() -> None:
    told, confirmed = acked(ONE)
    assert not violations(history(*sent(ONE), given_to(ONE), told, given_to(ONE), confirmed))


def test_acknowledgements_of_one_subscription_are_nothing_to_another() -> None:
    events = (*sent(ONE), given_to(ONE), *acked(ONE), given_to(ONE, QUEUE))
    assert not violations(history(*events, subscriptions=(STREAM, QUEUE)))


def test_shared_message_may_have_been_on_its_way_when_another_consumer_acknowledged_it() -> None:
    events = [*sent(ONE), given_to(ONE, QUEUE), *acked(ONE, QUEUE)]
    soon = history(*events, given_to(ONE, QUEUE, "c1"), subscriptions=(QUEUE,))
    assert not violations(soon)
    last = msgspec.structs.replace(soon.events[-1], at=soon.events[-2].at + ON_THE_WAY + 0.001)
    assert "came back" in only(violations(History(soon.subscriptions, (*soon.events[:-1], last))))


def test_shared_message_does_not_come_to_who_asked_after_its_acknowledgement_was_confirmed() -> None:
    events = [*sent(ONE), given_to(ONE, QUEUE), *acked(ONE, QUEUE)]
    confirmed_at = history(*events).events[-1].at
    for asked_at, is_fault in ((confirmed_at - 0.001, False), (confirmed_at + 0.001, True)):
        found = violations(history(*events, given_to(ONE, QUEUE, "c1", asked_at), subscriptions=(QUEUE,)))
        assert ["came back" in text for text in found] == [True] * is_fault


@pytest.mark.parametrize("subscription", [STREAM, QUEUE])
def test_message_does_not_come_twice_in_one_stay(subscription: Subscription) -> None:
    twice = [given_to(ONE, subscription, asked_at=0.5), given_to(ONE, subscription, asked_at=0.5)]
    found = violations(history(*sent(ONE), *twice, subscriptions=(subscription,)))
    assert only(found) == f"p0/k0/0 at 7:0 came to c0 of {subscription.name} twice in a row"
    again = msgspec.structs.replace(twice[1], asked_at=0.6)
    assert not violations(history(*sent(ONE), twice[0], again, subscriptions=(subscription,)))


def test_key_is_not_given_to_two_consumers_at_once() -> None:
    first, second = given_to(ONE, KEYS, "c0", 0.5), given_to(TWO, KEYS, "c1", 0.5)
    ack = AckSent(0, KEYS.name, "c0", ONE.place, 0.5)
    found = only(violations(history(*sent(ONE, TWO), first, second, ack, subscriptions=(KEYS,))))
    assert found == "p0/k0/1 at 7:1 came to c1 of keys while c0 had p0/k0/0 at 7:0 of the same key"
    assert not violations(history(*sent(ONE, TWO), first, ack, second, subscriptions=(KEYS,)))


def test_key_may_be_with_another_consumer_once_its_holder_lost_its_place() -> None:
    first, second = given_to(ONE, KEYS, "c0", 0.5), given_to(TWO, KEYS, "c1", 0.5)
    in_another_stay = AckSent(0, KEYS.name, "c0", ONE.place, 0.6)
    assert not violations(history(*sent(ONE, TWO), first, second, in_another_stay, subscriptions=(KEYS,)))


def test_key_is_free_when_its_messages_are_acknowledged_by_whoever_had_them_before() -> None:
    """An acknowledgement that is sent again to another owner counts there, whoever was given the message since."""
    late = AckSent(0, KEYS.name, "c1", ONE.place, 0.1)
    again, ack = given_to(ONE, KEYS, "c0", 0.5), AckSent(0, KEYS.name, "c0", ONE.place, 0.5)
    after = given_to(TWO, KEYS, "c1", 0.6)
    before = (*sent(ONE, TWO), given_to(ONE, KEYS, "c1", 0.1))
    assert not violations(history(*before, late, again, after, ack, subscriptions=(KEYS,)))
    assert "while c0 had" in only(violations(history(*before, again, after, ack, late, subscriptions=(KEYS,))))


def test_who_takes_turns_may_take_what_it_had_in_hand_but_not_what_it_asks_for_after() -> None:
    first, other = given_to(ONE, TURNS, "c1", 0.0), given_to(ONE, TURNS, "c0", 0.01)
    confirmed = (*sent(ONE), other, *acked(ONE, TURNS, "c0"))
    assert not violations(history(*confirmed, first, subscriptions=(TURNS,)))
    assert not violations(history(*sent(ONE), first, first, subscriptions=(TURNS,)))
    anew = given_to(ONE, TURNS, "c1", 1.0)
    assert "came back to c1" in only(violations(history(*confirmed, anew, subscriptions=(TURNS,))))


def test_keys_are_in_order_within_a_log_and_not_across_logs() -> None:
    elsewhere = Stored(SECOND, Place(8, 0))
    both = (*sent(ONE, TWO), given_to(TWO, KEYS), given_to(ONE, KEYS))
    assert "came to c0 of keys after" in only(violations(history(*both, subscriptions=(KEYS,))))
    apart = (*sent(ONE, elsewhere), given_to(elsewhere, KEYS), given_to(ONE, KEYS))
    assert not violations(history(*apart, subscriptions=(KEYS,)))


def taken(*stored: Stored) -> list[AnyEvent]:
    return [event for it in stored for event in (given_to(it, QUEUE, asked_at=0.5), *acked(it, QUEUE))]


def moved(place: Place | None) -> Sought:
    return Sought(0, QUEUE.name, "c0", place)


def test_everything_comes_again_after_a_move_to_the_beginning() -> None:
    before = (*sent(ONE, TWO), *taken(ONE, TWO), moved(None))
    assert not violations(history(*before, *taken(ONE, TWO), subscriptions=(QUEUE,)))
    found = only(violations(history(*before, *taken(TWO), subscriptions=(QUEUE,))))
    assert found == "p0/k0/0 at 7:0 never came to queue again after it was moved before that"


def test_move_to_a_message_leaves_alone_what_is_behind_it_and_elsewhere() -> None:
    last = Stored(Message("p0", "k0", 9), Place(7, 2))
    before = (*sent(ONE, TWO, last, THREE), *taken(ONE, TWO, last, THREE), moved(TWO.place))
    assert not violations(history(*before, *taken(TWO, last), subscriptions=(QUEUE,)))
    assert not violations(history(*before, *taken(last), subscriptions=(QUEUE,)))
    assert "p0/k0/9 at 7:2 never came to queue again" in only(violations(history(*before, subscriptions=(QUEUE,))))
    for untouched in (ONE, THREE):
        again = given_to(untouched, QUEUE, asked_at=9.0)
        found = violations(history(*before, *taken(last), again, subscriptions=(QUEUE,)))
        assert f"{untouched.message} at {untouched.place} came back" in only(found)


def test_store_that_went_back_may_forget_what_it_confirmed_since_and_nothing_else() -> None:
    other = Stored(OTHER, TWO.place)
    events = history(
        *sent(ONE),
        given_to(ONE),
        *acked(ONE),
        *sent(TWO),
        WentBack(0, 0),
        *sent(TWO)[1:],  # its receipt was on its way, and is so until all begins anew
        Anew(0),
        *sent(other),
        given_to(other),
    ).events
    back = next(number for number, event in enumerate(events) if isinstance(event, WentBack))
    to = (events[back - 3].at + events[back - 2].at) / 2  # before TWO was sent
    whole = (*events[:back], msgspec.structs.replace(events[back], to=to), *events[back + 1 :])
    assert not violations(History((STREAM,), whole))
    returned = msgspec.structs.replace(given_to(ONE), at=whole[-1].at + 1)
    assert "came back" in only(violations(History((STREAM,), (*whole, returned))))
    another = Stored(Message("p1", "k0", 0), THREE.place)
    unseen = [msgspec.structs.replace(event, at=whole[-1].at + 1) for event in sent(another)]
    assert "never came to stream" in only(violations(History((STREAM,), (*whole, *unseen))))


def test_two_messages_with_one_receipt() -> None:
    twin = Stored(OTHER, ONE.place)
    found = violations(history(*sent(ONE, twin), given_to(ONE)))
    assert "7:0 is the place of p0/k0/0 and of p0/k1/2" in found


def test_id_that_is_delivered_as_another_message() -> None:
    found = violations(history(*sent(ONE, THREE), given_to(ONE), given_to(THREE), given_to(Stored(OTHER, ONE.place))))
    assert "7:0 is the place of p0/k0/0 and of p0/k1/2" in found


def test_receipt_of_a_message_that_is_nowhere() -> None:
    found = violations(history(*sent(ONE), subscriptions=(STREAM, QUEUE)))
    assert found == [f"p0/k0/0 was stored at 7:0 and never came to {name}" for name in ("stream", "queue")]


def test_message_that_stands_in_one_log_twice() -> None:
    again = Stored(FIRST, Place(7, 5))
    found = only(violations(history(*sent(ONE), given_to(ONE), given_to(again))))
    assert found == "p0/k0/0 stands in one log twice, at 7:0 and at 7:5"


def test_message_that_was_sent_on_to_the_next_segment_may_stand_in_both() -> None:
    again = Stored(FIRST, Place(8, 5))
    assert not violations(history(*sent(again), given_to(ONE), given_to(again)))


def test_message_that_nobody_sent() -> None:
    assert "was never sent" in only(violations(history(given_to(ONE))))
    assert "has a receipt and was never sent" in violations(history(Receipt(0, FIRST, ONE.place), given_to(ONE)))[0]


def test_history_is_the_same_after_it_was_saved(tmp_path: Path) -> None:
    batch = Stored(OTHER, Place(8, 0, 3))
    whole = history(
        *sent(ONE, batch),
        Failed(0, SECOND, "timed out"),
        Fault(0, "node 1 is killed"),
        given_to(ONE, QUEUE),
        *acked(batch),
        subscriptions=(STREAM, QUEUE),
    )
    whole.save(tmp_path / "history")
    assert History.load(tmp_path / "history") == whole


# Histories as they should be, made at random, and one thing done to each.


@st.composite
def faultless(draw: st.DrawFn) -> History:
    """A few messages of two producers and three keys in two logs, delivered in log order, acknowledged now and then."""
    keys = draw(st.lists(st.sampled_from(["k0", "k1", "k2"]), min_size=3, max_size=12))
    stored = [
        Stored(Message(draw(st.sampled_from(["p0", "p1"])), key, number), Place(1 + number // 6, number % 6))
        for number, key in enumerate(keys)
    ]
    events = sent(*stored)
    for subscription in (STREAM, QUEUE):
        for position, it in enumerate(stored):
            # What is not acknowledged yet may come again before the next one.
            start = draw(st.integers(min_value=max(0, position - 2), max_value=position))
            events += [given_to(again, subscription) for again in stored[start:position]]
            events.append(given_to(it, subscription))
        events += [event for it in stored for event in acked(it, subscription)]
    return history(*events, subscriptions=(STREAM, QUEUE))


def without(whole: History, predicate: Callable[[AnyEvent], bool]) -> History:
    return History(whole.subscriptions, tuple(event for event in whole.events if not predicate(event)))


def with_last(whole: History, event: AnyEvent) -> History:
    late = msgspec.structs.replace(event, at=whole.events[-1].at + ON_THE_WAY + 1)
    return History(whole.subscriptions, (*whole.events, late))


@given(faultless())
def test_faultless_histories_have_no_violations(whole: History) -> None:
    assert violations(whole) == []


@given(faultless(), st.data(), st.sampled_from([STREAM, QUEUE]))
def test_every_lost_message_is_found(whole: History, data: st.DataObject, subscription: Subscription) -> None:
    victim = data.draw(st.sampled_from([event.message for event in whole.events if isinstance(event, Sent)]))
    thinned = without(
        whole,
        lambda event: (
            isinstance(event, Delivered) and event.message == victim and event.subscription == subscription.name
        ),
    )
    assert any(f"{victim} was stored" in text and subscription.name in text for text in violations(thinned))


@given(faultless(), st.data(), st.sampled_from([STREAM, QUEUE]))
def test_every_message_that_comes_back_is_found(
    whole: History, data: st.DataObject, subscription: Subscription
) -> None:
    again = data.draw(
        st.sampled_from([e for e in whole.events if isinstance(e, Delivered) and e.subscription == subscription.name])
    )
    assert f"{again.message} at {again.place} came back" in only(violations(with_last(whole, again)))


@given(faultless(), st.data())
def test_every_first_delivery_that_is_late_is_found(whole: History, data: st.DataObject) -> None:
    """All deliveries of one message are put behind one of a later message of its key."""
    messages = [event.message for event in whole.events if isinstance(event, Sent)]
    pairs = [
        (early, late)
        for early in messages
        for late in messages
        if (early.producer, early.key) == (late.producer, late.key) and early.number < late.number
    ]
    if not pairs:
        return
    early, late = data.draw(st.sampled_from(pairs))

    def concerns(event: AnyEvent, message: Message) -> bool:
        return isinstance(event, Delivered) and event.message == message and event.subscription == STREAM.name

    [moved, *_] = [event for event in whole.events if concerns(event, early)]
    rest = without(whole, lambda event: concerns(event, early))
    after = next(number for number, event in enumerate(rest.events) if concerns(event, late)) + 1
    moved = msgspec.structs.replace(moved, at=rest.events[after - 1].at)
    planted = History(whole.subscriptions, (*rest.events[:after], moved, *rest.events[after:]))
    assert any(text.startswith(f"{early} at") and f"after {late}" in text for text in violations(planted))


@given(faultless(), st.data())
def test_every_id_that_two_messages_share_is_found(whole: History, data: st.DataObject) -> None:
    deliveries = [event for event in whole.events if isinstance(event, Delivered)]
    one, other = data.draw(st.sampled_from(deliveries)), data.draw(st.sampled_from(deliveries))
    if one.message == other.message:
        return
    planted = with_last(whole, msgspec.structs.replace(one, place=other.place))
    assert any(text.startswith(f"{other.place} is the place of") for text in violations(planted))


def test_long_histories_are_read_a_fixed_number_of_times() -> None:
    """Or a run of a few seconds would take minutes to check: this one has as many messages as many of those."""
    many = [Stored(Message("p0", "k0", number), Place(7, number)) for number in range(20_000)]
    events = [it for stored in many for it in (*sent(stored), given_to(stored), *acked(stored))]
    assert not violations(history(*events))
