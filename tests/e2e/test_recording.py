"""`vela serve --record` and `vela trace record` as a user runs them."""

import signal
from pathlib import Path

import pytest

from metadata.embedded import SOCKET_NAME
from metadata.traces.completing import seal_logs
from metadata.traces.directories import locked, open_trace
from metadata.traces.events import Kind
from tests.e2e.vela_process import SCALABLE, RunningCommand, VelaServer, run_vela
from tests.gateway.recorder.recorded import events_of
from tests.metadata.traces.made_traces import changes, overwrite, record
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


def create(server: VelaServer, name: str) -> None:
    assert server.request("PUT", f"{SCALABLE}/{name}?numInitialSegments=1").is_success


def topics(directory: Path) -> list[str | None]:
    return [event.topic for event in events_of(directory) if event.kind == Kind.CREATED]


def test_a_killed_server_loses_nothing_that_was_written(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    names = [f"topic-{number}" for number in range(20)]
    with VelaServer.start(tmp_path / "server", "--record", str(trace)) as server:
        for name in names:
            create(server, name)
        # How soon is for the tests of the writer: this machine may be busy, and a gap adds events.
        wait_until(lambda: server.metric("vela_recorder_events_total") >= 2 + len(names))
        server.signal(signal.SIGKILL)
        server.wait()
    assert len(open_trace(trace).logs) == 1
    with locked(trace):
        [part] = seal_logs(trace).parts
    assert topics(trace) == names
    assert part.events >= 2 + len(names)


def test_a_stopped_server_leaves_a_complete_trace_and_the_next_goes_on(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for name in ("first", "second"):
        with VelaServer.start(tmp_path / "server", "--record", str(trace), "--no-values") as server:
            create(server, name)
            # What was heard is written, however soon the end comes.
            wait_until(lambda: server.metric("vela_changes_total") == 1)
            server.signal(signal.SIGTERM)
            assert server.wait().code == 0
    opened = open_trace(trace)
    assert (opened.manifest.runs, opened.logs, opened.manifest.values) == (2, (), False)
    assert topics(trace) == ["first", "second"]


def test_a_server_starts_and_records_beside_a_damaged_log(tmp_path: Path) -> None:
    trace = record(tmp_path / "trace", changes(0, 5), changes(5, 5), sealed=0)
    overwrite(trace / "part-000001.log", 300, b"\xff\xff")
    with VelaServer.start(tmp_path / "server", "--record", str(trace)) as server:
        create(server, "orders")
        wait_until(lambda: server.metric("vela_changes_total") == 1)
        wait_until(lambda: "part-000001.log is damaged at byte" in server.err, 20)
        outcome = server.stop()
    assert outcome.code == 0
    opened = open_trace(trace)
    assert opened.logs == ()
    assert (trace / opened.manifest.damaged[0].file).exists()
    assert topics(trace) == ["orders"]


def test_a_store_is_recorded_beside_its_server(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with VelaServer.start(tmp_path / "server") as server:
        url = f"unix://{server.data_dir / SOCKET_NAME}"
        arguments = ["trace", "record", "--store", url, "--out", str(trace), "--anonymise"]
        with RunningCommand(tmp_path / "recorder", arguments, {}) as recorder:
            wait_until(lambda: recorder.lines)
            assert recorder.lines[0].startswith("recording unix://")
            create(server, "orders")
            wait_until(lambda: any(event.kind == Kind.CREATED for event in events_of(trace)))
            second = run_vela("trace", "record", "--store", url, "--out", str(trace), "--anonymise")
            assert second.code == 1
            assert "pseudonyms" in second.sentence or "Another recorder" in second.sentence
            recorder.signal(signal.SIGINT)
            ended = recorder.wait()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[-1] == "recorded 3 events; 1 gaps, 0 changes dropped"
    [row] = [event for event in events_of(trace) if event.kind == Kind.CREATED]
    assert row.topic != "orders"
    assert row.namespace != "public/default"


def test_a_foreign_directory_is_refused_in_a_sentence(tmp_path: Path) -> None:
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "photo.jpg").write_bytes(b"x")
    server = run_vela(
        "serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--record", str(foreign), cwd=tmp_path
    )
    assert server.code == 1
    assert server.sentence.endswith(
        "is not empty and holds no trace: give a new directory, or the trace to go on with."
    )


def test_an_embedded_store_is_told_to_be_named_by_its_socket(tmp_path: Path) -> None:
    named = run_vela("trace", "record", "--store", "embedded", "--out", str(tmp_path / "trace"))
    assert named.code == 1
    assert "unix://DATA_DIR/valkey.sock" in named.sentence
