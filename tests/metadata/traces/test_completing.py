"""Logs that are made complete: what a crash leaves of that, and what becomes of damaged ones."""

from pathlib import Path

import pytest

from metadata.traces.completing import Sealing, seal_log, seal_logs
from metadata.traces.directories import log_name, open_trace
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.log_files import MAGIC, encode
from metadata.traces.manifest import Damage, read_manifest
from metadata.traces.parquet_files import write_part
from metadata.traces.summary import summarise
from tests.metadata.traces.made_traces import changes, overwrite, record, seqs, start


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three parts of ten events, the last of them unfinished."""
    parts = [changes(first, 10) for first in (0, 10, 20)]
    return record(tmp_path / "trace", *parts, sealed=2)


def test_sealing_gives_complete_parts_and_their_sum(trace: Path) -> None:
    (part,) = seal_logs(trace).parts
    assert (part.file, part.events) == ("part-000003.parquet", 10)
    assert read_manifest(trace).events == 30
    assert sorted(path.name for path in trace.glob("*.log")) == []
    assert seal_logs(trace) == Sealing()
    assert seqs(trace) == list(range(30))


def test_a_torn_log_is_sealed_without_its_last_event(trace: Path) -> None:
    log = trace / "part-000003.log"
    log.write_bytes(log.read_bytes()[:-3])
    (part,) = seal_logs(trace).parts
    assert part.events == 9


@pytest.mark.parametrize("content", [b"", b"vela-tr", b"vela-trace-log 1\n"])
def test_a_log_without_events_leaves_no_part(trace: Path, content: bytes) -> None:
    (trace / "part-000003.log").write_bytes(content)
    assert seal_logs(trace) == Sealing()
    assert seqs(trace) == list(range(20))
    assert not (trace / "part-000003.log").exists()


def test_a_crash_before_the_part_is_listed_costs_nothing_and_doubles_nothing(trace: Path) -> None:
    write_part(trace / "part-000003.parquet", changes(20, 10))
    assert seqs(trace) == list(range(30))
    assert [part.events for part in seal_logs(trace).parts] == [10]
    assert seqs(trace) == list(range(30))


def test_a_crash_while_the_part_is_written_leaves_nothing_behind_for_long(trace: Path) -> None:
    (trace / ".part-000003.parquet.new").write_bytes(b"PAR1 half of")
    assert seqs(trace) == list(range(30))
    seal_logs(trace)
    assert not list(trace.glob(".part*"))


def test_a_crash_before_the_log_is_removed_costs_nothing_and_doubles_nothing(trace: Path) -> None:
    log = trace / "part-000003.log"
    content = log.read_bytes()
    seal_logs(trace)
    log.write_bytes(content)
    assert seqs(trace) == list(range(30))
    assert open_trace(trace).logs == ()
    assert seal_logs(trace) == Sealing()
    assert not log.exists()


def test_a_log_that_is_sealed_again_after_a_crash_is_listed_once(trace: Path) -> None:
    log = trace / "part-000003.log"
    content = log.read_bytes()
    sealed = seal_log(log)
    for left in (content, None):
        if left is not None:
            log.write_bytes(left)
        assert seal_log(log) == sealed
        assert not log.exists()
        assert seqs(trace) == list(range(30))


def test_sealing_leaves_the_files_of_others_alone(trace: Path) -> None:
    (trace / "part-of-my-notes.log").write_text("mine")
    seal_logs(trace)
    assert (trace / "part-of-my-notes.log").read_text() == "mine"


# Damaged logs.


def frame_start(log: Path, events: list[TraceEvent], number: int) -> int:
    """The byte at which the event of this number begins."""
    assert log.read_bytes().startswith(MAGIC)
    return len(MAGIC) + sum(len(encode(event)) for event in events[:number])


def damage(log: Path, events: list[TraceEvent], number: int) -> int:
    """Make the event of this number unreadable; the byte at which it begins."""
    at = frame_start(log, events, number)
    overwrite(log, at, b"\xff" * 8)
    return at


def gaps(directory: Path) -> list[tuple[int, int, int, str | None]]:
    rows = (row for batch in open_trace(directory).batches() for row in batch.to_pylist())
    return [(row["seq"], row["run"], row["taken_us"], row["detail"]) for row in rows if row["kind"] == Kind.GAP]


@pytest.fixture
def leftovers(tmp_path: Path) -> Path:
    """Four logs of ten events that a killed recorder has left."""
    return record(tmp_path / "leftovers", *(changes(first, 10) for first in (0, 10, 20, 30)), sealed=0)


def test_what_is_whole_before_the_damage_is_sealed_and_so_are_the_logs_behind_it(leftovers: Path) -> None:
    log = leftovers / log_name(2)
    at = damage(log, changes(10, 10), 4)
    content = log.read_bytes()
    sealing = seal_logs(leftovers)
    found = Damage(log.name, "part-000002.log.damaged", len(content), at, 4)
    assert (sealing.damages, sealing.failures) == ([found], [])
    assert [part.events for part in sealing.parts] == [10, 5, 10, 10]
    assert open_trace(leftovers).logs == ()
    assert (leftovers / found.file).read_bytes() == content
    manifest = read_manifest(leftovers)
    assert (manifest.damaged, manifest.events) == ((found,), 35)
    # The gap has the number of the first lost event, and the time of the last one that is known.
    assert seqs(leftovers) == [*range(15), *range(20, 40)]
    assert gaps(leftovers) == [(14, 1, changes(13, 1)[0].taken_us, "damaged")]
    summary = summarise(open_trace(leftovers))
    assert summary.gaps_by_cause == {"damaged": 1}
    assert (summary.faults.seq_breaks, summary.faults.first_break) == (1, 20)
    assert seal_logs(leftovers) == Sealing()


@pytest.mark.parametrize("sealed", [0, 1])
def test_a_log_that_is_damaged_at_its_start_leaves_a_gap_behind_what_comes_before(tmp_path: Path, sealed: int) -> None:
    trace = record(tmp_path, changes(0, 10), changes(10, 10), changes(20, 10), sealed=sealed)
    overwrite(trace / log_name(2), 0, b"\x00\x00")
    [found] = seal_logs(trace).damages
    assert (found.at, found.kept) == (0, 0)
    assert seqs(trace) == [*range(11), *range(20, 30)]
    assert gaps(trace) == [(10, 1, changes(9, 1)[0].taken_us, "damaged")]


def test_a_first_log_that_is_damaged_at_its_start_leaves_a_gap_before_what_follows(leftovers: Path) -> None:
    overwrite(leftovers / log_name(1), len(MAGIC), b"\xff")
    assert [found.at for found in seal_logs(leftovers).damages] == [len(MAGIC)]
    assert gaps(leftovers) == [(9, 1, changes(10, 1)[0].taken_us, "damaged")]
    assert seqs(leftovers) == list(range(9, 40))


def test_a_lone_log_of_which_nothing_is_whole_is_set_aside_without_a_part(tmp_path: Path) -> None:
    trace = record(tmp_path, changes(0, 3), sealed=0)
    overwrite(trace / log_name(1), 0, b"\xff")
    sealing = seal_logs(trace)
    assert (sealing.parts, [found.kept for found in sealing.damages]) == ([], [0])
    assert (open_trace(trace).files, open_trace(trace).logs) == ((), ())
    assert (trace / "part-000001.log.damaged").exists()


def test_two_damaged_logs_in_a_row_have_a_gap_each_with_numbers_of_their_own(leftovers: Path) -> None:
    damage(leftovers / log_name(2), changes(10, 10), 8)
    overwrite(leftovers / log_name(3), 0, b"\xff")
    assert len(seal_logs(leftovers).damages) == 2
    assert seqs(leftovers) == [*range(20), *range(30, 40)]
    assert [seq for seq, *_ in gaps(leftovers)] == [18, 19]


def test_nothing_is_missing_where_the_damage_is_behind_the_last_event(leftovers: Path) -> None:
    log = leftovers / log_name(2)
    log.write_bytes(log.read_bytes() + b"\xff" * 40)
    assert [found.kept for found in seal_logs(leftovers).damages] == [10]
    assert seqs(leftovers) == list(range(40))
    assert gaps(leftovers) == []


def test_a_crash_before_a_damaged_log_is_set_aside_costs_nothing_and_doubles_nothing(leftovers: Path) -> None:
    log = leftovers / log_name(2)
    damage(log, changes(10, 10), 4)
    content = log.read_bytes()
    [found] = seal_logs(leftovers).damages
    before = seqs(leftovers)
    (leftovers / found.file).rename(log)
    assert open_trace(leftovers).logs == ()
    assert seqs(leftovers) == before
    assert seal_logs(leftovers) == Sealing()
    assert (leftovers / found.file).read_bytes() == content
    assert seqs(leftovers) == before


def test_a_crash_before_a_log_without_anything_whole_is_set_aside_costs_nothing(tmp_path: Path) -> None:
    trace = record(tmp_path, changes(0, 3), sealed=0)
    overwrite(trace / log_name(1), 0, b"\xff")
    [found] = seal_logs(trace).damages
    (trace / found.file).rename(trace / log_name(1))
    assert seal_logs(trace) == Sealing()
    assert (trace / found.file).exists()
    assert read_manifest(trace).damaged == (found,)


def test_a_file_that_has_the_name_for_setting_aside_is_not_overwritten(leftovers: Path) -> None:
    (leftovers / "part-000002.log.damaged").write_text("mine")
    damage(leftovers / log_name(2), changes(10, 10), 4)
    assert [found.file for found in seal_logs(leftovers).damages] == ["part-000002.log.damaged-2"]
    assert (leftovers / "part-000002.log.damaged").read_text() == "mine"


def test_a_log_that_is_put_in_the_place_of_a_damaged_one_is_not_removed(leftovers: Path) -> None:
    log = leftovers / log_name(2)
    whole = log.read_bytes()
    damage(log, changes(10, 10), 4)
    seal_logs(leftovers)
    log.write_bytes(whole)
    assert seal_logs(leftovers) == Sealing()
    assert log.read_bytes() == whole


def test_a_log_that_cannot_be_read_now_keeps_no_other_from_being_sealed(leftovers: Path) -> None:
    log = leftovers / log_name(2)
    content = log.read_bytes()
    log.unlink()
    log.mkdir()
    sealing = seal_logs(leftovers)
    assert [part.file for part in sealing.parts] == [f"part-00000{number}.parquet" for number in (1, 3, 4)]
    [failure] = sealing.failures
    assert failure == f"{log} cannot be sealed now: Is a directory."
    log.rmdir()
    log.write_bytes(content)
    assert [part.events for part in seal_logs(leftovers).parts] == [10]
    assert seqs(leftovers) == list(range(40))


def test_the_gap_of_a_damaged_log_belongs_to_the_run_of_what_is_whole(tmp_path: Path) -> None:
    second = [*start(10, run=2), *changes(12, 8)]
    trace = record(tmp_path, changes(0, 10), second, sealed=1, runs=2)
    damage(trace / log_name(2), second, 1)
    seal_logs(trace)
    assert [(seq, run, cause) for seq, run, _, cause in gaps(trace)] == [(10, 2, "start"), (11, 2, "damaged")]
