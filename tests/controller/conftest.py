"""How often leaders ask in tests that wait for what they are told."""

from __future__ import annotations

import pytest

import controller.leader


@pytest.fixture
def ask_segments_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders ask several times within what a test waits, not every now and then."""
    monkeypatch.setattr(controller.leader, "_POLL_INTERVAL", 0.05)
