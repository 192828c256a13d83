"""The topic-set hash and the key hash, against values that other implementations computed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.hashing import bucket_hash, murmur3_32, segment_hash, topic_set_hash
from tests.protocol import vectors

ORDERS = "topic://public/default/orders"
AUDIT = "topic://public/default/audit"
CAFE = "topic://public/default/café"
PATTERN = "persistent://my-property/my-ns/pattern-topic-"


@pytest.mark.parametrize("row", vectors.lines("topic_set_hash.jsonl"), ids=lambda row: row["hash"])
def test_recorded_topic_sets_have_their_hash(row: dict[str, Any]) -> None:
    assert topic_set_hash(row["topics"]) == row["hash"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], "00000000"),
        ([ORDERS], "b5c724e3"),
        ([ORDERS, AUDIT], "e45546d9"),
        ([AUDIT, ORDERS], "e45546d9"),
        ([CAFE], "a16b0404"),
        (["topic://public/default/日本語", ORDERS, CAFE], "d8e26a6c"),
        (["topic://t/n/a", "topic://t/n/B", "topic://t/n/a-1", "topic://t/n/a1"], "81a2defd"),
        ([f"topic://t/n/topic-{index}" for index in range(1000)], "4a37fd66"),
        ([f"{PATTERN}{index}" for index in (3, 2, 1)], "90d4a04a"),
        ([f"{PATTERN}1"], "0d0602ed"),
    ],
)
def test_known_topic_sets_have_their_hash(names: list[str], expected: str) -> None:
    assert topic_set_hash(names) == expected


def test_names_sort_by_utf16_units_and_not_by_code_points() -> None:
    names = ["topic://t/n/\uff5e", "topic://t/n/\U0001f600"]
    assert sorted(names) == names
    assert topic_set_hash(names) == "6c130c11"


def test_name_that_occurs_twice_counts_twice() -> None:
    assert topic_set_hash([ORDERS, ORDERS]) == "5141e83a"


def test_comma_in_a_name_collides_with_two_names() -> None:
    joined = topic_set_hash(["topic://t/n/x,topic://t/n/y"])
    assert joined == topic_set_hash(["topic://t/n/x", "topic://t/n/y"]) == "c49a9c25"


@given(st.lists(st.text(st.characters(exclude_categories=()))))
def test_any_strings_have_a_hash_that_ignores_their_order(names: list[str]) -> None:
    assert topic_set_hash(names) == topic_set_hash(reversed(names))
    assert len(topic_set_hash(names)) == 8


@pytest.mark.parametrize("row", vectors.lines("key_hash.jsonl"), ids=lambda row: row["key"])
def test_recorded_keys_have_their_hash(row: dict[str, Any]) -> None:
    key = row["key"].encode()
    assert murmur3_32(key) == row["murmur3_32"]
    assert segment_hash(key) == row["segment_hash"]
    assert bucket_hash(key) == row["bucket_hash"]


@given(st.binary())
def test_segment_and_bucket_use_the_two_halves_of_the_hash(key: bytes) -> None:
    assert segment_hash(key) << 16 | bucket_hash(key) == murmur3_32(key)
    assert 0 <= murmur3_32(key) < 2**32


def test_hash_of_a_long_key_takes_no_more_steps_in_python_than_that_of_a_short_one() -> None:
    assert _steps(b"k" * 1_000_000) == _steps(b"k")


def _steps(key: bytes) -> int:
    """Lines and calls that hashing a key takes."""
    events: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        events.append(event)
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        murmur3_32(key)
    finally:
        sys.settrace(before)
    return len(events)
