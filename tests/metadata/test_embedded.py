import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
import trio
import trio.testing

from metadata import embedded
from metadata.embedded import DataDirBusy, EmbeddedStartFailed, EmbeddedValkey, start_guard
from metadata.errors import StoreError
from tests.support.processes import is_alive
from tests.support.waiting import wait_until

# Starts a store, prints the process number of the server and then does nothing until it is killed.
OWNER = """
import sys, time
from pathlib import Path
from metadata.embedded import EmbeddedValkey
store = EmbeddedValkey(Path(sys.argv[1]))
store.start()
print(store.pid, flush=True)
time.sleep(60)
"""


def client_of(store: EmbeddedValkey) -> redis.Redis:
    # The library gives up after five seconds by itself, of which a script on a busy machine may need more.
    return redis.Redis(connection_pool=redis.ConnectionPool.from_url(store.url, socket_timeout=60))


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.3)
        probe.connect(str(path))
        probe.sendall(b"PING\r\n")
        try:
            return probe.recv(64) == b"+PONG\r\n"
        except TimeoutError:
            return False


@contextmanager
def owner_process(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A Python process that owns a store on `data_dir`, and the number of its server process."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(data_dir)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        try:
            assert owner.stdout is not None
            yield owner, int(owner.stdout.readline())
        finally:
            owner.kill()


def test_data_is_there_after_stop_and_start(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path / "data") as store:
        client_of(store).set("a", "1")
        first = store.url
    with EmbeddedValkey(tmp_path / "data") as store:
        assert client_of(store).get("a") == b"1"
        assert store.url == first


def test_same_object_can_be_started_again(tmp_path: Path) -> None:
    store = EmbeddedValkey(tmp_path)
    for number in range(2):
        store.start()
        assert client_of(store).incr("starts") == number + 1
        store.stop()


def test_configuration_is_what_a_store_needs(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as store:
        client = client_of(store)
        for name, value in {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "port": "0",
            "save": "",
        }.items():
            assert client.config_get(name) == {name: value}
        assert set(str(client.config_get("notify-keyspace-events")["notify-keyspace-events"])) == set("Kt")


def test_directory_socket_and_files_are_for_this_user_only(tmp_path: Path) -> None:
    data_dir = tmp_path / "new"
    with EmbeddedValkey(data_dir) as store:
        client_of(store).set("a", "1")
        assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
        entries = list(data_dir.rglob("*"))
        assert any(entry.is_socket() for entry in entries)
        for entry in entries:
            assert stat.S_IMODE(entry.stat().st_mode) & 0o077 == 0, entry


def test_second_store_on_the_directory_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as store:
        client_of(store).set("a", "1")
        with pytest.raises(DataDirBusy) as caught:
            EmbeddedValkey(tmp_path).start()
        assert str(caught.value) == (
            f"another Vela is using {tmp_path}, pid {os.getpid()}: stop it or choose another --data-dir"
        )
        assert isinstance(caught.value, StoreError)
        assert client_of(store).get("a") == b"1"


@pytest.mark.slow
def test_killed_owner_leaves_no_server_and_no_lock(tmp_path: Path) -> None:
    with owner_process(tmp_path) as (owner, server):
        assert is_alive(server)
        owner.kill()
        owner.wait()
        wait_until(lambda: not is_alive(server))
    with EmbeddedValkey(tmp_path) as store:
        assert client_of(store).ping()


@pytest.mark.slow
def test_lock_outlives_a_killed_owner_until_its_server_is_gone(tmp_path: Path) -> None:
    with owner_process(tmp_path) as (owner, server), socket.socket(socket.AF_UNIX) as busy:
        # While it runs a script the server cannot obey the signal that its owner's death sends it.
        busy.connect(str(tmp_path / embedded.SOCKET_NAME))
        busy.sendall(b"EVAL 'while true do end' 0\r\n")
        wait_until(lambda: not answers(tmp_path / embedded.SOCKET_NAME))
        owner.kill()
        owner.wait()
        with pytest.raises(DataDirBusy, match=f"pid {owner.pid}"):
            EmbeddedValkey(tmp_path, start_limit=0.3).start()
        assert is_alive(server)
        # A dead owner's server will be gone soon: a start waits for that instead of giving up.
        threading.Timer(0.2, os.kill, (server, signal.SIGKILL)).start()
        with EmbeddedValkey(tmp_path) as store:
            assert not is_alive(server)
            assert client_of(store).ping()


@pytest.mark.slow
def test_ctrl_c_in_the_terminal_does_not_reach_the_server(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as store:
        assert os.getpgid(store.pid) != os.getpgid(0)


@pytest.mark.slow
def test_guard_ends_the_server_once_its_owner_is_gone() -> None:
    script = (
        "import subprocess, time; from metadata.embedded import start_guard\n"
        "server = subprocess.Popen(['sleep', '60']); guard = start_guard(server.pid)\n"
        "print(server.pid, guard.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        server, guard = (int(pid) for pid in owner.stdout.readline().split())
        assert is_alive(server)
        owner.kill()
    wait_until(lambda: not is_alive(server) and not is_alive(guard))


def test_dismissed_guard_ends_nothing() -> None:
    with subprocess.Popen(["sleep", "60"]) as server:
        guard = start_guard(server.pid)
        guard.kill()
        guard.communicate()
        assert server.poll() is None
        server.kill()


@pytest.mark.parametrize("name", ["d" * 40, "with space ü%2F?#", "quote'\"\\"])
def test_deep_and_odd_directories_work(tmp_path: Path, name: str) -> None:
    data_dir = tmp_path.joinpath(*[name] * 5)
    with EmbeddedValkey(data_dir) as store:
        assert client_of(store).set("a", "1")
        assert (data_dir / embedded.SOCKET_NAME).is_socket()
        reached = Path(client_of(store).connection_pool.connection_kwargs["path"])
        assert len(os.fsencode(reached)) <= embedded.SOCKET_PATH_LIMIT
    assert not reached.exists()


def test_relative_directory_survives_a_change_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with EmbeddedValkey(Path("data")) as store:
        monkeypatch.chdir("/")
        assert client_of(store).ping()


def test_path_below_a_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedStartFailed, match=r"cannot keep data in .*/file/data .*choose another --data-dir"):
        EmbeddedValkey(tmp_path / "file" / "data").start()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_directory_is_refused_with_what_to_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(EmbeddedStartFailed, match=r"Permission denied.*choose another --data-dir"):
        EmbeddedValkey(tmp_path).start()


def test_corrupt_append_only_file_is_quoted_from_the_log_and_frees_the_directory(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as store:
        client_of(store).set("a", "1")
    (increment,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    good = increment.read_bytes()
    increment.write_bytes(b"*3\r\ngarbage\r\n" + good)
    with pytest.raises(EmbeddedStartFailed, match="Bad file format reading the append only file") as caught:
        EmbeddedValkey(tmp_path).start()
    assert str(tmp_path / embedded.LOG_NAME) in str(caught.value)
    increment.write_bytes(good)
    with EmbeddedValkey(tmp_path) as store:
        assert client_of(store).get("a") == b"1"


def test_start_that_takes_too_long_is_given_up_and_leaves_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SERVER_OPTIONS", (*embedded.SERVER_OPTIONS, "--unixsocket", "elsewhere"))
    store = EmbeddedValkey(tmp_path, start_limit=0.3)
    with pytest.raises(EmbeddedStartFailed, match=r"did not answer within 0\.3 s: "):
        store.start()
    monkeypatch.undo()
    with EmbeddedValkey(tmp_path) as store:
        assert client_of(store).ping()


@pytest.mark.slow
def test_start_waits_until_the_data_is_loaded(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as store:
        client_of(store).eval("for i = 1, 200000 do redis.call('SET', i, 'x') end", 0)
    with EmbeddedValkey(tmp_path) as store:
        assert client_of(store).dbsize() == 200_000


def test_stop_ends_a_server_that_does_not_react(tmp_path: Path) -> None:
    store = EmbeddedValkey(tmp_path)
    store.start()
    pid = store.pid
    os.kill(pid, signal.SIGSTOP)
    store.stop(timeout=0.1)
    assert not is_alive(pid)


def test_large_log_is_put_aside_at_start(tmp_path: Path) -> None:
    (tmp_path / embedded.LOG_NAME).write_bytes(b"old\n" * embedded.LOG_LIMIT)
    with EmbeddedValkey(tmp_path) as store:
        assert store.log_path.stat().st_size < embedded.LOG_LIMIT
        assert (tmp_path / f"{embedded.LOG_NAME}.1").stat().st_size == 4 * embedded.LOG_LIMIT


def test_refused_second_store_leaves_the_log_of_the_first_alone(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as store:
        store.log_path.write_bytes(b"x" * (embedded.LOG_LIMIT + 1))
        with pytest.raises(DataDirBusy):
            EmbeddedValkey(tmp_path).start()
        assert store.log_path.stat().st_size > embedded.LOG_LIMIT


def test_server_that_cannot_be_run_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "valkey-server"
    binary.write_text("")
    monkeypatch.setattr(embedded, "server_binary", lambda: binary)
    with pytest.raises(EmbeddedStartFailed, match=r"cannot run .*/valkey-server .*--store"):
        EmbeddedValkey(tmp_path / "data").start()
    monkeypatch.undo()
    with EmbeddedValkey(tmp_path / "data") as store:
        assert client_of(store).ping()


def test_store_is_only_started_from_the_main_thread(tmp_path: Path) -> None:
    async def start() -> None:
        await trio.to_thread.run_sync(EmbeddedValkey(tmp_path).start)

    with pytest.raises(RuntimeError, match="main thread"):
        trio.run(start)


async def test_killed_server_is_noticed_and_restarts_on_the_same_address_with_its_data(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as store:
        client_of(store).set("a", "1")
        address, pid = store.url, store.pid
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                ended: list[int] = []

                async def notice() -> None:
                    ended.append(await store.wait())

                nursery.start_soon(notice)
                await trio.testing.wait_all_tasks_blocked()
                os.kill(pid, signal.SIGKILL)
        assert ended == [-signal.SIGKILL]
        assert store.poll() == -signal.SIGKILL
        await store.restart()
        assert store.poll() is None
        assert store.pid != pid
        assert store.url == address
        assert client_of(store).get("a") == b"1"
        with pytest.raises(DataDirBusy):
            EmbeddedValkey(tmp_path).start()


async def test_failed_restart_can_be_repeated(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as store:
        client_of(store).set("a", "1")
        os.kill(store.pid, signal.SIGKILL)
        await store.wait()
        (increment,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
        good = increment.read_bytes()
        increment.write_bytes(b"garbage\r\n" + good)
        with pytest.raises(EmbeddedStartFailed):
            await store.restart()
        increment.write_bytes(good)
        await store.restart()
        assert client_of(store).get("a") == b"1"


async def test_running_server_is_not_started_twice(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path) as store:
        with pytest.raises(RuntimeError, match="still running"):
            await store.restart()
        with pytest.raises(RuntimeError, match="started already"):
            store.start()
