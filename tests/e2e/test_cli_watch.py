"""`vela watch topic` as a user sees it: pushes as they come, through restarts of the server, until Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.vela_process import SCALABLE, VELA, RunningCommand, VelaServer, environment
from tests.support.ports import HOST, ReservedPort
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

# A command takes a second to start, and longer on a busy machine.
WITHIN = 30.0


@contextmanager
def watching(directory: Path, server: VelaServer, topic: str, *flags: str) -> Iterator[RunningCommand]:
    with RunningCommand(directory / "watch", ["watch", "topic", topic, *flags], server.for_clients) as command:
        yield command


def until_line(command: RunningCommand, text: str) -> str:
    """The first line with this text, once it is there."""

    def find() -> str | None:
        assert command.running, command.err
        return next((line for line in command.lines if text in line), None)

    line = wait_until(find, WITHIN)
    assert line is not None
    return line


def test_live_view_says_what_happened_until_ctrl_c(tmp_path: Path, server: VelaServer, topic: str) -> None:
    server.create(topic)
    with watching(tmp_path, server, topic) as command:
        assert f"1 active, 0 sealed  topic://public/default/{topic}" in until_line(command, "epoch 0")
        server.split(topic, 0)
        assert until_line(command, "epoch 1").endswith("2 active, 1 sealed  split 0 into 1, 2")
        server.split(topic, 2)
        until_line(command, "epoch 2")
        assert server.request("POST", f"{SCALABLE}/{topic}/merge/1/3").status_code == 204
        assert until_line(command, "epoch 3").endswith("merged 1, 3 into 5")
        wait_until(lambda: "c000-ffff" in command.lines[-1])
        assert command.lines[-1].split() == ["4", "c000-ffff", server.pulsar_url]
        command.signal(signal.SIGINT)
        outcome = command.wait()
    assert (outcome.code, outcome.err) == (130, "")


def test_json_is_one_object_per_push_and_line(tmp_path: Path, server: VelaServer, topic: str) -> None:
    with watching(tmp_path, server, topic, "--json", "--create") as command:
        for epoch in range(3):
            wait_until(lambda epoch=epoch: len(command.lines) == epoch + 1 or not command.running, WITHIN)  # type: ignore[misc]
            push = json.loads(command.lines[epoch])
            assert (push["epoch"], push["topic"]) == (epoch, f"topic://public/default/{topic}")
            active = [segment for segment in push["segments"] if segment["state"] == "ACTIVE"]
            assert {segment["brokerUrl"] for segment in active} == {server.pulsar_url}
            server.split(topic, active[-1]["segmentId"])


def test_reader_that_has_seen_enough_ends_it_without_a_word(server: VelaServer, topic: str) -> None:
    server.create(topic)
    reading, writing = os.pipe()
    with open(reading) as lines:
        command = subprocess.Popen(
            [VELA, "watch", "topic", topic, "--json"],
            env=environment(server.for_clients),
            stdout=writing,
            stderr=subprocess.PIPE,
        )
        os.close(writing)
        assert json.loads(lines.readline())["epoch"] == 0
    server.split(topic, 0)
    _, errors = command.communicate(timeout=WITHIN)
    assert (command.returncode, errors) == (1, b"")


def test_deletion_of_its_topic_ends_it_with_a_sentence(tmp_path: Path, server: VelaServer, topic: str) -> None:
    server.create(topic)
    with watching(tmp_path, server, topic) as command:
        until_line(command, "epoch 0")
        assert server.request("DELETE", f"{SCALABLE}/{topic}").status_code == 204
        outcome = command.wait()
    assert outcome.code == 1
    assert f"topic://public/default/{topic} was deleted" in outcome.sentence


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_restart_of_the_server_is_only_a_pause(tmp_path: Path, number: signal.Signals) -> None:
    port = ReservedPort()
    flags = ("--listen", f"{HOST}:{port.number}")
    try:
        with VelaServer.start(tmp_path, *flags) as server:
            server.create("orders")
            with watching(tmp_path, server, "orders") as command:
                until_line(command, "epoch 0")
                server.signal(number)
                server.wait()
                with VelaServer.start(tmp_path, *flags) as successor:
                    successor.split("orders", 0)
                    until_line(command, "epoch 1")
                    successor.split("orders", 1)
                    until_line(command, "epoch 2")
                    # The state that it knew already was not told again.
                    assert len([line for line in command.lines if "epoch" in line]) == 3
                    assert command.running
                    assert command.err.splitlines() == [
                        f"vela: lost the connection to {server.pulsar_url}, trying again",
                        f"vela: connected to {server.pulsar_url} again",
                    ]
    finally:
        port.release()
