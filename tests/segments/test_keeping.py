"""What of a log stays."""

from __future__ import annotations

import pytest

from segments.keeping import Keeping, OverQuota, Quota, fits_from, needed_from, trim_below, waiting_bytes

ANY = Quota()


def test_log_is_needed_from_the_slowest_subscription_on() -> None:
    assert needed_from([9, 4, 7], 20) == 5
    assert needed_from([], 20) == 20


@pytest.mark.parametrize(
    ("needed", "young", "below"),
    [
        (5, 20, 5),  # the rest is not consumed
        (20, 8, 8),  # the rest is young
        (2, 20, 3),  # the beginning is gone already
        (20, 30, 20),  # everything
    ],
)
def test_only_what_is_old_and_consumed_goes(needed: int, young: int, below: int) -> None:
    assert trim_below(first=3, end=20, needed=needed, young=young, size=1_000, quota=ANY) == below


def test_evicting_quota_takes_the_oldest_although_it_is_needed() -> None:
    quota = Quota(600, OverQuota.EVICT)
    assert trim_below(first=0, end=100, needed=0, young=0, size=1_000, quota=quota) == 40


def test_what_is_consumed_counts_towards_no_quota() -> None:
    quota = Quota(600, OverQuota.EVICT)
    assert waiting_bytes(first=0, end=100, needed=60, size=1_000) == 400
    assert trim_below(first=0, end=100, needed=60, young=10, size=1_000, quota=quota) == 10
    assert trim_below(first=0, end=100, needed=20, young=10, size=1_000, quota=quota) == 40
    assert waiting_bytes(first=100, end=100, needed=100, size=0) == 0


def test_refusing_quota_takes_nothing() -> None:
    quota = Quota(600, OverQuota.REFUSE)
    assert quota.is_exceeded(601)
    assert not quota.is_exceeded(600)
    assert trim_below(first=0, end=100, needed=0, young=0, size=1_000, quota=quota) == 0


def test_no_quota_is_never_exceeded() -> None:
    assert not ANY.is_exceeded(10**15)


@pytest.mark.parametrize(
    ("limit", "fits"),
    [
        (-1, 10),  # no limit
        (1_000, 10),  # all of it
        (999, 11),  # what fits in part does not fit
        (250, 85),
        (5, 110),  # not even one
        (0, 110),
    ],
)
def test_a_log_fits_its_size_from_an_entry_on(limit: int, fits: int) -> None:
    assert fits_from(first=10, end=110, size=1_000, limit=limit) == fits


def test_an_empty_log_fits_any_size() -> None:
    assert fits_from(first=7, end=7, size=0, limit=0) == 7


def test_what_stays_at_least_stays_longer_than_a_shorter_retention() -> None:
    assert Keeping(5, at_least_ms=10).longest_ms == 10
    assert Keeping(15, at_least_ms=10).longest_ms == 15
    assert Keeping(-1, at_least_ms=10).longest_ms == -1
