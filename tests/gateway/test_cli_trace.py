"""`vela trace info`, `cat` and `seal` over traces made by hand, and how the Spark commands are handed over."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from metadata.traces.directories import locked, open_trace
from metadata.traces.events import Kind
from metadata.traces.log_files import MAGIC, encode
from tests.e2e.vela_process import VELA, VelaServer
from tests.gateway.vela_command import assert_one_sentence, vela, vela_in_terminal
from tests.metadata.traces.made_traces import NOON_US, change, changes, overwrite, record, seqs, start, synthesise
from tests.support.waiting import wait_until


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A base of two topics, a few changes, a short outage, and a topic with a name that means harm."""
    first = [*start(0, ["orders", "payments"]), change(4), change(5, kind=Kind.DELETED, epoch=None, size=None)]
    second = [*start(6, ["payments"], cause="connection"), change(9, "\x1b[2Jgone\n", namespace="play/ground")]
    return record(tmp_path / "trace", first, second)


# info


def test_info_says_what_a_trace_holds(trace: Path) -> None:
    said = json.loads(vela("trace", "info", str(trace), "--json").out)
    assert said["kind"] == "recorded"
    assert said["complete"] is True
    assert (said["values"], said["anonymised"], said["dropped"]) == (True, False, 0)
    assert (said["first"], said["last"]) == ("2026-01-31T12:00:00.000000Z", "2026-01-31T12:00:00.009000Z")
    assert said["duration_s"] == 0.009
    assert (said["events"], said["changes"], said["parts"], said["unfinished_logs"]) == (10, 3, 2, 0)
    assert said["events_by_kind"] == {"gap": 2, "base": 3, "base_end": 2, "changed": 2, "deleted": 1}
    assert (said["namespaces"], said["topics"]) == (2, 3)
    assert said["busiest_namespaces"] == [
        {"namespace": "shop/eu", "changes": 2, "topics": 2, "share": 2 / 3},
        {"namespace": "play/ground", "changes": 1, "topics": 1, "share": 1 / 3},
    ]
    assert said["changes_per_s"]["peak"] == 3
    assert said["gaps_by_cause"] == {"start": 1, "connection": 1}
    assert said["first_gaps"][1] == {
        "time": "2026-01-31T12:00:00.006000Z",
        "run": 1,
        "cause": "connection",
        "buckets": None,
    }
    assert said["bytes"] == sum(path.stat().st_size for path in trace.glob("*.parquet"))
    assert said["order"]["seq_breaks"] == 0


def test_info_for_people_has_the_same_facts(trace: Path) -> None:
    outcome = vela("trace", "info", str(trace))
    assert outcome.code == 0
    for text in (
        str(trace),
        "2026-01-31 12:00:00Z",
        "shop/eu",
        "66.7%",
        "3 topics in 2 namespaces",
        "connection",
        "all",
    ):
        assert text in outcome.out
    assert "unfinished" not in outcome.out
    assert "order" not in outcome.out.replace("orders", "")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_info_cuts_nothing_in_a_narrow_terminal(trace: Path, columns: int) -> None:
    out = vela_in_terminal(columns, "trace", "info", str(trace)).out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= columns


def test_info_counts_what_an_unfinished_log_holds_and_says_that_it_is_unfinished(tmp_path: Path) -> None:
    directory = record(tmp_path, changes(0, 5), changes(5, 2), sealed=1)
    said = json.loads(vela("trace", "info", str(directory), "--json").out)
    assert (said["complete"], said["unfinished_logs"], said["events"]) == (False, 1, 7)
    assert "unfinished: 1 part still to be sealed" in vela("trace", "info", str(directory)).out


def test_info_warns_of_times_that_go_back_and_of_dropped_changes(tmp_path: Path) -> None:
    events = [change(0), change(1, taken_us=NOON_US - 2_000_000), change(3, store_ms=NOON_US // 1_000 - 90_000)]
    out = vela("trace", "info", str(record(tmp_path, events, dropped=12, values_missing=5))).out
    assert "12 changes that the recorder could not keep" in out
    assert "5 that the recorder could not keep are missing" in out
    assert "events are missing or moved in 1 place, first at seq 3" in out
    assert "the recorder's time goes back once, by up to 2 s" in out
    assert "the store's time goes back once, by up to 90 s" in out
    assert "the clocks of store and recorder jump once, by up to 90 s" in out


def test_info_of_times_that_no_calendar_has(tmp_path: Path) -> None:
    directory = record(tmp_path, [change(0, taken_us=2**62)])
    assert "outside the calendar" in vela("trace", "info", str(directory)).out
    assert json.loads(vela("trace", "info", str(directory), "--json").out)["first"] is None
    assert vela("trace", "cat", str(directory)).out.startswith(f"{2**62} us  changed")


def test_info_of_a_trace_without_events(tmp_path: Path) -> None:
    directory = record(tmp_path)
    assert vela("trace", "info", str(directory)).code == 0
    said = json.loads(vela("trace", "info", str(directory), "--json").out)
    assert (said["events"], said["first"], said["changes_per_s"]["mean"]) == (0, None, None)


def test_info_of_a_synthetic_trace(tmp_path: Path) -> None:
    directory = synthesise(tmp_path, [change(0), change(5, namespace="a/b")])
    said = json.loads(vela("trace", "info", str(directory), "--json").out)
    assert (said["kind"], said["events"], said["namespaces"]) == ("synthetic", 2, 2)
    assert said["bytes"] > 0
    assert "synthetic, without values, seed 1" in vela("trace", "info", str(directory)).out


@pytest.mark.parametrize("command", ["info", "cat", "seal"])
def test_what_is_no_trace_is_one_sentence(tmp_path: Path, command: str) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        assert_one_sentence(vela("trace", command, str(path)))
    assert list(tmp_path.iterdir()) == []


def test_damage_found_in_the_middle_is_one_sentence(tmp_path: Path) -> None:
    directory = record(tmp_path, changes(0, 100), sealed=0)
    overwrite(directory / "part-000001.log", 500, b"\xff\xff")
    outcome = vela("trace", "info", str(directory))
    assert_one_sentence(outcome)
    assert "is damaged at byte" in outcome.err


@pytest.mark.parametrize("command", [["info"], ["info", "--json"], ["cat"], ["cat", "--limit", "1"]])
def test_a_trace_that_lost_an_hour_is_one_sentence_and_not_shown_in_part(tmp_path: Path, command: list[str]) -> None:
    directory = synthesise(tmp_path, [change(0), change(1, namespace="a/b")])
    next(directory.rglob("*.parquet")).unlink()
    outcome = vela("trace", *command, str(directory))
    assert_one_sentence(outcome)
    assert "holds 1 events instead of 2" in outcome.err


# cat


def test_cat_prints_one_event_a_line(trace: Path) -> None:
    lines = vela("trace", "cat", str(trace)).out.splitlines()
    assert len(lines) == 10
    assert lines[0] == "2026-01-31T12:00:00.000000Z  gap         start"
    assert lines[4] == "2026-01-31T12:00:00.004000Z  changed     shop/eu/orders  epoch 4  version 5  17 B"
    assert lines[5] == "2026-01-31T12:00:00.005000Z  deleted     shop/eu/orders  version 6"


def test_cat_lets_no_name_move_the_cursor(trace: Path) -> None:
    assert vela("trace", "cat", str(trace)).out.splitlines()[-1].count(r"play/ground/\x1b[2Jgone\n") == 1


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--namespace", "shop/eu"], [1, 2, 4, 5, 7]),
        (["--topic", "payments"], [2, 7]),
        (["--kind", "deleted"], [5]),
        (["--kind", "base", "--limit", "2"], [1, 2]),
        (["--limit", "0"], []),
        (["--namespace", "nobody/here"], []),
        (["--from", "2026-01-31T12:00:00.004"], [4, 5, 6, 7, 8, 9]),
        (["--from", "2026-01-31T13:00:00.004+01:00", "--to", "2026-01-31T12:00:00.006Z"], [4, 5]),
    ],
)
def test_cat_prints_only_what_was_chosen(trace: Path, flags: list[str], found: list[int]) -> None:
    lines = vela("trace", "cat", str(trace), "--json", *flags).out.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == found


def test_cat_prints_records_where_they_are_asked_for(trace: Path) -> None:
    def printed(*flags: str) -> str:
        return vela("trace", "cat", str(trace), "--kind", "changed", "--limit", "1", *flags).out

    assert "value" not in json.loads(printed("--json"))
    assert json.loads(printed("--json", "--values"))["value"] == '{"epoch": 4}'
    assert printed("--values").endswith('17 B  {"epoch": 4}\n')


@pytest.mark.parametrize("flags", [["--kind", "exploded"], ["--from", "noon"], ["--limit", "-1"]])
def test_cat_refuses_what_it_cannot_choose_by(trace: Path, flags: list[str]) -> None:
    outcome = vela("trace", "cat", str(trace), *flags)
    assert outcome.code == 2
    assert "Usage: vela trace cat" in outcome.err


def test_cat_ends_quietly_when_the_reader_has_had_enough(tmp_path: Path) -> None:
    directory = record(tmp_path, changes(0, 20_000))
    with subprocess.Popen(
        [VELA, "trace", "cat", str(directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert "orders" in command.stdout.readline()
        command.stdout.close()
        assert command.stderr.read() == ""


# seal


def test_seal_finishes_a_killed_recording_once(tmp_path: Path) -> None:
    directory = record(tmp_path, changes(0, 5), changes(5, 2), sealed=1)
    outcome = vela("trace", "seal", str(directory))
    assert outcome.out.startswith("sealed part-000002.parquet: 2 events, ")
    assert open_trace(directory).logs == ()
    assert seqs(directory) == list(range(7))
    assert vela("trace", "seal", str(directory)).out == f"{directory} is complete; nothing was to be done.\n"


def test_seal_tells_of_a_damaged_part_by_sentence_and_exit_code_and_info_shows_it(tmp_path: Path) -> None:
    directory = record(tmp_path, changes(0, 5), changes(5, 5), changes(10, 5), sealed=1)
    at = len(MAGIC) + sum(len(encode(event)) for event in changes(5, 2))
    overwrite(directory / "part-000002.log", at, b"\xff\xff")
    assert "keep what is whole with: vela trace seal" in vela("trace", "info", str(directory)).err
    outcome = vela("trace", "seal", str(directory))
    assert outcome.code == 1
    assert [line.partition(",")[0] for line in outcome.out.splitlines()] == [
        "sealed part-000002.parquet: 3 events",
        "sealed part-000003.parquet: 5 events",
    ]
    assert outcome.err == (
        f"vela: {directory}/part-000002.log is damaged at byte {at}: 2 events are kept of it, changes are missing "
        "after that, and the file is set aside as part-000002.log.damaged.\n"
    )
    told = vela("trace", "info", str(directory))
    assert told.code == 0
    assert f"part-000002.log.damaged from byte {at} on; 2 events kept of it" in told.out
    said = json.loads(vela("trace", "info", str(directory), "--json").out)
    assert (said["complete"], said["events"], said["gaps_by_cause"]) == (True, 13, {"damaged": 1})
    assert [(each["file"], each["kept"]) for each in said["damaged"]] == [("part-000002.log.damaged", 2)]
    assert vela("trace", "seal", str(directory)).code == 0


def test_seal_refuses_while_a_recorder_is_running(tmp_path: Path) -> None:
    directory = record(tmp_path, changes(0, 5), sealed=0)
    with locked(directory):
        outcome = vela("trace", "seal", str(directory))
    assert_one_sentence(outcome)
    assert "Another recorder is writing" in outcome.err
    assert len(open_trace(directory).logs) == 1


@pytest.mark.slow
def test_the_trace_of_a_killed_server_can_be_looked_at_sealed_and_looked_at_again(tmp_path: Path) -> None:
    directory = tmp_path / "trace"
    with VelaServer.start(tmp_path, "--record", str(directory)) as server:
        for number in range(5):
            server.create(f"t-{number}")
        wait_until(lambda: vela("trace", "cat", str(directory), "--kind", "created").out.count("\n") == 5)
        assert_one_sentence(vela("trace", "seal", str(directory)))
        server.signal(signal.SIGKILL)
        server.wait()
    looked = [json.loads(vela("trace", "info", str(directory), "--json").out)]
    assert vela("trace", "seal", str(directory)).out.startswith("sealed part-000001.parquet: ")
    looked.append(json.loads(vela("trace", "info", str(directory), "--json").out))
    assert [each["complete"] for each in looked] == [False, True]
    assert [each["events_by_kind"]["created"] for each in looked] == [5, 5]
    assert looked[0]["events_by_kind"] == looked[1]["events_by_kind"]


# The jobs on Spark


@pytest.mark.parametrize("command", ["synth", "analyze", "replay"])
def test_the_jobs_become_a_process_of_spark_with_all_that_was_given(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, arguments: became.append([program, *arguments]))
    vela("trace", command, "a dir", "--master", "local[2]", "--speed=10", "-x", "--help")
    spark = [sys.executable, sys.executable, "-P", "-m", "spark", command]
    assert became == [[*spark, "a dir", "--master", "local[2]", "--speed=10", "-x", "--help"]]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["synth", "analyze", "replay"])
def test_the_help_of_a_job_is_that_of_spark_also_beside_a_folder_of_that_name(tmp_path: Path, command: str) -> None:
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "__init__.py").touch()
    done = subprocess.run([VELA, "trace", command, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"Usage: vela trace {command}" in done.stdout
    assert "--master" in done.stdout
