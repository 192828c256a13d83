"""Taking a directory: begun, gone on with, or refused with a sentence."""

from pathlib import Path

import pytest

from gateway.recorder.opening import Naming, OpenTrace, open_for_recording
from metadata.traces.completing import seal_logs
from metadata.traces.directories import log_name, open_trace
from metadata.traces.errors import TraceError
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.log_files import MAGIC, encode, encode_together
from metadata.traces.manifest import Manifest, read_manifest, write_manifest
from tests.metadata.traces.made_traces import overwrite

PLAIN = Naming()
EVENTS = [TraceEvent(seq, 1, Kind.GAP, seq, detail="start") for seq in range(3)]


def opened(directory: Path, *, values: bool = True, naming: Naming = PLAIN) -> OpenTrace:
    return open_for_recording(directory, values=values, naming=naming)


def take_and_leave(directory: Path, naming: Naming = PLAIN) -> OpenTrace:
    trace = opened(directory, naming=naming)
    trace.close()
    return trace


def key_file(directory: Path, text: str = "0123456789abcdef") -> Path:
    file = directory / "key"
    file.write_text(text)
    return file


def test_a_new_directory_begins_a_trace(tmp_path: Path) -> None:
    trace = take_and_leave(tmp_path / "new" / "trace")
    assert (trace.run, trace.next_seq, trace.next_part, trace.unsealed) == (1, 0, 1, ())
    assert read_manifest(trace.directory).runs == 1


def test_a_trace_is_gone_on_with_behind_what_it_holds(tmp_path: Path) -> None:
    take_and_leave(tmp_path)
    (tmp_path / log_name(1)).write_bytes(MAGIC + encode_together(EVENTS))
    seal_logs(tmp_path)
    (tmp_path / log_name(2)).write_bytes(MAGIC + encode_together(EVENTS) + b"torn")
    trace = take_and_leave(tmp_path)
    assert (trace.run, trace.next_seq, trace.next_part) == (2, 6, 3)
    assert [log.name for log in trace.unsealed] == [log_name(2)]


def numbered(first: int) -> bytes:
    """Three events from this number on, each in a frame of its own."""
    return b"".join(encode(TraceEvent(seq, 1, Kind.GAP, seq, detail="start")) for seq in range(first, first + 3))


def test_a_damaged_log_keeps_no_recorder_from_starting_behind_all_that_it_may_hold(tmp_path: Path) -> None:
    take_and_leave(tmp_path)
    (tmp_path / log_name(1)).write_bytes(MAGIC + numbered(0) + b"\xff" * 30)
    (tmp_path / log_name(2)).write_bytes(b"\xff" + MAGIC)
    trace = take_and_leave(tmp_path)
    # Three events, and a number for the gap of each.
    assert (trace.next_seq, trace.next_part) == (5, 3)
    assert [log.name for log in trace.unsealed] == [log_name(1), log_name(2)]
    assert [damage.kept for damage in seal_logs(tmp_path).damages] == [3, 0]
    again = take_and_leave(tmp_path)
    assert (again.next_seq, again.next_part, again.unsealed) == (5, 3, ())


def test_numbers_that_were_lost_are_not_given_again(tmp_path: Path) -> None:
    take_and_leave(tmp_path)
    log = tmp_path / log_name(1)
    log.write_bytes(MAGIC + numbered(0))
    overwrite(log, len(MAGIC), b"\xff")
    (tmp_path / log_name(2)).write_bytes(MAGIC + numbered(3))
    assert take_and_leave(tmp_path).next_seq == 6
    seal_logs(tmp_path)
    assert read_manifest(tmp_path).events == 4
    assert take_and_leave(tmp_path).next_seq == 6


def test_the_number_of_a_part_that_was_set_aside_whole_is_not_used_again(tmp_path: Path) -> None:
    take_and_leave(tmp_path)
    (tmp_path / log_name(1)).write_bytes(b"\xff" + MAGIC)
    assert seal_logs(tmp_path).parts == []
    assert take_and_leave(tmp_path).next_part == 2


def test_what_a_crash_left_beside_a_complete_part_is_removed(tmp_path: Path) -> None:
    take_and_leave(tmp_path)
    log = tmp_path / log_name(1)
    log.write_bytes(MAGIC + encode_together(EVENTS))
    seal_logs(tmp_path)
    log.write_bytes(MAGIC + encode_together(EVENTS))
    assert take_and_leave(tmp_path).next_seq == 3
    assert not log.exists()


def test_a_trace_says_that_values_are_missing_from_a_part_of_it(tmp_path: Path) -> None:
    opened(tmp_path, values=False).close()
    opened(tmp_path, values=True).close()
    assert not open_trace(tmp_path).manifest.values


def test_a_second_recorder_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(TraceError, match="Another recorder is writing"):
        opened(tmp_path)
    first.close()
    take_and_leave(tmp_path)


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    with pytest.raises(TraceError, match="is not empty and holds no trace: give a new directory"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(TraceError, match="Nothing can be recorded in"):
        opened(file)


def test_a_synthetic_trace_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest("synthetic"))
    with pytest.raises(TraceError, match="synthetic"):
        opened(tmp_path)


def test_plain_names_and_pseudonyms_are_not_mixed(tmp_path: Path) -> None:
    key = key_file(tmp_path)
    take_and_leave(tmp_path / "plain")
    take_and_leave(tmp_path / "hidden", Naming(True, key))
    with pytest.raises(TraceError, match="has plain names"):
        opened(tmp_path / "plain", naming=Naming(True, key))
    with pytest.raises(TraceError, match="has pseudonyms"):
        opened(tmp_path / "hidden")


def test_pseudonyms_are_gone_on_with_only_under_their_key(tmp_path: Path) -> None:
    key = key_file(tmp_path)
    hidden = tmp_path / "hidden"
    take_and_leave(hidden, Naming(True, key))
    assert take_and_leave(hidden, Naming(True, key)).run == 2
    with pytest.raises(TraceError, match="give the key file"):
        opened(hidden, naming=Naming(True))
    with pytest.raises(TraceError, match="of another key"):
        opened(hidden, naming=Naming(True, key_file(tmp_path, "another key of 16 letters")))


def test_pseudonyms_whose_key_was_not_kept_are_not_gone_on_with(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    take_and_leave(hidden, Naming(True))
    for naming in (Naming(True), Naming(True, key_file(tmp_path))):
        with pytest.raises(TraceError, match="give another directory, and a key file"):
            opened(hidden, naming=naming)


def test_a_key_without_pseudonyms_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="ask for them"):
        opened(tmp_path / "new", naming=Naming(False, key_file(tmp_path)))


def test_no_file_of_the_trace_holds_the_key(tmp_path: Path) -> None:
    key = key_file(tmp_path, "a secret of more than 16 letters")
    take_and_leave(tmp_path / "hidden", Naming(True, key))
    for file in (tmp_path / "hidden").iterdir():
        assert b"secret" not in file.read_bytes()
