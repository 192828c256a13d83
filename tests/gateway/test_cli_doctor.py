"""`vela doctor` on real stores, good and bad, and on what answers at the server's ports."""

import json
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from gateway.cli import server_checks
from gateway.cli.findings import Finding, Status
from metadata.embedded import EmbeddedValkey
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from tests.gateway.vela_command import Outcome, admin_stub, closed_port, vela
from tests.support.valkeys import Standalone, start_cluster, start_replicated, start_standalone


@pytest.fixture
def store() -> Iterator[Standalone]:
    with start_standalone(notify_keyspace_events="Kt", appendonly="yes") as standalone:
        yield standalone


def findings(outcome: Outcome) -> dict[str, tuple[str, str, str]]:
    entries = [json.loads(line) for line in outcome.out.splitlines()]
    return {entry["check"]: (entry["status"], entry["seen"], entry["advice"]) for entry in entries}


def doctor(*arguments: str, **variables: str) -> Outcome:
    nowhere = f"127.0.0.1:{closed_port()}"
    urls = {"VELA_ADMIN_URL": f"http://{nowhere}", "VELA_SERVICE_URL": f"pulsar://{nowhere}"}
    return vela("doctor", "--json", *arguments, **(urls | variables))


def test_a_good_store_passes_every_check_and_keeps_no_trace(store: Standalone) -> None:
    outcome = doctor("--store", store.url)
    found = findings(outcome)
    assert outcome.code == 0
    checks = ("reachable", "role", "version", "memory", "persistence")
    for check in (*(f"store {name}" for name in checks), "eviction policy", "clock", "notifications"):
        assert found[check][0] == "ok", found[check]
    assert store.server.client().dbsize() == 0


def test_notifications_are_judged_by_what_arrives(store: Standalone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.cli.store_checks._BELL_PATIENCE", 0.2)
    store.server.client().config_set("notify-keyspace-events", "KE$")
    outcome = doctor("--store", store.url)
    status, seen, advice = findings(outcome)["notifications"]
    assert status == "warn"
    assert "did not announce a write" in seen
    assert "Kt" in advice
    assert outcome.code == 0


def test_a_store_that_evicts_fails(store: Standalone) -> None:
    store.server.client().config_set("maxmemory-policy", "allkeys-lru")
    outcome = doctor("--store", store.url)
    status, seen, advice = findings(outcome)["eviction policy"]
    assert outcome.code == 1
    assert (status, "allkeys-lru" in seen, "noeviction" in advice) == ("fail", True, True)


def test_a_store_without_a_file_or_short_of_memory_warns(store: Standalone) -> None:
    client = store.server.client()
    client.config_set("appendonly", "no")
    client.config_set("maxmemory", "100")
    found = findings(doctor("--store", store.url))
    assert found["store persistence"][0] == "warn"
    assert found["store memory"][0] == "warn"


def test_a_command_that_the_user_may_not_run_is_named(store: Standalone) -> None:
    store.server.command("ACL", "SETUSER", "poor", "on", ">pw", "~*", "&*", "+@all", "-xadd")
    outcome = doctor("--store", store.url.replace("redis://", "redis://poor:pw@"))
    status, seen, _ = findings(outcome)["notifications"]
    assert status == "fail"
    assert "xadd" in seen
    assert "pw" not in seen


def test_wrong_credentials_are_told_apart_from_a_dead_store(store: Standalone) -> None:
    wrong = findings(doctor("--store", store.url.replace("redis://", "redis://nobody:s3cret@")))
    assert wrong["store reachable"][0] == "fail"
    assert "user and password" in wrong["store reachable"][2]
    dead = doctor("--store", f"redis://:s3cret@127.0.0.1:{closed_port()}/0")
    assert findings(dead)["store reachable"][0] == "fail"
    assert "start it" in findings(dead)["store reachable"][2]
    assert "s3cret" not in dead.out + dead.err


def test_a_silent_store_is_given_up_after_the_connect_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        outcome = doctor("--store", url, VELA_STORE_CONNECT_TIMEOUT="100ms")
    assert outcome.code == 1
    assert findings(outcome)["store reachable"][0] == "fail"


def test_a_store_url_that_makes_no_sense_fails_with_its_origin() -> None:
    outcome = doctor(VELA_STORE="redis://h:1/0?flavour=mint")
    status, seen, advice = findings(outcome)["store URL"]
    assert (outcome.code, status) == (1, "fail")
    assert "flavour" in seen
    assert advice == "correct the environment VELA_STORE"


@pytest.mark.slow
def test_a_replica_fails_and_is_not_written_to() -> None:
    with start_replicated() as replicated:
        replica = next(server for server in replicated.servers if server not in replicated.primaries())
        outcome = doctor("--store", replica.url)
    found = findings(outcome)
    assert found["store role"][0] == "fail"
    assert "notifications" not in found


@pytest.mark.slow
def test_every_primary_of_a_cluster_is_checked() -> None:
    with start_cluster(notify_keyspace_events="Kt") as cluster:
        outcome = doctor("--store", cluster.url)
        ports = {str(primary.port) for primary in cluster.primaries()}
    rung = [json.loads(line) for line in outcome.out.splitlines() if '"notifications"' in line]
    assert [entry["status"] for entry in rung] == ["ok", "ok", "ok"]
    assert {re.findall(r":(\d+) announced", entry["seen"])[0] for entry in rung} == ports


def test_a_stopped_embedded_store_says_what_could_be_checked(tmp_path: Path) -> None:
    outcome = doctor("--data-dir", str(tmp_path / "deep" / "er"))
    found = findings(outcome)
    assert outcome.code == 0
    assert found["data directory"][0] == "ok"
    assert found["embedded store"][0] == "warn"
    assert "only its directory could be checked" in found["embedded store"][1]
    assert not (tmp_path / "deep").exists()


def test_a_running_embedded_store_is_checked_through_its_socket(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path):
        found = findings(doctor("--data-dir", str(tmp_path)))
    assert found["notifications"][0] == "ok"
    assert found["store persistence"][0] == "ok"
    # The socket file may outlive the server.
    (tmp_path / "valkey.sock").touch()
    assert findings(doctor("--data-dir", str(tmp_path)))["embedded store"][0] == "warn"


def test_a_data_directory_below_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = server_checks.check_data_dir(tmp_path / "file" / "data")
    assert finding.status is Status.FAIL
    assert "--data-dir" in finding.advice


def test_what_is_looked_at_is_said_first(tmp_path: Path) -> None:
    outcome = vela("doctor", "--data-dir", str(tmp_path), VELA_ADMIN_URL="http://127.0.0.1:1")
    first, *rest = outcome.out.splitlines()
    assert first == (
        "No store is named, so this is about the server at pulsar://127.0.0.1:6650 and http://127.0.0.1:1, "
        f"with its embedded store in {tmp_path}."
    )
    assert all(line.startswith(("ok    ", "warn  ", "fail  ", "      → ")) for line in rest)


def test_a_misspelt_variable_is_a_warning(tmp_path: Path) -> None:
    found = findings(doctor("--data-dir", str(tmp_path), VELA_KEEPALIVE="3s"))
    assert found["environment"][0] == "warn"
    assert "VELA_KEEPALIVE (did you mean VELA_KEEP_ALIVE?)" in found["environment"][1]


def test_too_few_open_files_warn_with_the_command_that_helps() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert server_checks.check_open_files(1).status is Status.OK
    finding = server_checks.check_open_files(soft)
    assert finding.status is Status.WARN
    assert f"ulimit -n {soft + server_checks.SPARE_FILES}" in finding.advice


def test_readiness_passes_on_the_servers_reason() -> None:
    with admin_stub() as admin:
        admin.answer("GET", "/readyz", 503, {"ready": False, "reason": "the store is away"})
        finding = server_checks.check_readiness(admin.url)
        assert finding.status is Status.FAIL
        assert "the store is away" in finding.seen
        admin.answer("GET", "/readyz", 200, {"ready": True})
        assert server_checks.check_readiness(admin.url).status is Status.OK
    assert server_checks.check_readiness(f"http://127.0.0.1:{closed_port()}").status is Status.WARN


def answering(reply: bytes) -> Finding:
    """What the check makes of a server that says just this."""

    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(65_536)
            peer.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve, args=(listener,))
        thread.start()
        finding = server_checks.check_binary_port(f"pulsar://127.0.0.1:{listener.getsockname()[1]}", 5.0)
        thread.join()
    return finding


def test_the_binary_port_is_judged_by_a_handshake() -> None:
    hello = api.CommandConnected(server_version="Vela 0.1.0", protocol_version=21)
    good = answering(encode(api.BaseCommand(type=api.BaseCommand.CONNECTED, connected=hello)))
    assert good.status is Status.OK
    assert good.seen.endswith("answers as Vela 0.1.0")
    for reply in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x00\x00"):
        assert answering(reply).status is Status.FAIL
    assert server_checks.check_binary_port(f"pulsar://127.0.0.1:{closed_port()}", 5.0).status is Status.WARN
    assert server_checks.check_binary_port("http://x", 5.0).status is Status.FAIL
    assert server_checks.check_binary_port("pulsar://127.0.0.1:99999", 5.0).status is Status.FAIL
    with socket.create_server(("127.0.0.1", 0)) as silent:
        finding = server_checks.check_binary_port(f"pulsar://127.0.0.1:{silent.getsockname()[1]}", 0.1)
    assert finding.status is Status.FAIL
