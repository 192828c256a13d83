"""Which notification belongs to which entry of a log."""

from metadata.arrivals import Arrivals


def rung(*times: float, bucket: int = 3) -> Arrivals:
    arrivals = Arrivals()
    for at in times:
        arrivals.ring(bucket, at)
    return arrivals


def test_bells_are_given_to_entries_in_their_order() -> None:
    assert list(rung(1.0, 2.0).take(3, 2, waited=2, to_the_end=True)) == [1.0, 2.0]


def test_bells_that_came_during_the_read_are_left_for_later_entries() -> None:
    arrivals = rung(1.0, 2.0, 3.0)
    assert list(arrivals.take(3, 2, waited=1, to_the_end=True)) == [1.0, 2.0]
    assert list(arrivals.take(3, 1, waited=1, to_the_end=True)) == [3.0]


def test_an_entry_whose_bell_was_lost_has_no_arrival() -> None:
    assert list(rung(2.0).take(3, 2, waited=1, to_the_end=True)) == [None, 2.0]
    assert list(Arrivals().take(3, 1, waited=0, to_the_end=True)) == [None]


def test_bells_of_what_was_taken_in_otherwise_do_not_shift_later_ones() -> None:
    arrivals = rung(1.0, 2.0)
    assert list(arrivals.take(3, 1, waited=2, to_the_end=True)) == [2.0]


def test_a_read_that_stops_at_its_limit_leaves_the_bells_of_the_rest() -> None:
    arrivals = rung(1.0, 2.0, 3.0)
    assert list(arrivals.take(3, 2, waited=3, to_the_end=False)) == [1.0, 2.0]
    assert arrivals.waiting(3) == 1


def test_buckets_do_not_share_bells_and_can_be_forgotten() -> None:
    arrivals = rung(1.0)
    assert arrivals.waiting(4) == 0
    arrivals.forget([3, 4])
    assert list(arrivals.take(3, 1, waited=0, to_the_end=True)) == [None]
