"""Whatever bytes stand where a value should be: it is read, or typed as damage, and nothing else is ever raised."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata import log_figures
from metadata.change_log import heard_of
from metadata.classic_records import LOG_FIELDS, PARTITIONED_FIELDS, log_of, partitioned_of
from metadata.cursor_requests import requests_in
from metadata.errors import RecordDamaged
from metadata.index_entries import index_entries
from metadata.log_places import LogPlace
from metadata.log_states import opened, state_of
from metadata.records import Leader
from metadata.stored_values import MAX_LONG, number
from metadata.subscriptions import assignment_of, consumer_of, identity_of, settings_of, subscription_of
from protocol.names import NamespaceName, TopicName

TOPIC = TopicName.classic("public", "default", "orders")
PLACE = LogPlace.of_classic(TOPIC)
NAMESPACE = NamespaceName("public", "default")

HUGE = b"9" * 40
DAMAGED = (
    b"",
    b"\xff\xfe",
    b"{",
    b"[]",
    b"{}",
    b"null",
    b"-7",
    HUGE,
    b"9" * 5_000,
    b"[" * 20_000,
    b'{"epoch":%b}' % HUGE,
    b'{"epoch":1,"segments":[[1,-1,2]]}',
    b"nan",
    b"1e400",
    b'{"id":"\\ud800"}',
)
anything = st.one_of(st.sampled_from(DAMAGED), st.binary(max_size=24))
_LOG_STATE = (
    b"incarnation",
    b"state",
    b"owner",
    b"term",
    b"ledger",
    b"first",
    b"next",
    b"size",
    b"epoch",
    b"request:s",
)


@pytest.mark.parametrize("text", [b"-1", HUGE, b"9" * 5_000, b"", b"x", b"1.5", b"\xff"])
def test_what_is_no_count_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        number(text)


def test_the_largest_count_is_that_of_a_java_long() -> None:
    assert number(str(MAX_LONG).encode()) == MAX_LONG
    with pytest.raises(ValueError):
        number(MAX_LONG + 1)


@given(st.dictionaries(st.sampled_from(_LOG_STATE), anything))
def test_the_state_of_a_log_is_read_or_damaged(fields: Mapping[bytes, bytes]) -> None:
    try:
        state = state_of(PLACE, fields)
    except RecordDamaged:
        return
    if state is not None:
        assert 0 <= state.first <= state.next <= MAX_LONG


@given(st.dictionaries(anything, anything), st.dictionaries(anything, anything))
def test_what_a_claim_hands_over_is_read_or_damaged(cursors: dict[bytes, bytes], producers: dict[bytes, bytes]) -> None:
    def flat(entries: Mapping[bytes, bytes]) -> list[bytes]:
        return [part for pair in entries.items() for part in pair]

    state = {b"incarnation": b"i", b"state": b"ACTIVE", b"ledger": b"7"}
    try:
        opened(PLACE, "s", 1, flat(state), flat(cursors), flat(producers))
    except RecordDamaged:
        pass


@given(
    anything,
    st.dictionaries(
        st.sampled_from((b"generation", b"drained", b"c:x", b"a:x", b"position", b"e:1", b"e:x")), anything
    ),
)
def test_a_subscription_is_read_or_is_none(entry: bytes, fields: Mapping[bytes, bytes]) -> None:
    for kind in (b"STREAM ", b""):
        subscription_of("s", kind + entry, fields)
        settings_of(kind + entry)
        identity_of(kind + entry)


@given(anything, anything)
def test_a_consumer_with_a_damaged_attachment_is_nobodys_and_its_assignment_is_made_anew(
    attached: bytes, assigned: bytes
) -> None:
    consumer_of("c", attached, assigned)
    assignment = assignment_of(assigned)
    if assignment is not None:
        assert 0 <= assignment.epoch <= MAX_LONG
    Leader.parse(assigned)
    log_figures.decode(assigned, 0)
    requests_in({b"request:s": assigned, b"request:\xff": attached})


@given(st.lists(st.none() | anything, min_size=len(PARTITIONED_FIELDS), max_size=len(PARTITIONED_FIELDS)))
def test_a_classic_topic_is_read_or_damaged(values: list[bytes | None]) -> None:
    found = partitioned_of(TOPIC, values)
    if found is not None and not isinstance(found, RecordDamaged):
        assert 0 < found.partitions <= 1_000_000
    log_of(TOPIC, values[: len(LOG_FIELDS)])


@given(st.dictionaries(anything | st.sampled_from((b"a/b", b" -partition-0", b"..")), anything))
def test_what_an_index_of_classic_topics_lists_can_be_named(found: dict[bytes, bytes]) -> None:
    for name in index_entries(0, NAMESPACE, found, classic=True):
        assert TopicName.classic("public", "default", name).base
    for name in index_entries(0, NAMESPACE, found):
        assert TopicName.scalable("public", "default", name)


@given(st.lists(st.lists(anything, min_size=2, max_size=2), max_size=4))
def test_an_entry_of_a_change_log_is_heard_or_is_a_value_error(pairs: list[list[bytes]]) -> None:
    fields = [part for pair in pairs for part in pair]
    with pytest.raises(ValueError):
        heard_of([[b"1-1", fields]])
    heard = heard_of([[b"1-1", [*fields, b"topic", b"public/default/orders"]]]) if b"topic" not in fields else None
    assert heard is None or list(heard.changed) == ["public/default/orders"]
