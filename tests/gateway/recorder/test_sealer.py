"""Logs that are sealed by children: one that cannot be sealed costs no other, and is told once."""

import logging
import time
from pathlib import Path

import pytest

from gateway.recorder.losses import Losses
from gateway.recorder.sealer import Sealer
from metadata.traces.directories import log_name, open_trace
from tests.metadata.traces.made_traces import changes, overwrite, record, seqs
from tests.support.waiting import wait_until

# Generous, because a child takes seconds to start where others use the cores.
LIMIT_S = 60.0


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three logs, of which the first cannot be read: a directory has its name."""
    trace = record(tmp_path / "trace", changes(0, 5), changes(5, 5), changes(10, 5), sealed=0)
    (trace / log_name(1)).rename(tmp_path / "log")
    (trace / log_name(1)).mkdir()
    return trace


def logs(trace: Path) -> list[Path]:
    return [trace / log_name(number) for number in (1, 2, 3)]


def test_logs_behind_one_that_cannot_be_sealed_are_sealed_meanwhile(
    trace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sealer = Sealer(trace, logs(trace))

    def go_on() -> bool:
        sealer.go_on(time.monotonic(), Losses())
        return not sealer.busy

    wait_until(lambda: not go_on() and len(open_trace(trace).files) == 2 and sealer.failures >= 2, LIMIT_S)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "part-000001.log could not be sealed and will be tried again: " in caplog.text
    (trace / log_name(1)).rmdir()
    (trace.parent / "log").rename(trace / log_name(1))
    wait_until(go_on, LIMIT_S)
    assert seqs(trace) == list(range(15))


def test_at_the_end_every_log_is_tried_once_more_and_what_is_left_is_told(
    trace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sealer = Sealer(trace, logs(trace))
    sealer.finish(Losses(7, 3), LIMIT_S)
    assert sealer.failures == 1
    assert [file.name for file in open_trace(trace).files] == ["part-000002.parquet", "part-000003.parquet"]
    manifest = open_trace(trace).manifest
    assert (manifest.dropped, manifest.values_missing) == (7, 3)
    assert f"1 parts are left unsealed: run vela trace seal {trace}" in caplog.text


def test_a_damaged_log_is_told_with_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = record(tmp_path, changes(0, 5), sealed=0)
    overwrite(trace / log_name(1), 300, b"\xff")
    sealer = Sealer(trace, [trace / log_name(1)])
    sealer.finish(Losses(), LIMIT_S)
    assert (sealer.busy, sealer.failures) == (False, 0)
    [told] = caplog.records
    assert (told.levelno, told.getMessage()) == (
        logging.WARNING,
        open_trace(trace).manifest.damaged[0].sentence(trace),
    )
