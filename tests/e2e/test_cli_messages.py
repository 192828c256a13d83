"""`vela produce` and `vela consume` as a user sees them: through splits and restarts of the server, until Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.vela_process import VELA, RunningCommand, VelaServer, environment, run_vela
from tests.support.ports import HOST, ReservedPort
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

# A command takes a second to start, and longer on a busy machine.
WITHIN = 30.0


def produce(server: VelaServer, topic: str, *arguments: str) -> list[str]:
    """The lines that say where the messages were stored."""
    outcome = run_vela("produce", topic, *arguments, variables=server.for_clients)
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out.splitlines()


def consuming(directory: Path, server: VelaServer, topic: str, *flags: str) -> RunningCommand:
    return RunningCommand(
        directory / "consume",
        ["consume", topic, "-s", "mine", "--from", "earliest", "--json", *flags],
        server.for_clients,
    )


def values(command: RunningCommand) -> list[str]:
    return [json.loads(line)["value"] for line in command.lines]


def until_values(command: RunningCommand, count: int) -> list[str]:
    wait_until(lambda: len(command.lines) >= count or not command.running, WITHIN)
    assert command.running, command.err
    return values(command)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("kind", ["--queue", "--stream"])
def test_messages_come_through_a_split_and_ctrl_c_acknowledges_them(
    tmp_path: Path, server: VelaServer, topic: str, kind: str, number: signal.Signals, code: int
) -> None:
    server.create(topic)
    produce(server, topic, "1", "2", "--key", "k")
    with consuming(tmp_path, server, topic, kind) as command:
        assert until_values(command, 2) == ["1", "2"]
        server.split(topic, 0)
        produce(server, topic, "3", "4", "--key", "k")
        assert until_values(command, 4) == ["1", "2", "3", "4"]
        command.signal(number)
        outcome = command.wait()
    assert (outcome.code, outcome.err) == (code, "")
    produce(server, topic, "5", "--key", "k")
    # It has left for good, so that its segments are free at once.
    again = run_vela("consume", topic, "-s", "mine", kind, "--timeout", "2s", variables=server.for_clients)
    assert (again.code, again.err, [line.split()[-1] for line in again.out.splitlines()]) == (0, "", ["5"])


def test_lines_of_standard_input_are_stored_as_they_come(server: VelaServer, topic: str) -> None:
    command = subprocess.Popen(
        [VELA, "produce", topic, "--stdin", "--separator", ":"],
        env=environment(server.for_clients),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdin is not None
    assert command.stdout is not None
    for line in ("a:1", "b:2"):
        command.stdin.write(f"{line}\n")
        command.stdin.flush()
        # The next line is only typed when this one is stored.
        assert command.stdout.readline().endswith(f"[{line[0]}]\n")
    _, errors = command.communicate(timeout=WITHIN)
    assert (command.returncode, errors) == (0, "")


def test_ctrl_c_ends_a_producer_that_waits_for_input(server: VelaServer, topic: str) -> None:
    command = subprocess.Popen(
        [VELA, "produce", topic, "--stdin"],
        env=environment(server.for_clients),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdin is not None
    assert command.stdout is not None
    command.stdin.write("one\n")
    command.stdin.flush()
    assert command.stdout.readline().endswith("0000-ffff-0\n")
    command.send_signal(signal.SIGINT)
    assert command.wait(WITHIN) == 130
    assert command.stderr is not None
    assert command.stderr.read() == ""
    command.stdin.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_of_the_server_is_only_a_pause(tmp_path: Path, number: signal.Signals) -> None:
    port = ReservedPort()
    flags = ("--listen", f"{HOST}:{port.number}")
    try:
        with VelaServer.start(tmp_path, *flags) as server:
            produce(server, "orders", "before")
            with consuming(tmp_path, server, "orders") as command:
                assert until_values(command, 1) == ["before"]
                server.signal(number)
                server.wait()
                with VelaServer.start(tmp_path, *flags) as successor:
                    produce(successor, "orders", "after")
                    wait_until(lambda: "after" in values(command) or not command.running, WITHIN)
                    assert command.running, command.err
                    assert "vela: lost the connection to" in command.err
                    assert "again" in command.err
    finally:
        port.release()


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_subscription_created_without_a_type_is_what_its_first_consumer_wants(
    server: VelaServer, topic: str, kind: str
) -> None:
    def listed() -> str | None:
        outcome = run_vela("subscriptions", "list", topic, "--json", variables=server.for_clients)
        found: str | None = json.loads(outcome.out)["mine"]["type"]
        return found

    server.create(topic)
    made = run_vela("subscriptions", "create", topic, "mine", variables=server.for_clients)
    assert (made.code, made.err, listed()) == (0, "", None)
    produce(server, topic, "1", "2", "--key", "k")
    taken = run_vela(
        "consume", topic, "-s", "mine", f"--{kind}", "--count", "2", "--timeout", "10s", variables=server.for_clients
    )
    assert (taken.code, taken.err, [line.split()[-1] for line in taken.out.splitlines()]) == (0, "", ["1", "2"])
    assert listed() == kind.upper()
