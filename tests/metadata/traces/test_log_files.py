"""Logs whole, torn at every byte, with flipped bytes, and logs that are none."""

from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from metadata.traces.errors import LogDamaged
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.log_files import MAGIC, encode, read_log
from tests.metadata.traces.made_traces import change, changes

EVENTS = changes(0, 3)
FRAMES = [encode(event) for event in EVENTS]
WHOLE = MAGIC + b"".join(FRAMES)
BEFORE_LAST = len(WHOLE) - len(FRAMES[-1])
HEAD = 12


def read(directory: Path, content: bytes) -> list[TraceEvent]:
    log = directory / "part-000001.log"
    log.write_bytes(content)
    return list(read_log(log))


def test_a_whole_log_gives_all_its_events(tmp_path: Path) -> None:
    assert read(tmp_path, WHOLE) == EVENTS


@given(
    st.builds(
        TraceEvent,
        seq=st.integers(0, 2**63 - 1),
        run=st.integers(1, 2**31 - 1),
        kind=st.sampled_from([kind.value for kind in Kind]),
        taken_us=st.integers(0, 2**63 - 1),
        namespace=st.none() | st.text(),
        topic=st.none() | st.text(),
        value=st.none() | st.binary(),
    )
)
def test_an_event_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, event: TraceEvent) -> None:
    assert read(tmp_path_factory.mktemp("log"), MAGIC + encode(event)) == [event]


def test_a_log_cut_at_any_byte_gives_the_events_before_the_cut(tmp_path: Path) -> None:
    ends = [len(MAGIC) + sum(map(len, FRAMES[: count + 1])) for count in range(len(FRAMES))]
    for length in range(len(WHOLE)):
        before = [event for event, end in zip(EVENTS, ends, strict=True) if end <= length]
        assert read(tmp_path, WHOLE[:length]) == before, length


def flipped(at: int) -> bytes:
    return WHOLE[:at] + bytes([WHOLE[at] ^ 0x80]) + WHOLE[at + 1 :]


def test_a_flipped_bit_before_the_last_event_is_damage_and_never_a_shorter_log(tmp_path: Path) -> None:
    for at in range(len(MAGIC), BEFORE_LAST):
        with pytest.raises(LogDamaged, match=r"part-000001\.log is damaged at byte \d+: restore it"):
            read(tmp_path, flipped(at))


def test_a_flipped_bit_in_the_last_event_leaves_out_that_event(tmp_path: Path) -> None:
    for at in range(BEFORE_LAST + HEAD, len(WHOLE)):
        assert read(tmp_path, flipped(at)) == EVENTS[:-1]


def test_a_flipped_bit_in_the_last_head_is_damage_because_nobody_knows_what_follows(tmp_path: Path) -> None:
    for at in range(BEFORE_LAST, BEFORE_LAST + HEAD):
        with pytest.raises(LogDamaged, match=f"damaged at byte {BEFORE_LAST}:"):
            read(tmp_path, flipped(at))


@pytest.mark.parametrize("zeros", [1, 11, 12, 13, 4_096, 3 * 1024 * 1024])
def test_zeros_at_the_end_are_what_a_machine_leaves_that_stopped(tmp_path: Path, zeros: int) -> None:
    assert read(tmp_path, WHOLE + bytes(zeros)) == EVENTS


def test_zeros_in_the_middle_are_damage(tmp_path: Path) -> None:
    with pytest.raises(LogDamaged, match="damaged"):
        read(tmp_path, MAGIC + FRAMES[0] + bytes(4_096) + FRAMES[1])


def test_an_event_that_is_appended_while_the_log_is_read_is_read_too(tmp_path: Path) -> None:
    log = tmp_path / "part-000001.log"
    log.write_bytes(WHOLE)
    events = read_log(log)
    assert next(events) == EVENTS[0]
    with log.open("ab") as file:
        file.write(encode(change(3)))
    assert [event.seq for event in events] == [1, 2, 3]


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogDamaged, match="is not the log of a trace"):
        read(tmp_path, b"2026-01-31 INFO started\n" * 10)


def test_a_log_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogDamaged, match="another version of Vela"):
        read(tmp_path, WHOLE.replace(MAGIC, b"vela-trace-log 2\n"))


def test_a_sound_frame_that_holds_no_event_is_refused(tmp_path: Path) -> None:
    payload = msgspec.msgpack.encode({"seq": 1})
    head = len(payload).to_bytes(4, "little") + crc32c(payload).to_bytes(4, "little")
    with pytest.raises(LogDamaged, match="holds something that is no event at byte"):
        read(tmp_path, MAGIC + head + crc32c(head).to_bytes(4, "little") + payload)
