"""Records for the store: those of a trace as they are, and made ones that a server cannot tell from real ones."""

from __future__ import annotations

import pytest

from layout import records as stored
from layout.layouts import Layout
from spark.replay import records


def test_recorded_value_is_written_as_it_is() -> None:
    layout = Layout.create(2, 1_700_000_000_000).split(0, 1_700_000_000_001)
    value = stored.encode(stored.TopicRecord(layout, {"team": "blue"}))
    record = records.recorded(value)
    assert record == records.Record(value, 1, ("0000-7fff-0", "8000-ffff-1", "0000-3fff-2", "4000-7fff-3"))


@pytest.mark.parametrize("value", [b"", b"{}", b"\xff", b'{"epoch":1}'])
def test_value_that_is_no_record_is_found_out(value: bytes) -> None:
    assert records.recorded(value) is None


@pytest.mark.parametrize("epoch", [*range(25), 1_000_003])
def test_made_record_is_valid_at_any_epoch(epoch: int) -> None:
    record = records.made(epoch, 1_700_000_000_000)
    layout = stored.decode(record.value).layout
    layout.validate()
    assert layout == records.made_layout(epoch, 1_700_000_000_000)
    assert layout.epoch == record.epoch == epoch
    assert record.descriptors == tuple(segment.descriptor for segment in layout.segments.values())
    assert {segment.created_at_ms for segment in layout.segments.values()} == {1_700_000_000_000}


@pytest.mark.parametrize("epoch", range(12))
def test_each_made_layout_is_one_transition_from_the_last(epoch: int) -> None:
    before, after = records.made_layout(epoch, 7), records.made_layout(epoch + 1, 7)
    active = [segment.segment_id for segment in before.active]
    sealed = [number for number, segment in before.segments.items() if not segment.is_active]
    if sealed:
        expected = before.prune(sealed[0])
    elif len(active) == 2:
        expected = before.merge(active[0], active[1], 7)
    else:
        expected = before.split(active[0], 7)
    assert after == expected


def test_made_records_do_not_grow_with_the_epoch() -> None:
    assert len(records.made(1_000_000, 1).value) < 2 * len(records.made(3, 1).value)
