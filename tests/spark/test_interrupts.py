"""Signals that end a job, inside this process and to real ones: nothing stays behind, one sentence, the right code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import typer

from spark.errors import Interrupted
from spark.interrupts import ends_cleanly, interruptible
from tests.e2e.vela_process import environment
from tests.spark.small_spark import COMPILE_LESS, small_spark
from tests.spark.synth.recordings import bursty_events, write_trace
from tests.support.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
# Generous, because Spark starts slowly where others use the cores, too.
LIMIT_S = 200.0
PROFILE = REPOSITORY / "profiles" / "steady.toml"
NOTHING_LEFT = "vela: Interrupted; nothing is left of what was begun.\n"


def signal_soon(number: signal.Signals) -> None:
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_that_is_ended_says_one_sentence_and_tells_the_signal_by_its_code(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    @ends_cleanly("Interrupted; gone.")
    def command() -> None:
        signal_soon(number)
        threading.Event().wait(LIMIT_S)

    with pytest.raises(typer.Exit) as ended:
        command()
    assert ended.value.exit_code == code
    assert capsys.readouterr().err == "vela: Interrupted; gone.\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_became_of_the_work_is_said_by_who_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    @ends_cleanly("Interrupted.")
    def command() -> None:
        raise Interrupted("Interrupted; the rest is there.")

    with pytest.raises(typer.Exit):
        command()
    assert capsys.readouterr().err == "vela: Interrupted; the rest is there.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_loop_is_ended_between_its_steps(number: signal.Signals) -> None:
    cleaned_up: list[bool] = []

    async def sleep() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cleaned_up.append(True)

    @ends_cleanly("Interrupted.")
    def command() -> None:
        signal_soon(number)
        trio.run(sleep)

    with pytest.raises(typer.Exit):
        command()
    assert cleaned_up == [True]


@pytest.mark.parametrize("ignored", [signal.SIG_IGN, signal.SIG_DFL])
def test_sigterm_ends_what_ctrl_c_would_not(ignored: signal.Handlers) -> None:
    @ends_cleanly("Interrupted.")
    def command() -> None:
        signal_soon(signal.SIGTERM)
        threading.Event().wait(LIMIT_S)

    before = signal.signal(signal.SIGINT, ignored)
    try:
        with pytest.raises(typer.Exit):
            command()
    finally:
        signal.signal(signal.SIGINT, before)


def test_interrupted_work_is_stopped_until_it_has_ended_and_no_sooner() -> None:
    stops = threading.Semaphore(0)
    ended = threading.Event()

    def work() -> None:
        for _ in range(3):
            stops.acquire()
        ended.set()

    signal_soon(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interruptible(work, stops.release)
    assert ended.is_set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_work_that_is_interrupted_while_its_thread_starts_is_waited_for(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopped, ended = threading.Event(), threading.Event(), threading.Event()
    start = threading.Thread.start

    def start_late(thread: threading.Thread) -> None:
        start(thread)
        assert begun.wait(LIMIT_S)
        os.kill(os.getpid(), number)

    def work() -> None:
        begun.set()
        assert stopped.wait(LIMIT_S)
        ended.set()

    @ends_cleanly("Interrupted.")
    def command() -> None:
        monkeypatch.setattr(threading.Thread, "start", start_late)
        interruptible(work, stopped.set)

    with pytest.raises(typer.Exit):
        command()
    assert ended.is_set()


def test_work_that_is_done_hands_back_what_it_made_or_why_it_failed() -> None:
    assert interruptible(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)


# Real jobs.


class Job:
    """A job with a directory of its own for everything that is temporary."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        java = f"{COMPILE_LESS} -Djava.io.tmpdir={self.temporary} -XX:-UsePerfData"
        variables = small_spark(directory / "spark-conf") | {
            "TMPDIR": str(self.temporary),
            "SPARK_LOCAL_DIRS": str(self.temporary),
            "JDK_JAVA_OPTIONS": java,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spark", *arguments, "--master", "local[2]"],
            cwd=REPOSITORY,
            env=environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def wait_for(self, directory: Path, pattern: str) -> None:
        def there() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return any(directory.glob(pattern))

        wait_until(there, LIMIT_S)

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=LIMIT_S)
        # Java removes its own when it sees that Python has gone, which takes a moment.
        wait_until(lambda: not list(self.temporary.iterdir()), 30)
        return self.process.returncode, out, err


@contextmanager
def running(directory: Path, *arguments: str) -> Iterator[Job]:
    job = Job(directory, *arguments)
    try:
        yield job
    finally:
        if job.process.poll() is None:
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.communicate()


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.soak)]
)
def test_synth_that_is_ended_in_the_middle_leaves_nothing(tmp_path: Path, number: signal.Signals, code: int) -> None:
    place = tmp_path / "place"
    place.mkdir()
    asked = ("--profile", str(PROFILE), "--duration", "240h", "--out", str(place / "out"))
    with running(tmp_path, "synth", *asked) as job:
        job.wait_for(place, ".out.*/data/_temporary/0/_temporary/*/*/*/*.parquet")
        job.process.send_signal(number)
        assert job.ended() == (code, "", NOTHING_LEFT)
    assert list(place.iterdir()) == []


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_analyze_that_is_ended_leaves_nothing(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace", bursty_events())
    place = tmp_path / "place"
    place.mkdir()
    with running(tmp_path, "analyze", str(trace), "--out", str(place / "out")) as job:
        job.wait_for(job.temporary, "blockmgr-*")
        job.process.send_signal(signal.SIGTERM)
        assert job.ended() == (143, "", NOTHING_LEFT)
    assert list(place.iterdir()) == []


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_job_that_is_ended_while_spark_starts_leaves_nothing(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace", bursty_events())
    with running(tmp_path, "analyze", str(trace), "--out", str(tmp_path / "out")) as job:
        job.wait_for(job.temporary, "vela-spark-*/java.log")
        job.process.send_signal(signal.SIGTERM)
        assert job.ended() == (143, "", NOTHING_LEFT)
    assert not (tmp_path / "out").exists()


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_signal_that_reaches_java_too_comes_out_as_the_same_sentence(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "trace", bursty_events())
    place = tmp_path / "place"
    place.mkdir()
    with running(tmp_path, "analyze", str(trace), "--out", str(place / "out")) as job:
        job.wait_for(place, ".out.*/namespaces/_SUCCESS")
        os.killpg(job.process.pid, signal.SIGTERM)
        assert job.ended() == (143, "", NOTHING_LEFT)
    assert list(place.iterdir()) == []
