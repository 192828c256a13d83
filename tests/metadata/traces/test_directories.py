"""Directories that are traces, that are none, that are damaged, mixed, or still written to."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metadata.traces.completing import seal_log, seal_logs
from metadata.traces.directories import LOCK, Trace, locked, open_trace
from metadata.traces.errors import TraceError
from metadata.traces.manifest import MANIFEST, read_manifest
from metadata.traces.parquet_files import read_part, write_part
from tests.metadata.traces.made_traces import (
    change,
    changes,
    overwrite,
    patch_manifest,
    record,
    seqs,
    start,
    synthesise,
    write_log,
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three parts of ten events, the last of them unfinished."""
    parts = [changes(first, 10) for first in (0, 10, 20)]
    return record(tmp_path / "trace", *parts, sealed=2)


def test_the_events_of_parts_and_logs_are_read_in_order(trace: Path) -> None:
    assert seqs(trace) == list(range(30))


def test_an_event_is_the_same_in_a_log_and_in_a_complete_part(tmp_path: Path) -> None:
    events = [*start(0, ["a", "b"]), change(5, value=None), change(6, "ünï/ça\n")]
    in_log = record(tmp_path / "log", events, sealed=0)
    complete = record(tmp_path / "complete", events)
    rows = [[row for batch in open_trace(each).batches() for row in batch.to_pylist()] for each in (in_log, complete)]
    assert rows[0] == rows[1]
    assert [row["topic"] for row in rows[0]] == [None, "a", "b", None, "orders", "ünï/ça\n"]


def test_only_the_columns_that_are_asked_for_are_read_in_that_order(trace: Path) -> None:
    assert {tuple(batch.schema.names) for batch in open_trace(trace).batches(["topic", "seq"])} == {("topic", "seq")}


def test_a_part_says_what_it_holds(tmp_path: Path) -> None:
    directory = record(tmp_path, [*start(0, ["a", "b"]), change(4), change(5)])
    (part,) = read_manifest(directory).parts
    assert (part.events, part.gaps, part.bases) == (6, 1, 2)
    assert part.last_us - part.first_us == 5_000
    assert part.bytes == (directory / part.file).stat().st_size


def test_an_unfinished_trace_is_refused_where_a_complete_one_is_needed(trace: Path) -> None:
    with pytest.raises(TraceError, match=r"unfinished part, part-000003\.log: .* vela trace seal "):
        open_trace(trace).require_complete()
    seal_logs(trace)
    open_trace(trace).require_complete()


def test_parts_beyond_a_million_keep_their_order(tmp_path: Path) -> None:
    directory = record(tmp_path)
    for number, first in ((999_999, 0), (1_000_000, 10), (1_000_001, 20)):
        seal_log(write_log(directory, number, changes(first, 10)))
    assert seqs(directory) == list(range(30))


def test_a_log_that_could_not_be_sealed_keeps_its_place_before_later_parts(tmp_path: Path) -> None:
    directory = record(tmp_path, changes(0, 10), sealed=0)
    seal_log(write_log(directory, 2, changes(10, 10)))
    assert seqs(directory) == list(range(20))


def test_a_log_that_is_finished_between_opening_and_reading_is_read_all_the_same(trace: Path) -> None:
    opened = open_trace(trace)
    seal_logs(trace)
    assert [seq for batch in opened.batches(["seq"]) for seq in batch["seq"].to_pylist()] == list(range(30))


def test_a_part_that_is_finished_while_the_directory_is_opened_does_not_make_it_mixed(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_manifest(trace)
    seal_logs(trace)
    manifests = iter([before])
    monkeypatch.setattr(
        "metadata.traces.directories.read_manifest", lambda directory: next(manifests, None) or read_manifest(directory)
    )
    assert len(open_trace(trace).files) == 3


# What is no trace.


def refusal(directory: Path) -> str:
    with pytest.raises(TraceError) as caught:
        list(open_trace(directory).batches())
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_is_not_there_empty_or_no_directory_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "gone").startswith(f"There is no {tmp_path}/gone")
    assert "is no directory" in refusal(tmp_path / "file")
    assert "is empty" in refusal(tmp_path / "empty")
    assert f"holds no {MANIFEST}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is damaged"),
        (b"{", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[]", "is damaged"),
        (b"{}", "was not written by Vela"),
        (b'{"name": "app", "version": 1}', "was not written by Vela"),
        (b'{"format": "vela-trace", "version": 2, "kind": "recorded"}', "of format 2, and this Vela reads format 1"),
        (b'{"format": "vela-trace", "version": 1}', "is damaged (Object missing required field `kind`)"),
        (b'{"format": "vela-trace", "version": 1, "kind": "drawn"}', "is damaged"),
        (b'{"format": "vela-trace", "version": 1, "kind": "recorded", "parts": [1]}', "is damaged"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_said(trace: Path, text: bytes, reason: str) -> None:
    (trace / MANIFEST).write_bytes(text)
    assert reason in refusal(trace)


def test_a_manifest_that_is_a_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).mkdir()
    assert "cannot be read" in refusal(tmp_path)


def test_a_manifest_that_names_files_elsewhere_is_refused(trace: Path) -> None:
    (part, other) = read_manifest(trace).parts
    for file in ("../part-000001.parquet", "/etc/passwd", "part-000003.log"):
        patch_manifest(trace, parts=(type(part)(file, *map(part.__getattribute__, part.__struct_fields__[1:])),))
        assert "which is no part" in refusal(trace)
    patch_manifest(trace, parts=(part, other, part))
    assert "lists a part twice" in refusal(trace)


def test_a_missing_part_is_said(trace: Path) -> None:
    (trace / "part-000002.parquet").unlink()
    assert refusal(trace) == f"{trace}/part-000002.parquet is missing: restore it."


def test_a_truncated_part_is_said(trace: Path) -> None:
    part = trace / "part-000002.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    assert "bytes instead of" in refusal(trace)


def test_a_part_with_flipped_bits_is_said_and_not_read_as_other_events(tmp_path: Path) -> None:
    directory = record(tmp_path, changes(0, 2_000))
    part = directory / "part-000001.parquet"
    whole = part.read_bytes()
    for at in range(4, len(whole), len(whole) // 40):
        overwrite(part, at, bytes([whole[at] ^ 0x40]))
        with suppress(TraceError):
            assert seqs(directory) == list(range(2_000))  # the bit was in no page of this column
        overwrite(part, at, whole[at : at + 1])
    overwrite(part, 40, bytes(200))
    assert "cannot be read" in refusal(directory)


def test_a_part_that_was_replaced_by_another_of_the_same_size_is_said(trace: Path) -> None:
    part = trace / "part-000002.parquet"
    write_part(part, changes(10, 9))
    listed = read_manifest(trace).parts
    patch_manifest(trace, parts=(listed[0], type(listed[1])(part.name, part.stat().st_size, 10, 0, 0, 0, 0)))
    assert "holds 9 events instead of 10" in refusal(trace)


def test_a_manifest_whose_list_lost_a_part_is_said(trace: Path) -> None:
    (first, _) = read_manifest(trace).parts
    (trace / "part-000002.parquet").unlink()
    patch_manifest(trace, parts=(first,))
    assert "lists parts with 10 events, and says that there are 20: restore the manifest" in refusal(trace)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"seq": [1], "name": ["x"]}, "it has no column run"),
        ({"seq": ["one"]}, "its column seq has the type string instead of int64"),
    ],
)
def test_a_foreign_parquet_file_is_no_part(tmp_path: Path, columns: dict[str, list[object]], reason: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "part-000001.parquet")
    with pytest.raises(TraceError, match=reason):
        list(read_part(tmp_path / "part-000001.parquet"))


def test_something_that_is_no_parquet_at_all_is_said(tmp_path: Path) -> None:
    (tmp_path / "part-000001.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(TraceError, match="cannot be read"):
        list(read_part(tmp_path / "part-000001.parquet"))


def test_a_complete_part_that_is_not_listed_makes_the_directory_mixed(trace: Path) -> None:
    (trace / "part-000002.parquet").rename(trace / "part-000007.parquet")
    (trace / "part-000007.parquet").with_name("part-000002.parquet").write_bytes(
        (trace / "part-000007.parquet").read_bytes()
    )
    assert refusal(trace).startswith(f"{trace}/part-000007.parquet does not belong")


def test_recorded_and_synthetic_events_in_one_directory_are_refused(tmp_path: Path) -> None:
    synthetic = synthesise(tmp_path / "synthetic", changes(0, 3))
    write_log(synthetic, 1, changes(0, 3))
    assert "mixes traces" in refusal(synthetic)
    recorded = record(tmp_path / "recorded", changes(0, 3))
    (recorded / "data").mkdir()
    assert "mixes traces" in refusal(recorded)


def test_other_files_in_the_directory_do_not_matter(trace: Path) -> None:
    for name in ("README.md", "part-1.log", "part-000001.parquet.bak", "notes.parquet"):
        (trace / name).write_text("mine")
    assert seqs(trace) == list(range(30))


# The lock.


def test_a_directory_has_one_writer_at_a_time(trace: Path) -> None:
    with (
        locked(trace),
        pytest.raises(TraceError, match=r"Another recorder is writing to .*: give another"),
        locked(trace),
    ):
        pass
    with locked(trace):
        pass


def test_the_lock_of_a_killed_process_is_free(trace: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from metadata.traces.directories import locked\n"
        "with locked(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(trace)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(TraceError), locked(trace):
            pass
        other.kill()
    with locked(trace):
        assert (trace / LOCK).exists()


# Synthetic traces.


def test_a_synthetic_trace_is_read_in_the_order_of_time_across_namespaces(tmp_path: Path) -> None:
    hour = 3_600_000_000
    events = [
        change(seq, taken_us=place * hour // 2, namespace=namespace)
        for seq, (place, namespace) in enumerate(
            [(5, "b/b"), (0, "a/a"), (3, "b/b"), (4, "a/a"), (1, "a/a"), (2, "b/b")]
        )
    ]
    directory = synthesise(tmp_path, events)
    found = [row for batch in open_trace(directory).batches(["taken_us", "namespace"]) for row in batch.to_pylist()]
    assert [row["taken_us"] * 2 // hour for row in found] == [0, 1, 2, 3, 4, 5]
    assert [row["namespace"] for row in found] == ["a/a", "a/a", "b/b", "b/b", "a/a", "b/b"]


@pytest.mark.parametrize(
    "namespace", ["shop/eu", "2024/01", "café/東京", "a%2Fb/c", "x=1/y=2", 'sp ace/q"uote', "public/__x", "n/🚀"]
)
def test_namespaces_with_odd_characters_come_back_from_their_folders(tmp_path: Path, namespace: str) -> None:
    directory = synthesise(tmp_path, [change(0, namespace=namespace)])
    (batch,) = open_trace(directory).batches()
    assert batch["namespace"].to_pylist() == [namespace]


def opened_without(directory: Path, pattern: str) -> Trace:
    next(directory.rglob(pattern)).unlink()
    return open_trace(directory)


def test_a_synthetic_trace_that_lost_a_file_is_said(tmp_path: Path) -> None:
    directory = synthesise(tmp_path, [change(0), change(1, namespace="other/one")])
    with pytest.raises(TraceError, match="data holds 1 events instead of 2"):
        list(opened_without(directory, "*.parquet").batches())
    with pytest.raises(TraceError, match="data holds 0 events instead of 2"):
        list(opened_without(directory, "*.parquet").batches(["seq"]))


def test_a_trace_that_lost_events_hands_out_none_of_the_others(tmp_path: Path) -> None:
    hours = synthesise(tmp_path / "hours", [change(0), change(1, namespace="other/one")])
    parts = record(tmp_path / "parts", changes(0, 5), changes(5, 5))
    last = parts / "part-000002.parquet"
    write_part(last, changes(5, 4))
    kept, listed = read_manifest(parts).parts
    patch_manifest(parts, parts=(kept, msgspec.structs.replace(listed, bytes=last.stat().st_size)))
    for trace, said in ((opened_without(hours, "*.parquet"), "1 events instead of 2"), (open_trace(parts), "4 events")):
        with pytest.raises(TraceError, match=said):
            next(trace.batches())
        with pytest.raises(TraceError, match=said):
            trace.check_counts()


def test_a_file_that_was_added_to_a_synthetic_trace_is_said(tmp_path: Path) -> None:
    directory = synthesise(tmp_path, [change(0)])
    (file,) = directory.rglob("*.parquet")
    file.with_name("part-00001.parquet").write_bytes(file.read_bytes())
    with pytest.raises(TraceError, match="data holds 2 events instead of 1"):
        open_trace(directory).check_counts()


def test_a_synthetic_trace_without_its_events_is_said(tmp_path: Path) -> None:
    directory = synthesise(tmp_path / "trace", [change(0)])
    (directory / "data").rename(tmp_path / "elsewhere")
    assert "has lost its data" in refusal(directory)


def test_a_file_outside_of_its_hour_is_said(tmp_path: Path) -> None:
    directory = synthesise(tmp_path, [change(0)])
    (file,) = directory.rglob("*.parquet")
    file.rename(directory / "data" / file.name)
    assert "not in a folder of its hour" in refusal(directory)
