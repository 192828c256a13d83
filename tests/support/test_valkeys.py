import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
import trio

from tests.conftest import Stores
from tests.support.clusters import Cluster, slot_of
from tests.support.processes import ValkeyProcess, is_alive
from tests.support.replicated import Replicated
from tests.support.valkeys import Topology
from tests.support.waiting import Never, eventually, wait_until


def test_each_topology_can_be_written_and_is_emptied(topology: Topology) -> None:
    keys = [f"key{number}" for number in range(50)]
    for key in keys:
        topology.client_for(key).set(key, key)
    assert all(topology.client_for(key).get(key) == key.encode() for key in keys)
    assert len(topology.primaries()) == (3 if topology.kind == "cluster" else 1)
    topology.flush()
    assert all(server.client().dbsize() == 0 for server in topology.primaries())


def test_a_shared_server_comes_back_with_its_first_configuration(stores: Stores) -> None:
    server = stores.clean("standalone").primaries()[0]
    before = server.client().config_get("notify-keyspace-events")
    server.client().config_set("notify-keyspace-events", "KEA")
    server.client().config_set("maxmemory", "10mb")
    assert stores.clean("standalone").primaries()[0] is server
    assert server.client().config_get("notify-keyspace-events") == before
    assert server.client().config_get("maxmemory") == {"maxmemory": "0"}


def test_a_disturbed_server_is_replaced(stores: Stores) -> None:
    server = stores.clean("standalone").primaries()[0]
    server.kill()
    replacement = stores.clean("standalone").primaries()[0]
    assert replacement is not server
    assert replacement.client().ping()


def test_killed_server_comes_back_on_its_port_with_its_data(fresh_valkey: ValkeyProcess) -> None:
    fresh_valkey.client().set("a", "1")
    port = fresh_valkey.port
    fresh_valkey.kill()
    with pytest.raises(redis.ConnectionError):
        fresh_valkey.client().ping()
    fresh_valkey.restart()
    assert fresh_valkey.port == port
    assert fresh_valkey.client().get("a") == b"1"


def test_paused_server_accepts_and_stays_silent(fresh_valkey: ValkeyProcess) -> None:
    fresh_valkey.pause()
    with socket.create_connection(fresh_valkey.address) as connection:
        connection.settimeout(0.2)
        connection.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(64)
        fresh_valkey.resume()
        connection.settimeout(5)
        assert connection.recv(64) == b"+PONG\r\n"


def test_options_reach_the_server_and_both_addresses_work() -> None:
    with ValkeyProcess(maxmemory="4mb", requirepass="").start() as server:
        assert server.client().config_get("maxmemory") == {"maxmemory": str(4 * 2**20)}
        assert redis.Redis.from_url(server.url).ping()
        assert redis.Redis.from_url(server.unix_url).ping()


async def test_servers_may_be_started_from_a_worker_thread() -> None:
    server = ValkeyProcess()
    try:
        await trio.to_thread.run_sync(server.start)
        assert server.client().ping()
    finally:
        server.close()


@pytest.mark.slow
def test_servers_die_with_a_killed_test_process(tmp_path: Path) -> None:
    script = (
        "import time; from tests.support.processes import ValkeyProcess\n"
        "print(ValkeyProcess().start().pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_alive(pid))


def test_promotion_swaps_the_roles_and_sentinel_tells(fresh_replicated: Replicated) -> None:
    old, new = fresh_replicated.primary, fresh_replicated.replica
    old.client().set("a", "1")
    assert old.client().wait(1, 5000) == 1
    fresh_replicated.promote()
    assert (fresh_replicated.primary, fresh_replicated.replica) == (new, old)
    assert fresh_replicated.announced_port() == new.port
    assert new.client().get("a") == b"1"
    assert new.info("replication")["connected_slaves"] == 1


def test_fail_over_loses_what_was_written_after_replication_was_cut(fresh_replicated: Replicated) -> None:
    client = fresh_replicated.primary.client()
    client.set("kept", "1")
    assert client.wait(1, 5000) == 1
    fresh_replicated.cut_replication()
    client.set("lost", "1")
    fresh_replicated.fail_over()
    survivor = fresh_replicated.primary.client()
    assert survivor.get("kept") == b"1"
    assert survivor.get("lost") is None
    survivor.set("new", "1")
    fresh_replicated.rejoin()
    assert fresh_replicated.replica.client().mget("kept", "lost", "new") == [b"1", None, b"1"]


def test_replication_can_be_restored(fresh_replicated: Replicated) -> None:
    fresh_replicated.cut_replication()
    fresh_replicated.primary.client().set("a", "1")
    fresh_replicated.restore_replication()
    wait_until(lambda: fresh_replicated.replica.client().get("a") == b"1")


def answer_of(ask: Callable[[], object]) -> str:
    """The name of the error, as the cluster sends it."""
    with pytest.raises(redis.ResponseError) as caught:
        ask()
    return type(caught.value).__name__


@pytest.mark.parametrize("topology", ["cluster"], indirect=True)
def test_open_slot_move_answers_ask_and_tryagain_and_then_moved(topology: Topology) -> None:
    assert isinstance(topology, Cluster)
    for number in range(4):
        topology.client_for("{a}").set(f"{{a}}{number}", number)
    source, target = topology.owner_of("{a}"), topology.add_primary()
    move = topology.begin_move(slot_of("{a}"), target)
    move.migrate(b"{a}0", b"{a}1")
    assert move.keys() == [b"{a}2", b"{a}3"]
    assert answer_of(lambda: source.client().get("{a}0")) == "AskError"
    assert answer_of(lambda: source.client().mget("{a}0", "{a}2")) == "TryAgainError"
    assert source.client().get("{a}2") == b"2"
    move.migrate()
    move.finish()
    assert answer_of(lambda: source.client().get("{a}0")) == "MovedError"
    assert topology.owner_of("{a}") is target
    assert target.client().mget([f"{{a}}{number}" for number in range(4)]) == [b"0", b"1", b"2", b"3"]


def test_killed_shard_fails_over_and_loses_what_was_not_replicated(fresh_cluster: Cluster) -> None:
    primary = fresh_cluster.owner_of("{a}")
    primary.client().set("{a}kept", "1")
    assert primary.client().wait(1, 5000) == 1
    fresh_cluster.cut_replication(primary)
    primary.client().set("{a}lost", "1")
    successor = fresh_cluster.fail_over(primary)
    assert fresh_cluster.owner_of("{a}") is successor
    assert fresh_cluster.client_for("{a}").get("{a}kept") == b"1"
    assert fresh_cluster.client_for("{a}").get("{a}lost") is None


def test_agreed_fail_over_keeps_everything_and_the_old_primary_follows(fresh_cluster: Cluster) -> None:
    primary = fresh_cluster.owner_of("{a}")
    primary.client().set("{a}", "1")
    successor = fresh_cluster.fail_over(primary, kill=False)
    assert successor.client().get("{a}") == b"1"
    wait_until(lambda: fresh_cluster.replicas_of(successor) == [primary])


async def test_eventually_returns_the_first_true_value() -> None:
    values = iter([0, 0, 3])
    assert await eventually(lambda: next(values)) == 3


async def test_eventually_takes_async_predicates_and_assertions_as_not_yet() -> None:
    values = iter([1, 2, 3])

    async def reached() -> bool:
        await trio.lowlevel.checkpoint()
        assert next(values) == 3
        return True

    assert await eventually(reached)


async def test_eventually_gives_up_with_what_it_waited_for() -> None:
    nothing_happens = False
    with pytest.raises(Never, match="nothing_happens"):
        await eventually(lambda: nothing_happens, within=0.05)
