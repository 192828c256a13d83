"""Events that are written together, as the writer does it: a log has all of a frame or none."""

from pathlib import Path

from metadata.traces.events import Kind, TraceEvent
from metadata.traces.log_files import MAGIC, encode, encode_together, read_log

EVENTS = [TraceEvent(seq, 1, Kind.CREATED, seq, topic=f"topic-{seq}", value=b"v") for seq in range(5)]
FIRST, SECOND = encode_together(EVENTS[:2]), encode_together(EVENTS[2:4])


def read(directory: Path, content: bytes) -> list[TraceEvent]:
    log = directory / "part-000001.log"
    log.write_bytes(content)
    return list(read_log(log))


def test_frames_of_several_events_and_of_one_are_read_in_their_order(tmp_path: Path) -> None:
    assert read(tmp_path, MAGIC + FIRST + SECOND + encode(EVENTS[4])) == EVENTS


def test_a_torn_frame_is_left_out_whole(tmp_path: Path) -> None:
    for length in range(len(SECOND)):
        assert read(tmp_path, MAGIC + FIRST + SECOND[:length]) == EVENTS[:2]
