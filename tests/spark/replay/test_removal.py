"""What a replay says of its namespaces when it ends: the truth, also where they could not be removed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import trio
from rich.console import Console
from typer.testing import CliRunner, Result

from metadata.lanes import Timeouts
from metadata.store import open_store
from protocol.names import NamespaceName
from spark.cli import app
from spark.errors import Interrupted, JobError
from spark.replay import job, plan, runs
from spark.replay.namespaces import enlist, runs_in
from tests.spark.replay.small_traces import write_trace
from tests.support.processes import ValkeyProcess

RUN = "3f9a2c"
LEFT = (
    rf"what run {RUN} has written may still be in the store \(.+\): remove it, a minute from now, with: "
    r"vela trace replay --clean --store URL$"
)


@pytest.fixture(autouse=True)
def nobody_waits_long_for_a_store_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient = Timeouts(connect=1.0, silence=1.0, patience=0.3)
    monkeypatch.setattr(runs, "open_store", partial(open_store, timeouts=impatient))


async def write(url: str) -> None:
    async with open_store(url) as store:
        await enlist(store, RUN)
        await store.create_namespace(NamespaceName("shop", f"replay-{RUN}-orders"))


async def left_by_runs(url: str) -> list[str]:
    async with open_store(url) as store:
        return [str(name) for names in (await runs_in(store)).values() for name in names]


def ended_by(error: BaseException | None, valkey: ValkeyProcess, *, store_goes: bool) -> str:
    """What is said on standard error when a run that has written ends with this."""
    said = StringIO()
    try:
        with runs.removed_after(RUN, valkey.url, Console(file=said)):
            trio.run(write, valkey.url)
            if store_goes:
                valkey.close()
            if error is not None:
                raise error
    finally:
        said.seek(0)
    return said.read()


def test_an_interrupted_run_whose_namespaces_are_gone_says_so(valkey: ValkeyProcess) -> None:
    with pytest.raises(Interrupted, match=r"^Interrupted; what the replay had written is removed\.$"):
        ended_by(KeyboardInterrupt(), valkey, store_goes=False)
    assert trio.run(left_by_runs, valkey.url) == []


def test_an_interrupted_run_whose_namespaces_are_left_says_how_to_remove_them(fresh_valkey: ValkeyProcess) -> None:
    with pytest.raises(Interrupted, match=f"^Interrupted; {LEFT}"):
        ended_by(KeyboardInterrupt(), fresh_valkey, store_goes=True)


def test_a_failed_run_says_its_reason_and_how_to_remove_what_is_left(fresh_valkey: ValkeyProcess) -> None:
    with pytest.raises(JobError, match=rf"^The target is gone\. Also, {LEFT}"):
        ended_by(JobError("The target is gone."), fresh_valkey, store_goes=True)


def test_a_run_that_is_done_says_how_to_remove_what_is_left(fresh_valkey: ValkeyProcess) -> None:
    said = ended_by(None, fresh_valkey, store_goes=True)
    assert said.startswith(f"vela: Mind that what run {RUN} has written may still be in the store")
    assert said.endswith("vela trace replay --clean --store URL\n")
    assert said.count("\n") == 1


def test_a_run_that_is_done_says_nothing_where_nothing_is_left(valkey: ValkeyProcess) -> None:
    assert ended_by(None, valkey, store_goes=False) == ""
    assert trio.run(left_by_runs, valkey.url) == []


def test_who_interrupts_the_removal_too_is_told_that_something_is_left(
    valkey: ValkeyProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "remove_run", interrupted)
    for ending in (None, KeyboardInterrupt(), JobError("The target is gone.")):
        with pytest.raises(Interrupted, match=r"^Interrupted; .* \(its removal was interrupted\): remove it"):
            ended_by(ending, valkey, store_goes=False)


def replay_that(does: Callable[[str], None], url: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    """The command, with this in the place of what Spark does."""

    @contextmanager
    def no_session(*_: object) -> Iterator[None]:
        yield None

    monkeypatch.setattr(runs, "spark_session", no_session)
    monkeypatch.setattr(job, "silence", lambda session: None)
    monkeypatch.setattr(runs, "_check_services", lambda options: None)
    monkeypatch.setattr(plan, "new_run_id", lambda: RUN)
    monkeypatch.setattr(runs, "run_in", lambda session, work: does(url))
    trace = write_trace(directory / "trace")
    asked = ("--target", "pulsar://127.0.0.1:6650", "--store", url, "--out", str(directory / "out"), "--json")
    return CliRunner().invoke(app, ["replay", str(trace), *asked])


def test_the_command_does_not_say_removed_of_what_is_left(
    fresh_valkey: ValkeyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_stop(url: str) -> None:
        trio.run(write, url)
        fresh_valkey.close()
        raise KeyboardInterrupt

    result = replay_that(write_and_stop, fresh_valkey.url, tmp_path, monkeypatch)
    assert result.exit_code == 130
    assert result.stderr.startswith(f"vela: Interrupted; what run {RUN} has written may still be in the store")
    assert result.stderr.endswith("with: vela trace replay --clean --store URL\n")
    assert "removed" not in result.stderr
    assert not (tmp_path / "out").exists()
