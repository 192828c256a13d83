"""What is wrong in the store is said once, and what concerns all of it by nobody but the feed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from metadata.complaints import complain, forget_complaints, note_waiting
from metadata.errors import RecordDamaged, StoreLost, StoreUnavailable, WritesRefused

log = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    forget_complaints()
    yield
    forget_complaints()


def test_the_same_is_said_once_and_something_else_as_well(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        complain(log, "%s is damaged", "a")
        complain(log, "%s is damaged", "b")
    assert caplog.messages == ["a is damaged", "b is damaged"]


def test_what_was_said_long_ago_is_said_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    complain(log, "damaged")
    monkeypatch.setattr("metadata.complaints._SILENCE", 0.0)
    complain(log, "damaged")
    assert len(caplog.messages) == 2


def test_as_much_is_remembered_as_there_is_room_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.complaints._MOST", 2)
    for name in "abca":
        complain(log, "%s", name)
    assert caplog.messages == ["a", "b", "c", "a"]


@pytest.mark.parametrize("kind", [StoreLost, StoreUnavailable, WritesRefused])
def test_trouble_of_the_whole_store_is_not_said_by_each_who_waits(
    kind: type[StoreLost], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number in range(3):
        note_waiting(log, kind("away"), "log %d waits", number)
    assert not caplog.messages
    note_waiting(log, RecordDamaged("damaged"), "log %d waits", 1)
    assert caplog.messages == ["log 1 waits: damaged"]
