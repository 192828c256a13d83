"""Sets of buckets behave as sets do, and cost what a number costs."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from metadata import keys
from sessions.bucket_sets import BucketSet

BUCKETS = st.integers(0, keys.BUCKETS - 1)
STEPS = st.lists(st.tuples(st.sampled_from(["add", "discard", "update", "difference_update"]), BUCKETS, BUCKETS))


@given(st.lists(BUCKETS), STEPS)
def test_it_holds_what_a_set_would_hold(first: list[int], steps: Iterable[tuple[str, int, int]]) -> None:
    ours, plain = BucketSet(first), set(first)
    for name, bucket, other in steps:
        for kind in (ours, plain):
            getattr(kind, name)(bucket if name in ("add", "discard") else range(min(bucket, other), max(bucket, other)))
    assert list(ours) == sorted(plain)
    assert (len(ours), bool(ours)) == (len(plain), bool(plain))
    assert all((bucket in ours) == (bucket in plain) for bucket in range(keys.BUCKETS))


def test_the_whole_holds_every_bucket() -> None:
    assert list(BucketSet.whole()) == list(range(keys.BUCKETS))
