"""How the delays between attempts grow."""

import pytest

from protocol.backoff import Backoff


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(first=0.1, longest=30, random=lambda: 0)
    delays = [backoff.next() for _ in range(11)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])


def test_a_delay_is_shortened_by_at_most_half() -> None:
    backoff = Backoff(first=0.1, longest=30, random=lambda: 1)
    assert [backoff.next(), backoff.next()] == pytest.approx([0.05, 0.1])


def test_a_reset_begins_with_the_first_delay_again() -> None:
    backoff = Backoff(first=0.1, longest=30, random=lambda: 0)
    backoff.next()
    backoff.next()
    backoff.reset()
    assert backoff.next() == pytest.approx(0.1)


def test_it_is_fresh_until_something_failed_and_again_after_a_success() -> None:
    backoff = Backoff(1, 8)
    assert backoff.fresh
    backoff.next()
    assert not backoff.fresh
    backoff.reset()
    assert backoff.fresh
